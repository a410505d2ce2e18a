# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as one HTML page: no script, nothing from elsewhere, and every text escaped."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .chronicle import BROKE, DONE, OPEN, PHASES, WAITS, WORKS
from .names import plural

_WIDTH = 1000
# Texture beside colour, so that it can be read in black and white and by those who see colours otherwise.
_CLASSES = {WAITS: "w", OPEN: "o", WORKS: "k", BROKE: "f", DONE: "d"}
_STYLE = """
:root{--bg:#fff;--fg:#1a1a1a;--dim:#666;--line:#ccc;--w:#f0f0f0;--o:#9ecae8;--k:#2171b5;--f:#c62828;--d:#86c68e}
@media (prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e8e8e8;--dim:#a0a0a0;--line:#444;--w:#2a2d33;--o:#5b8fb5;--k:#a8d4fa;--f:#ff6b60;
--d:#37763f}}
body{background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:1240px;padding:0 1em}
h1{font-size:1.5em;margin:.2em 0}h2{font-size:1.15em;margin:1.6em 0 .4em}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);padding:.2em .6em;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.t{white-space:nowrap;font-variant-numeric:tabular-nums}
td,pre{overflow-wrap:anywhere}pre{white-space:pre-wrap;border:1px solid var(--line);padding:.6em}
svg{display:block;width:100%;height:auto}svg text{fill:var(--fg);font:11px system-ui,sans-serif}
.w{fill:var(--w)}.o{fill:var(--o)}.k{fill:var(--k)}.f{fill:var(--f)}.d{fill:var(--d)}
.x{fill:none;stroke:var(--line)}.c{fill:none;stroke:var(--fg);stroke-width:1.5}.cap{stroke:var(--f);stroke-dasharray:6 4}
.dim{color:var(--dim)}p{margin:.3em 0}
"""
# Lines over the colours: none waits, sparse is let through, dense at work, crossed failed, plain dark is done.
_PATTERNS = (
    '<defs><pattern id="po" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="8" height="8" class="o"/><rect width="1.5" height="8" fill="var(--bg)"/></pattern>'
    '<pattern id="pf" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" class="f"/><rect width="2" height="5" fill="var(--bg)"/>'
    '<rect width="5" height="2" fill="var(--bg)"/></pattern></defs>'
)
_FILLS = {OPEN: ' style="fill:url(#po)"', BROKE: ' style="fill:url(#pf)"'}


def page(told: Mapping[str, Any]) -> str:
    """Return the page.

    :param told: what :func:`chronicle.chronicle` returns.
    """
    title = f"Rollout to {told['version']}" + (f" from {told['previous_version']}" if told["previous_version"] else "")
    broken = [one for one in told["hosts"] if one["phase"] == BROKE]
    done = sum(one["phase"] == DONE for one in told["hosts"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(told['state'])}, begun {_time(told['begun'])}, until {_time(told['end'])} "
        f"({_lasting(told['end'] - told['begun'])}): {done} of {plural(len(told['hosts']), 'host')} upgraded, "
        f"{plural(len(broken), 'failure')}</p>",
        _section("Failures", _table(("host", "role", "where", "error"), [_failure(one) for one in broken]))
        if broken
        else "",
        _section("Hosts over time", _legend() + _timeline(told)),
        _section("Down at once, and the caps", "".join(_curve(told, name) for name in told["concurrency"])),
        _section("How long hosts took", _took(told)),
        _section("Who did what when", _table(("when", "who", "what", "why"), [_word(one) for one in told["words"]])),
        _section("Rules", f"<pre>{escape(json.dumps(told['rules'], indent=2, ensure_ascii=False))}</pre>"),
    ]
    csp = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{csp}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}\n"


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + " UTC"


