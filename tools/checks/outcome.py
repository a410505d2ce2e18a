# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a check: passed, failed and skipped tests, with the reasons."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check.

    :param seconds: duration.
    :param reasons: reason -> number of tests that were skipped for it.
    """

    name: str
    ok: bool
    seconds: float = 0
    passed: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    # The reason why the whole check was skipped.
    skipped: str = ""

    @property
    def counts(self) -> str:
        """The counts of its tests as text, empty where it has none."""
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.reasons.total()}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def read(name: str, ok: bool, seconds: float, reports: Iterable[Path]) -> Outcome:
    """Return the outcome of a check from pytest's reports in JUnit format.

    :param reports: paths of the reports.
    """
    passed = failed = 0
    reasons: Counter[str] = Counter()
    for report in reports:
        # An interrupted run has no complete report, and counts as failed anyway.
        with contextlib.suppress(OSError, ElementTree.ParseError):
            for case in ElementTree.parse(report).iter("testcase"):
                skipped = case.find("skipped")
                if skipped is not None:
                    reasons[" ".join((skipped.get("message") or "").split())] += 1
                elif case.find("failure") is not None or case.find("error") is not None:
                    failed += 1
                else:
                    passed += 1
    return Outcome(name, ok, seconds, passed, failed, reasons)
