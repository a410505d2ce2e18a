# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout as text: a line for each change, and a running count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._common.names import is_job, target_text
from ...module_utils._host_states.state_names import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING, state_text
from ...module_utils._passes.planner_pass import PassResult
from ...module_utils._planner.explanations import is_outside
from ...module_utils._planner.plan import HostView

_WAITING = (PENDING, HELD)
# How reasons begin that name the state themselves.
_ADMITTED, _STARTED = "admitted", "started"


@dataclass(frozen=True, slots=True)
class FleetStates:
    """The states of a fleet at one moment.

    :param version: the target of the rollout.
    :param roles: host -> role.
    :param states: host -> state.
    :param reason: returns why a host is in its state.
    :param slots: host -> the slot that it got in this pass, such as ``slot 1 of 3``. Other processes may have admitted hosts too.
    """

    version: str
    roles: Mapping[str, str]
    states: Mapping[str, str]
    reason: Callable[[str], str]
    slots: Mapping[str, str] = field(default_factory=dict)


def states_of_result(result: Mapping[str, Any]) -> FleetStates:
    """Return the states in a result of ``consul_upgrade_plan`` that has all hosts."""
    hosts: Mapping[str, Mapping[str, Any]] = result["hosts"]
    roles = {host: view["role"] for host, view in hosts.items()}
    states = {host: view["state"] for host, view in hosts.items() if not view["outside"]}
    return FleetStates(result["version"], roles, states, lambda host: hosts[host]["reason"])


def states_of_views(version: str, hosts: Mapping[str, HostView]) -> FleetStates:
    """Return the states of hosts that are explained already."""
    roles = {host: view.role for host, view in hosts.items()}
    states = {host: view.state for host, view in hosts.items() if not view.outside}
    return FleetStates(version, roles, states, lambda host: hosts[host].reason)


def states_of_pass(outcome: PassResult) -> FleetStates:
    """Return the states after a pass. Only hosts that are asked for are explained."""
    fleet, views = outcome.plan.fleet, outcome.hosts()
    states = {host: one.state for host, one in fleet.hosts.items() if not is_outside(one)} if fleet is not None else {}
    states |= {one.host: UPGRADING for one in outcome.admissions}
    slots = {one.host: one.slot for one in outcome.admissions}
    return FleetStates(outcome.plan.version or "", outcome.members, states, lambda host: views[host].reason, slots)


class PassProgress:
    """Turns the states after successive passes into lines."""

    def __init__(self, states: Mapping[str, str] | None = None) -> None:
        """Keep the states.

        :param states: host -> state that was shown already; None for nothing.
        """
        self._states = states or {}

    def lines(self, now: FleetStates) -> list[str]:
        """Return a line for each host whose state has changed since the last call, and the count after them.

        Upgraded hosts come first, because their slots became free for the others. In the first call, there are only lines for hosts
        that are upgrading, failed or lost.
        """
        ended, others = [], []
        for host, after in now.states.items():
            before = self._states.get(host)
            if before == after or (before is None and after in (*_WAITING, UPGRADED)):
                continue
            if after == UPGRADED:
                ended.append(f"{host} {state_text(after, of_job=is_job(now.version))}")
            else:
                others.append(_line(host, before, now))
        self._states = now.states
        return [*ended, *others, running_count(now)] if ended or others else []


def _line(host: str, before: str | None, now: FleetStates) -> str:
    """Return the line of a host that has come into a state, and that is not upgraded."""
    slot, reason = now.slots.get(host), now.reason(host)
    if slot and before in (None, *_WAITING):
        return f"{host} {_ADMITTED} ({slot})"
    if before in _WAITING and reason.startswith((_ADMITTED, _STARTED)):
        return f"{host} {_ADMITTED}"
    state = state_text(now.states[host], of_job=is_job(now.version))
    return f"{host} {reason}" if reason.startswith((state, _ADMITTED, _STARTED)) else f"{host} {state}: {reason}"


def running_count(now: FleetStates) -> str:
    """Return the running count: the upgraded hosts of each role, and the number of other hosts by state."""
    total = Counter(now.roles[host] for host in now.states)
    done = Counter(now.roles[host] for host, state in now.states.items() if state == UPGRADED)
    states = Counter(now.states.values())
    roles = ", ".join(f"{role} {done[role]}/{count}" for role, count in total.items())
    waiting = sum(states[state] for state in _WAITING)
    counts = [f"{states[UPGRADING]} {state_text(UPGRADING, of_job=is_job(now.version))}", f"{waiting} waiting"]
    counts += [f"{states[state]} {state}" for state in (FAILED, LOST) if states[state]]
    return f"-- {target_text(now.version)}: {roles or 'no hosts'}; {', '.join(counts)}"
