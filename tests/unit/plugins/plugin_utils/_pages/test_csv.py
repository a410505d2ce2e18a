# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as CSV, read with every delimiter that spreadsheets use."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.csv import HEAD, cell, csv_text
from hypothesis import given
from hypothesis import strategies as st

FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def host(name: str, **more: Any) -> dict[str, Any]:
    """Return a host in the form of a rollout report."""
    entry = {"host": name, "role": "web", "phase": "waiting", "end_known": True, "phases": [["waiting", 1, 2, "", ""]]}
    entry |= {"admitted": [], "began": None, "ended": None, "failures": [], "retries": []}
    return {**entry, "attempt": 1, "service": "", "step": "", "error": "", **more}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+1", "'=1+1"),
        ("-1", "'-1"),
        ("a;=cmd|'/C calc'!A0", "a '=cmd '/C calc'!A0"),
        ("a\t@SUM(1)", "a '@SUM(1)"),
        ('"\n=1+1', "' '=1+1"),
        ("\r\uff1d1", " '\uff1d1"),
        ("apt-get -y install x=1.2 failed: rc=-1, no space", "apt-get '-y install x=1.2 failed: rc=-1  no space"),
        (-1, "-1"),
    ],
)
def test_a_cell_is_text_or_a_number(value: str | int, written: str) -> None:
    assert cell(value) == written


@given(
    error=st.text("=+-@\uff1d;,|\t\r\n\"' :ab\x1b\u2028\x0b\x85", max_size=12), delimiter=st.sampled_from(',;\t| :"')
)
def test_no_text_of_a_host_makes_another_cell_line_or_formula_whatever_separates_cells(
    error: str, delimiter: str
) -> None:
    text = csv_text({"hosts": [host("web1", error=error), host("web2", step=error), host(error, service=error)]})

    assert len(text.splitlines()) == 4
    assert text.count(",") == 4 * (len(HEAD) - 1)
    assert '"' not in text
    # Python 3.10 has no quotechar for no quotes.
    plain: dict[str, Any] = {"quotechar": "'", "quoting": csv.QUOTE_NONE} if delimiter == '"' else {}
    for row in csv.reader(text.splitlines(), delimiter=delimiter, **plain):
        assert not [one for one in row if one.strip().startswith(FORMULA)]


def test_a_host_that_was_quick_failed_and_recovered_has_all_of_it_in_its_line() -> None:
    failure = {"at": 60, "attempt": 1, "service": "nova", "step": "stop", "error": "no space, on /", "total": 1}
    retry = {"at": 70, "by": "bob", "reason": "disk; it was: failed"}
    one = host("web1", admitted=[60, 80], began=80, ended=80, failures=[failure], retries=[retry])

    (row,) = csv.DictReader(csv_text({"hosts": [one]}).splitlines())

    assert (row["admitted"], row["began"], row["ended"]) == ("80", "80", "80")
    assert (row["failures"], row["retries"]) == ("1", "1")
    assert row["failures_and_retries"] == (
        "1970-01-01 00:01:00 UTC failed nova stop no space  on / / 1970-01-01 00:01:10 UTC retried by bob disk  it was: failed"
    )
