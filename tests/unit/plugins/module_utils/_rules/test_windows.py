# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``windows`` and ``freezes``: hours and days in time zones, and when the next window begins."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.windows import (
    outside_hours,
    parse_freezes,
    parse_windows,
)
from fleets import fleet
from hypothesis import given
from hypothesis import strategies as st

NIGHT = {"days": ["mon-thu"], "from": "22:00", "to": "05:00", "timezone": "Europe/Berlin"}
FREEZE = {"from": "2026-12-20", "to": "2027-01-06T08:00", "timezone": "Europe/Berlin", "reason": "holidays"}


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("moment", "is_open"),
    [
        ("2026-11-23T21:59", False),
        ("2026-11-23T22:00", True),
        ("2026-11-24T04:59", True),
        ("2026-11-24T05:00", False),
        # Thursday's window ends on Friday morning, and Friday has none.
        ("2026-11-27T04:59", True),
        ("2026-11-27T22:30", False),
        ("2026-11-29T23:00", False),
    ],
)
def test_a_window_may_pass_midnight(moment: str, is_open: bool) -> None:
    found = outside_hours(parse_windows([NIGHT]), (), at(moment))
    assert (found is None) is is_open


def test_the_reason_names_the_next_window() -> None:
    found = outside_hours(parse_windows([NIGHT]), (), at("2026-11-27T12:00"))
    assert found is not None
    assert found.reason == "outside of all windows; the next one begins Mon 2026-11-30 22:00 (Europe/Berlin)"
    assert found.until == at("2026-11-30T22:00")


def test_hours_are_those_of_the_time_zone_when_clocks_change() -> None:
    # On 2026-10-25 clocks in Berlin go back at 3:00, so this window lasts an hour longer.
    (window,) = parse_windows([{"from": "01:00", "to": "04:00", "timezone": "Europe/Berlin"}])
    lengths = [
        sum(window.is_open(at(f"{day}T00:00") + minute * 60) for minute in range(24 * 60))
        for day in ("2026-10-24", "2026-10-25", "2026-10-26")
    ]
    assert lengths == [3 * 60, 4 * 60, 3 * 60]


# Days on which clocks are changed: by an hour at 2:00 or 3:00, by half an hour, at midnight, and past a whole day.
CHANGES = [
    ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2027-10-31"),
    ("America/New_York", "2027-03-14"),
    ("America/New_York", "2027-11-07"),
    ("Australia/Lord_Howe", "2027-04-04"),
    ("Australia/Lord_Howe", "2027-10-03"),
    ("America/Santiago", "2027-04-04"),
    ("America/Santiago", "2027-09-05"),
    ("Pacific/Apia", "2011-12-31"),
    ("UTC", "2027-03-28"),
]


def open_hours(begin: str, end: str, day: str, zone: str = "Europe/Berlin") -> list[tuple[str, str]]:
    """Return when a window is open on the morning of a day, to the minute, as the zone's clock shows it."""
    windows = parse_windows([{"from": begin, "to": end, "timezone": zone}])
    found: list[tuple[str, str]] = []
    was_open = False
    for minute in range(8 * 60):
        moment = at(f"{day}T00:00", zone) + minute * 60
        is_open = outside_hours(windows, (), moment) is None
        if is_open:
            shown = datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%H:%M %Z")
            found = [*found[:-1], (found[-1][0], shown)] if was_open else [*found, (shown, shown)]
        was_open = is_open
    return found


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        # At 2:00 the clock is put forward to 3:00.
        ("02:00", "02:30", []),
        ("02:00", "03:00", []),
        ("01:30", "02:30", [("01:30 CET", "01:59 CET")]),
        ("02:30", "03:30", [("03:00 CEST", "03:29 CEST")]),
        ("01:00", "04:00", [("01:00 CET", "03:59 CEST")]),
    ],
)
def test_hours_that_do_not_exist_open_no_others(begin: str, end: str, hours: list[tuple[str, str]]) -> None:
    assert open_hours(begin, end, "2027-03-28") == hours


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        # At 3:00 the clock is put back to 2:00.
        ("02:00", "03:00", [("02:00 CEST", "02:59 CET")]),
        ("02:00", "02:30", [("02:00 CEST", "02:29 CEST"), ("02:00 CET", "02:29 CET")]),
        ("01:30", "02:30", [("01:30 CEST", "02:29 CEST"), ("02:00 CET", "02:29 CET")]),
        ("02:30", "03:30", [("02:30 CEST", "02:59 CEST"), ("02:30 CET", "03:29 CET")]),
    ],
)
def test_hours_that_come_twice_open_twice(begin: str, end: str, hours: list[tuple[str, str]]) -> None:
    assert open_hours(begin, end, "2027-10-31") == hours


def test_a_day_whose_clock_skips_the_window_is_not_the_next_one() -> None:
    windows = parse_windows([{"days": "sun", "from": "02:00", "to": "03:00", "timezone": "Europe/Berlin"}])
    found = outside_hours(windows, (), at("2027-03-27T12:00"))
    assert found is not None
    assert found.until == at("2027-04-04T02:00")


