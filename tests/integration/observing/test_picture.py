# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The picture of the first page is what the demonstration shows today, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest
from devkit.agent import ROOT

pytestmark = pytest.mark.one_release

PICTURE = Path("docs/pictures/upgrade.svg")
SVG = "{http://www.w3.org/2000/svg}"


def lines(path: Path) -> list[str]:
    """Return the lines of text in a picture of a terminal."""
    found: dict[str, str] = {}
    for text in XML.parse(path).getroot().iter(f"{SVG}text"):
        # Each text is laid as wide as its characters are.
        found[text.attrib["y"]] = found.get(text.attrib["y"], "") + (text.text or "").replace("\xa0", " ")
    return list(found.values())


@pytest.mark.thorough
def test_the_picture_of_the_first_page_is_what_is_shown_today(tmp_path: Path) -> None:
    taken = tmp_path / "upgrade.svg"
    subprocess.run([sys.executable, ROOT / "tools" / "picture", taken], check=True, timeout=300)
    today, kept = lines(taken), lines(ROOT / PICTURE)
    for shown in (today, kept):
        compute, controller = (line.strip() for line in shown if re.search("[█▓░]", line))
        parts = re.fullmatch(r"compute     (█+▓+░+)  [3-6]/9  [23] upgrading  [1-4] waiting", compute)
        whole = re.fullmatch("controller  (█+)  3/3", controller)
        assert parts, compute
        assert whole, controller
        assert len(parts[1]) == len(whole[1])
        assert any(re.fullmatch(r"compute\d  0:0\d  step upgrade", line.strip()) for line in shown)
        assert any(re.fullmatch(r"\d\d:\d\d:\d\d controller3 upgraded", line.strip()) for line in shown)
    assert str(PICTURE) in (ROOT / "README.md").read_text()


def test_it_is_whole_by_itself() -> None:
    text = (ROOT / PICTURE).read_text()
    assert re.findall(r"https?://[^\"<]*", text) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
