# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands where in some Python files: functions, their calls, constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from devkit.sources import called

Function = ast.FunctionDef | ast.AsyncFunctionDef
T = TypeVar("T", bound=ast.AST)


class Index:
    """Looks things up in files that were read.

    :param trees: file -> what is in it.
    """

    def __init__(self, trees: Mapping[Path, ast.Module]) -> None:
        """Read nothing yet."""
        self.trees = trees

    def nodes(self, kind: type[T]) -> Iterator[tuple[Path, T]]:
        """Yield everything of a kind in all files."""
        for path, nodes in self._nodes.items():
            for node in nodes:
                if isinstance(node, kind):
                    yield path, node

    def around(self, path: Path, node: ast.AST) -> Function | None:
        """Return the function that something stands in."""
        return self._around[path].get(node)

    def constant(self, path: Path, name: str) -> tuple[Path, ast.expr] | None:
        """Return what a name is set to outside of functions, and where: in this file, or in the only one that sets it."""
        if name in self._constants[path]:
            return path, self._constants[path][name]
        found = [(other, constants[name]) for other, constants in self._constants.items() if name in constants]
        return found[0] if len(found) == 1 else None

    def answering(self, path: Path, name: str) -> Iterator[tuple[Path, Function]]:
        """Yield the functions of a name that give a text, and where they are: the private ones of a file, and all others."""
        for elsewhere, function in self._functions.get(name, ()):
            gives = function.returns is not None and ast.unparse(function.returns) == "str"
            if gives and (elsewhere == path or not name.startswith("_")):
                yield elsewhere, function

    def calls(self, path: Path, function: Function) -> Iterator[tuple[Path, ast.Call]]:
        """Yield the calls of a function by its name: in its file if it is private, in all otherwise.

        Of a name that is both that of a function and that of a method, an object's is called with a dot.
        """
        kinds = [is_method(each) for _path, each in self._functions[function.name]]
        alone = function.name.startswith("_") or len(kinds) != len(set(kinds))
        for elsewhere, call in self._calls.get(function.name, ()):
            ours = len(kinds) == 1 or isinstance(call.func, ast.Attribute) is is_method(function)
            if ours and (elsewhere == path or not alone):
                yield elsewhere, call

    @cached_property
    def _nodes(self) -> dict[Path, list[ast.AST]]:
        return {path: list(ast.walk(tree)) for path, tree in self.trees.items()}

    @cached_property
    def _around(self) -> dict[Path, dict[ast.AST, Function | None]]:
        return {path: _inside(tree) for path, tree in self.trees.items()}

    @cached_property
    def _constants(self) -> dict[Path, dict[str, ast.expr]]:
        return {path: dict(_set_in(tree)) for path, tree in self.trees.items()}

    @cached_property
    def _functions(self) -> dict[str, list[tuple[Path, Function]]]:
        found: dict[str, list[tuple[Path, Function]]] = {}
        for path, function in self.nodes(ast.FunctionDef):
            found.setdefault(function.name, []).append((path, function))
        return found

    @cached_property
    def _calls(self) -> dict[str, list[tuple[Path, ast.Call]]]:
        found: dict[str, list[tuple[Path, ast.Call]]] = {}
        for path, call in self.nodes(ast.Call):
            found.setdefault(called(call), []).append((path, call))
        return found


def is_method(function: Function) -> bool:
    """Return whether a function belongs to an object or a class."""
    return [one.arg for one in function.args.args[:1]] in (["self"], ["cls"])


def _inside(tree: ast.Module) -> dict[ast.AST, Function | None]:
    found: dict[ast.AST, Function | None] = {}

    def go(node: ast.AST, function: Function | None) -> None:
        for child in ast.iter_child_nodes(node):
            found[child] = function
            go(child, child if isinstance(child, Function) else function)

    go(tree, None)
    return found


def _set_in(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(name, ast.Name):
                    yield name.id, value
