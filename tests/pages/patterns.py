# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is not compared of what a command printed, as it is another one each time. All else is, letter by letter.

A line ``...`` on a page stands for any lines that the page leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_RULES = (
    # Where the fleet was when the view looked, which it does whenever something has changed: two changes may be one look.
    (re.compile(r"^\d\d:\d\d:\d\d -- .*\n", re.M), ""),
    # What a host that is under way was at when it was looked at.
    (re.compile(r"^(\d\d:\d\d:\d\d \S+ started), .*$", re.M), r"\1"),
    # Times of day, with the date and without, and how long something took or is ago.
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "DATE TIME"),
    (re.compile(r"^\d\d:\d\d:\d\d ", re.M), "TIME "),
    (re.compile(r"\b\d+ (second|minute)s? ago\b"), "N seconds ago"),
    # The columns `begins` and `takes` of the waves, and their sum.
    (re.compile(r"^( *(?:now|\d+) +\d+) +\+(?:\d+[ms] ?)+ +(?:\d+[ms] ?)+ ", re.M), r"\1 +N N "),
    (re.compile(r"^About (?:\d+[ms] ?)+ in all", re.M), "About N in all"),
    (re.compile(r"^wave  hosts +begins +takes", re.M), "wave  hosts  begins  takes"),
    # The folder that a run makes for itself, and lines in the collection's own files.
    (re.compile(r"/tmp/(?:[^/\s]+/)*convoy-\w+/"), "/tmp/convoy-ID/"),
    (re.compile(r"(/convoy/upgrade/\S+\.yml):\d+\)"), r"\1:N)"),
)


def comparable(text: str) -> tuple[list[str], list[str]]:
    """Return what a command printed without what is another one each time: what the view shows, and what Ansible does.

    They come from two processes, and no order is kept between these.
    """
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    times = [line for line in text.splitlines() if line.startswith("TIME ")]
    return times, [line for line in text.splitlines() if not line.startswith("TIME ")]


def is_shown(page: str, printed: str) -> bool:
    """Return whether a page shows what a command printed, except for what it leaves out."""
    return all(map(_fits, comparable(page), comparable(printed)))


def _fits(shown: Sequence[str], printed: Sequence[str]) -> bool:
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n") for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
