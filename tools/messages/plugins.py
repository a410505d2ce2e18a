# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of failures that plugins make."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

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
    yield from _raised_with_code(index)
    yield from _handed_over(index)
    yield from _obstacles(index)
    for code, reason, passes in _brakes(index):
        if not passes:
            # A wait that ends with it tells what is left of the fleet behind it.
            yield code, f"{reason[0].upper()}{reason[1:]}. {OPEN}. {OPEN}"


def brakes(index: Index) -> Iterator[tuple[str, str]]:
    """Yield code and reason of what keeps a whole rollout from opening."""
    for code, reason, _passes in _brakes(index):
        yield code, reason


def _raised_with_code(index: Index) -> Iterator[tuple[str, str]]:
    classes = errors(index)
    for path, call in index.nodes(ast.Call):
        if called(call) in classes:
            told = dict(zip(("code", "message"), call.args, strict=False)) | {
                one.arg: one.value for one in call.keywords if one.arg
            }
            for scope in scopes(index, path, call):
                yield from _pairs(told.get("code"), told.get("message"), scope)


def _handed_over(index: Index) -> Iterator[tuple[str, str]]:
    """Yield the failures that are no exceptions: mappings with a code and a message."""
    for path, one in index.nodes(ast.Dict):
        code, message = entry(one, "code"), entry(one, "message")
        if code is not None and message is not None:
            for scope in scopes(index, path, one):
                yield from _pairs(code, message, scope)


def _obstacles(index: Index) -> Iterator[tuple[str, str]]:
    """Yield what stands in the way of a migration: key, why, and how to mend it."""
    for path, call in index.nodes(ast.Call):
        if called(call) == "Obstacle" and len(call.args) == 3:
            for scope in scopes(index, path, call):
                parts = [texts(one, scope) for one in call.args]
                for text in joined([parts[0], {" "}, parts[1], {". "}, parts[2]]):
                    yield _IN_THE_WAY, text


def _brakes(index: Index) -> Iterator[tuple[str, str, bool]]:
    """Yield code, reason, and whether a wait goes on through it."""
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


def _pairs(code: ast.expr | None, message: ast.expr | None, scope: Scope) -> Iterator[tuple[str, str]]:
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
