# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/messages.md has the messages of the sources, and what reads these off reads them right.

That each failure which any of these tests has met stands on the page is seen to at the end of the session (conftest.py).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from devkit.agent import ROOT
from messages import plugins, tasks
from messages.index import Index
from messages.page import page
from messages.shapes import merged

PAGE = (ROOT / "docs/messages.md").read_text()
ERRORS = (ROOT / "docs/errors.md").read_text().split("# What keeps a rollout from opening\n")[0]

SOURCE = """
LIMIT = "Ten at most."


class Gone(UpgradeError):
    pass


def bad(where, why):
    return UpgradeError("bad_thing", f"{where}: {why} here. {LIMIT}")


def read(name, line, closed):
    if line:
        raise bad(f"{name}:{line + 1}", "nothing stands")
    raise bad("roles", "the door is closed" if closed else "the door is open")


def find(host, seconds):
    told = f"{host} is nowhere" if host else "Nobody is anywhere"
    hint = ""
    raise Gone("gone", f"{told}, says {seconds:g} of {len(host)}." + f" Look again{hint}.", host=host)


def pass_on(error):
    raise UpgradeError(error.code, f"{error.message}")


def by_hand(code, why):
    message = f"{why}, by hand."
    return {"code": code, "message": message}


print(by_hand("handmade", "It was done"))
print(by_hand(error.get("code", "stuck"), "Nothing moves"))
Brake("shut", "the door is shut", passes=False)
Brake("open", "the door will be open soon")
"""


def test_the_page_is_that_of_the_sources() -> None:
    assert page() == PAGE, "write it anew: make messages"


def test_every_code_has_a_message_and_leads_to_its_section() -> None:
    sections = dict(re.findall(r"^### \[`(\w+)`\]\(errors\.md#(\w+)\)\n\n- ", PAGE, re.M))
    assert all(code == anchor for code, anchor in sections.items())
    assert sorted(sections) == re.findall(r"^## `(\w+)`$", ERRORS, re.M)


def test_messages_of_plugins_are_read_off_with_what_their_helpers_are_given() -> None:
    found: dict[str, set[str]] = {}
    for code, text in plugins.coded(Index({Path("plugin.py"): ast.parse(SOURCE)})):
        found.setdefault(code, set()).add(text)
    assert found == {
        "bad_thing": {
            "…:…: nothing stands here. Ten at most.",
            "roles: the door is closed here. Ten at most.",
            "roles: the door is open here. Ten at most.",
        },
        "gone": {"… is nowhere, says … of …. Look again.", "Nobody is anywhere, says … of …. Look again."},
        "handmade": {"It was done, by hand."},
        "stuck": {"Nothing moves, by hand."},
        "shut": {"The door is shut. …. …"},
    }


def test_a_code_that_does_not_stand_in_the_source_is_told_and_one_that_is_passed_on_is_not() -> None:
    source = 'raise UpgradeError(worked_out(), "It went wrong.")\n\nraise UpgradeError(error.code, "It went on.")\n'
    assert plugins.unreadable(Index({Path("plugin.py"): ast.parse(source)})) == ["plugin.py:1"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ inventory_hostname }}: no {{ what }}.", {"…: no …."}),
        ("It is {{ 'here' if found else 'not here' }}.", {"It is here.", "It is not here."}),
        ("Gone.{% if why is defined %} {{ why | trim }} Wait.{% endif %}", {"Gone.", "Gone. … Wait."}),
        (
            "{% if a %}One{% elif b %}Two{% else %}Three{% endif %} of\n  {{ all | to_nice_json }}",
            {"One of …", "Two of …", "Three of …"},
        ),
        ("{{ 'Set ' ~ name ~ ' first.' }}", {"Set … first."}),
    ],
)
def test_messages_of_tasks_are_read_off_their_templates(template: str, expected: set[str]) -> None:
    assert tasks.texts(template) == expected


def test_tasks_are_found_in_blocks_and_loops(tmp_path: Path) -> None:
    file = tmp_path / "roles/web/tasks/main.yml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "- block:\n    - ansible.builtin.assert: {that: a, fail_msg: 'No {{ a }} was found.'}\n"
        "  rescue:\n    - ansible.builtin.fail: {msg: It could not be mended.}\n"
        "- ansible.builtin.debug: {msg: This is no failure.}\n"
    )
    assert list(tasks.found(tmp_path)) == [
        (Path("roles/web/tasks/main.yml"), "No … was found."),
        (Path("roles/web/tasks/main.yml"), "It could not be mended."),
    ]


def test_what_differs_in_its_beginning_alone_is_told_once() -> None:
    places = ["name: it is no text.", "host: it is no text.", "role: it is no text."]
    assert merged([*places, "port: it is no port.", "scheme: it is no port."]) == [
        "port: it is no port.",
        "scheme: it is no port.",
        "…: it is no text.",
    ]


def test_a_word_that_another_text_leaves_open_is_left_open() -> None:
    assert merged(["the file … is gone", "the file /etc/x is gone", "the file is gone"]) == ["the file … is gone"]
    assert merged(["the file … is gone", "the file of the last one is gone"]) == [
        "the file of the last one is gone",
        "the file … is gone",
    ]
