# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of failures that plugins make."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from devkit.sources import called, entry

from .expressions import Scope, scopes, texts
from .index import Index
from .shapes import OPEN, joined, tells

_IN_THE_WAY = "in_the_way"
_BY_THE_CLOCK = "hours"


def errors(index: Index) -> set[str]:
    """Return the names of UpgradeError and of all classes that are made of it."""
    known = {"UpgradeError"}
    before = 0
    while len(known) > before:
        before = len(known)
        known |= {
            one.name
            for _path, one in index.nodes(ast.ClassDef)
            if any(isinstance(base, ast.Name) and base.id in known for base in one.bases)
        }
    return known


def coded(index: Index) -> Iterator[tuple[str, str]]:
    """Yield code and message of each failure that has a code."""
    for path, made, code, message in _made(index):
        for scope in scopes(index, path, made):
            yield from _pairs(code, message, scope)
    yield from _obstacles(index)
    for name, reason, passes in brakes(index):
        if not passes:
            # A wait that ends with it tells what is left of the fleet behind it.
            yield name, f"{reason[0].upper()}{reason[1:]}. {OPEN}. {OPEN}"


def unreadable(index: Index) -> list[str]:
    """Return where failures are made whose code does not stand in the source, but for those that pass on that of another."""
    return [
        f"{path}:{made.lineno}"
        for path, made, code, _message in _made(index)
        if not _is_passed_on(code)
        and not any(name.isidentifier() for scope in scopes(index, path, made) for name in texts(code, scope))
    ]


def _is_passed_on(code: ast.expr) -> bool:
    """Return whether a code is that of another failure: ``error.code``, ``failure["code"]``."""
    if isinstance(code, ast.Attribute):
        return code.attr == "code"
    return isinstance(code, ast.Subscript) and isinstance(code.slice, ast.Constant) and code.slice.value == "code"


def _made(index: Index) -> Iterator[tuple[Path, ast.Call | ast.Dict, ast.expr, ast.expr]]:
    """Yield where failures are made, with code and message: exceptions, and mappings with these."""
    classes = errors(index)
    for path, call in index.nodes(ast.Call):
        if called(call) in classes:
            told = dict(zip(("code", "message"), call.args, strict=False)) | {
                one.arg: one.value for one in call.keywords if one.arg
            }
            yield path, call, told["code"], told["message"]
    for path, one in index.nodes(ast.Dict):
        code, message = entry(one, "code"), entry(one, "message")
        if code is not None and message is not None:
            yield path, one, code, message


def _obstacles(index: Index) -> Iterator[tuple[str, str]]:
    """Yield what stands in the way of a migration: key, why, and how to mend it."""
    for path, call in index.nodes(ast.Call):
        if called(call) == "Obstacle" and len(call.args) == 3:
            for scope in scopes(index, path, call):
                parts = [texts(one, scope) for one in call.args]
                for text in joined([parts[0], {" "}, parts[1], {". "}, parts[2]]):
                    yield _IN_THE_WAY, text


def brakes(index: Index) -> Iterator[tuple[str, str, bool]]:
    """Yield code and reason of what keeps a whole rollout from opening, and whether a wait goes on through it."""
    for path, call in index.nodes(ast.Call):
        made = called(call)
        if made not in ("Brake", "Shut"):
            continue
        # What is shut by the clock becomes a brake of that kind.
        code, reason = (call.args[0], call.args[1]) if made == "Brake" else (ast.Constant(_BY_THE_CLOCK), call.args[0])
        passes = not any(one.arg == "passes" for one in call.keywords)
        for scope in scopes(index, path, call):
            for name, text in _pairs(code, reason, scope):
                yield name, text, passes


def _pairs(code: ast.expr, message: ast.expr, scope: Scope) -> Iterator[tuple[str, str]]:
    for name in texts(code, scope):
        for text in texts(message, scope):
            if name.isidentifier() and tells(text):
                yield name, text


def plain(index: Index) -> Iterator[str]:
    """Yield what Ansible's own kinds of errors are raised with, but for messages that are passed on."""
    for text in _raised(index, lambda name: name.startswith("Ansible")):
        if tells(text.partition(": ")[2]):
            yield text


def reasons(index: Index) -> Iterator[str]:
    """Yield the reasons that stand within other messages: why a value was not taken."""
    yield from _raised(index, lambda name: name == "ValueError")


def _raised(index: Index, wanted: Callable[[str], bool]) -> Iterator[str]:
    for path, node in index.nodes(ast.Raise):
        call = node.exc
        if isinstance(call, ast.Call) and wanted(called(call)) and call.args:
            for scope in scopes(index, path, call):
                yield from filter(tells, texts(call.args[0], scope))
