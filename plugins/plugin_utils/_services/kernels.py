# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the newest of several kernel releases."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A release with these parts is older than the same release without them, as 6.1.0-rc1 and 6.1.0~rc1 are older than 6.1.0.
_BEFORE = ("~", "rc")


# What comes after the numbers of a release, such as -cloud-amd64, +rt or +64k, and what stands between them: of Oracle's, ELRepo's and Red Hat's older
# realtime kernels. Backports of Debian have +bpo, which is no flavour.
_FLAVOUR = re.compile(r"-[a-z][a-z0-9-]*$|\+(?!bpo)[a-z0-9]+$|(?<=\d)uek\b|\.elrepo\b|\.rt(?=\d+\.)", re.IGNORECASE)


def newest_kernel(releases: Iterable[str], running: str | None = None) -> str:
    """Return the newest kernel release.

    :param releases: as ``uname -r`` prints them on Debian or Red Hat.
    :param running: the one that runs. If it is given, it counts too, and of the others only those of its flavour.
    :raises ValueError: if there is none.
    """
    if running is not None:
        releases = [running, *(one for one in releases if _flavour(one) == _flavour(running))]
    return max(releases, key=_rank)


def _flavour(release: str) -> str:
    return "".join(_FLAVOUR.findall(release))


def _rank(release: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a release: a number is newer than a word, and a release is newer than its own prefix."""
    parts: list[tuple[int, int, str]] = []
    for part in re.findall(r"\d+|[a-z]+|~", release.lower()):
        if part.isdigit():
            parts.append((3, int(part), ""))
        else:
            parts.append((0 if part in _BEFORE else 2, 0, part))
    return [*parts, (1, 0, "")]
