# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``windows`` and ``freezes`` of the instructions: when hosts may be admitted, and when not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from .._common.names import did_you_mean
from .._common.sanitize import sanitize
from .._common.strict_values import invalid_value, parse_mapping, refuse_unknown_keys

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_DAY_MINUTES = 24 * 60
# How far ahead the next window is searched, in seconds. One week is not enough, because the clock may skip a window.
_SEARCHED = 14 * _DAY_MINUTES * 60
_WINDOW_KEYS = ("days", "from", "to", "timezone")
_FREEZE_KEYS = ("from", "to", "reason", "timezone")


@dataclass(frozen=True, slots=True)
class Window:
    """Days and hours at which hosts may be admitted.

    :param days: the days on which the window begins, 0 for Monday.
    :param begin: minutes after midnight.
    :param end: minutes after midnight; of the next day unless it is after ``begin``.
    """

    days: tuple[int, ...]
    begin: int
    end: int
    timezone: str

    def plain(self) -> dict[str, Any]:
        """Return the window as it is stored."""
        return {
            "days": [_DAYS[day] for day in self.days],
            "from": _clock(self.begin),
            "to": _clock(self.end),
            "timezone": self.timezone,
        }

    def is_open(self, at: float) -> bool:
        """Return whether the zone's clock shows a time in the window at ``at`` (unix seconds)."""
        clock = datetime.fromtimestamp(at, ZoneInfo(self.timezone))
        minutes = clock.hour * 60 + clock.minute
        begins_today = clock.weekday() in self.days
        if self.begin < self.end:
            return begins_today and self.begin <= minutes < self.end
        began_yesterday = (clock.weekday() - 1) % 7 in self.days
        return (begins_today and minutes >= self.begin) or (began_yesterday and minutes < self.end)


@dataclass(frozen=True, slots=True)
class Freeze:
    """A time in which no host may be admitted.

    :param begin: unix seconds.
    :param end: unix seconds, the first moment after the freeze. If it is given as a date, the freeze ends when that day begins.
    :param texts: both as they were given.
    :param timezone: the time zone of both, unless they have an offset.
    """

    begin: float
    end: float
    reason: str
    texts: tuple[str, str]
    timezone: str

    def plain(self) -> dict[str, Any]:
        """Return the freeze as it is stored."""
        plain = {"from": self.texts[0], "to": self.texts[1], "timezone": self.timezone}
        return {**plain, "reason": self.reason} if self.reason else plain


@dataclass(frozen=True, slots=True)
class OutsideHours:
    """Why no host may be admitted now.

    :param until: when that ends (unix seconds); None if no window begins within two weeks.
    :param key: the key of the instructions.
    """

    reason: str
    until: float | None
    key: str = "windows"


def outside_hours(windows: Sequence[Window], freezes: Sequence[Freeze], now: float) -> OutsideHours | None:
    """Return why no host may be admitted at a time, None if hosts may.

    :param now: unix seconds.
    """
    for at, freeze in enumerate(freezes):
        if freeze.begin <= now < freeze.end:
            why = f": {freeze.reason}" if freeze.reason else ""
            frozen = f"frozen from {freeze.texts[0]} until {_with_hour(freeze.texts[1])} ({freeze.timezone}){why}"
            return OutsideHours(f"{frozen}; remove it from freezes to go on earlier", freeze.end, f"freezes[{at}]")
    if not windows:
        return None
    if any(one.is_open(now) for one in windows):
        return None
    # The clock is asked minute by minute, because it may skip the begin of a window, or show its end twice.
    first = math.ceil(now / 60) * 60
    for until in range(first, first + _SEARCHED, 60):
        if opened := next((one for one in windows if one.is_open(until)), None):
            opens = datetime.fromtimestamp(until, ZoneInfo(opened.timezone)).strftime("%a %Y-%m-%d %H:%M")
            return OutsideHours(f"outside of all windows; the next one begins {opens} ({opened.timezone})", until)
    return OutsideHours("outside of all windows, and none begins within two weeks; change windows to go on", None)


def parse_windows(value: object) -> tuple[Window, ...]:
    """Return the parsed ``windows`` of the instructions.

    :raises UpgradeError: ``bad_instructions``.
    """
    return tuple(_window(one, f"windows[{at}]") for at, one in enumerate(_list(value, "windows")))


