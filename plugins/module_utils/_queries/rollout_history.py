# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history in memory, for a process that shows it again and again: the current rollout whole, earlier ones in a few values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._common.names import is_job
from .._fleet.ledger import BEGINNINGS, Ledger
from .._rollout_report.rollout import ENDS, at_of, end_of, entries_of
from .._state.store import Store

# How many earlier rollouts are known, and how many entries are read to find them.
MOST_ROLLOUTS = 20
_MOST_ENTRIES = 2_000


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """A rollout of the history.

    :param version, previous_version: where it went, and from where; the latter is empty if unknown.
    :param state: ``running``, ``complete``, ``aborted``, or ``replaced`` if another one began before its end.
    :param begun, end: unix seconds; ``end`` is 0 while it runs.
    :param by: who began it; empty if unknown.
    :param admitted: number of hosts that it admitted.
    """

    version: str
    previous_version: str
    state: str
    begun: int
    end: int
    by: str
    admitted: int

    def plain(self) -> dict[str, Any]:
        """Return it as the part of a result."""
        return asdict(self)


class RolloutHistory:
    """The entries of the current rollout, the oldest first, and summaries of all others, the newest first.

    Once a job is complete, the rollout to a version before it is the current one again.

    :param store: where they are read.
    """

    def __init__(self, store: Store) -> None:
        """Keep the store."""
        self._store = store
        # Up to where the entries are read, and the ledger that they were last shown for.
        self._epoch, self._commit = 0, ""
        self._shown: tuple[int, str, bool] | None = None
        # The rollout that began last, and those before it.
        self._newest: list[dict[str, Any]] = []
        self._former: list[RolloutSummary] = []
        self.current: list[dict[str, Any]] = []
        self.former: list[RolloutSummary] = []

    def refresh(self, ledger: Ledger | None) -> bool:
        """Read the entries that are new since the last call; return whether there were any. One request for each 64 entries.

        The first call reads back to the beginning of the current rollout, and at most 2,000 entries more for the ones before it.

        :param ledger: the current one; None for an empty history.
        :raises UpgradeError: what :meth:`Store.events_after` raises.
        """
        if ledger is None:
            was_empty = not (self.current or self.former)
            self._epoch, self._commit, self._shown = 0, "", None
            self._newest, self._former, self.current, self.former = [], [], [], []
            return not was_empty
        # Once a job is complete, the rollout before it is shown again, with the same entries.
        shown = (ledger.epoch, ledger.commit, ledger.is_job)
        if shown == self._shown:
            return False
        self._read_new(ledger)
        current, former = self._newest, self._former
        first = self._newest[0] if self._newest else {}
        if first.get("what") in BEGINNINGS and is_job(first["version"]) and not ledger.is_job:
            current = list(entries_of(self._store.history(ledger), ledger))[::-1]
            own = at_of(current[0]) if current else 0
            former = [_summary(self._newest, 0), *(one for one in self._former if one.begun != own)]
        self.current, self.former, self._shown = current, former, shown
        return True

    def _read_new(self, ledger: Ledger) -> None:
        if (ledger.epoch, ledger.commit) == (self._epoch, self._commit):
            return
        found: Sequence[dict[str, Any]] = ()
        if 0 < self._epoch < ledger.epoch:
            # The last known entry is read again: after a restore of Consul, another one may have its epoch.
            found = self._store.events_after(self._epoch - 1, ledger)
        if found and found[0]["epoch"] == self._epoch and found[0].get("commit", "") == self._commit:
            self._add(found[1:])
        else:
            self._read_all(ledger)
        self._epoch, self._commit = ledger.epoch, ledger.commit

    def _add(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            if event["what"] in BEGINNINGS and self._newest:
                self._former = [_summary(self._newest, at_of(event)), *self._former][:MOST_ROLLOUTS]
                self._newest = []
            self._newest.append(event)

    def _read_all(self, ledger: Ledger) -> None:
        self._newest, self._former = [], []
        events: list[dict[str, Any]] = []
        count, until = 0, 0
        for event in self._store.history(ledger):
            events.append(event)
            if event["what"] in BEGINNINGS:
                events.reverse()
                if until:
                    self._former.append(_summary(events, until))
                else:
                    self._newest = events
                events, until = [], at_of(event)
            count += bool(until)
            if count > _MOST_ENTRIES or len(self._former) == MOST_ROLLOUTS:
                return
        if not until:
            # The entry that began the rollout is gone.
            self._newest = events[::-1]


def summary(events: Sequence[Mapping[str, Any]]) -> RolloutSummary | None:
    """Return the summary of a rollout under way, None without an entry.

    :param events: its entries of the history, the oldest first.
    """
    return _summary(events, 0) if events else None


def _summary(events: Sequence[Mapping[str, Any]], until: int) -> RolloutSummary:
    first = events[0]
    # After a job, the rollout to a version that came before it may go on.
    events = [event for event in events if event.get("version") == first.get("version")]
    over = end_of(events)
    what = over["what"] if over is not None else ""
    state = "complete" if what in ENDS else "aborted" if what == "abort" else "replaced" if until else "running"
    end = at_of(over) if over is not None and state in ("complete", "aborted") else until
    openings = [event for event in events if event["what"] == "open"]
    hosts = {host for event in openings for host in event.get("hosts") or ()}
    # Of hosts that the gate of their role admits, an entry has only the number.
    by_gate: dict[str, int] = {}
    for event in openings:
        for role, opening in (event.get("roles") or {}).items():
            by_gate[role] = max(by_gate.get(role, 0), opening.get("hosts", 0))
    return RolloutSummary(
        version=str(first["version"]),
        previous_version=str(first.get("from") or ""),
        state=state,
        begun=at_of(first),
        end=end,
        by=str(first.get("by") or first.get("who") or ""),
        admitted=len(hosts) + sum(by_gate.values()),
    )
