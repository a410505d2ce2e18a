# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of operators as tasks, and reports of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from integration.support.fleets.fleet import names
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.playbook import Task

FLEET = names(controller=1, compute=3)

# For tests that are not about caps.
UNLIMITED: dict[str, Any] = {"rolling_rules": {"global": "unlimited"}}

RULES: dict[str, Any] = {"rolling_rules": {"global": 1}, "role_order": {"compute": "controller"}}


def control(action: str, **options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_control": {"action": action, **options}}


def upgrade(store: Store, *hosts: str, version: str = "2") -> None:
    for host in hosts:
        write_report(store, HostReport(host, version, "started"))
        write_report(store, HostReport(host, version, "upgraded"))


def fail(store: Store, host: str, error: str = "no disk", version: str = "2") -> None:
    write_report(store, HostReport(host, version, "started"))
    write_report(store, HostReport(host, version, "failed", error=error))


def cut_short(store: Store, at: int) -> None:
    """Let another operator be faster than a write of this store, the one with this number from now on."""
    count = 0

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        if count == at:
            set_holds(Store(store.settings), HoldTargets(roles=["web"], allow_unknown=True), "audit")
        return write(operations)

    around_writes(store, late)