def _lasting(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Return a table; texts of its cells are escaped here."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kind = ' class="n"' if numbers else ""
        return "".join(f"<{tag}{kind if at else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>\n{body}</tbody></table>"


def _failure(one: Mapping[str, Any]) -> tuple[str, ...]:
    return one["host"], one["role"], " ".join(filter(None, (one["service"], one["step"]))), one["error"]


def _word(one: Mapping[str, Any]) -> tuple[str, ...]:
    return _time(one["at"]), one["who"], one["what"], one["text"]


def _legend() -> str:
    found = "".join(
        f'<rect x="{at * 150}" y="2" width="28" height="12" class="{_CLASSES[phase]}"{_FILLS.get(phase, "")}/>'
        f'<rect x="{at * 150}" y="2" width="28" height="12" class="x"/><text x="{at * 150 + 34}" y="12">{phase}</text>'
        for at, phase in enumerate(PHASES)
    )
    return f'<svg viewBox="0 0 1200 18" role="img" aria-label="legend">{_PATTERNS}{found}</svg>'


def _timeline(told: Mapping[str, Any]) -> str:
    """Return a bar for each host, by role and in the order in which they were let through."""
    hosts = sorted(told["hosts"], key=lambda one: (one["role"], one["phases"][0][2], one["phase"] == WAITS))
    height = 16 if len(hosts) <= 40 else 7 if len(hosts) <= 400 else 2
    shown, y, role = [], 14.0, None
    for one in hosts:
        if one["role"] != role:
            role = one["role"]
            y += 6
            shown.append(f'<text x="0" y="{y + 10:g}" font-weight="bold">{escape(role)}</text>')
            y += 16 if height > 10 else 0
        if height > 10:
            shown.append(f'<text x="12" y="{y + 12:g}">{escape(_short(one["host"]))}</text>')
        error = f": {one['error']}" if one["error"] else ""
        shown.append(f"<g><title>{escape(one['host'] + ': ' + one['phase'] + error)}</title>")
        for phase, start, end in one["phases"]:
            left, width = _x(told, start), max(_x(told, end) - _x(told, start), 0.8)
            # Thin bars have no room for a texture; the darkest of their colours is for failures.
            fill = _FILLS.get(phase, "") if height > 2 else ""
            kind = _CLASSES[phase]
            shown.append(
                f'<rect x="{left:.1f}" y="{y:g}" width="{width:.1f}" height="{height - (height > 2)}" class="{kind}"{fill}/>'
            )
        shown.append("</g>")
        y += height
    return f'<svg viewBox="0 0 1200 {y + 8:g}" role="img" aria-label="hosts over time">{_PATTERNS}{_axis(told)}{"".join(shown)}</svg>'


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _x(told: Mapping[str, Any], at: float) -> float:
    begun, end = float(told["begun"]), float(told["end"])
    return 180 + (at - begun) / max(1.0, end - begun) * _WIDTH


def _axis(told: Mapping[str, Any]) -> str:
    span = told["end"] - told["begun"]
    return "".join(
        f'<text x="{180 + _WIDTH * part / 4:g}" y="10" text-anchor="{"start" if not part else "end" if part == 4 else "middle"}">'
        f"{_time(told['begun'] + span * part / 4)[5:16]}</text>"
        for part in range(5)
    )


def _curve(told: Mapping[str, Any], name: str) -> str:
    steps = told["concurrency"][name]
    cap = told["caps"].get("the fleet" if name == "fleet" else f"role {name}")
    most = max([down for _at, down in steps] or [0])
    top = max(most, cap or 0, 1)
    points, before = [f"{_x(told, told['begun']):.1f},70"], 0
    for at, down in steps:
        points += [f"{_x(told, at):.1f},{70 - before / top * 60:.1f}", f"{_x(told, at):.1f},{70 - down / top * 60:.1f}"]
        before = down
    points.append(f"{_x(told, told['end']):.1f},{70 - before / top * 60:.1f}")
    line = ""
    if cap is not None:
        y = 70 - cap / top * 60
        line = f'<line x1="180" x2="1180" y1="{y:.1f}" y2="{y:.1f}" class="cap"/>'
    words = f"at most {most}" + (f", cap {cap}" if cap is not None else ", no cap")
    return (
        f'<svg viewBox="0 0 1200 78" role="img" aria-label="{escape(f"{name}: {words}", quote=True)}">'
        f'<text x="0" y="32" font-weight="bold">{escape(_short(name))}</text><text x="0" y="48">{words}</text>'
        f'<line x1="180" x2="1180" y1="70" y2="70" class="x"/>{line}<polyline class="c" points="{" ".join(points)}"/></svg>'
    )


def _took(told: Mapping[str, Any]) -> str:
    rows = [
        (role, str(one["hosts"]), _lasting(one["median"]), _lasting(one["longest"]))
        if one["hosts"]
        else (role, "0", "-", "-")
        for role, one in told["durations"].items()
    ]
    found = _table(("role", "hosts that went", "median", "longest"), rows, numbers=True)
    steps = [(one["role"], one["service"], one["step"], one["phase"], str(one["hosts"])) for one in told["steps"]]
    return found + (_table(("role", "service", "step", "hosts there are", "hosts"), steps) if steps else "")
