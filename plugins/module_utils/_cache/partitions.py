# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Partitions of a large folder: prefixes of its keys, each of which can be checked and read alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# A folder with fewer keys is not divided, because one request reads them all in some milliseconds.
LEAST_TO_DIVIDE = 1500
# A check takes one request and lists names; a read returns values. So there are few partitions, and their size grows with the folder.
_LEAST = 1200
_SHARE = 8
# Comes after any character.
_LAST = chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class Partition:
    """Some keys of a folder.

    :param prefix: of all its keys; or its only key, if ``is_key``.
    """

    prefix: str
    is_key: bool = False

    def holds(self, key: str) -> bool:
        """Return whether a key belongs to it."""
        return key == self.prefix if self.is_key else key.startswith(self.prefix)


def divide(folder: str, keys: Sequence[str]) -> tuple[Partition, ...]:
    """Return partitions that cover all given keys of a folder; the folder itself if it has few.

    :param keys: sorted.
    """
    if len(keys) < LEAST_TO_DIVIDE:
        return (Partition(folder),)
    return tuple(_divide(folder, keys, max(_LEAST, len(keys) // _SHARE)))


def outside(parts: Iterable[Partition], keys: Sequence[str]) -> list[str]:
    """Return the keys that belong to no partition. Takes time linear in partitions, and in these keys.

    :param keys: sorted.
    """
    found: list[str] = []
    done = 0
    for part in sorted(parts, key=lambda one: one.prefix):
        begin = bisect_left(keys, part.prefix)
        end = bisect_right(keys, part.prefix if part.is_key else part.prefix + _LAST)
        found += keys[done:begin]
        done = max(done, end)
    return found + list(keys[done:])


def _divide(prefix: str, keys: Sequence[str], most: int) -> Iterator[Partition]:
    """Yield partitions of at most so many keys, as far as their names can be told apart."""
    if len(keys) <= most:
        yield Partition(prefix)
        return
    # Longer as long as no key is lost.
    first, last = keys[0], keys[-1]
    while len(prefix) < len(first) and last.startswith(first[: len(prefix) + 1]):
        prefix = first[: len(prefix) + 1]
    if first == prefix:
        yield Partition(prefix, is_key=True)
        keys = keys[1:]
    begin = 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at][len(prefix)] != keys[begin][len(prefix)]:
            yield from _divide(keys[begin][: len(prefix) + 1], keys[begin:at], most)
            begin = at
