# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a failing night smaller: leaves out all that it fails without too."""

from __future__ import annotations

from types import ModuleType

from .story import NightResult, story


def shrink(result: NightResult, night: ModuleType) -> tuple[NightResult, tuple[str, ...]]:
    """Return the smallest night found that shows the same fault, and what was left out of it.

    What is left out changes the order of the rest. So it shows the same fault only if its first violation is of the same kind, and the same kind
    of process showed it by writing events of the same kind.

    :param result: the failing night.
    :param night: the module of such nights, with what can be left out of them.
    """
    smallest, without = result, tuple[str, ...]()
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in night.PARTS:
            if part in without:
                continue
            tried: NightResult = night.run(result.seed, (*without, part))
            if tried.fault == result.fault:
                smallest, without, is_smaller = tried, (*without, part), True
    return smallest, without


def shortest_story(result: NightResult, night: ModuleType) -> str:
    """Return what is printed of a failing night, made as small as it can be."""
    return story(*shrink(result, night))
