# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a time zone's clock shows a time, also on the days on which it is put forward or back.

On those days some local times do not exist, and others occur twice. Python reads a time that does not exist as one an hour
later, so hosts would be admitted at hours that the rules do not name.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone, tzinfo

_DAY = 24 * 60 * 60
# Unix seconds: the first second after the year 9999, with which Python's datetime ends.
LATEST = 253_402_300_800
# What datetime.fromtimestamp takes, less some days at both ends, so that every UTC offset fits.
_EARLIEST, _LATEST = -62_135_000_000, 253_402_000_000


def is_time(value: object) -> bool:
    """Return whether a decoded value is a valid time: whole unix seconds, 0 or more, before the year 10000."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST


def local_spans(begin: datetime, end: datetime, zone: tzinfo) -> Iterator[tuple[float, float]]:
    """Yield the spans, in order, in which a zone's clock shows a time from ``begin`` to before ``end``.

    A span has its begin and its end in unix seconds. There are two spans where the clock is put back past one of the
    two times, none where the clock skips both, and otherwise one. A time that the clock skips means the moment of the skip.

    :param begin: local time without a zone.
    :param end: the same, at most a few days later.
    """
    first, last = (one.replace(tzinfo=timezone.utc).timestamp() for one in (begin, end))
    # UTC offsets are shorter than a day, and no zone changes its offset twice within days.
    before, after = (_offset(at, zone) for at in (first - _DAY, last + _DAY))
    if before == after:
        yield first - before, last - before
        return
    change = _change(first - _DAY, last + _DAY, zone)
    for span in ((first - before, min(last - before, change)), (max(first - after, change), last - after)):
        if span[0] < span[1]:
            yield span


def first_moment(time: datetime, zone: tzinfo) -> float:
    """Return when a zone's clock first shows a time, or skips it, in unix seconds."""
    early, late, change = _both(time, zone)
    return early if early < change else max(late, change)


def last_moment(time: datetime, zone: tzinfo) -> float:
    """Return when a zone's clock last shows a time, or skips it, in unix seconds."""
    early, late, change = _both(time, zone)
    return late if late > change else min(early, change)


def _both(time: datetime, zone: tzinfo) -> tuple[float, float, float]:
    """Return when the clock shows a time by the UTC offset before its change and by the one after it, and when it changes.

    All three are unix seconds. Where the offset does not change, they are the same.
    """
    at = time.replace(tzinfo=timezone.utc).timestamp()
    before, after = (_offset(near, zone) for near in (at - _DAY, at + _DAY))
    change = _change(at - _DAY, at + _DAY, zone) if before != after else at - before
    return at - before, at - after, change


def _change(low: float, high: float, zone: tzinfo) -> float:
    """Return the first unix second between ``low`` and ``high`` that has the new UTC offset."""
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
