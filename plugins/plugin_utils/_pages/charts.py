# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The charts of a rollout: where each bar, line and text is, for the pages to draw.

Along the time, places are in percent of the whole, so that bars scale with the page and texts do not.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._common.durations import duration_in_words
from ...module_utils._common.names import is_job
from ...module_utils._host_states.state_names import state_text
from ...module_utils._rollout_report.host import BROKE, DONE, OPEN, PHASES, WAITS, WORKS

_CLASSES = {WAITS: "w", OPEN: "o", WORKS: "k", BROKE: "f", DONE: "d"}
# Textures repeat what colours show.
_TEXTURES = {OPEN: "po", BROKE: "pf"}
# The number of colours for steps. More steps share colours and differ by their numbers.
STEP_COLOURS = 6
# The least widths of a bar, and of a bar with a number (percent).
_LEAST_WIDTH, _NUMBER_WIDTH = 0.08, 1.5
# Up to this many hosts, each piece of a bar has a tooltip. With more hosts, only the whole bar has one.
_MOST_TOOLTIPS = 400
# A line has no more points than this along the time.
_MOST_POINTS = 500
# How many times a chart of phases has.
_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a host's bar: one phase or step.

    :param x: left end; ``width`` is not 0. Both in percent.
    :param kind: CSS class, which gives the colour.
    :param tooltip: empty for none.
    :param number: the number of its step; 0 to show none.
    """

    x: float
    width: float
    kind: str
    tooltip: str
    number: int


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host in the timeline.

    :param title: its phase, and its error.
    """

    host: str
    title: str
    y: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class RoleRows:
    """The hosts of a role over time.

    :param hosts: in the order of their admission.
    :param row_height: height of a host (pixels).
    :param has_names: whether there is room for their names beside the bars.
    """

    role: str
    hosts: tuple[HostRow, ...]
    row_height: int
    has_names: bool

    @property
    def height(self) -> int:
        """Return the height of all rows (pixels)."""
        return self.row_height * len(self.hosts)


@dataclass(frozen=True, slots=True)
class Swatch:
    """An entry of a legend.

    :param kind: CSS class, which gives the colour.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Band:
    """A stage along the time, in percent."""

    name: str
    x: float
    width: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Curve:
    """How many hosts of a part of the fleet were down over time.

    :param text: the largest number and the cap.
    :param points: of the line: x and y, from 0 to 100.
    :param cap_y: where the line of the cap is; None for no cap.
    """

    name: str
    text: str
    points: tuple[tuple[float, float], ...]
    cap_y: float | None


@dataclass(frozen=True, slots=True)
class Area:
    """How many hosts were in a phase over time, above those in other phases.

    :param points: of the area: x and y, from 0 to 100.
    """

    kind: str
    name: str
    points: tuple[tuple[float, float], ...]


def time_text(at: float) -> str:
    """Return a time (unix seconds) as UTC text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + " UTC"


def clock_text(at: float, precision: str = "minutes") -> str:
    """Return a time (unix seconds) as short UTC text: month, day and time of day."""
    return time_text(at)[5 : 19 if precision == "seconds" else 16]


