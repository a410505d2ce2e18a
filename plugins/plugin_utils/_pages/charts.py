# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The charts of a rollout report: where each bar, line and text is, for the page to draw."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils._rollout_report.host import BROKE, DONE, OPEN, PHASES, WAITS, WORKS

LEFT, WIDTH = 180, 1000
_CLASSES = {WAITS: "w", OPEN: "o", WORKS: "k", BROKE: "f", DONE: "d"}
# Textures repeat what colours show.
_TEXTURES = {OPEN: "po", BROKE: "pf"}
# The number of colours for steps. More steps share colours and differ by their numbers.
STEP_COLOURS = 6
# The least width of a bar with a number.
_NUMBER_WIDTH = 14
# Up to this many hosts, each piece of a bar has a tooltip. With more hosts, only the whole bar has one.
_MOST_TOOLTIPS = 400
_IN_A_ROW = 6
# The height of a cap chart, without the line below it.
_HEIGHT, _BOTTOM = 60, 70


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a host's bar: one phase or step.

    :param x: left end; ``width`` is not 0.
    :param kind: CSS class, which gives the colour.
    :param texture: ID of a pattern that replaces the colour; empty for none.
    :param tooltip: empty for none.
    :param number: the number of its step; 0 to show none.
    """

    x: float
    width: float
    kind: str
    texture: str
    tooltip: str
    number: int


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host in the timeline.

    :param heading: the role, before its first host; empty otherwise.
    :param heading_y: where the heading is.
    :param name: the host's name beside the bars; empty if there is no room.
    """

    y: float
    title: str
    bars: tuple[Bar, ...]
    name: str
    heading: str
    heading_y: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The hosts over time.

    :param hosts: by role, and in the order of their admission.
    :param row_height: height of a host.
    """

    hosts: tuple[HostRow, ...]
    row_height: int
    height: float


@dataclass(frozen=True, slots=True)
class Swatch:
    """An entry of the legend."""

    x: int
    y: int
    kind: str
    texture: str
    name: str


@dataclass(frozen=True, slots=True)
class Curve:
    """How many hosts of a part of the fleet were down over time.

    :param text: the largest number and the cap.
    :param points: of the line: x and y.
    :param cap_y: where the line of the cap is; None for no cap.
    """

    name: str
    text: str
    points: tuple[tuple[float, float], ...]
    cap_y: float | None


def time_text(at: float) -> str:
    """Return a time (unix seconds) as UTC text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + " UTC"


def duration_text(seconds: float) -> str:
    """Return a duration (seconds) as text, such as ``2 min 5 s``."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def numbers_of(report: Mapping[str, Any]) -> dict[str, int]:
    """Return step -> its number in this report, from 1; its colour follows from that. A service without steps counts as a step."""
    names = dict.fromkeys(one["step"] or one["service"] for one in report["steps"])
    return {name: at for at, name in enumerate(names, 1)}


def timeline(report: Mapping[str, Any]) -> Timeline:
    """Return the chart of all hosts over time."""
    numbers = numbers_of(report)
    hosts = sorted(report["hosts"], key=lambda one: (one["role"], one["phases"][0][2], one["phase"] == WAITS))
    height = 16 if len(hosts) <= 40 else 7 if len(hosts) <= _MOST_TOOLTIPS else 2
    rows, y, role = [], 14.0, None
    for one in hosts:
        heading, heading_y = "", 0.0
        if one["role"] != role:
            heading = role = one["role"]
            y += 6
            heading_y = y + 10
            y += 16 if height > 10 else 0
        error = f": {one['error']}" if one["error"] else ""
        rows.append(
            HostRow(
                y,
                f"{one['host']}: {one['phase']}{error}",
                tuple(_bars(report, one, numbers, height, has_tooltips=len(hosts) <= _MOST_TOOLTIPS)),
                short(one["host"]) if height > 10 else "",
                short(heading),
                heading_y,
            )
        )
        y += height
    return Timeline(tuple(rows), height, y + 8)


def _bars(
    report: Mapping[str, Any], one: Mapping[str, Any], numbers: Mapping[str, int], height: int, *, has_tooltips: bool
) -> Iterator[Bar]:
    for phase, start, end, service, step in one["phases"]:
        left = _x(report, start)
        width = max(_x(report, end) - left, 0.8)
        number = numbers.get(step or service, 0) if phase == WORKS else 0
        tooltip = ""
        if has_tooltips:
            at = " ".join(filter(None, (service, step)))
            error = f": {one['error']}" if phase == BROKE and one["error"] else ""
            when = f"from {time_text(start)}, {duration_text(end - start)}"
            tooltip = f"{one['host']}: {phase}{f', {at}' if at else ''}, {when}{error}"
        # Thin bars have no room for a texture or a number.
        texture = _TEXTURES.get(phase, "") if height > 2 else ""
        shows_number = height > 10 and width >= _NUMBER_WIDTH
        yield Bar(left, width, _kind(phase, number), texture, tooltip, number if shows_number else 0)


def _kind(phase: str, number: int) -> str:
    return f"s{(number - 1) % STEP_COLOURS}" if number else _CLASSES[phase]


def short(name: str) -> str:
    """Return a name, truncated to the room beside a bar."""
    return name if len(name) <= 24 else f"{name[:23]}\u2026"


def legend(report: Mapping[str, Any]) -> list[Swatch]:
    """Return the colours of the timeline: a row of phases, and rows of steps."""
    row = [(_CLASSES[phase], _TEXTURES.get(phase, ""), phase) for phase in PHASES]
    steps = [(_kind(WORKS, number), "", f"{number} {name}") for name, number in numbers_of(report).items()]
    rows = [row, *(steps[at : at + _IN_A_ROW] for at in range(0, len(steps), _IN_A_ROW))]
    return [
        Swatch(190 * column, 2 + 18 * line, kind, texture, name)
        for line, found in enumerate(rows)
        for column, (kind, texture, name) in enumerate(found)
    ]


def axis(report: Mapping[str, Any]) -> list[tuple[float, str, str]]:
    """Return the times above the timeline: x, the anchor of the text, and the text."""
    span = report["end"] - report["begun"]
    # Month to minute; hour to second for less than ten minutes.
    shown = slice(5, 16) if span >= 600 else slice(11, 19)
    return [
        (LEFT + WIDTH * part / 4, anchor, time_text(report["begun"] + span * part / 4)[shown])
        for part, anchor in enumerate(("start", "middle", "middle", "middle", "end"))
    ]


def curve(report: Mapping[str, Any], name: str) -> Curve:
    """Return the chart of how many hosts of a part of the fleet were down over time, and its cap."""
    steps, cap = report["concurrency"][name], report["caps"].get(name)
    most: int = max([down for _at, down in steps] or [0])
    top = max(most, cap or 0, 1)

    def y(down: float) -> float:
        return _BOTTOM - down / top * _HEIGHT

    points, before = [(_x(report, report["begun"]), y(0))], 0
    for at, down in steps:
        points += [(_x(report, at), y(before)), (_x(report, at), y(down))]
        before = down
    points.append((_x(report, report["end"]), y(before)))
    text = f"at most {most}" + (f", cap {cap}" if cap is not None else ", no cap")
    return Curve(name, text, tuple(points), None if cap is None else y(cap))


def _x(report: Mapping[str, Any], at: float) -> float:
    begun: float = report["begun"]
    end: float = report["end"]
    return LEFT + (at - begun) / max(1.0, end - begun) * WIDTH
