# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the keys of one moment say, read without anything of the collection."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from .fleet import FLEET
from .replay import Entry, State
from .rules import Rules

LEDGER, CURRENT = "upgrade/ledger", "current_version"
GATES, HOLDS, HISTORY = "config_state/enable_puppet/", "upgrade/hold/", "upgrade/history/"
RECORDS, REPORTS, MARKS, APPROVALS = "upgrade/hosts/", "running/versions/", "upgrade/health/", "upgrade/approval/"
# What hosts say themselves; all else goes through the ledger.
HOSTS_OWN = (RECORDS, REPORTS)
# What planner services and those that hand rollouts over to them write, beside the ledger too.
HANDOVER, PLANNERS = "upgrade/handover", "upgrade/planners/"
# What push runs, notifiers and planner services write for each other, and what wakes the agents of nodes, beside the ledger too.
LEASES, ONCES, NOTIFIED, WAKES = "upgrade/drivers/", "upgrade/once/", "upgrade/notified", "upgrade/wake/"
OF_RUNS = (LEASES, ONCES, NOTIFIED, WAKES, HANDOVER, PLANNERS)


def data_of(entry: Entry | None) -> dict[str, Any]:
    """Return what a key holds, nothing where it is not there. It is not to be changed, as others may get the same."""
    return _parsed(entry.value) if entry is not None else {}


@lru_cache(maxsize=4096)
def _parsed(value: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value)
    return found


def is_open(state: State, host: str) -> bool:
    """Return whether a host may go: its gate, else that of its role, else the global one."""
    for key in (f"{GATES}host/{host}", f"{GATES}role/{FLEET[host]}", f"{GATES}global"):
        if key in state:
            return state[key].value == "True"
    return True


def holds_over(host: str) -> tuple[str, ...]:
    """Return the keys that hold a host."""
    return (f"{HOLDS}global", f"{HOLDS}role/{FLEET[host]}", f"{HOLDS}host/{host}")


def with_own_records(state: State, read: Mapping[str, tuple[str, int]]) -> State:
    """Return the keys of a moment, with the hosts' own records as a planner has read them."""
    found = {key: entry for key, entry in state.items() if not key.startswith(HOSTS_OWN)}
    found.update({key: Entry(*pair) for key, pair in read.items() if key.startswith(HOSTS_OWN)})
    return found


