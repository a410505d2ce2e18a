# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of some kernels is the newest."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What comes before the end of a release, as in 6.1.0-rc1 or 6.1.0~rc1.
_BEFORE = ("~", "rc")


def newest_kernel(releases: Iterable[str]) -> str:
    """Return the newest of the releases of kernels.

    :param releases: as ``uname -r`` prints them, of Debian's kind or Red Hat's.
    :raises ValueError: if there are none.
    """
    return max(releases, key=_rank)


def _rank(release: str) -> list[tuple[int, int, str]]:
    """Return what releases are sorted by: a number is newer than a word, and a longer release than its beginning."""
    parts: list[tuple[int, int, str]] = []
    for part in re.findall(r"\d+|[a-z]+|~", release.lower()):
        if part.isdigit():
            parts.append((3, int(part), ""))
        else:
            parts.append((0 if part in _BEFORE else 2, 0, part))
    return [*parts, (1, 0, "")]
