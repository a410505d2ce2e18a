# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as CSV: a line for each host, which no spreadsheet takes for anything but text and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .._common.sanitize import sanitize
from .charts import time_text
from .host import incidents

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
# A spreadsheet splits lines at whatever its user or its language says. Without these characters, no cell ends early and none has quotes.
_SEPARATORS = str.maketrans({",": " ", ";": " ", "|": " ", '"': "'"})
# What begins a formula, in its wide form too, counts after anything that may be taken for the end of a cell.
_FORMULA = re.compile(r"(^|[^\w=+\-@\uff1d\uff0b\uff0d\uff20])(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def csv_text(told: Mapping[str, Any]) -> str:
    """Return a line for each host, with the names of the columns before them. Times are unix seconds, empty where they are not known.

    :param told: what :func:`chronicle.chronicle` returns.
    """
    return "".join(",".join(map(cell, row)) + "\n" for row in (HEAD, *map(_row, told["hosts"])))


def cell(value: str | int) -> str:
    """Return a cell that is one cell, and text or a number, under every delimiter: separators are spaces, and a ``'`` stands before a formula."""
    if isinstance(value, int):
        return str(value)
    return _FORMULA.sub(r"\1'", sanitize(value).translate(_SEPARATORS))


def _row(one: Mapping[str, Any]) -> tuple[str | int, ...]:
    times = ["" if at is None else at for at in (max(one["admitted"], default=None), one["began"], one["ended"])]
    told = (
        " ".join(filter(None, (time_text(at) if at else "", what, where, why)))
        for at, what, where, why in incidents(one)
    )
    counts = (one["attempt"], len(one["failures"]), len(one["retries"]))
    where = (one["service"], one["step"], one["error"])
    return one["host"], one["role"], one["phase"], *times, *counts, *where, " / ".join(told)
