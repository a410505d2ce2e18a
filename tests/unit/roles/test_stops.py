# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles that stop a service to replace its packages wait for the package manager while it still runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT


def steps(role: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each task of a role with its step."""
    for task in yaml.safe_load((ROOT / f"roles/{role}/tasks/upgrade_tasks.yml").read_text()):
        tags = task.get("tags", [])
        yield from ((tag, task) for tag in ([tags] if isinstance(tags, str) else tags))


def stops(task: dict[str, Any]) -> bool:
    """Return whether a task stops a unit."""
    modules = ("ansible.builtin.service", "ansible.builtin.systemd_service")
    return any(task.get(module, {}).get("state") == "stopped" for module in modules)


@pytest.mark.parametrize("role", ["package_service", "keystone", "nova_compute"])
def test_a_service_waits_for_the_package_manager_before_it_is_stopped(role: str) -> None:
    of_stop = [task for tag, task in steps(role) if tag == "stop"]
    at = next(number for number, task in enumerate(of_stop) if stops(task))
    assert any("download" in str(task) for task in of_stop[:at])
