# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to planners and servers, and when: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from lab.lab import Lab

from .cluster import becomes_whole, leader_of
from .processes import Child
from .proxy import CuttingProxy
from .restore import Restorer

# Where the servers take long to choose a leader, the time is up after one or two; a run goes on for so many.
LEAST = 5


class Faults:
    """Injects faults until it is stopped, at least :data:`LEAST`, and fixes all of them in the end.

    :param over: whether the time is up.
    :param planners: those that may be killed, stopped, and have their clocks set.
    :param restorer: what restores a snapshot on the way; None for no such thing.
    """

    def __init__(
        self,
        seed: int,
        lab: Lab,
        planners: Sequence[Child],
        proxies: Sequence[CuttingProxy],
        restorer: Restorer | None,
        over: Callable[[], bool],
    ) -> None:
        self._chance = random.Random(f"faults {seed}")
        self._lab = lab
        self._planners = planners
        self._proxies = proxies
        self._restorer = restorer
        self._over = over
        self.count: Counter[str] = Counter()

    def run(self) -> None:
        """Inject faults, a moment apart."""
        kinds = [self.kill, self.kill, self.stop, self.stop, self.reset, self.reset, self.leader, self.partition]
        if self._chance.random() < 0.6:
            kinds += [self.clock, self.clock]
        while not self._is_over():
            self._sleep(0.1, 0.5)
            act = self._chance.choice(kinds)
            act()
            self.count[act.__name__] += 1
            if self._restorer is not None and self._restorer.is_due() and becomes_whole(self._lab):
                self.count["restore"] += self._restorer.go_on()
        for planner in self._planners:
            planner.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill a planner, and start it again."""
        planner = self._chance.choice(self._planners)
        if planner.code is None:
            planner.kill()
            planner.start()

    def stop(self) -> None:
        """Let a planner sleep while others go on, and wake it up."""
        planner = self._chance.choice(self._planners)
        planner.signal(signal.SIGSTOP)
        self._sleep(0.3, 1.5)
        planner.signal(signal.SIGCONT)

    def clock(self) -> None:
        """Set a planner's clock to some other time."""
        self._chance.choice(self._planners).set_clock(self._chance.uniform(-7200, 7200))

    def reset(self) -> None:
        """Have the next replies to writes lost after Consul has carried them out, or the writes before that."""
        self._chance.choice(self._proxies).lose_next(self._chance.randint(1, 3), after=self._chance.random() < 0.7)

    def leader(self) -> None:
        """Cut the power of the server that leads, and bring it back."""
        node = leader_of(self._lab)
        if node is not None:
            node.kill()
            try:
                self._sleep(0.3, 1.0)
            finally:
                node.boot()
            # Two of three are needed, so the next one goes when all are back.
            becomes_whole(self._lab)

    def partition(self) -> None:
        """Cut a server off, with the planner that asks it."""
        node = self._chance.choice(list(self._lab.servers.values()))
        node.cut()
        try:
            self._sleep(0.5, 1.5)
        finally:
            node.reconnect()
        becomes_whole(self._lab)

    def _is_over(self) -> bool:
        return self._over() and self.count.total() >= LEAST

    def _sleep(self, least: float, most: float) -> None:
        until = time.monotonic() + self._chance.uniform(least, most)
        while time.monotonic() < until and not self._is_over():
            time.sleep(0.05)
