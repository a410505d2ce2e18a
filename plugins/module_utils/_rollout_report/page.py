# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as one HTML page without scripts or external resources. Every text is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .._common.names import plural
from .charts import curve, duration_text, numbers_of, time_text, timeline
from .host import BROKE, DONE, incidents

# Phases also differ in lightness, in the order failed, upgraded, upgrading, admitted, waiting; on a dark page, failed is the
# brightest. The colours of steps are in between, and black text is readable on each of them.
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1a1a;--line:#ccc;--w:#f9f9f9;--o:#c6e2f5;--k:#6b9fd8;--f:#8e0d0d;--d:#2e7d32}
@media (prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e8e8e8;--line:#444;--w:#25282d;--o:#34495e;--k:#6b9fd8;--f:#ffd8d2;
--d:#3a7a45}}
body{background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:1240px;padding:0 1em}
h1{font-size:1.5em;margin:.2em 0}h2{font-size:1.15em;margin:1.6em 0 .4em}
table{border-collapse:collapse;width:100%;margin-bottom:1em}td,th{border-bottom:1px solid var(--line);padding:.2em .6em;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.t{white-space:nowrap;font-variant-numeric:tabular-nums}
td:last-child,pre{overflow-wrap:anywhere}pre{white-space:pre-wrap;border:1px solid var(--line);padding:.6em}
svg{display:block;width:100%;height:auto}svg text{fill:var(--fg);font:11px system-ui,sans-serif}
.w{fill:var(--w)}.o{fill:var(--o)}.k{fill:var(--k)}.f{fill:var(--f)}.d{fill:var(--d)}
.s0{fill:#5c8bd0}.s1{fill:#a184d0}.s2{fill:#4fa8a4}.s3{fill:#8fb0ea}.s4{fill:#c4a2e2}.s5{fill:#86cfc7}
svg text.n{fill:#000;font-weight:bold}
.x{fill:none;stroke:var(--line)}.c{fill:none;stroke:var(--fg);stroke-width:1.5}.cap{stroke:var(--f);stroke-dasharray:6 4}
p{margin:.3em 0}
"""

# Texts for states that have another name in the history.
_STATES = {"abort": "aborted", "converge": "complete", "left": "replaced by another rollout"}


def html_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report.

    :param report: what :func:`~.rollout.rollout_report` returns.
    """
    title = f"Rollout to {report['version']}" + (
        f" from {report['previous_version']}" if report["previous_version"] else ""
    )
    broken = sum(one["phase"] == BROKE for one in report["hosts"])
    failures = sum(len(one["failures"]) for one in report["hosts"])
    retries = sum(len(one["retries"]) for one in report["hosts"])
    rows = sorted((at, one["host"], one["role"], *more) for one in report["hosts"] for at, *more in incidents(one))
    done = sum(one["phase"] == DONE for one in report["hosts"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_STATES.get(report['state'], report['state']))}, begun {time_text(report['begun'])}, until {time_text(report['end'])} "
        f"({duration_text(report['end'] - report['begun'])}): {done} of {plural(len(report['hosts']), 'host')} upgraded, "
        f"{broken} failed now; {plural(failures, 'failure')} and {plural(retries, 'retry', 'retries')} in all</p>",
        _section("Hosts over time", timeline(report)),
        _section("Hosts down at once, and the caps", "".join(curve(report, name) for name in report["concurrency"])),
        _section(
            "Failures and retries",
            _table(
                ("when", "host", "role", "what", "where", "why"),
                [(time_text(at) if at else "unknown", *map(str, more)) for at, *more in rows],
            ),
        )
        if rows
        else "",
        _section("How long hosts took", _took(report)),
        _section(
            "Who did what when", _table(("when", "who", "what", "why"), [_entry_row(one) for one in report["commands"]])
        ),
        _section("Rules", f"<pre>{escape(json.dumps(report['rules'], indent=2, ensure_ascii=False))}</pre>"),
    ]
    csp = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{csp}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 99) -> str:
    """Return a table. The texts of its cells are escaped here.

    :param numbers_from: index of the first column with numbers.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = (' class="n"' if at >= numbers_from else "" for at in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>\n{body}</tbody></table>"


def _entry_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return time_text(one["at"]), one["who"], one["what"], one["text"]


def _took(report: Mapping[str, Any]) -> str:
    rows = [
        (role, str(one["hosts"]), duration_text(one["median"]), duration_text(one["longest"]))
        if one["hosts"]
        else (role, "0", "-", "-")
        for role, one in report["durations"].items()
    ]
    found = _table(("role", "hosts upgraded", "median", "longest"), rows, numbers_from=1)
    numbers = numbers_of(report)
    steps = [
        (
            one["role"],
            one["service"],
            one["step"],
            str(numbers[one["step"] or one["service"]]),
            str(one["hosts"]),
            *((duration_text(one["median"]), duration_text(one["longest"])) if one["hosts"] else ("-", "-")),
            str(one["failed"]),
            str(one["at"]),
        )
        for one in report["steps"]
    ]
    head = (
        "role",
        "service",
        "step",
        "no.",
        "hosts that finished it",
        "median",
        "longest",
        "failed in it",
        "in it now",
    )
    return found + (_table(head, steps, numbers_from=3) if steps else "")
