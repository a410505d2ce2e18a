# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts that an expression of a plugin may give, read off its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from devkit.sources import called

from .index import Function, Index
from .shapes import OPEN, is_sentence, joined

# A helper that makes a message may be called by another one.
_DEEPEST = 3


@dataclass(frozen=True)
class Scope:
    """Where an expression stands.

    :param given: the texts of a function's parameters at one of its calls.
    """

    index: Index
    path: Path
    function: Function | None = None
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)
    depth: int = 0

    def parameters(self) -> list[str]:
        """Return the names of the function's parameters, without that of its object."""
        if self.function is None:
            return []
        arguments = self.function.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return [name for name in names if name not in ("self", "cls")]


def texts(node: ast.expr | None, scope: Scope) -> set[str]:
    """Return what an expression may give; what can't be known is left open."""
    if isinstance(node, ast.Constant):
        # Where there is nothing, another branch has the words.
        return set() if node.value is None else {OPEN if isinstance(node.value, bytes) else str(node.value)}
    if isinstance(node, ast.JoinedStr):
        return joined(texts(part, scope) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return {OPEN} if node.conversion == ord("r") or node.format_spec is not None else texts(node.value, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (node.left, node.right)
        is_sum = any(isinstance(side, ast.Constant) and not isinstance(side.value, str) for side in sides)
        return {OPEN} if is_sum else joined(texts(side, scope) for side in sides)
    if isinstance(node, ast.IfExp):
        known = _decided(node.test, scope)
        return set[str]().union(
            texts(node.body, scope) if known is not False else (),
            texts(node.orelse, scope) if known is not True else (),
        )
    if isinstance(node, ast.BoolOp):
        return set[str]().union(*(texts(one, scope) for one in node.values))
    if isinstance(node, ast.Name):
        return _named(node.id, scope)
    return _returned(node, scope) if isinstance(node, ast.Call) else {OPEN}


def _returned(call: ast.Call, scope: Scope) -> set[str]:
    """Return the sentences that functions of this name may answer, whatever they are given."""
    if scope.depth >= _DEEPEST:
        return {OPEN}
    if called(call) == "join" and call.args and isinstance(call.args[0], ast.GeneratorExp | ast.ListComp):
        # One of them shows what all are like, if there is any.
        return joined([texts(call.args[0].elt, scope), {OPEN}]) | {OPEN}
    if called(call) == "get" and len(call.args) == 2:
        return texts(call.args[1], scope) | {OPEN}
    answers: set[str] = set()
    for path, function in scope.index.answering(scope.path, called(call)):
        inner = Scope(scope.index, path, function, depth=scope.depth + 1)
        for node in ast.walk(function):
            if isinstance(node, ast.Return):
                answers |= texts(node.value, inner)
    return answers if answers and all(map(is_sentence, answers)) else {OPEN, *filter(is_sentence, answers)}


def _decided(test: ast.expr, scope: Scope) -> bool | None:
    """Return what a comparison of a parameter with a text comes to at this call, if that can be read off."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and isinstance(test.ops[0], ast.Eq)):
        return None
    found, wanted = scope.given.get(test.left.id, ()), texts(test.comparators[0], scope)
    return None if len(found) != 1 or OPEN in "".join(found) else set(found) == wanted


def _named(name: str, scope: Scope) -> set[str]:
    if name in scope.given:
        return set(scope.given[name])
    if name in scope.parameters():
        return {OPEN}
    if scope.function is not None:
        found = list(_assigned(scope.function, name))
        if found:
            deeper = Scope(scope.index, scope.path, scope.function, scope.given, scope.depth + 1)
            return {OPEN} if scope.depth > _DEEPEST else set[str]().union(*(texts(one, deeper) for one in found))
    constant = scope.index.constant(scope.path, name)
    return texts(constant[1], Scope(scope.index, constant[0])) if constant else {OPEN}


@cache
def _assigned(function: Function, name: str) -> tuple[ast.expr, ...]:
    """Return what a name is set to in a function; nothing, where a part of that can't be read off."""
    values: list[ast.expr] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    values.append(node.value)
                elif isinstance(target, ast.Tuple):
                    values += _of_tuple(target, node.value, name)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            if isinstance(node.target, ast.Name) and node.target.id == name and node.value is not None:
                values.append(node.value)
        elif isinstance(node, ast.For | ast.comprehension) and name in _names(node.target):
            return ()
    return tuple(values)


def _of_tuple(target: ast.Tuple, value: ast.expr, name: str) -> list[ast.expr]:
    found: list[ast.expr] = []
    for at, one in enumerate(target.elts):
        if isinstance(one, ast.Name) and one.id == name:
            pairs = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            found += [pair.elts[at] if isinstance(pair, ast.Tuple) else pair for pair in pairs]
    return found


@cache
def _names(target: ast.AST) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def scopes(index: Index, path: Path, node: ast.AST, depth: int = 0) -> Iterator[Scope]:
    """Yield where an expression stands: in a function with a message of its own once, in a helper once for each of its calls.

    A helper is what is called with texts that its parameters take into the expression.
    """
    function = index.around(path, node)
    plain = Scope(index, path, function)
    asked = _asked(node, function) & set(plain.parameters())
    unknown = True
    for elsewhere, call in index.calls(path, function) if function and asked and depth < _DEEPEST else ():
        unknown = False
        for outer in scopes(index, elsewhere, call, depth + 1):
            bound = {name: value for name, value in _bound(plain, call).items() if name in asked}
            given = {name: frozenset(texts(value, outer)) for name, value in bound.items()}
            yield Scope(index, path, function, given)
    if unknown:
        yield plain


def _asked(node: ast.AST, function: Function | None) -> set[str]:
    """Return the names that an expression is made of, those behind a function's own variables too."""
    found: set[str] = set()
    left = set(_names(node))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left |= set[str]().union(*map(_names, _assigned(function, name))) if function is not None else set()
    return found


def _bound(scope: Scope, call: ast.Call) -> dict[str, ast.expr]:
    bound = dict(zip(scope.parameters(), call.args, strict=False))
    return bound | {one.arg: one.value for one in call.keywords if one.arg}
