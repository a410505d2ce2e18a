# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as one HTML page without scripts or external resources."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from ...module_utils._common.names import is_job, job_id
from ...module_utils._rollout_report.host import BROKE, DONE, incidents
from .charts import axis, bands, curve, legend, numbers_of, timeline
from .page_templates import own_text, render, rules_table

# Texts for states that have another name in the history.
_STATES = {"abort": "aborted", "converge": "complete", "left": "replaced by another rollout"}


def html_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report.

    :param report: what :func:`~.rollout.rollout_report` returns.
    """
    hosts = report["hosts"]
    typical = [one["median"] for one in report["durations"].values() for _host in range(one["hosts"])]
    return render(
        "report.html.j2",
        report=report,
        style=own_text("style.css"),
        state=_STATES.get(report["state"], report["state"]),
        job=job_id(report["version"]) if is_job(report["version"]) else "",
        upgraded=sum(one["phase"] == DONE for one in hosts),
        failed=sum(one["phase"] == BROKE for one in hosts),
        failures=sum(each["total"] for one in hosts for each in one["failures"]),
        retries=sum(len(one["retries"]) for one in hosts),
        median=median(typical) if typical else None,
        incidents=sorted([at, one["host"], one["role"], *more] for one in hosts for at, *more in incidents(one)),
        numbers=numbers_of(report),
        rules=rules_table(report["rules"]),
        legend=legend(report),
        axis=axis(report),
        bands=bands(report),
        timeline=timeline(report),
        curves=[curve(report, name) for name in report["concurrency"]],
    )