@dataclass
class Facts:
    """The hosts at one moment.

    :param now: the time by the clock of the reader; None if that is not known.
    :param steady: whether all clocks are right.
    """

    state: State
    rules: Rules
    now: float | None = None
    steady: bool = False
    _records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def current(self) -> str:
        """The version that is wanted."""
        return self.state[CURRENT].value

    @cached_property
    def ledger(self) -> dict[str, Any]:
        """The ledger."""
        return data_of(self.state.get(LEDGER))

    @property
    def stage(self) -> int:
        """The stage of the rollout, 0 for the first."""
        number: int = self.ledger.get("stage", {}).get("number", 0)
        return number

    def record(self, host: str) -> dict[str, Any]:
        """Return a host's own account."""
        if host not in self._records:
            self._records[host] = data_of(self.state.get(f"{RECORDS}{host}"))
        return self._records[host]

    def is_recorded_as(self, host: str, *states: str) -> bool:
        """Return whether a host's record is of the target version, and in one of these states."""
        record = self.record(host)
        return record.get("version") == self.current and record["state"] in states

    def has_reported(self, host: str) -> bool:
        """Return whether a host has reported the wanted version."""
        return f"{REPORTS}{self.current}/{host}" in self.state

    def has_left(self, host: str) -> bool:
        """Return whether a host has started or failed since it reported the wanted version, or was put back, wherever to.

        Consul's index decides what came later: a host writes both within a second, and its clock may be wrong.
        """
        record, report = self.record(host), self.state.get(f"{REPORTS}{self.current}/{host}")
        if not record or report is None:
            return False
        return record["state"] != "upgraded" and self.state[f"{RECORDS}{host}"].index > report.index

    def is_done(self, host: str) -> bool:
        """Return whether a host has reported, and some planner has seen it soak for long enough."""
        if not self.has_reported(host) or self.has_left(host):
            return False
        if not self.rules.soak:
            return True
        mark = data_of(self.state.get(f"{MARKS}{host}"))
        if mark.get("version") != self.current or not mark["upgraded"]:
            return False
        # What was seen of a host before it fell back says nothing of the time since it reported again.
        reported_at = int(self.state[f"{REPORTS}{self.current}/{host}"].value)
        if not self.steady or mark["since"] >= reported_at - SLACK:
            return True
        return self.was_there(host) and mark["since"] + self.rules.soak >= reported_at - SLACK

    def was_there(self, host: str) -> bool:
        """Return whether a host had reported before the rollout began, and nothing since: its soak counts as over when it is first seen."""
        own = [
            entry.index for key, entry in self.state.items() if key.startswith(HOSTS_OWN) and key.endswith(f"/{host}")
        ]
        begun = self.ledger.get("begun_index")
        return begun is not None and max(own, default=0) <= int(begun)

    def is_excused(self, host: str) -> bool:
        """Return whether a rollback does not wait for a host, as it was broken before that, or has failed elsewhere since."""
        if not self.ledger.get("rollback"):
            return False
        record = self.record(host)
        elsewhere = bool(record) and record["version"] != self.current and record["state"] == "failed"
        return host in self.ledger.get("broken", ()) or elsewhere

    def has_failed(self, host: str) -> bool:
        """Return whether a host has failed, also since it reported the wanted version, as a host that goes back to it may."""
        return self.is_recorded_as(host, "failed") and (not self.has_reported(host) or self.has_left(host))

    def has_failed_elsewhere(self, host: str) -> bool:
        """Return whether a host failed in an upgrade to another version, and nothing has been known of it since. A rollback brings it back."""
        record = self.record(host)
        if self.ledger.get("rollback") or record.get("state") != "failed" or record["version"] == self.current:
            return False
        reported = [
            entry.index for key, entry in self.state.items() if key.startswith(REPORTS) and key.endswith(f"/{host}")
        ]
        return self.state[f"{RECORDS}{host}"].index > max(reported, default=0)

    def is_lost(self, host: str) -> bool:
        """Return whether a host is open and has been silent for much longer than it may, by the clock of the reader."""
        if self.rules.deadline is None or self.now is None or self.has_reported(host) or self.has_failed(host):
            return False
        if f"{LEASES}{host}" in self.state:
            # The run that has the lease is responsible for the host, and reports it.
            return False
        gate, record = self.state.get(f"{GATES}host/{host}"), self.record(host)
        seen_at = [gate.flags] if gate is not None and gate.value == "True" and gate.flags else []
        if record and (record["version"] == self.current or record["state"] == "started"):
            seen_at += record["times"].values()
        if not seen_at or not (is_open(self.state, host) or self.is_recorded_as(host, "started")):
            return False
        return self.now - max(min(self.now, at) for at in seen_at) > self.rules.deadline + SLACK

    def is_broken(self, host: str) -> bool:
        """Return whether a host has to be counted under a budget."""
        if self.is_excused(host):
            return False
        return self.has_failed(host) or self.is_lost(host) or self.tries_again(host)

    def tries_again(self, host: str) -> bool:
        """Return whether a host has begun again after a failure, and no operator has put it back since."""
        record = self.record(host)
        if self.has_reported(host) and not self.has_left(host):
            return False
        times = record.get("times", {})
        return self.is_recorded_as(host, "started") and times.get("failed", 0) > times.get("upgraded", 0)

    def is_down(self, host: str) -> bool:
        """Return whether a host takes a slot."""
        if self.is_done(host):
            return False
        if self.is_excused(host) and (
            self.has_failed(host) or not (is_open(self.state, host) or self.is_recorded_as(host, "started"))
        ):
            # It was broken before this rollback, and was not admitted again.
            return False
        begun = self.record(host).get("state") == "started" or self.has_failed(host) or self.has_failed_elsewhere(host)
        soaks = self.has_reported(host) and not self.has_left(host)
        return is_open(self.state, host) or begun or soaks

    def down(self) -> set[str]:
        """Return all hosts that take a slot."""
        return {host for host in FLEET if self.is_down(host)}

    def stage_of(self, host: str) -> int:
        """Return the stage of a host: 0 for a canary, 1 for the rest; in a rollback the other way round."""
        canary = int(host[len(FLEET[host]) :]) <= self.rules.canary
        return int(bool(self.rules.canary) and canary == bool(self.ledger.get("rollback")))

    def of(self, roles: Collection[str]) -> list[str]:
        """Return the hosts of some roles."""
        return [host for host, role in FLEET.items() if role in roles]


# A planner's look is taken for older than it is by the time a read may be tried again, and by a stop.
SLACK = 6.0
