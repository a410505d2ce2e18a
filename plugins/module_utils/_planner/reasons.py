# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a host is where it is, in words that an operator can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from .._common.names import listing, plural
from .._host_states import states
from .._host_states.states import HostState
from .admission import Admissions

# Why a host waits, as words for programs, beside those of brakes and stages.
NO_VERSION, MAY_GO, LIMIT, ROLE_BUDGET = "no_version", "may_go", "limit", "role_budget"
ORDER, CAP, CAP_ZERO, SETS = "order", "cap", "cap_zero", "complete_sets"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a host is where it is.

    :param text: in words that an operator can act on.
    :param cause: as a stable word; empty where the host's state says it all.
    :param rule: the key of the instructions behind it; empty where none is.
    """

    text: str
    cause: str = ""
    rule: str = ""


def reason_for_state(host: HostState, current: str | None) -> str:
    """Return the reason for every state but pending, with the hold over the host."""
    text = _of_state(host, current)
    if host.hold is None or host.hold.words() in text:
        return text
    return f"{text}; {host.hold.words()}"


def _of_state(host: HostState, current: str | None) -> str:
    if host.state == states.UPGRADED:
        return f"runs {current}"
    if host.trouble:
        return host.trouble
    if host.state == states.FAILED and host.record is not None:
        error = host.record.error or "no error was given"
        tries = f" (attempt {host.record.attempt})" if host.record.attempt > 1 else ""
        return f"failed{host.record.where()}{tries}: {error}"
    if host.state == states.HELD and host.hold is not None:
        return host.hold.words()
    return _upgrading(host, current)


def _upgrading(host: HostState, current: str | None) -> str:
    if host.record is not None and host.has_started:
        version = "" if host.record.version == current else f" {host.record.version}"
        if host.is_unadmitted:
            return (
                f"says that it has started{version}, and was not admitted; it keeps a slot and gets no gate: make sure that nothing "
                f"is at work there, then -e hosts={host.host} with retry.yml"
            )
        text = f"started{version}{host.record.where()}, has not ended"
        return text if host.gate.is_open else f"{text}; its gate is closed"
    opened_by = f"the gate {host.gate.key} is {host.gate.value}" if host.gate.key else "no gate is set, so it is open"
    return f"{opened_by}; it has not started" + (f" and can't: {host.hold.words()}" if host.hold else "")


class WaitReasons:
    """The reasons why pending hosts wait, after this pass has let its hosts through.

    What concerns a whole role is put into words once for it, so that a reason costs no more than its text.

    :param occupants: role -> its hosts that take a slot, those just let through included.
    :param unfinished: role -> its hosts that are not upgraded, with their states.
    :param opening: the hosts let through now.
    """

    def __init__(
        self,
        opener: Admissions,
        occupants: Mapping[str, Sequence[str]],
        unfinished: Mapping[str, Sequence[HostState]],
        opening: Set[str],
    ) -> None:
        """Remember the facts; they are put into words when they are asked for."""
        self._opener = opener
        self._occupants = occupants
        self._unfinished = unfinished
        self._opening = opening
        self._by_role: dict[str, Reason] = {}

    def of_role(self, role: str) -> Reason:
        """Return what keeps the role's next host from going through."""
        if role not in self._by_role:
            found = self._order(role) or self._caps(role) or self._sets()
            self._by_role[role] = found or Reason("may go in the next pass", MAY_GO)
        return self._by_role[role]

    def _order(self, role: str) -> Reason | None:
        first = self._opener.waits_for(role)
        if not first:
            return None
        parts = []
        for name in first:
            hosts = self._unfinished[name]
            shown = (
                listing([f"{one.host} {self._state(one)}" for one in hosts]) if len(hosts) <= 3 else self._counts(hosts)
            )
            parts.append(f"role {name} ({plural(len(hosts), 'host is', 'hosts are')} not upgraded: {shown})")
        shown = " and ".join(parts)
        if self._opener.order.is_reversed:
            return Reason(
                f"waits for {shown}, as role_order says, reversed in a rollback", ORDER, f"role_order.{first[0]}"
            )
        return Reason(f"waits for {shown}, as role_order says", ORDER, f"role_order.{role}")

    def _state(self, one: HostState) -> str:
        return "may go now" if one.host in self._opening else one.state

    def _counts(self, hosts: Sequence[HostState]) -> str:
        counts: dict[str, int] = {}
        for one in hosts:
            state = self._state(one)
            counts[state] = counts.get(state, 0) + 1
        return ", ".join(f"{count} {state}" for state, count in counts.items())

    def _caps(self, role: str) -> Reason | None:
        full = [limit for limit in self._opener.limits[role] if not limit.free]
        for limit in full:
            if limit.is_missing:
                text = f"no cap limits {limit.what}: give {limit.key}, a number or unlimited, to let it go on"
                return Reason(text, CAP_ZERO, limit.key)
            if limit.slots == 0:
                text = f"the cap of {limit.what} is 0: raise {limit.key} to let it go on"
                return Reason(text, CAP_ZERO, limit.key)
        if not full:
            return None
        limit = full[0]
        roles = self._opener.order.roles
        holders = [
            host
            for one in roles
            if any(over is limit for over in self._opener.limits[one])
            for host in self._occupants.get(one, ())
        ]
        slots = f"{limit.key} lets {limit.slots} of {limit.what} go at once"
        return Reason(f"waits for a slot: {slots}, taken by {listing(holders, 3)}", CAP, limit.key)

    def _sets(self) -> Reason | None:
        if not (self._opener.complete_sets and self._opener.busy):
            return None
        holders = [host for hosts in self._occupants.values() for host in hosts]
        text = f"waits until the set under way is done, as complete_sets says: {listing(holders, 3)}"
        return Reason(text, SETS, "rolling_rules.complete_sets")
