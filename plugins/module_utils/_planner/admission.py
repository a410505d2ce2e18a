# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may go next: the one piece that lets hosts through, used for this pass and for the forecast alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .._rules.role_order import RoleOrder
from .slots import Limit


@dataclass(slots=True)
class Admissions:
    """Counters of a rollout, and the queue of each role.

    :param queues: role -> hosts that wait to be let through, in order.
    :param unfinished: role -> hosts that others have to wait for, whatever their state.
    :param limits: role -> the limits over it.
    :param busy: hosts that take a slot.
    :param complete_sets: let no host through while one is busy.
    :param stopped: roles of which no host is let through, whatever the limits say.
    :param later: the queues and the unfinished hosts of the stages to come; those above are of the current one and those
        before it.
    """

    order: RoleOrder
    queues: dict[str, deque[str]]
    unfinished: dict[str, int]
    limits: Mapping[str, tuple[Limit, ...]]
    complete_sets: bool = False
    busy: int = 0
    stopped: frozenset[str] = frozenset()
    later: deque[tuple[dict[str, deque[str]], dict[str, int]]] = field(default_factory=deque)
    waiting: list[str] = field(init=False)

    def __post_init__(self) -> None:
        """Roles whose queue is empty are never looked at again."""
        self._look_again()

    def _look_again(self) -> None:
        self.waiting = [role for role in self.order.roles if self.queues.get(role) and role not in self.stopped]

    def waits_for(self, role: str) -> list[str]:
        """Return the roles that this one has to wait for now."""
        return [first for first in self.order.waits[role] if self.unfinished.get(first)]

    def is_stopped(self, role: str) -> bool:
        """Return whether a cap of 0 holds the role."""
        return any(limit.slots == 0 for limit in self.limits[role])

    def take(self, role: str, count: int = 1) -> None:
        """Count hosts that take a slot."""
        self.busy += count
        for limit in self.limits[role]:
            limit.taken += count

    def finish(self, role: str, count: int) -> None:
        """Count hosts that are upgraded and give their slots back."""
        self.take(role, -count)
        self.unfinished[role] -= count

    def next_stage(self) -> bool:
        """Go on to the next stage, if all hosts of this one are done and there is another."""
        if not self.later or any(self.unfinished.values()):
            return False
        self.queues, self.unfinished = self.later.popleft()
        self._look_again()
        return True

    def next_set(self) -> list[tuple[str, list[str]]]:
        """Let through as many hosts as the rules allow, and return them by role.

        Roles stand in the order of the rules, so under a cap of the fleet those that others wait for come first.
        Takes time linear in roles and in the hosts let through.
        """
        if self.complete_sets and self.busy:
            return []
        opened = []
        for role in self.waiting:
            if self.waits_for(role):
                continue
            queue = self.queues[role]
            count = min([len(queue), *(limit.free for limit in self.limits[role])])
            if count:
                opened.append((role, [queue.popleft() for _each in range(count)]))
                self.take(role, count)
        self.waiting = [role for role in self.waiting if self.queues[role]]
        return opened


def forecast(opener: Admissions, in_flight: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Return the waves that follow if every host in flight gets there, and each wave after it.

    Hosts that failed, are lost or are held are not expected to recover by themselves. Uses the opener up.

    :param in_flight: role and number of the hosts that are upgrading now.
    """
    waves: list[list[str]] = []
    flying = list(in_flight)
    while True:
        for role, count in flying:
            opener.finish(role, count)
        opened = opener.next_set()
        while not opened and opener.next_stage():
            opened = opener.next_set()
        if not opened:
            return waves
        waves.append([host for _role, hosts in opened for host in hosts])
        flying = [(role, len(hosts)) for role, hosts in opened]
