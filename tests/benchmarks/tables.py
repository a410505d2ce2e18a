# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of a benchmark in Markdown. Each row is printed as soon as it is measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# An empty cell, for what is not measured or has nothing to be compared with.
NOTHING = ""


class Report:
    """The tables and sentences of a run, as they are printed.

    :param mistakes: promises about numbers, such as that of requests, that were not kept. Times are never among them.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Begin with an empty report.

        :param file: gets all that is printed; None for none.
        """
        self.mistakes: list[str] = []
        self._file = file
        if file is not None:
            file.write_text("")

    def say(self, text: str = "") -> None:
        """Print a line."""
        print(text, flush=True)
        if self._file is not None:
            with self._file.open("a") as out:
                out.write(text + "\n")

    def least(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Print which way has the least of each measure, whichever that is.

        :param found: measure -> way -> its value.
        """
        best = [f"{what}: {min(values, key=values.__getitem__)}" for what, values in found.items()]
        if best:
            self.say(f"\nLeast {'; '.join(best)}.")

    def table(self, title: str, head: Sequence[str], texts: int = 1) -> Table:
        """Begin a table.

        :param title: a sentence above it.
        :param texts: how many of the first columns are text.
        """
        self.say(f"\n{title}\n")
        self.say(f"| {' | '.join(head)} |")
        self.say(f"| {' | '.join([':---'] * texts + ['---:'] * (len(head) - texts))} |")
        return Table(self, len(head))


class Table:
    """A table that is under way."""

    def __init__(self, report: Report, columns: int) -> None:
        """Begin without a row."""
        self._report = report
        self._columns = columns

    def add(self, *cells: str | int) -> None:
        """Print a row. Missing cells at its end are empty; whole numbers get thousands separators."""
        texts = [f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]
        texts += [NOTHING] * (self._columns - len(texts))
        self._report.say(f"| {' | '.join(texts)} |")


def times(mine: float, other: float) -> str:
    """Return a ratio as text, such as ``1.30``; empty if there is nothing to divide by."""
    return f"{mine / other:.2f}" if other > 0 else NOTHING


def percentile(found: Iterable[float], percent: int) -> float:
    """Return a percentile of at least one value, by the nearest rank."""
    ordered = sorted(found)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def median(found: Iterable[float]) -> float:
    """Return the median of at least one value."""
    return statistics.median(list(found))
