# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a run is for: those that Ansible upgrades, in the order in which they go, and those that do it themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..module_utils._model.errors import UpgradeError
from ..module_utils._model.names import nearest, some
from ..module_utils._model.states import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING
from ._compose.steps import POST
from ._inventory import STAGES

_CONTROL = STAGES[0]


def scope_of(
    plan: Mapping[str, Any],
    upgrade_roles: Mapping[str, Any],
    composition: Mapping[str, Any],
    *,
    part: str = "all",
    role: str = "",
    limit: Collection[str] = (),
    retry_failed: bool = False,
) -> dict[str, Any]:
    """Return what the plays of a run need to know.

    :param plan: a result of ``consul_upgrade_plan``, in check mode.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param part: all, a stage, or role for one role alone.
    :param limit: hosts, roles and groups; empty for all.
    :param retry_failed: whether failed hosts are tried again.
    :returns: ``controlplane`` and ``dataplane``, the hosts to be driven in the order in which they go; ``waves``, the
        sizes of the control plane's; ``validate``, both together without those that have begun; ``stages``, all hosts
        of the run by stage, those that upgrade themselves too; ``before``, host -> the version that it reported.
    :raises UpgradeError: ``unknown_role``, ``control_plane_first``.
    """
    hosts: Mapping[str, Mapping[str, Any]] = plan["hosts"]
    roles = {view["role"] for view in hosts.values()}
    if part == "role" and role not in roles:
        raise UpgradeError(
            "unknown_role",
            f"role: no host has the role {role!r}{nearest(role, roles) or '.'} The roles are {some(sorted(roles), 10) or 'none'}.",
        )
    control = {name for name, what in upgrade_roles.items() if (what or {}).get("stage") == _CONTROL}
    wanted = [host for host, view in hosts.items() if _is_wanted(host, view, control, part, role, limit)]
    # What the plan would let through now has not begun yet.
    fresh = {one["host"] for one in plan["transitions"] if one["from"] == PENDING}
    if part == STAGES[1]:
        _refuse_early(hosts, control, fresh)
    open_to = {UPGRADED, HELD} | (set() if retry_failed else {FAILED, LOST})
    driven = [
        host for host in wanted if hosts[host]["role"] in composition["roles"] and hosts[host]["state"] not in open_to
    ]
    chosen = set(driven)
    begun = [host for host in driven if hosts[host]["state"] in (UPGRADING, FAILED, LOST) and host not in fresh]
    waves = [[host for host in wave if host in chosen and host not in begun] for wave in plan["waves"]]
    expected = {host for wave in waves for host in wave}
    # Those that nobody expects to be let through ask all the same, and are told why not.
    rest = [host for host in driven if host not in expected and host not in set(begun)]
    groups = [wave for wave in [begun, *waves, rest] if wave]
    control_waves = [found for wave in groups if (found := [host for host in wave if hosts[host]["role"] in control])]
    return {
        "part": part,
        "controlplane": [host for wave in control_waves for host in wave],
        "waves": [len(wave) for wave in control_waves],
        "dataplane": [host for wave in groups for host in wave if hosts[host]["role"] not in control],
        "validate": [host for host in driven if host not in set(begun)],
        "stages": {
            "controlplane": [host for host in wanted if hosts[host]["role"] in control],
            "dataplane": [host for host in wanted if hosts[host]["role"] not in control],
        },
        "before": {host: hosts[host]["version"] or "" for host in driven},
    }


def after_scope(
    plan: Mapping[str, Any], composition: Mapping[str, Any], upgrade_roles: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the hosts that have tasks after the upgrade, those of the control plane first."""
    control = {name for name, what in upgrade_roles.items() if (what or {}).get("stage") == _CONTROL}
    roles = {name for name, what in composition["roles"].items() if any(unit["step"] == POST for unit in what["units"])}
    having = [host for host, view in plan["hosts"].items() if view["role"] in roles]
    return {
        "hosts": sorted(having, key=lambda host: plan["hosts"][host]["role"] not in control),
        "before": {host: plan["hosts"][host]["version"] or "" for host in having},
    }


def _is_wanted(
    host: str, view: Mapping[str, Any], control: Collection[str], part: str, role: str, limit: Collection[str]
) -> bool:
    if limit and not {host, view["role"], view["group"]} & set(limit):
        return False
    if part == "after":
        return False
    if part == "role":
        return bool(view["role"] == role)
    return part == "all" or (view["role"] in control) == (part == _CONTROL)


def _refuse_early(hosts: Mapping[str, Mapping[str, Any]], control: Collection[str], fresh: Collection[str]) -> None:
    behind = [
        f"{host} ({PENDING if host in fresh else view['state']})"
        for host, view in hosts.items()
        if view["role"] in control and view["state"] != UPGRADED
    ]
    if behind:
        raise UpgradeError(
            "control_plane_first",
            f"The data plane can't begin before the control plane is done: {some(behind)} not upgraded. Run "
            "playbooks/controlplane.yml first.",
        )
