# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On the planner host no task becomes root: under sudo, the variables of Consul and its token would be gone.

``become: false`` overrides the command line and ansible.cfg, and the variable ``ansible_become`` overrides the inventory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT

PLAYBOOKS = sorted([*(ROOT / "playbooks").glob("*.yml"), *(ROOT / "playbooks/internal").glob("*.yml")])
ROLES = sorted((ROOT / "roles").glob("*/tasks/**/*.yml"))
# Its play runs the operator's own tasks, which may become root.
HOOK = ROOT / "playbooks/internal/notification.yml"


def plays_on_the_planner_host(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the plays of a playbook whose tasks run where the planner is."""
    for play in yaml.safe_load(file.read_text()):
        hosts = play.get("hosts", "")
        if hosts.startswith(("{{ upgrade_planner_host", "localhost")) or "ternary(upgrade_planner," in hosts:
            yield play


def delegated_tasks(data: Any) -> Iterator[dict[str, Any]]:
    """Yield all tasks below a task, a block or a list of them that are delegated to the controller."""
    if isinstance(data, list):
        for one in data:
            yield from delegated_tasks(one)
    elif isinstance(data, dict):
        if data.get("delegate_to") == "localhost":
            yield data
        for key in ("block", "rescue", "always"):
            yield from delegated_tasks(data.get(key))


def becomes(one: dict[str, Any]) -> tuple[object, object]:
    return one.get("become"), one.get("vars", {}).get("ansible_become")


@pytest.mark.parametrize("file", [file for file in PLAYBOOKS if file != HOOK], ids=lambda file: file.stem)
def test_a_play_on_the_planner_host_does_not_become_root(file: Path) -> None:
    for play in plays_on_the_planner_host(file):
        assert becomes(play) == (False, False), play["name"]


def test_most_playbooks_have_such_a_play() -> None:
    assert sum(1 for file in PLAYBOOKS if any(plays_on_the_planner_host(file))) > len(PLAYBOOKS) / 2


def test_a_task_of_a_role_that_is_delegated_to_the_controller_does_not_become_root() -> None:
    found = [task for file in ROLES for task in delegated_tasks(yaml.safe_load(file.read_text()))]
    assert found
    for task in found:
        assert becomes(task) == (False, False), task["name"]
