# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job templates for AWX name playbooks and variables that exist, and surveys that AWX accepts. The play of docs/operating.md loads them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.known_variables import (
    VARIABLES,
    refuse_unknown_variables,
)
from devkit.agent import ROOT

# Parameters of awx.awx.job_template that have to do with these templates. Source: argument_spec in awx_collection/plugins/modules/job_template.py of
# github.com/ansible/awx, release 24. Its aliases are left out: the role controller_job_templates of infra.aap_configuration ignores them.
PARAMETERS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "description": {"type": "str"},
    "job_type": {"type": "str", "choices": ["run", "check"]},
    "organization": {"type": "str"},
    "inventory": {"type": "str"},
    "project": {"type": "str"},
    "playbook": {"type": "str"},
    "credentials": {"type": "list", "elements": "str"},
    "execution_environment": {"type": "str"},
    "extra_vars": {"type": "dict"},
    "limit": {"type": "str"},
    "verbosity": {"type": "int"},
    "ask_job_type_on_launch": {"type": "bool"},
    "ask_limit_on_launch": {"type": "bool"},
    "ask_variables_on_launch": {"type": "bool"},
    "survey_enabled": {"type": "bool"},
    "survey_spec": {"type": "dict"},
    "allow_simultaneous": {"type": "bool"},
    "labels": {"type": "list", "elements": "str"},
}
BY = "{{ awx_user_name | default(tower_user_name) }}"
# A module that takes these parameters and no others, and writes what it gets.
STAND_IN = """
import json
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec=json.loads(%r))
given = {name: value for name, value in module.params.items() if value is not None}
with open(%r, "a") as file:
    file.write(json.dumps(given) + "\\n")
module.exit_json(changed=True)
"""

TEMPLATES: list[dict[str, Any]] = DataLoader().load_from_file(str(ROOT / "docs/awx.yml"))["controller_templates"]


def questions(template: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = template.get("survey_spec", {}).get("spec", [])
    return found


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: str(one["name"]))
def test_a_template_runs_a_playbook_with_its_variables(template: dict[str, Any]) -> None:
    playbook = ROOT / template["playbook"]
    usage = playbook.read_text().partition("- name:")[0]
    given = template["extra_vars"]
    # A text from a survey that is no variable of the playbook makes one of them.
    asked = {one["variable"] for one in questions(template)} - {"arguments"} | {*given} - {"by"}
    assert {"by", *asked} <= VARIABLES
    assert [name for name in asked if not re.search(rf"\b{name}(=|\": )", usage)] == []
    refuse_unknown_variables(playbook.stem, dict.fromkeys(asked, "x"))
    assert bool(template.get("survey_enabled")) is bool(asked)
    # It is AWX that fills it in.
    assert given["by"] == BY
    assert [name for name, value in given.items() if not value.startswith("{{")] == []


def test_two_jobs_may_work_on_a_rollout_and_leave_it_to_planner_services() -> None:
    (upgrade,) = (one for one in TEMPLATES if one["playbook"] == "playbooks/upgrade.yml")
    assert upgrade["allow_simultaneous"] is True
    (wait,) = (one for one in questions(upgrade) if one["variable"] == "wait")
    assert (wait["type"], wait["choices"], wait["default"]) == ("multiplechoice", ["true", "false"], "true")


def test_the_play_of_the_documentation_loads_every_template_as_it_is(tmp_path: Path) -> None:
    text = (ROOT / "docs/operating.md").read_text().partition("### AWX and Automation Controller")[2]
    found = re.search(r"```yaml\n(.*?)\n *```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "load.yml").write_text(textwrap.dedent(found[1]))
    (tmp_path / "awx.yml").write_text((ROOT / "docs/awx.yml").read_text())
    modules = tmp_path / "collections/ansible_collections/awx/awx/plugins/modules"
    modules.mkdir(parents=True)
    loaded = tmp_path / "loaded"
    (modules / "job_template.py").write_text(STAND_IN % (json.dumps(PARAMETERS), str(loaded)))
    environ = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "collections"), "ANSIBLE_LOCAL_TEMP": str(tmp_path)}
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-e", f"ansible_python_interpreter={sys.executable}", "load.yml"],
        cwd=tmp_path,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line) for line in loaded.read_text().splitlines()] == TEMPLATES


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: str(one["name"]))
def test_a_survey_is_one_of_awx(template: dict[str, Any]) -> None:
    for one in questions(template):
        assert {"question_name", "question_description", "variable", "type", "default"} <= set(one)
        # A name that AWX leaves empty would be refused, so it has to be answered.
        assert one["required"] is True
        assert one["type"] in ("text", "multiplechoice")
        if one["type"] == "multiplechoice":
            assert one["default"] in one["choices"]
        else:
            assert 0 < one["min"] < one["max"]


def test_the_commands_of_an_operator_are_there_once() -> None:
    names = [one["name"] for one in TEMPLATES]
    assert len(set(names)) == len(names)
    playbooks = {one["playbook"].removeprefix("playbooks/").removesuffix(".yml") for one in TEMPLATES}
    assert playbooks == {
        "status",
        "upgrade",
        "post_upgrade",
        "command",
        "approve",
        "pause",
        "resume",
        "abort",
        "rollback",
        "retry",
        "hold",
        "unhold",
    }
