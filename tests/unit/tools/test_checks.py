# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make test` and `make test-all` run, and what they say of it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from checks.__main__ import Checks, summary
from checks.catalog import LAB, OTHERS, Check, named
from checks.outcome import Outcome, read
from devkit.agent import ROOT

# The tools of the checks are not in the environments of other releases.
pytestmark = pytest.mark.one_release

_REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="no"/></testcase>
<testcase name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="needs
 a browser"/></testcase>
<testcase name="f"><skipped message="needs a browser"/></testcase>
</testsuite></testsuites>"""


def _list(*words: str) -> list[str]:
    command = [sys.executable, ROOT / "tools/checks", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_test_all_has_every_check_of_make_test() -> None:
    everything, quick = _list("--list"), _list("--list", "--quick")
    assert sorted(everything) == sorted(one.name for one in (*OTHERS, *LAB))
    assert set(everything) - set(quick) == {"molecule", "benchmarks", "site"}


def test_every_command_of_a_check_exists() -> None:
    for check in (*OTHERS, *LAB):
        for command in (*check.commands, *check.quick):
            program = command[1] if command[0] == "python" else command[0]
            assert (ROOT / program).exists() or (Path(sys.executable).parent / program).exists(), command
            assert [part for part in command if part.startswith("tests/") and not (ROOT / part).exists()] == []


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(KeyError, match="nodse"):
        list(named(["nodse"]))
    done = subprocess.run([sys.executable, ROOT / "tools/checks", "nodse"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "tools/test.sh: there is no check 'nodse'. Next: tools/test.sh --list\n",
    )


def test_a_command_that_fails_does_not_hide_the_next_one(tmp_path: Path) -> None:
    made = tmp_path / "made"
    commands = ((sys.executable, "-c", "raise SystemExit(1)"), (sys.executable, "-c", f"open({str(made)!r}, 'w')"))
    checks = Checks(tmp_path, [[Check("both", commands, ())]], quick=False)
    checks.run()
    assert (checks.outcomes[0].ok, made.exists()) == (False, True)


def test_counts_and_reasons_are_read_from_the_reports(tmp_path: Path) -> None:
    (tmp_path / "0.xml").write_text(_REPORT)
    (tmp_path / "1.xml").write_text("<testsuites><testsu")
    found = read("nodes", False, 3.0, sorted(tmp_path.iterdir()))
    assert (found.passed, found.failed, found.reasons) == (2, 2, Counter({"needs a browser": 2}))
    assert found.counts == "2 passed, 2 failed, 2 skipped"


def test_the_last_line_has_time_counts_and_what_was_skipped() -> None:
    outcomes = [
        Outcome("unit", ok=True, passed=5, reasons=Counter({"needs a browser": 1})),
        Outcome("nodes", ok=True, skipped="the lab of nodes needs root"),
    ]
    assert summary(outcomes, 61.2, "make test")[-2:] == [
        "tests: 5 passed, 0 failed, 1 skipped",
        "make test passed in 61 s: 1 checks and 5 tests passed, 1 checks skipped (nodes), 1 tests skipped",
    ]


def test_a_failure_ends_with_the_command_that_repeats_it() -> None:
    lines = summary([Outcome("unit", ok=False, passed=5, failed=1)], 9, "make test")
    assert lines[-2:] == [
        "Next: tools/test.sh --quick unit",
        "make test FAILED (unit) in 9 s: 0 checks and 5 tests passed, no check skipped, 0 tests skipped",
    ]
