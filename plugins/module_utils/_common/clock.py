# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the clock on the wall shows when, also on the nights on which it is put forward or back.

Then some of its times do not exist, and others exist twice. Python takes a time that does not exist for one that the
clock shows an hour later, so that hosts would be let through at hours that no one named.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone, tzinfo

_DAY = 24 * 60 * 60
# No clock shows a time after the year 9999, nor do Python and web pages (unix seconds).
LATEST = 253_402_300_800
# Python knows no year before 1 and none after 9999.
_EARLIEST, _LATEST = -62_135_000_000, 253_402_000_000


def is_time(value: object) -> bool:
    """Return whether a value that was read is a time that a clock can show: whole unix seconds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST


def local_spans(begin: datetime, end: datetime, zone: tzinfo) -> Iterator[tuple[float, float]]:
    """Yield when a zone's clock shows a time from ``begin`` to before ``end``, as spans of unix seconds in order.

    These are two where the clock is put back past one of them, one otherwise, and none where it leaps over both. A time
    that it leaps over stands for the moment at which it does.

    :param begin: as the clock shows it, without a zone; ``end`` is the same, and within days of it.
    """
    first, last = (one.replace(tzinfo=timezone.utc).timestamp() for one in (begin, end))
    # No clock is a day from UTC, and none is changed twice within days.
    before, after = (_offset(at, zone) for at in (first - _DAY, last + _DAY))
    if before == after:
        yield first - before, last - before
        return
    change = _change(first - _DAY, last + _DAY, zone)
    for span in ((first - before, min(last - before, change)), (max(first - after, change), last - after)):
        if span[0] < span[1]:
            yield span


def first_moment(time: datetime, zone: tzinfo) -> float:
    """Return when a zone's clock first shows a time, or has leapt over it, in unix seconds."""
    early, late, change = _both(time, zone)
    return early if early < change else max(late, change)


def last_moment(time: datetime, zone: tzinfo) -> float:
    """Return when a zone's clock last comes to a time, or leaps over it, in unix seconds."""
    early, late, change = _both(time, zone)
    return late if late > change else min(early, change)


def _both(time: datetime, zone: tzinfo) -> tuple[float, float, float]:
    """Return when the clock would show a time if it were never changed, or always had been; and when it is."""
    at = time.replace(tzinfo=timezone.utc).timestamp()
    before, after = (_offset(near, zone) for near in (at - _DAY, at + _DAY))
    change = _change(at - _DAY, at + _DAY, zone) if before != after else at - before
    return at - before, at - after, change


def _change(low: float, high: float, zone: tzinfo) -> float:
    """Return the second in between at which the clock is changed."""
    early, late = int(low), int(high)
    before = _offset(early, zone)
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (middle, late) if _offset(middle, zone) == before else (early, middle)
    return float(late)


def _offset(at: float, zone: tzinfo) -> float:
    """Return how many seconds a zone's clock is ahead of UTC at a unix time."""
    ahead = datetime.fromtimestamp(min(max(at, _EARLIEST), _LATEST), zone).utcoffset()
    return ahead.total_seconds() if ahead is not None else 0.0
