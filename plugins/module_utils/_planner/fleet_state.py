# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet that a plan is made for: the state of each host, the order between roles, and the hosts in scope."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .._common.names import plural
from .._fleet.fleet import HostRecord, Snapshot
from .._fleet.host_patterns import select_hosts
from .._host_states.host_state import HostState
from .._host_states.state_names import BROKEN, UPGRADED
from .._host_states.states import StatesRead, in_rollback, read_states
from .._rules.instructions import FORWARD, REVERSED, Instructions
from .._rules.role_order import RoleOrder, resolve


@dataclass(frozen=True, slots=True)
class FleetState:
    """A fleet as one pass reads it.

    :param members: host -> role, in natural order.
    :param hosts: host -> its state, in the same order.
    :param by_role: role -> the states of its hosts, in natural order.
    :param order: which roles wait for which; reversed in most rollbacks.
    :param scope: the hosts that this pass may admit; None for all hosts.
    """

    snapshot: Snapshot
    rules: Instructions
    members: Mapping[str, str]
    hosts: Mapping[str, HostState]
    by_role: Mapping[str, tuple[HostState, ...]]
    order: RoleOrder
    scope: frozenset[str] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Role -> number of hosts."""
        return {role: len(hosts) for role, hosts in self.by_role.items()}

    @property
    def broken(self) -> dict[str, list[str]]:
        """Role -> its hosts that count under failure budgets: failed or lost, failed and trying again, or failed in their post-upgrade tasks.

        A rollback leaves out those that were broken before it.
        """
        return {
            role: [one.host for one in hosts if _counts_as_broken(one) and not one.is_excused]
            for role, hosts in self.by_role.items()
        }

    @property
    def in_flight(self) -> dict[str, int]:
        """Role -> number of hosts that are upgrading and expected to finish."""
        return {role: sum(1 for one in hosts if one.can_finish) for role, hosts in self.by_role.items()}

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The hosts in scope that are not upgraded."""
        left = [one.host for one in self.hosts.values() if one.state != UPGRADED]
        return tuple(left if self.scope is None else filter(self.in_scope, left))

    @property
    def is_upgraded(self) -> bool:
        """Whether every host is upgraded, in scope or not."""
        return all(one.state == UPGRADED for one in self.hosts.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about roles of which this fleet has fewer hosts than the ledger.

        A host that never reported is a member only if ``fleet`` names it. Without such hosts, a rollout would look complete too early.
        """
        counts = self.snapshot.ledger.members if self.snapshot.ledger else {}
        return tuple(
            f"role {role}: {len(self.by_role.get(role, ()))} of its {plural(count, 'host')} have reported or are named in fleet; "
            "give the whole fleet, as the last run did"
            for role, count in sorted(counts.items())
            if len(self.by_role.get(role, ())) < count
        )

    @property
    def rollback_order(self) -> str:
        """``reversed`` or ``forward`` in a rollback; empty in other rollouts."""
        if not in_rollback(self.snapshot):
            return ""
        return REVERSED if self.order.is_reversed else FORWARD

    @property
    def services(self) -> Mapping[str, str]:
        """Role -> the ID of the tasks of services that its hosts must have to be admitted."""
        return self.snapshot.ledger.services if self.snapshot.ledger is not None else {}

    def lacks_services(self, one: HostState) -> bool:
        """Return whether a host does not have the tasks of services that this rollout runs on it."""
        tasks_id = self.services.get(one.role)
        return tasks_id is not None and (one.record is None or not one.record.has_services(tasks_id))

    def read_by_one_role(self, roles: Sequence[str]) -> list[str]:
        """Return those of some roles whose gates no host of another role reads: each has reported the role in its settings.

        A role with a host whose role has changed since it last started is left out, because that host waits for its own gate.
        Takes time linear in hosts, however many roles there are.
        """
        if not roles:
            return []
        records = [(one.role, self.role_in_settings(one)) for one in self.hosts.values()]
        # Nor does the gate of its role admit a host that reads another one, so that such a host would count as admitted for ever.
        read = {one for role, known in records if known not in (None, role) for one in (role, known)}
        unknown = {role for role, known in records if known is None}
        changed = {role for one in self.hosts.values() if (role := self._changed_role(one)) is not None}
        return [role for role in roles if role not in read and unknown <= {role} and role not in changed]

    def _changed_role(self, one: HostState) -> str | None:
        """Return the role in a host's settings if it has changed since the host last started; None if not."""
        record = self._record_in_settings(one)
        return record.role if record is not None and record.readable and record.former_role is not None else None

    def role_in_settings(self, one: HostState) -> str | None:
        """Return the role in a host's settings, by which it reads gates and holds, as it last reported it; None if it never did."""
        record = self._record_in_settings(one)
        return record.role if record is not None and record.readable else None

    def _record_in_settings(self, one: HostState) -> HostRecord | None:
        versions = self.snapshot.versions
        # The record of a job has none before the host has begun one.
        return one.record if versions is None else versions.records.get(one.host)

    def reads_other_role(self, one: HostState) -> bool:
        """Return whether a host's settings have another role than the fleet, so that it reads the gate and the holds of that role."""
        return self.role_in_settings(one) not in (None, one.role)

    def in_scope(self, host: str) -> bool:
        """Return whether this pass may admit the host."""
        return self.scope is None or host in self.scope


def _counts_as_broken(one: HostState) -> bool:
    return one.state in BROKEN or one.tries_again or one.has_failed_after


def read_fleet(
    snapshot: Snapshot,
    members: Mapping[str, str],
    rules: Instructions,
    limit: Collection[str] | None = None,
    before: FleetState | None = None,
) -> FleetState:
    """Return the fleet of a snapshot. Takes time linear in hosts.

    :param members: host -> role, in natural order.
    :param limit: host patterns (:func:`select_hosts`) of those that may be admitted; None for all hosts.
    :param before: the fleet at an earlier time, which saves time.
    :raises UpgradeError: ``bad_instructions``, ``unknown_limit``.
    """
    known = (
        StatesRead(before.snapshot, before.members, before.rules.health, before.hosts) if before is not None else None
    )
    hosts = read_states(snapshot, members, rules.health, known)
    by_role = _by_role(hosts, before if before is not None and before.members is members else None)
    is_reversed = in_rollback(snapshot) and not rules.forward_rollback
    order = resolve(rules, by_role, members, is_reversed=is_reversed)
    scope = None if limit is None else select_hosts(limit, members, order.group)
    return FleetState(snapshot, rules, members, hosts, by_role, order, scope)


def _by_role(hosts: Mapping[str, HostState], before: FleetState | None) -> dict[str, tuple[HostState, ...]]:
    """Return role -> the states of its hosts.

    :param before: an earlier read of the same hosts; None if there is none.
    """
    if before is not None:
        return {role: tuple([hosts[one.host] for one in found]) for role, found in before.by_role.items()}
    grouped: dict[str, list[HostState]] = {}
    for one in hosts.values():
        grouped.setdefault(one.role, []).append(one)
    return {role: tuple(found) for role, found in grouped.items()}
