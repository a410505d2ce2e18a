# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every link of the pages leads somewhere, and README links to all pages."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from devkit.agent import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "roles").glob("*/README.md")])


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what the headings of a page are called in links, as renderers of Markdown do it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text()):
        path, _sign, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_tests_that_a_page_names_is_there(page: Path) -> None:
    names = re.findall(
        r"`(?:tests/)?((?:unit|integration|nodes|push|fire|services|simulation)/[\w/]+\.py)", page.read_text()
    )
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


def test_readme_leads_to_every_page() -> None:
    index = (ROOT / "README.md").read_text().partition("## Where to go next")[2]
    assert set(re.findall(r"\(docs/(\w+\.md)\)", index)) == {page.name for page in (ROOT / "docs").glob("*.md")}
