# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job templates for AWX name playbooks and variables that exist, and surveys that AWX accepts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.known_variables import (
    VARIABLES,
    refuse_unknown_variables,
)
from devkit.agent import ROOT

TEMPLATES: list[dict[str, Any]] = DataLoader().load_from_file(str(ROOT / "docs/awx.yml"))["controller_templates"]


def questions(template: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = template.get("survey_spec", {}).get("spec", [])
    return found


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: str(one["name"]))
def test_a_template_runs_a_playbook_with_its_variables(template: dict[str, Any]) -> None:
    playbook = ROOT / template["playbook"]
    assert playbook.is_file()
    usage = playbook.read_text().partition("- name:")[0]
    asked = [one["variable"] for one in questions(template)]
    assert {"by", *asked} <= VARIABLES
    assert [name for name in asked if f"{name}=" not in usage] == []
    refuse_unknown_variables(playbook.stem, dict.fromkeys(asked, "x"))
    # A name that AWX leaves empty would be refused, so it has to be answered.
    assert all(one["required"] for one in questions(template))
    assert bool(template.get("survey_enabled")) is bool(asked)
    # It is AWX that fills it in.
    assert template["extra_vars"] == {"by": "{{ awx_user_name | default(tower_user_name) }}"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: str(one["name"]))
def test_a_survey_is_one_of_awx(template: dict[str, Any]) -> None:
    for one in questions(template):
        assert {"question_name", "question_description", "variable", "type", "required", "default"} <= set(one)
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
        "approve",
        "pause",
        "resume",
        "abort",
        "rollback",
        "retry",
        "hold",
        "unhold",
    }
