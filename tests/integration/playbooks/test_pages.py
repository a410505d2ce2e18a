# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages with commands to type: their files are written, their commands typed, and they show what is really printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from devkit.agent import ROOT
from missing import missing
from pages.page import rewritten
from pages.patterns import comparable, is_shown
from pages.shell import blocker
from pages.walk import walk


# How Ansible and Consul say things may differ from one release to the next, and a page shows one of them.
@pytest.mark.thorough
@pytest.mark.one_release
@pytest.mark.parametrize("name", ["first_upgrade", "writing_a_service"])
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    if reason := blocker():
        missing(reason)
    page = (ROOT / "docs" / f"{name}.md").read_text()
    typed = 0
    for command, printed in walk(page, tmp_path):
        assert is_shown(command.shown, printed), (
            f"docs/{name}.md: $ {command.typed}\nIf the page is what has to change: .venv/bin/python tests/pages docs/{name}.md"
        )
        typed += 1
    assert typed == page.count("\n$ ")


def test_nothing_else_of_a_page_is_rewritten() -> None:
    page = "Text\n\n```console\n$ one\nold\n$ two\n```\n\n```text\n$ kept\n```\n"
    assert rewritten(page, ["new\n", ""]) == page.replace("old", "new")


def test_times_ids_and_formatting_are_not_compared() -> None:
    one = "10:00:00 web1 started, service shop, step stop\n10:00:01 -- 2.0: web 0/2\nweb2 waits since 2026-01-01 10:00:00\n"
    other = "23:11:09 web1 started\nweb2 waits since 2027-11-21 01:02:03\n"
    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable(other.replace("web2", "web3"))
    assert comparable(one) != comparable(other.replace("started", "failed"))
    assert comparable("web  2  1") != comparable("web  1  2")


def test_a_page_may_leave_lines_out_where_it_says_so() -> None:
    printed = "Plan: to 2.0\nRules:\n  fleet: 1\n10:00:00 web1 upgraded\nRollout to 2.0\n"
    assert is_shown("Plan: to 2.0\n...\n10:00:01 web1 upgraded\nRollout to 2.0\n", printed)
    assert is_shown("...\n10:00:01 web1 upgraded\nRollout to 2.0\n...\n", printed)
    assert not is_shown("Plan: to 2.0\n10:00:01 web1 upgraded\nRollout to 2.0\n", printed)
    assert not is_shown("Plan: to 3.0\n...\n10:00:01 web1 upgraded\nRollout to 2.0\n", printed)
    assert not is_shown("Plan: to 2.0\n...\nRollout to 2.0\n", printed)
