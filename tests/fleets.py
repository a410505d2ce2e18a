# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small fleets for tests, written in a line or two, and what becomes of them pass by pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    STARTED,
    HostRecord,
    Snapshot,
    VersionReport,
    roles_of_hosts,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval, HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold, Holds, own_hold
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.host_state import HostState
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.states import read_states
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.fleet_state import FleetState, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import merge, parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys

KEYS = Keys()
OLD, NEW = "1.0", "2.0"
UNLIMITED = {"rolling_rules": {"global": "unlimited"}}


# When every host reported its version.
REPORTED_AT = 1.0


@dataclass
class Fleet:
    """A fleet on its way from 1.0 to 2.0: every host runs 1.0, and the global gate is closed.

    :param members: host -> role.
    :param gates: what stands below ``config_state/enable_puppet/``: ``global``, ``role/compute``, ``host/compute1``.
    :param holds: the same for what stands below ``upgrade/hold/``.
    """

    members: Mapping[str, str]
    current: str | None = NEW
    reports: dict[str, str] = field(default_factory=dict)
    records: dict[str, HostRecord] = field(default_factory=dict)
    gates: dict[str, str | None] = field(default_factory=lambda: {"global": "False"})
    holds: dict[str, Hold] = field(default_factory=dict)
    ledger: Ledger | None = None
    now: float = 10_000.0
    marks: dict[str, HealthMark] = field(default_factory=dict)
    checks: dict[str, dict[str, str]] | None = None
    approvals: dict[str, Approval] = field(default_factory=dict)
    gated_at: int = 0
    reported_at: dict[str, float] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)

    def upgraded(self, *hosts: str) -> Fleet:
        """Let the hosts report the new version."""
        return self.running(NEW, *hosts)

    def running(self, version: str, *hosts: str) -> Fleet:
        """Let the hosts report a version, after all that they have written so far."""
        self.reports.update(dict.fromkeys(hosts, version))
        for host in hosts:
            times = self.records[host].times.values() if host in self.records else ()
            self.reported_at[host] = float(max(self.reported_at.get(host, REPORTED_AT), *times, REPORTED_AT))
        return self

    def silent(self, *hosts: str) -> Fleet:
        """Let the hosts never have reported."""
        for host in hosts:
            del self.reports[host]
        return self

    def opened(self, *hosts: str) -> Fleet:
        """Open the hosts' own gates."""
        return self.gated("True", *(f"host/{host}" for host in hosts))

    def gated(self, value: str | None, *gates: str) -> Fleet:
        """Set gates, such as ``role/compute``, to a value."""
        self.gates.update(dict.fromkeys(gates, value))
        return self

    def started(self, *hosts: str, version: str = NEW) -> Fleet:
        """Let the hosts record that they have begun the upgrade to a version; no gate is opened."""
        self.records.update({host: HostRecord(version, STARTED) for host in hosts})
        return self

    def admitted(self, *hosts: str) -> Fleet:
        """Let planners have admitted the hosts, before a rollout that began removed their gates."""
        ledger = self.ledger or Ledger(1, NEW)
        at = {host: int(self.reported_at.get(host, REPORTED_AT)) for host in hosts}
        self.ledger = replace(ledger, admitted={**ledger.admitted, **at})
        return self

    def failed(self, *hosts: str, version: str = NEW) -> Fleet:
        """Let the hosts record that they have failed; no gate is opened."""
        self.records.update({host: HostRecord(version, FAILED, error="disk full") for host in hosts})
        return self

    def with_roles(self) -> Fleet:
        """Let all hosts have reported the role in their settings, so that the gate of a role is known to be read by its own hosts alone."""
        for host, role in self.members.items():
            record = self.records.get(host) or HostRecord(OLD, "upgraded")
            self.records[host] = replace(record, role=role)
        return self

    def held(self, *places: str) -> Fleet:
        """Hold ``global``, ``role/<role>`` or ``host/<host>``."""
        for name in places:
            self.holds[name] = Hold(KEYS.hold(name), "RAM test", "ann", "noon")
        return self

    def snapshot(self) -> Snapshot:
        """Return what a planner would read."""
        gates = {name: GateValue(KEYS.gate(name), text, self.gated_at) for name, text in self.gates.items()}
        return Snapshot(
            current_version=self.current,
            ledger=self.ledger,
            reports={
                host: VersionReport(version, at := self.reported_at.get(host, REPORTED_AT), int(at))
                for host, version in self.reports.items()
            },
            # What is written later has the higher index.
            records={
                host: replace(record, index=record.index or int(max(record.times.values(), default=0)))
                for host, record in self.records.items()
            },
            gates=Gates(gates.get("global"), _below("role/", gates), _below("host/", gates)),
            holds=Holds(
                self.holds.get("global"),
                _below("role/", self.holds),
                _below("host/", self.holds),
                {
                    host: own_hold(KEYS.record(host), record.held)
                    for host, record in self.records.items()
                    if record.held is not None
                },
            ),
            leases=frozenset(self.leases),
            marks=dict(self.marks),
            checks=self.checks,
            approvals=dict(self.approvals),
            now=self.now,
        )

    def plan(self, rules: Mapping[str, Any] | None = None, limit: Collection[str] | None = None) -> Plan:
        """Return the plan under rules as an operator writes them; what they leave without a cap has none."""
        return make_plan(self.snapshot(), roles_of_hosts(self.members, ()), parse(merge(UNLIMITED, rules or {})), limit)

    def read(self, rules: Mapping[str, Any] | None = None, limit: Collection[str] | None = None) -> FleetState:
        """Return the fleet as a planner sees it; roles that the rules give no cap have none."""
        members = roles_of_hosts(self.members, ())
        return read_fleet(self.snapshot(), members, parse(merge(UNLIMITED, rules or {})), limit)

    def states(self) -> dict[str, HostState]:
        """Return the state of every host."""
        return read_states(self.snapshot(), self.members)

    def open(self, plan: Plan) -> None:
        """Write the gates that a plan opens."""
        self.gated("True", *(f"role/{role}" for role in plan.role_gates), *(f"host/{host}" for host in plan.host_gates))

    def finish(self) -> None:
        """Let every host that is upgrading get there."""
        done = [one.host for one in self.states().values() if one.can_finish]
        self.upgraded(*done)
        for host in done:
            self.records.pop(host, None)

    def run(self, rules: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Plan, admit and finish until no host is admitted any more, and return which hosts each pass has admitted."""
        passes = []
        while True:
            plan = self.plan(rules)
            if not plan.admissions and passes:
                return passes
            passes.append(tuple(one.host for one in plan.admissions))
            self.open(plan)
            self.finish()


def fleet(**roles: int) -> Fleet:
    """Return a fleet with so many hosts of each role: ``fleet(compute=2)`` has compute1 and compute2."""
    members = {f"{role}{number}": role for role, count in roles.items() for number in range(1, count + 1)}
    return Fleet(members, reports=dict.fromkeys(members, OLD))


def opened(plan: Plan) -> list[str]:
    """Return the hosts that a plan admits."""
    return [one.host for one in plan.admissions]


def reasons(plan: Plan, hosts: Iterable[str]) -> set[str]:
    """Return the reasons that a plan gives for these hosts, each one once."""
    return {plan.hosts[host].reason for host in hosts}


def _below(scope: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(scope): value for name, value in found.items() if name.startswith(scope)}
