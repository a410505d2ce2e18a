# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sanitized texts have no characters that a terminal acts on."""

from __future__ import annotations

import re
import shlex

import pytest
from ansible.parsing.splitter import parse_kv
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import (
    limit_to,
    may_be_template,
    option,
    sanitize,
    without_templates,
)
from devkit.agent import ROOT
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("the disk is full", "the disk is full"),
        (
            "der Plattenplatz fehlt: 9 \u20ac f\u00fcr \u65e5\u672c",
            "der Plattenplatz fehlt: 9 \u20ac f\u00fcr \u65e5\u672c",
        ),
        ("\x1b[2J\x1b]0;title\x07", "?[2J?]0;title?"),
        ("x\nRollout to 2: all hosts upgraded\r\n", "x Rollout to 2: all hosts upgraded  "),
        ("a\tb\x0bc\x0cd\x85e\u2028f\u2029g\u00a0h", "a b c d e f g h"),
        ("\x00\x08\x7f\x80\x9b31m", "?????31m"),
        ("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u200b\ufeff", "?" * 14),
        ("\ud800", "?"),
    ],
)
def test_only_printable_characters_stay(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_a_line_of_the_same_length(text: str) -> None:
    found = sanitize(text)
    assert found.isprintable()
    assert len(found) == len(text)
    assert sanitize(found) == found
    assert all(new in (old, " ", "?") for old, new in zip(text, found, strict=True))


def test_no_text_stays_a_template_at_any_depth() -> None:
    value = {"{{ a }}": ["{% b %}", ("{# c #}", 1)], "d": {"e": "#jinja2: variable_start_string:'[['"}, "f": None}
    found = without_templates(value)
    assert found == {
        "(( a ))": ["(% b %)", ["(# c #)", 1]],
        "d": {"e": "# jinja2: variable_start_string:'[['"},
        "f": None,
    }
    assert not may_be_template(found["d"]["e"])


@pytest.mark.parametrize(("text", "may"), [("a {{ b }}", True), ("}", True), ("#jinja2:x", True), ("# no", False)])
def test_braces_and_a_header_make_a_template(text: str, may: bool) -> None:
    assert may_be_template(text) is may


@pytest.mark.parametrize("name", ["web1", "stage 1", "it's", "$(reboot)", "a;b", "{{ lookup('x') }}", "web1,web2"])
def test_a_name_in_a_command_is_read_by_a_shell_and_by_ansible_as_it_is(name: str) -> None:
    flag, given_variable = shlex.split(option("host", name))
    assert flag == "-e"
    if not given_variable.startswith("{"):
        assert parse_kv(given_variable) == {"host": name}
    else:
        assert name.replace("'", "") in given_variable.replace("'", "")


def test_names_of_hosts_in_a_limit_are_one_word_of_a_shell() -> None:
    assert limit_to(["web1", "web2"]) == "--limit web1,web2"
    assert shlex.split(limit_to(["web1;reboot", "a b"])) == ["--limit", "web1;reboot,a b"]


def test_every_printed_command_quotes_the_names_in_it() -> None:
    # IDs of jobs have no character that a shell or Ansible interprets. Values of all names have been looked at or are numbers.
    pattern = re.compile(r"-e ([a-z_]+|\{(?!name\})[a-z_]+\})=\{(?!job_id\()|enroll --limit \{")
    files = (ROOT / "plugins").rglob("*.py")
    found = [(path.name, line) for path in files for line in path.read_text().splitlines() if pattern.search(line)]
    assert found == []
