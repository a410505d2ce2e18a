# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Crashes that the product catches with an ``except Exception``, to go on: in a night, each ends its process, and so the night fails.

Such handlers note what they have caught. Nothing else of the functions that have one is changed.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError

from .stand_ins import current

_PRODUCT = ("ansible_collections.convoy.upgrade.plugins.", "convoy_node.")
_BROAD = ("Exception", "BaseException")
_NOTE = "_note_what_was_caught"
_seen: set[str] = set()


class CaughtByTheProduct(Exception):
    """An error that the product has caught, although it is no answer of Consul and no mistake of an operator."""


def install() -> None:
    """Let the handlers of all imported modules of the product note what they catch."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PRODUCT) and name not in _seen:
            if getattr(module, "__file__", None):
                _note_in(module)
            _seen.add(name)


def _note() -> None:
    """End the process whose code has caught a crash."""
    error, found = sys.exc_info()[1], current()
    # A kill is no Exception.
    if found is not None and isinstance(error, Exception) and not isinstance(error, UpgradeError):
        found[1].fail(CaughtByTheProduct(error))


class _Noting(ast.NodeTransformer):
    """Lets each broad handler begin with a note, but for those that raise the same error again at their end."""

    count = 0

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        last = node.body[-1]
        is_broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id in _BROAD)
        if is_broad and not (isinstance(last, ast.Raise) and last.exc is None):
            called = ast.Expr(ast.Call(ast.Name(_NOTE, ast.Load()), [], []))
            node.body.insert(0, ast.fix_missing_locations(ast.copy_location(called, node)))
            self.count += 1
        return node


def _note_in(module: ModuleType) -> None:
    file, noting = str(module.__file__), _Noting()
    tree = noting.visit(ast.parse(Path(file).read_text()))
    if not noting.count:
        return
    vars(module)[_NOTE] = _note
    codes = {(one.co_name, one.co_firstlineno): one for one in _codes(compile(tree, file, "exec", dont_inherit=True))}
    noted = 0
    for function in _functions(module):
        function.__code__ = codes[function.__code__.co_name, function.__code__.co_firstlineno]
        noted += sum(_NOTE in one.co_names for one in _codes(function.__code__))
    assert noted == sum(_NOTE in one.co_names for one in codes.values()), f"{file} has a handler that notes nothing"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _functions(module: ModuleType) -> list[FunctionType]:
    """Return the functions of a module and the methods of its classes, each once."""
    found: dict[int, FunctionType] = {}
    for value in list(vars(module).values()):
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        for one in list(vars(value).values()) if is_own else [value]:
            one = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
            one = inspect.unwrap(one) if isinstance(one, FunctionType) else one
            # Those that Python makes for a data class stand in no file.
            if isinstance(one, FunctionType) and one.__code__.co_filename == module.__file__:
                found[id(one)] = one
    return list(found.values())
