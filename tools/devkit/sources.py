# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The syntax trees of the plugins, to compare the documentation with the code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from .agent import ROOT


@cache
def trees() -> dict[Path, ast.Module]:
    """Return path -> syntax tree, for all Python files of the plugins."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "plugins").rglob("*.py"))}


def called(call: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def words(node: ast.AST | None) -> set[str]:
    """Return the literal texts that an expression may evaluate to."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.IfExp):
        return words(node.body) | words(node.orelse)
    if isinstance(node, ast.Call) and called(node) == "get" and len(node.args) == 2:
        return words(node.args[1])
    return set()


def entry(node: ast.Dict, name: str) -> ast.expr | None:
    """Return the value of a key in a dict display, or None."""
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == name:
            return value
    return None