def iso_text(at: float) -> str:
    """Return a time (unix seconds) for the attribute of a ``time`` element."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def duration_text(seconds: float) -> str:
    """Return a duration (seconds) as text, such as ``2m 5s``."""
    return duration_in_words(seconds, "<1s")


def numbers_of(report: Mapping[str, Any]) -> dict[str, int]:
    """Return step -> its number in this report, from 1; its colour follows from that. A service without steps counts as a step."""
    names = dict.fromkeys(one["step"] or one["service"] for one in report["steps"])
    return {name: at for at, name in enumerate(names, 1)}


def timeline(report: Mapping[str, Any], only: Collection[str] | None = None) -> list[RoleRows]:
    """Return the chart of hosts over time, for each role.

    :param only: the hosts to draw; None for all.
    """
    numbers, of_job = numbers_of(report), is_job(report["version"])
    chosen = [one for one in report["hosts"] if only is None or one["host"] in only]
    hosts = sorted(chosen, key=lambda one: (one["role"], one["phases"][0][2], one["phase"] == WAITS))
    height = 18 if len(hosts) <= 60 else 7 if len(hosts) <= _MOST_TOOLTIPS else 2
    rows: dict[str, list[HostRow]] = {}
    for one in hosts:
        error = f": {one['error']}" if one["error"] else ""
        of_role = rows.setdefault(one["role"], [])
        of_role.append(
            HostRow(
                one["host"],
                f"{one['host']}: {state_text(one['phase'], of_job=of_job)}{error}",
                height * len(of_role),
                tuple(_bars(report, one, numbers, height, has_tooltips=len(hosts) <= _MOST_TOOLTIPS)),
            )
        )
    return [RoleRows(role, tuple(found), height, height > 10) for role, found in rows.items()]


def _bars(
    report: Mapping[str, Any], one: Mapping[str, Any], numbers: Mapping[str, int], height: int, *, has_tooltips: bool
) -> Iterator[Bar]:
    of_job = is_job(report["version"])
    for phase, start, end, service, step in one["phases"]:
        left = _x(report, start)
        width = max(_x(report, end) - left, _LEAST_WIDTH)
        number = numbers.get(step or service, 0) if phase == WORKS else 0
        tooltip = ""
        if has_tooltips:
            at = " ".join(filter(None, (service, step)))
            error = f": {one['error']}" if phase == BROKE and one["error"] else ""
            when = f"from {time_text(start)}, {duration_text(end - start)}"
            tooltip = f"{one['host']}: {state_text(phase, of_job=of_job)}{f', {at}' if at else ''}, {when}{error}"
        # Thin bars have no room for a texture or a number.
        kind = _kind(phase, number)
        if height > 2 and phase in _TEXTURES:
            kind = _TEXTURES[phase]
        shows_number = height > 10 and width >= _NUMBER_WIDTH
        yield Bar(left, width, kind, tooltip, number if shows_number else 0)


def _kind(phase: str, number: int) -> str:
    return f"s{(number - 1) % STEP_COLOURS}" if number else _CLASSES[phase]


def legend(report: Mapping[str, Any]) -> list[Swatch]:
    """Return the colours of the timeline: phases, then steps."""
    phases = [
        Swatch(_TEXTURES.get(phase, _CLASSES[phase]), state_text(phase, of_job=is_job(report["version"])))
        for phase in PHASES
    ]
    return phases + [Swatch(_kind(WORKS, number), f"{number} {name}") for name, number in numbers_of(report).items()]


def axis(report: Mapping[str, Any]) -> list[str]:
    """Return the times above the charts, at equal distances from the begin to the end; one that was there before is empty."""
    span = report["end"] - report["begun"]
    # Month to minute; hour to second for less than ten minutes.
    shown = slice(5, 16) if span >= 600 else slice(11, 19)
    times = [time_text(report["begun"] + span * part / 4)[shown] for part in range(5)]
    # In the first seconds of a rollout, some are the same.
    return [text if text not in times[:at] else "" for at, text in enumerate(times)]


def bands(report: Mapping[str, Any]) -> list[Band]:
    """Return the stages along the time; empty for a rollout without stages."""
    return [
        Band(
            one["name"],
            _x(report, one["begun"]),
            max(_x(report, one["end"]) - _x(report, one["begun"]), _LEAST_WIDTH),
            f"stage {one['name']}, from {time_text(one['begun'])}, {duration_text(one['end'] - one['begun'])}",
        )
        for one in report["stages"]
    ]


def curve(report: Mapping[str, Any], name: str) -> Curve:
    """Return the chart of how many hosts of a part of the fleet were down over time, and its cap."""
    steps, cap = report["concurrency"][name], report["caps"].get(name)
    most: int = max([down for _at, down in steps] or [0])
    top = max(most, cap or 0, 1)

    def y(down: float) -> float:
        return 95 - down / top * 90

    points, before = [(_x(report, report["begun"]), y(0))], 0
    for at, down in _thinned(steps, report["end"] - report["begun"]):
        points += [(_x(report, at), y(before)), (_x(report, at), y(down))]
        before = down
    points.append((_x(report, report["end"]), y(before)))
    text = f"at most {most}" + (f", cap {cap}" if cap is not None else ", no cap")
    return Curve(name, text, tuple(points), None if cap is None else y(cap))


def _thinned(steps: Sequence[Sequence[int]], seconds: int) -> Iterator[tuple[int, int]]:
    """Yield the steps of a line; of many that are close together, the highest and the last."""
    size = max(1, seconds // _MOST_POINTS)
    at_most: dict[int, list[tuple[int, int]]] = {}
    for at, down in steps:
        at_most.setdefault(at // size, []).append((at, down))
    for found in at_most.values():
        highest = max(found, key=lambda one: one[1])
        if highest is not found[-1]:
            yield highest
        yield found[-1]


def phases_over_time(report: Mapping[str, Any]) -> list[Area]:
    """Return how many hosts were in each phase over time, from the bottom to the top. Takes time linear in hosts."""
    begun, end = report["begun"], report["end"]
    span = max(1, end - begun)
    changes = {phase: [0] * (_COLUMNS + 2) for phase in PHASES}
    for one in report["hosts"]:
        for phase, start, until, *_step in one["phases"]:
            # A phase counts at the times from its start to just before its end, the last one also at the end.
            first = -(-(start - begun) * _COLUMNS // span)
            last = -(-(until - begun) * _COLUMNS // span) if until < end else _COLUMNS + 1
            if last > first:
                changes[phase][first] += 1
                changes[phase][last] -= 1
    total = max(1, len(report["hosts"]))
    below = [0] * (_COLUMNS + 1)
    areas = []
    for phase in (DONE, BROKE, WORKS, OPEN):
        count, above = 0, []
        for column in range(_COLUMNS + 1):
            count += changes[phase][column]
            above.append(below[column] + count)
        edge = [(100 * column / _COLUMNS, 100 - 100 * of / total) for column, of in enumerate(above)]
        floor = [(100 * column / _COLUMNS, 100 - 100 * of / total) for column, of in enumerate(below)]
        if above != below:
            areas.append(
                Area(_CLASSES[phase], state_text(phase, of_job=is_job(report["version"])), (*edge, *reversed(floor)))
            )
        below = above
    return areas


def _x(report: Mapping[str, Any], at: float) -> float:
    begun: float = report["begun"]
    end: float = report["end"]
    return (at - begun) / max(1.0, end - begun) * 100
