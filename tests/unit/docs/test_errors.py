# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/errors.md has a section or a row for every code that a failure can have, and a row for every blocker."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import get_args

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import Code
from ansible_collections.convoy.upgrade.plugins.module_utils._planner import blockers
from devkit.agent import ROOT
from devkit.sources import trees

PAGE = (ROOT / "docs/errors.md").read_text()
FAILURES, BLOCKERS = PAGE.split("# What blocks a rollout\n")
FAILURES, OTHERS = FAILURES.split("# Other codes\n")
FOUND = re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", FAILURES, re.M | re.S)
SECTIONS = {code: text.strip().splitlines() for code, text in FOUND}
# Codes whose messages say all that there is to do.
ROWS = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", OTHERS, re.M)]


def test_every_code_has_a_section_or_is_in_a_row_and_no_other_is() -> None:
    sections = [code for code, _text in FOUND]

    assert sorted([*sections, *(code for row in ROWS for code in row)]) == sorted(get_args(Code))
    assert [sections, *ROWS] == [sorted(sections), *map(sorted, ROWS)]


def test_every_code_is_used() -> None:
    texts = Counter(
        node.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    # Once in the list of codes.
    assert [code for code in get_args(Code) if texts[code] < 2] == []


def test_each_section_says_what_to_do() -> None:
    for code, lines in SECTIONS.items():
        assert lines and lines[-1], code
        assert not lines[-1].startswith("> "), code


def test_every_blocker_of_a_rollout_has_a_row() -> None:
    codes = {blockers.PAUSE, blockers.ABORT, blockers.EXPIRED, blockers.BUDGET, blockers.HOURS}
    assert set(re.findall(r"^\| `(\w+)` \|", BLOCKERS, re.M)) == codes
