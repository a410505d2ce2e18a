# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The charts of a report: SVG without script, with every text escaped and a text alternative for each chart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from .host import BROKE, DONE, OPEN, PHASES, WAITS, WORKS

_LEFT, _WIDTH = 180, 1000
_CLASSES = {WAITS: "w", OPEN: "o", WORKS: "k", BROKE: "f", DONE: "d"}
# Textures and numbers repeat what colours show.
_PATTERNS = (
    '<defs><pattern id="po" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="8" height="8" class="o"/><rect width="1.5" height="8" fill="var(--bg)"/></pattern>'
    '<pattern id="pf" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" class="f"/><rect width="2" height="5" fill="var(--bg)"/>'
    '<rect width="5" height="2" fill="var(--bg)"/></pattern></defs>'
)
_FILLS = {OPEN: ' style="fill:url(#po)"', BROKE: ' style="fill:url(#pf)"'}
# The number of colours for steps. More steps share colours and differ by their numbers.
STEP_COLOURS = 6
# The least width of a bar with a number.
_NUMBER_WIDTH = 14
# Up to this many hosts, each piece of a bar has a tooltip. With more hosts, only the whole bar has one.
_MOST_TOOLTIPS = 400
_IN_A_ROW = 6


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


def timeline(report: Mapping[str, Any]) -> str:
    """Return the legend, and a bar for each host, by role and in the order of their admission."""
    numbers = numbers_of(report)
    hosts = sorted(report["hosts"], key=lambda one: (one["role"], one["phases"][0][2], one["phase"] == WAITS))
    height = 16 if len(hosts) <= 40 else 7 if len(hosts) <= _MOST_TOOLTIPS else 2
    shown, y, role = [], 14.0, None
    for one in hosts:
        if one["role"] != role:
            role = one["role"]
            y += 6
            shown.append(f'<text x="0" y="{y + 10:g}" font-weight="bold">{escape(short(role))}</text>')
            y += 16 if height > 10 else 0
        if height > 10:
            shown.append(f'<text x="12" y="{y + 12:g}">{escape(short(one["host"]))}</text>')
        error = f": {one['error']}" if one["error"] else ""
        shown.append(f"<g><title>{escape(one['host'] + ': ' + one['phase'] + error)}</title>")
        shown += _bar(report, one, numbers, y, height, has_tooltips=len(hosts) <= _MOST_TOOLTIPS)
        shown.append("</g>")
        y += height
    body = f"{_PATTERNS}{_axis(report)}{''.join(shown)}"
    return f'{_legend(numbers)}<svg viewBox="0 0 1200 {y + 8:g}" role="img" aria-label="hosts over time">{body}</svg>'


def _bar(
    report: Mapping[str, Any],
    one: Mapping[str, Any],
    numbers: Mapping[str, int],
    y: float,
    height: int,
    *,
    has_tooltips: bool,
) -> Iterator[str]:
    for phase, start, end, service, step in one["phases"]:
        left = _x(report, start)
        width = max(_x(report, end) - left, 0.8)
        number = numbers.get(step or service, 0) if phase == WORKS else 0
        # Thin bars have no room for a texture.
        fill = _FILLS.get(phase, "") if height > 2 else ""
        tooltip = ""
        if has_tooltips:
            at = " ".join(filter(None, (service, step)))
            words = f"{one['host']}: {phase}{f', {at}' if at else ''}, from {time_text(start)}, {duration_text(end - start)}"
            error = f": {one['error']}" if phase == BROKE and one["error"] else ""
            tooltip = f"<title>{escape(words + error)}</title>"
        yield (
            f'<rect x="{left:.1f}" y="{y:g}" width="{width:.1f}" height="{height - (height > 2)}" class="{_kind(phase, number)}"{fill}>'
            f"{tooltip}</rect>"
        )
        if number and height > 10 and width >= _NUMBER_WIDTH:
            yield f'<text x="{left + 3:.1f}" y="{y + 11.5:g}" class="n">{number}</text>'


def _kind(phase: str, number: int) -> str:
    return f"s{(number - 1) % STEP_COLOURS}" if number else _CLASSES[phase]


def short(name: str) -> str:
    """Return a name, truncated to the room beside a bar."""
    return name if len(name) <= 24 else f"{name[:23]}\u2026"


def _legend(numbers: Mapping[str, int]) -> str:
    steps = [(_kind(WORKS, number), "", f"{number} {name}") for name, number in numbers.items()]
    row = [(_CLASSES[phase], _FILLS.get(phase, ""), phase) for phase in PHASES]
    rows: list[Sequence[tuple[str, str, str]]] = [row]
    rows += [steps[at : at + _IN_A_ROW] for at in range(0, len(steps), _IN_A_ROW)]
    found = "".join(_swatches(row, 2 + 18 * at) for at, row in enumerate(rows))
    label = "legend: " + ", ".join(name for row in rows for _kind, _fill, name in row)
    return f'<svg viewBox="0 0 1200 {18 * len(rows)}" role="img" aria-label="{escape(label)}">{_PATTERNS}{found}</svg>'


def _swatches(row: Iterable[tuple[str, str, str]], y: int) -> str:
    return "".join(
        f'<rect x="{at * 190}" y="{y}" width="28" height="12" class="{kind}"{fill}/>'
        f'<rect x="{at * 190}" y="{y}" width="28" height="12" class="x"/><text x="{at * 190 + 34}" y="{y + 10}">{escape(short(name))}</text>'
        for at, (kind, fill, name) in enumerate(row)
    )


def _x(report: Mapping[str, Any], at: float) -> float:
    begun, end = float(report["begun"]), float(report["end"])
    return _LEFT + (at - begun) / max(1.0, end - begun) * _WIDTH


def _axis(report: Mapping[str, Any]) -> str:
    span = report["end"] - report["begun"]
    # Month to minute; hour to second for less than ten minutes.
    shown = slice(5, 16) if span >= 600 else slice(11, 19)
    return "".join(
        f'<text x="{_LEFT + _WIDTH * part / 4:g}" y="10" text-anchor="{"start" if not part else "end" if part == 4 else "middle"}">'
        f"{time_text(report['begun'] + span * part / 4)[shown]}</text>"
        for part in range(5)
    )


def curve(report: Mapping[str, Any], name: str) -> str:
    """Return the chart of how many hosts of a part of the fleet were down over time, and its cap."""
    steps, cap = report["concurrency"][name], report["caps"].get(name)
    most = max([down for _at, down in steps] or [0])
    top = max(most, cap or 0, 1)
    points, before = [f"{_x(report, report['begun']):.1f},70"], 0
    for at, down in steps:
        points += [
            f"{_x(report, at):.1f},{70 - before / top * 60:.1f}",
            f"{_x(report, at):.1f},{70 - down / top * 60:.1f}",
        ]
        before = down
    points.append(f"{_x(report, report['end']):.1f},{70 - before / top * 60:.1f}")
    line = ""
    if cap is not None:
        y = 70 - cap / top * 60
        line = f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="cap"/>'
    words = f"at most {most}" + (f", cap {cap}" if cap is not None else ", no cap")
    return (
        f'<svg viewBox="0 0 1200 78" role="img" aria-label="{escape(f"{name}: {words}", quote=True)}">'
        f'<text x="0" y="32" font-weight="bold">{escape(short(name))}</text><text x="0" y="48">{words}</text>'
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="70" y2="70" class="x"/>{line}<polyline class="c" points="{" ".join(points)}"/></svg>'
    )
