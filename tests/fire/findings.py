# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was found, each sentence once."""

from __future__ import annotations

from collections.abc import Callable


class Findings:
    """Sentences, with the first index and how often each was found."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int | None, int]] = {}

    def at(self, index: int | None) -> Callable[[str], None]:
        """Return what takes sentences on an index; None for the run as a whole."""

        def say(sentence: str) -> None:
            first, count = self._found.get(sentence, (index, 0))
            self._found[sentence] = (first, count + 1)

        return say

    def sentences(self) -> list[str]:
        """Return all of it."""
        return [
            (f"at index {first}: " if first is not None else "") + sentence + (f" ({count} times)" if count > 1 else "")
            for sentence, (first, count) in self._found.items()
        ]

    def first(self) -> int | None:
        """Return the first index of all, None if there is none."""
        return min((first for first, _count in self._found.values() if first is not None), default=None)
