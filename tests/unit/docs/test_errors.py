# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/errors.md has every code that a failure can have, in the words of the sources, and no other."""

from __future__ import annotations

import ast
import re

from ansible_collections.convoy.upgrade.plugins.module_utils._model import brakes
from devkit.agent import ROOT
from devkit.sources import called, entry, nodes, trees, words

PAGE = (ROOT / "docs/errors.md").read_text()
FAILURES, BRAKES = PAGE.split("# What keeps a rollout from opening\n")
SECTIONS = {
    match[1]: match[2].strip().splitlines()
    for match in re.finditer(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", FAILURES, re.M | re.S)
}


def errors() -> set[str]:
    """Return the names of ``UpgradeError`` and of all classes that are made of it."""
    known = {"UpgradeError"}
    for _generation in range(5):
        known |= {
            one.name
            for _path, one in nodes(ast.ClassDef)
            if any(isinstance(base, ast.Name) and base.id in known for base in one.bases)
        }
    return known


def is_passed_on(code: ast.expr) -> bool:
    """Return whether a code is that of another failure: ``error.code``, ``failure["code"]``."""
    if isinstance(code, ast.Attribute):
        return code.attr == "code"
    return isinstance(code, ast.Subscript) and words(code.slice) == {"code"}


def raised() -> dict[str, list[str]]:
    """Return code -> the messages that errors are made with, as regular expressions."""
    found: dict[str, list[str]] = {}
    classes = errors()
    for path, call in nodes(ast.Call):
        if called(call) not in classes:
            continue
        told = dict(zip(("code", "message"), call.args, strict=False)) | {
            one.arg: one.value for one in call.keywords if one.arg
        }
        codes = words(told["code"])
        assert codes or is_passed_on(told["code"]), (
            f"{path}:{call.lineno}: the code of this failure can't be read off the source: write it as a text, and put it into "
            "docs/errors.md"
        )
        for code in codes:
            found.setdefault(code, []).append(pattern(told["message"]))
    return found


def returned() -> set[str]:
    """Return the codes of failures that are made by hand: mappings with a code and a message."""
    found: set[str] = set()
    for path, one in nodes(ast.Dict):
        code = entry(one, "code")
        if code is None or entry(one, "message") is None:
            continue
        codes = words(code) | (handed(trees()[path], one, code.id) if isinstance(code, ast.Name) else set())
        assert codes or is_passed_on(code), (
            f"{path}:{one.lineno}: the code of this failure can't be read off the source"
        )
        found |= codes
    return found


def handed(tree: ast.Module, inside: ast.Dict, name: str) -> set[str]:
    """Return what the function around a mapping is given under a name, in its own file."""
    found: set[str] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or inside not in ast.walk(function):
            continue
        names = [one.arg for one in function.args.args if one.arg != "self"]
        if name in names:
            calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and called(one) == function.name]
            found |= {word for call in calls for word in words(call.args[names.index(name)])}
    return found


def pattern(message: ast.expr) -> str:
    """Return a regular expression for the texts that a message may be."""
    if isinstance(message, ast.Constant):
        # The page breaks lines elsewhere.
        return r"\s+".join(map(re.escape, re.split(r"\s+", str(message.value))))
    if isinstance(message, ast.JoinedStr):
        return "".join(map(pattern, message.values))
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        return pattern(message.left) + pattern(message.right)
    return ".*"


def stops() -> dict[str, bool]:
    """Return the codes of what keeps a whole rollout from opening, and whether a wait goes on through it."""
    found = {}
    for path, call in nodes(ast.Call):
        if path.name == "brakes.py" and called(call) == "Brake":
            code = call.args[0]
            assert isinstance(code, ast.Name)
            passes = [one.value for one in call.keywords if one.arg == "passes"]
            found[str(getattr(brakes, code.id))] = not passes
    return found


def test_every_code_is_there_and_no_other() -> None:
    ends = {code for code, passes in stops().items() if not passes}
    assert set(SECTIONS) == set(raised()) | returned() | ends
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
    assert set(re.findall(r"^\| `(\w+)` \|", BRAKES, re.M)) == set(stops())
