# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as one HTML page without scripts or external resources. The template escapes every text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ...module_utils._common.names import plural
from ...module_utils._rollout_report.host import BROKE, DONE, incidents
from .charts import LEFT, WIDTH, axis, curve, duration_text, legend, numbers_of, short, time_text, timeline

# Texts for states that have another name in the history.
_STATES = {"abort": "aborted", "converge": "complete", "left": "replaced by another rollout"}


def html_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report.

    :param report: what :func:`~.rollout.rollout_report` returns.
    """
    hosts = report["hosts"]
    swatches = legend(report)
    return _template().render(
        report=report,
        state=_STATES.get(report["state"], report["state"]),
        upgraded=sum(one["phase"] == DONE for one in hosts),
        failed=sum(one["phase"] == BROKE for one in hosts),
        failures=sum(len(one["failures"]) for one in hosts),
        retries=sum(len(one["retries"]) for one in hosts),
        incidents=sorted([at, one["host"], one["role"], *more] for one in hosts for at, *more in incidents(one)),
        numbers=numbers_of(report),
        rules=json.dumps(report["rules"], indent=2, ensure_ascii=False),
        legend=swatches,
        legend_height=swatches[-1].y + 16,
        axis=axis(report),
        timeline=timeline(report),
        curves=[curve(report, name) for name in report["concurrency"]],
        left=LEFT,
        right=LEFT + WIDTH,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(time=time_text, duration=duration_text, short=short, px="{:.1f}".format)
    environment.globals.update(plural=plural)
    return environment.get_template("report.html.j2")
