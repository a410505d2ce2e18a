# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a run of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    :param quick: measure small fleets, once.
    :param rounds: how often each way is run; 0 for what the part does by default.
    :param sizes: numbers of hosts; empty for those of the part.
    """

    quick: bool = False
    rounds: int = 0
    sizes: tuple[int, ...] = ()

    def repeated(self, times: int) -> int:
        """Return how often each way is run, if it is ``times`` by default and once in a quick run."""
        return self.rounds or (1 if self.quick else times)
