# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which file of rules the playbooks give: without one, the module may read the default file; an empty one keeps it from that."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from devkit.agent import ROOT
from jinja2 import Environment

PLAYBOOKS = ROOT / "playbooks"
OMITTED = "__omitted__"


def given(**variables: str) -> str:
    """Return the file that a task gets with these variables of an operator."""
    shared = yaml.safe_load((PLAYBOOKS / "group_vars/all.yml").read_text())
    environment = Environment(autoescape=True)
    environment.filters["path_join"] = lambda parts: str(Path(*parts))
    template = environment.from_string(shared["upgrade_instructions_file"])
    return template.render(lookup=lambda *_given: "/home/ann", omit=OMITTED, **variables).strip()


def test_a_file_is_given_only_if_an_operator_gives_one() -> None:
    assert given() == OMITTED
    assert given(instructions_file="rules.yml") == "/home/ann/rules.yml"
    assert given(instructions_file="/etc/rules.yml") == "/etc/rules.yml"
    assert given(instructions_file="") == ""


def test_every_playbook_gives_what_is_decided_there_and_a_rollback_gives_none() -> None:
    texts = {path.name: path.read_text() for path in PLAYBOOKS.rglob("*.yml") if path.parent.name != "group_vars"}
    lines = [line.strip() for text in texts.values() for line in re.findall(r"^ *instructions_file: .*", text, re.M)]
    assert len(lines) > 5
    assert {*lines} == {
        'instructions_file: "{{ upgrade_instructions_file }}"',
        # What prepare.yml was given.
        'instructions_file: "{{ upgrade_run.rollout.instructions_file | default(omit) }}"',
    }
    # A fact of the play, which comes before the variables of the playbooks.
    assert 'upgrade_instructions_file: ""' in texts["rollback.yml"]