@given(
    st.sampled_from(CHANGES),
    st.integers(-30 * 60, 54 * 60),
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sets(st.integers(0, 6), min_size=1),
)
def test_a_window_is_open_exactly_when_the_clock_shows_a_time_in_it(
    change: tuple[str, str], minute: int, begin: int, end: int, days: set[int]
) -> None:
    zone, day = change
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    hours = {"from": f"{begin // 60}:{begin % 60:02d}", "to": f"{end // 60}:{end % 60:02d}"}
    windows = parse_windows([{"days": [names[one] for one in sorted(days)], **hours, "timezone": zone}])
    now = at(f"{day}T00:00", zone) + minute * 60
    clock = datetime.fromtimestamp(now, ZoneInfo(zone))
    time, today = clock.hour * 60 + clock.minute, clock.weekday() in days
    yesterday = (clock.weekday() - 1) % 7 in days
    shown = today and begin <= time < end if begin < end else (today and time >= begin) or (yesterday and time < end)
    assert (outside_hours(windows, (), now) is None) is shown


@pytest.mark.parametrize(
    ("begin", "end", "first", "last"),
    [
        # The clock is put forward from 2:00 to 3:00 at 1:00 UTC.
        ("2027-03-28T02:30", "2027-03-29", "2027-03-28T00:30", "2027-03-28T22:00"),
        ("2027-03-27", "2027-03-28T02:30", "2027-03-26T23:00", "2027-03-28T01:30"),
        # The clock shows 2:30 at 0:30 and at 1:30 UTC.
        ("2027-10-31T02:30", "2027-11-01", "2027-10-31T00:30", "2027-10-31T23:00"),
        ("2027-10-30", "2027-10-31T02:30", "2027-10-29T22:00", "2027-10-31T01:30"),
        # An offset in the time overrides the zone.
        ("2027-03-28T02:30+00:00", "2027-03-29T00:00+00:00", "2027-03-28T02:30", "2027-03-29T00:00"),
    ],
)
def test_a_freeze_is_the_longer_one_when_clocks_change(begin: str, end: str, first: str, last: str) -> None:
    (freeze,) = parse_freezes([{"from": begin, "to": end, "timezone": "Europe/Berlin"}])
    assert (freeze.begin, freeze.end) == (at(first, "UTC"), at(last, "UTC"))


def test_a_freeze_may_last_as_long_as_there_are_years() -> None:
    (freeze,) = parse_freezes([{"from": "0001-01-01", "to": "9999-12-31T23:59:59", "timezone": "Europe/Berlin"}])
    assert outside_hours((), (freeze,), at("2027-03-28T12:00")) is not None


def test_a_freeze_overrides_a_window() -> None:
    found = outside_hours(parse_windows([NIGHT]), parse_freezes([FREEZE]), at("2026-12-21T23:00"))
    assert found is not None
    assert found.reason == (
        "frozen from 2026-12-20 until 2027-01-06T08:00 (Europe/Berlin): holidays; remove it from freezes to go on earlier"
    )
    assert found.until == at("2027-01-06T08:00")
    assert outside_hours((), parse_freezes([FREEZE]), at("2027-01-06T08:00")) is None


@pytest.mark.parametrize("end", ["2027-01-06", date(2027, 1, 6)])
def test_a_freeze_to_a_date_ends_when_that_day_begins_and_says_so(end: object) -> None:
    freezes = parse_freezes([{**FREEZE, "to": end}])
    found = outside_hours((), freezes, at("2027-01-05T23:59"))
    assert found is not None
    assert found.reason.startswith("frozen from 2026-12-20 until 2027-01-06 00:00 (Europe/Berlin): holidays; ")
    assert outside_hours((), freezes, at("2027-01-06T00:00")) is None


def test_times_and_dates_that_yaml_has_parsed_are_accepted() -> None:
    (window,) = parse_windows([{"from": 22 * 60, "to": "05:00"}])
    assert window.plain() == {
        "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "from": "22:00",
        "to": "05:00",
        "timezone": "UTC",
    }
    (freeze,) = parse_freezes([{"from": date(2026, 12, 20), "to": datetime(2026, 12, 21, 8)}])
    assert freeze.plain() == {"from": "2026-12-20", "to": "2026-12-21T08:00:00", "timezone": "UTC"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("22:00", "22:00"),
        ("6:00", "06:00"),
        ("1:00", "01:00"),
        ("0:30", "00:30"),
        ("00:22", "00:22"),
        ("09:59", "09:59"),
        ("0:00", "00:00"),
        ("0", "00:00"),
    ],
)
def test_times_without_quotes_have_their_literal_meaning_in_yaml(written: str, meant: str) -> None:
    (window,) = parse_windows(yaml.safe_load(f"[{{from: {written}, to: {written}}}]"))
    assert (window.plain()["from"], window.plain()["to"]) == (meant, meant)


def test_a_window_ends_at_24_00_and_does_not_begin_there() -> None:
    (window,) = parse_windows([{"days": "fri", "from": "20:00", "to": "24:00"}])
    assert window.plain()["to"] == "00:00"
    with pytest.raises(
        UpgradeError, match=r"windows\[0\]\.from: .* is the end of a day: give '00:00', with the next day in days"
    ):
        parse_windows([{"days": "fri", "from": "24:00", "to": "02:00"}])