def _window(value: object, key: str) -> Window:
    raw = parse_mapping(value, key)
    refuse_unknown_keys(raw, _WINDOW_KEYS, f"{key}.")
    begin, end = (_minutes(raw.get(name), f"{key}.{name}") for name in ("from", "to"))
    if begin == _DAY_MINUTES:
        # With days, 00:00 would be another day.
        raise invalid_value(f"{key}.from", raw["from"], "is the end of a day: give '00:00', with the next day in days")
    days = _days(raw["days"], f"{key}.days") if raw.get("days") is not None else tuple(range(7))
    return Window(days, begin, end % _DAY_MINUTES, _timezone(raw, key))


def parse_freezes(value: object) -> tuple[Freeze, ...]:
    """Return the parsed ``freezes`` of the instructions.

    :raises UpgradeError: ``bad_instructions``.
    """
    return tuple(_freeze(one, f"freezes[{at}]") for at, one in enumerate(_list(value, "freezes")))


def _freeze(value: object, key: str) -> Freeze:
    raw = parse_mapping(value, key)
    refuse_unknown_keys(raw, _FREEZE_KEYS, f"{key}.")
    reason = "" if raw.get("reason") is None else raw["reason"]
    if not isinstance(reason, str):
        raise invalid_value(f"{key}.reason", reason, "is not a text")
    zone = _timezone(raw, key)
    # The clock may show one of them twice, or skip it: then the freeze is the longer one.
    begin = _moment(raw.get("from"), f"{key}.from", zone, min)
    end = _moment(raw.get("to"), f"{key}.to", zone, max)
    if end[0] <= begin[0]:
        raise invalid_value(f"{key}.to", end[1], f"does not come after from, which is {begin[1]!r}")
    # As it is read back from the ledger.
    return Freeze(begin[0], end[0], sanitize(reason), (begin[1], end[1]), zone)


def _list(value: object, key: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise invalid_value(key, value, "is not a list")
    return value


def _minutes(value: object, key: str) -> int:
    # YAML 1.1 reads 22:00 without quotes as a number to the base of 60, but not 0:30. So a number below 60 is an hour without
    # minutes.
    if isinstance(value, int) and not isinstance(value, bool):
        if value == 0 or 60 <= value <= _DAY_MINUTES:
            return value
        if 0 < value <= 24:
            raise invalid_value(key, value, f"is not a time of day: give '{value:02d}:00' in quotes")
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found and int(found[2]) < 60 and (minutes := int(found[1]) * 60 + int(found[2])) <= _DAY_MINUTES:
        return minutes
    raise invalid_value(key, value, "is not a time of day: give hours and minutes, such as '22:00'")


def _days(value: object, key: str) -> tuple[int, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not given:
        raise invalid_value(key, value, "is neither a day nor a list of days")
    found: set[int] = set()
    for one in given:
        ends = [_day(part, key) for part in str(one).split("-", 1)]
        first, last = ends[0], ends[-1]
        found.update((first + step) % 7 for step in range((last - first) % 7 + 1))
    return tuple(sorted(found))


def _day(text: str, key: str) -> int:
    name = text.strip().lower()
    if len(name) >= 3 and name[:3] in _DAYS and _LONG[_DAYS.index(name[:3])].startswith(name):
        return _DAYS.index(name[:3])
    raise invalid_value(
        key,
        text,
        f"is not a day of the week{did_you_mean(name, _LONG)}; give mon, tue, wed, thu, fri, sat, sun or mon-fri",
    )


_LONG = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _timezone(raw: Any, key: str) -> str:
    name = raw.get("timezone", "UTC")
    try:
        return ZoneInfo(name).key
    except (LookupError, ValueError, TypeError, OSError) as error:
        raise invalid_value(
            f"{key}.timezone",
            name,
            "is not a time zone that is known where the planner runs: give a name such as Europe/Berlin, and install tzdata "
            "there if it has no zones at all",
        ) from error


def _moment(value: object, key: str, zone: str, choose: Callable[[Iterable[float]], float]) -> tuple[float, str]:
    # YAML parses dates without quotes.
    text = value.isoformat() if isinstance(value, (date, datetime)) else value
    try:
        if not isinstance(text, str):
            raise ValueError(text)
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as error:
        raise invalid_value(
            key, value, "is not a date or time: give a date, or date and time as 2026-12-24T18:00"
        ) from error
    moments = [found] if found.tzinfo else [found.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1)]
    return choose(one.timestamp() for one in moments), text.strip()


def _with_hour(text: str) -> str:
    """Return the time; a date gets 00:00, so that it does not look as if it meant the whole day."""
    return text if "T" in text or ":" in text else f"{text} 00:00"


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
