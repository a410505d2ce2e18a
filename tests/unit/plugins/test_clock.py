# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No code of plugins/ asks the machine for the time or for random bytes: a simulation could not replace them.

ruff bans most names that do so. It can't distinguish a call with a time from one without, which takes the time of now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from devkit.agent import ROOT

_RUNTIME = "module_utils/_common/runtime.py"
# Function of the module time -> how many arguments it has with a time.
_WITH_TIME = {"strftime": 2, "localtime": 1, "gmtime": 1, "ctime": 1, "asctime": 1}
_NEVER = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"), ("os", "urandom")}


def calls_of_now(text: str) -> Iterator[int]:
    """Yield the lines of calls that take the time of now, or random bytes, from the machine."""
    tree = ast.parse(text)
    # Name in this file -> function of the module time.
    own = {
        one.asname or one.name: one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for one in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, count = node.func, len(node.args)
        if isinstance(called, ast.Name):
            is_of_now = called.id in own and count < _WITH_TIME.get(own[called.id], 0)
        elif isinstance(called, ast.Attribute):
            owner = ast.unparse(called.value).rpartition(".")[2]
            is_of_now = owner == "time" and count < _WITH_TIME.get(called.attr, 0)
            is_of_now = is_of_now or (owner, called.attr) in _NEVER
        else:
            continue
        if is_of_now:
            yield node.lineno


def test_no_plugin_takes_the_time_of_now_from_the_machine() -> None:
    plugins = ROOT / "plugins"
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(plugins.rglob("*.py"))
        if path.relative_to(plugins).as_posix() != _RUNTIME
        for line in calls_of_now(path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("time.strftime('%H')", True),
        ("time.strftime('%H', time.localtime(at))", False),
        ("time.strftime('%H', time.gmtime())", True),
        ("datetime.datetime.now(timezone.utc)", True),
        ("datetime.now()", True),
        ("datetime.fromtimestamp(at)", False),
        ("at.strftime('%H')", False),
        ("os.urandom(16)", True),
        ("from time import gmtime as of\nof()", True),
    ],
)
def test_a_call_without_a_time_is_found(text: str, is_found: bool) -> None:
    assert bool([*calls_of_now(text)]) == is_found
