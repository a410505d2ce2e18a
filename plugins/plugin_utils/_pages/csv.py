# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as CSV: a line for each host. Spreadsheets read the cells as text and numbers only, never as formulas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...module_utils._common.sanitize import sanitize
from ...module_utils._rollout_report.host import incidents
from .charts import time_text

HEAD = (
    *(
        "host",
        "role",
        "phase",
        "admitted",
        "began",
        "ended",
        "attempt",
        "failures",
        "retries",
        "service",
        "step",
        "error",
    ),
    "failures_and_retries",
)
# The delimiter of a spreadsheet depends on its user and language. Without these characters, every delimiter gives the same cells.
_SEPARATORS = str.maketrans({",": " ", ";": " ", "|": " ", '"': "'"})
# Characters that begin a formula, including their full-width forms, wherever a spreadsheet may begin a cell.
_FORMULA = re.compile(r"(^|[^\w=+\-@\uff1d\uff0b\uff0d\uff20])(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def csv_text(report: Mapping[str, Any]) -> str:
    """Return a line with the names of the columns and one for each host. Times are unix seconds; empty if unknown.

    :param report: what :func:`~.rollout.rollout_report` returns.
    """
    return "".join(",".join(map(cell, row)) + "\n" for row in (HEAD, *map(_row, report["hosts"])))


def cell(value: str | int) -> str:
    """Return the text of a cell. Delimiters become spaces, and ``'`` precedes everything that could begin a formula."""
    if isinstance(value, int):
        return str(value)
    return _FORMULA.sub(r"\1'", sanitize(value).translate(_SEPARATORS))


def _row(one: Mapping[str, Any]) -> tuple[str | int, ...]:
    times = ["" if at is None else at for at in (max(one["admitted"], default=None), one["began"], one["ended"])]
    texts = (
        " ".join(filter(None, (time_text(at) if at else "", what, where, why)))
        for at, what, where, why in incidents(one)
    )
    counts = (one["attempt"], sum(each["total"] for each in one["failures"]), len(one["retries"]))
    where = (one["service"], one["step"], one["error"])
    return one["host"], one["role"], one["phase"], *times, *counts, *where, " / ".join(texts)