@pytest.mark.parametrize("written", ["22", "6", "12:30:00", "22:00:00", "22.00", "yes"])
def test_other_times_that_yaml_has_parsed_are_refused(written: str) -> None:
    with pytest.raises(UpgradeError, match=r"windows\[0\]\.from: .* is not a time of day"):
        parse_windows(yaml.safe_load(f"[{{from: {written}, to: '06:00'}}]"))


def test_they_are_read_back_as_they_were_written() -> None:
    windows, freezes = parse_windows([NIGHT]), parse_freezes([FREEZE])
    assert parse_windows([one.plain() for one in windows]) == windows
    assert parse_freezes([one.plain() for one in freezes]) == freezes


@pytest.mark.parametrize(
    ("read", "raw", "message"),
    [
        (parse_windows, {}, "windows: {} is not a list."),
        (parse_windows, [{"from": "25:00", "to": "5:00"}], "windows[0].from: '25:00' is not a time of day"),
        (parse_windows, [{"to": "5:00"}], "windows[0].from: None is not a time of day"),
        # A number of hours would count as minutes.
        (
            parse_windows,
            [{"from": 22, "to": "6:00"}],
            "windows[0].from: 22 is not a time of day: give '22:00' in quotes.",
        ),
        (parse_windows, [{"from": "22:00", "to": 6}], "windows[0].to: 6 is not a time of day: give '06:00' in quotes."),
        (
            parse_windows,
            [{"from": 45, "to": "6:00"}],
            "windows[0].from: 45 is not a time of day: give hours and minutes",
        ),
        (
            parse_windows,
            [{"from": -60, "to": "6:00"}],
            "windows[0].from: -60 is not a time of day: give hours and minutes",
        ),
        (parse_windows, [{"from": 1441, "to": "6:00"}], "windows[0].from: 1441 is not a time of day"),
        (parse_windows, [{"from": True, "to": "6:00"}], "windows[0].from: True is not a time of day"),
        (parse_windows, [{"from": 22.5, "to": "6:00"}], "windows[0].from: 22.5 is not a time of day"),
        (parse_windows, [{"from": "22", "to": "6:00"}], "windows[0].from: '22' is not a time of day"),
        (parse_windows, [{"from": "12:30:00", "to": "6:00"}], "windows[0].from: '12:30:00' is not a time of day"),
        (parse_windows, [{**NIGHT, "days": "funday"}], "windows[0].days: 'funday' is not a day of the week"),
        (parse_windows, [{**NIGHT, "days": []}], "windows[0].days: [] is neither a day nor a list of days"),
        (
            parse_windows,
            [{**NIGHT, "timezone": "Berlin"}],
            "windows[0].timezone: 'Berlin' is not a time zone that is known",
        ),
        (parse_windows, [{**NIGHT, "day": "mon"}], "windows[0].day: unknown key; did you mean 'days'?"),
        (parse_freezes, [{**FREEZE, "to": "2026-12-19"}], "freezes[0].to: '2026-12-19' does not come after from"),
        (
            parse_freezes,
            [{**FREEZE, "from": "Christmas"}],
            "freezes[0].from: 'Christmas' is not a date or time: give a date",
        ),
        (parse_freezes, [{**FREEZE, "reason": 3}], "freezes[0].reason: 3 is not a text"),
    ],
)
def test_invalid_values_are_refused(read: Any, raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        read(raw)
    assert message in caught.value.message


@given(st.floats(1.6e9, 2e9), st.integers(0, 1439), st.integers(0, 1439), st.sets(st.integers(0, 6), min_size=1))
def test_the_next_window_is_open_when_it_begins_and_none_was_before(
    now: float, begin: int, end: int, days: set[int]
) -> None:
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    hours = {"from": f"{begin // 60}:{begin % 60:02d}", "to": f"{end // 60}:{end % 60:02d}"}
    raw = {"days": [names[day] for day in sorted(days)], **hours, "timezone": "America/New_York"}
    windows = parse_windows([raw])
    found = outside_hours(windows, (), now)
    if found is not None:
        assert found.until is not None
        assert found.until > now
        assert outside_hours(windows, (), found.until) is None
        assert outside_hours(windows, (), (now + found.until) / 2) is not None


def test_no_host_is_admitted_outside_of_the_windows_and_waiting_makes_sense() -> None:
    site = fleet(compute=2)
    site.now = at("2026-11-24T12:00")
    plan = site.plan({"windows": [NIGHT]})
    assert plan.admissions == ()
    assert (plan.can_move, plan.wake_at) == (True, at("2026-11-24T22:00"))
    assert (
        plan.hosts["compute1"].reason
        == "outside of all windows; the next one begins Tue 2026-11-24 22:00 (Europe/Berlin)"
    )
    site.now = at("2026-11-24T22:00")
    assert len(site.plan({"windows": [NIGHT]}).admissions) == 2
