# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a night of any kind came to, and how it is printed if it fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

MOST_LINES, _WIDTH = 40, 200
# So many violations are printed, and so many lines of the first one, of each other one, and of what is stuck.
_MOST_VIOLATIONS, _OF_FIRST, _OF_ANOTHER, _OF_STUCK = 5, 10, 3, 8


@dataclass
class NightResult:
    """What a night came to.

    :param kind: what its seed stands for.
    :param log: what happened before the first violation, in lines.
    :param shown_by: what showed the first violation: who wrote it, and of which events.
    :param stuck: what there is to see of something that did not end: keys, and where each process waits.
    :param OPTION: the one that repeats such a night.
    """

    OPTION: ClassVar[str]
    seed: int
    kind: str
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    shown_by: str = ""
    stuck: str = ""

    @property
    def fault(self) -> tuple[str, str]:
        """What the fault looks like that was found first, for comparing nights."""
        return kind_of(self.violations[0]) if self.violations else "", kind_of(self.shown_by)


def story(result: NightResult, without: Collection[str] = (), *, whole: bool = False) -> str:
    """Return what is printed of a failing night: what is wrong, what happened before, and the command that repeats it.

    :param without: what was left out of it.
    :param whole: whether it is printed in more than 40 lines, and in lines of any length.
    """
    first, *others = result.violations
    if whole:
        lines = [line for text in (*result.violations, result.stuck) for line in _lines(text)] + result.log
    else:
        lines = _shortened(_lines(first), _OF_FIRST)
        lines += [line for one in others[: _MOST_VIOLATIONS - 1] for line in _shortened(_lines(one), _OF_ANOTHER)]
        left = len(result.violations) - _MOST_VIOLATIONS
        lines += [f"and {left} more"] if left > 0 else []
        stuck = _lines(result.stuck)
        lines += stuck[:_OF_STUCK]
        room = MOST_LINES - 2 - len(lines)
        left = len(result.log) - room + 1
        lines += result.log if left <= 1 else [f"({left} earlier lines are left out)", *result.log[left:]]
        lines = [line if len(line) <= _WIDTH else f"{line[:_WIDTH]}..." for line in lines]
    repeated = f" --without {','.join(without)}" if without else ""
    return "\n".join(
        [
            f"seed {result.seed} ({result.kind}) fails:",
            *(f"  {line}" for line in lines),
            f"Next: .venv/bin/python tests/simulation {result.OPTION} {result.seed}{repeated}",
        ]
    )


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _shortened(lines: Sequence[str], most: int) -> list[str]:
    """Return at most so many lines: the first one, and the last ones, which are those of a stack that matter."""
    left = len(lines) - most + 1
    return [*lines] if left <= 1 else [lines[0], f"({left} lines are left out)", *lines[left + 1 :]]


def kind_of(violation: str) -> str:
    """Return a violation without its numbers, lists and IDs, and of its stack the last place, to see whether another night fails in the same way."""
    first, *stack = _lines(violation) or [""]
    places = [line.strip() for line in stack if line.strip().startswith("File ")]
    text = " ".join([re.sub(r"\(\d+ times\)$", "", first), *places[-1:]])
    return re.sub(r"\[.*?\]|\{.*\}|\b[0-9a-f]{8,}\b|[0-9]+", "#", text)
