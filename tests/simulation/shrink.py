# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a failing night smaller: leaves out all that it fails without too."""

from __future__ import annotations

from collections.abc import Callable, Collection

from .night import PARTS, Result, run
from .night_log import kind_of


def shrink(result: Result, again: Callable[[int, Collection[str]], Result] = run) -> tuple[Result, tuple[str, ...]]:
    """Return the smallest night found that fails in the same way, and what was left out of it.

    :param result: the failing night.
    """
    kinds = {kind_of(one) for one in result.violations}
    smallest, without = result, ()
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in PARTS:
            if part in without:
                continue
            tried = again(result.seed, (*without, part))
            if kinds & {kind_of(one) for one in tried.violations}:
                smallest, without, is_smaller = tried, (*without, part), True
    return smallest, without


def described(result: Result, without: Collection[str]) -> str:
    """Return what is printed of a failing night: what is wrong, its log, and the command that repeats it."""
    more = f" --without {','.join(without)}" if without else ""
    return "\n".join(
        [
            f"seed {result.seed} ({result.kind}) fails:",
            *(f"  {one}" for one in result.violations[:5]),
            *(f"  {line}" for line in result.log),
            f"Next: .venv/bin/python tests/simulation --seed {result.seed}{more}",
        ]
    )
