# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/errors.md has every code that a failure can have, in the words of the sources, and no other."""

from __future__ import annotations

import re
from functools import cache

from devkit.agent import ROOT
from devkit.sources import trees
from messages import plugins
from messages.index import Index
from messages.shapes import pattern

INDEX = Index(trees())
PAGE = (ROOT / "docs/errors.md").read_text()
FAILURES, BRAKES = PAGE.split("# What keeps a rollout from opening\n")
SECTIONS = {
    match[1]: match[2].strip().splitlines()
    for match in re.finditer(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", FAILURES, re.M | re.S)
}


@cache
def raised() -> dict[str, list[str]]:
    """Return code -> the messages that failures have, as regular expressions."""
    found: dict[str, list[str]] = {}
    for code, text in plugins.coded(INDEX):
        found.setdefault(code, []).append(pattern(text))
    return found


def test_every_code_can_be_read_off_its_source() -> None:
    assert plugins.unreadable(INDEX) == [], "write the code as a text, and put it into docs/errors.md"


def test_every_code_is_there_and_no_other() -> None:
    assert set(SECTIONS) == set(raised())
    assert re.findall(r"^## `(\w+)`$", FAILURES, re.M) == sorted(SECTIONS), "sorted by code, each once"


def test_each_has_a_message_as_the_sources_have_it() -> None:
    patterns = raised()
    strange = {}
    for code, lines in SECTIONS.items():
        said = " ".join(line[2:] for line in lines if line.startswith("> "))
        if not said or (code in patterns and not any(re.fullmatch(one, said, re.S) for one in patterns[code])):
            strange[code] = said
    assert strange == {}


def test_each_says_what_it_means_or_what_to_do() -> None:
    assert [code for code, lines in SECTIONS.items() if not lines[-1] or lines[-1].startswith("> ")] == []


def test_all_that_keeps_a_rollout_from_opening_is_there() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", BRAKES, re.M)) == {
        code for code, _reason, _passes in plugins.brakes(INDEX)
    }
