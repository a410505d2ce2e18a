# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sessions of a Consul server, and what becomes of the keys that an ended session had locked.

A real session also ends, before its TTL, when the node of the agent that created it fails. Nodes of the model never do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .keys import Keys

# A session that is not renewed ends after so many times its TTL.
_TTLS = 2
# What is not given, and the most (seconds).
_LOCK_DELAY, _LONGEST_LOCK_DELAY = "15s", 60.0
_SECONDS = re.compile(r"([0-9.]+)s")


@dataclass
class Session:
    """A session.

    :param ttl: in seconds, 0 for none.
    :param until: when it ends unless it is renewed; None for never.
    :param lock_delay: after its end, no one can lock its keys for so long (seconds).
    """

    id: str
    name: str
    ttl: float
    behavior: str
    created: int
    until: float | None
    lock_delay: float

    def shown(self, node: str) -> dict[str, Any]:
        """Return the fields that the collection reads, as Consul's JSON has them."""
        return {
            "ID": self.id,
            "Name": self.name,
            "Node": node,
            "Behavior": self.behavior,
            "TTL": f"{self.ttl:.0f}s" if self.ttl else "",
            "CreateIndex": self.created,
            "ModifyIndex": self.created,
        }


@dataclass
class Sessions:
    """All sessions, by ID.

    :param delays: key -> until when no one can lock it, as a session that had locked it has ended.
    """

    found: dict[str, Session] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)

    def create(self, identity: str, facts: Mapping[str, Any], index: int, now: float) -> None:
        """Create a session."""
        ttl = seconds(facts.get("TTL", ""))
        until = now + _TTLS * ttl if ttl else None
        lock_delay = min(seconds(facts.get("LockDelay", _LOCK_DELAY)), _LONGEST_LOCK_DELAY)
        self.found[identity] = Session(
            identity, facts.get("Name", ""), ttl, facts.get("Behavior") or "release", index, until, lock_delay
        )

    def renew(self, identity: str, now: float) -> bool:
        """Renew a session; return False if there is none."""
        found = self.found.get(identity)
        if found is not None and found.ttl:
            found.until = now + _TTLS * found.ttl
        return found is not None

    def renew_all(self, now: float) -> None:
        """Renew all, as a new leader does, who does not know when they were renewed last."""
        for identity in self.found:
            self.renew(identity, now)

    def expired(self, now: float) -> list[str]:
        """Return the sessions whose time is over."""
        return [one.id for one in self.found.values() if one.until is not None and one.until <= now]

    def next_end(self) -> float | None:
        """Return when the next session ends unless it is renewed."""
        return min((one.until for one in self.found.values() if one.until is not None), default=None)

    def end(self, identity: str, keys: Keys, index: int, now: float) -> bool:
        """End a session: the keys that it has locked are deleted or unlocked. Return whether there was one."""
        found = self.found.pop(identity, None)
        if found is None:
            return False
        for key in [key for key, entry in keys.entries.items() if entry.session == identity]:
            if found.lock_delay:
                self.delays[key] = now + found.lock_delay
            if found.behavior == "delete":
                keys.delete(key, index)
            else:
                entry = keys.entries[key]
                keys.put(key, entry._replace(session="", modified=index))
        return True


def seconds(text: str) -> float:
    """Return a duration such as 10s in seconds, 0 for an empty one."""
    found = _SECONDS.fullmatch(text)
    return float(found[1]) if found else 0.0
