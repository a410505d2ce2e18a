# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated process with a clock, which can be started again, as the judge and the actors of the fire tests know processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .stand_ins import BEGIN
from .world import Process, World


@dataclass
class Number:
    """A number that others may read and set."""

    value: Any = 0


@dataclass
class Shared:
    """Numbers that processes share: the newest epoch that one has seen, whether all is to calm down, whether the fleet goes back, how many runs
    one has begun.
    """

    epoch: Number = field(default_factory=Number)
    calm: Number = field(default_factory=Number)
    target: Number = field(default_factory=Number)
    runs: Number = field(default_factory=Number)


class Actor:
    """A process.

    :param act: what it does, called with what it shares and the arguments.
    :param outlives: whether it goes on when it notices a restore, as a planner service does, and who makes push runs.
    """

    def __init__(self, world: World, name: str, port: int, act: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self.port = port
        self.shared = Shared()
        self.outlives = False
        self.process = Process(world, name)
        # When its clock was set (unix seconds), and by how much it was ahead from then on.
        self._clocks: list[tuple[float, float]] = [(0.0, 0.0)]
        self._world = world
        self._act = lambda: act(self.shared, *arguments)

    def start(self) -> None:
        """Start it, and again after it has ended."""
        self.shared.epoch.value = 0
        self.process.start(self._act)

    def set_clock(self, ahead: float) -> None:
        """Set its clock."""
        self._clocks.append((BEGIN + self._world.now, ahead))
        self.process.ahead = ahead

    def ahead_around(self, at: float, seconds: float = 8) -> float | None:
        """Return by how much its clock was ahead, None if it was set within some seconds before or after that."""
        if any(abs(since - at) < seconds for since, _ahead in self._clocks):
            return None
        return [ahead for since, ahead in self._clocks if since <= at][-1]

    def most_ahead_around(self, at: float, seconds: float = 8) -> float:
        """Return by how much its clock was ahead at most within some seconds before or after a time."""
        before = [ahead for since, ahead in self._clocks if since <= at - seconds]
        return max([*before[-1:], *(ahead for since, ahead in self._clocks if abs(since - at) < seconds)])

    @property
    def code(self) -> str | None:
        """The code of the error that ended it, None while it runs."""
        return None if self.process.is_alive else str(getattr(self.process.error, "code", "ended"))
