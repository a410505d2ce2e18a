# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of failures that tasks of playbooks and roles make."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from devkit.agent import ROOT
from jinja2 import Environment, nodes

from .shapes import OPEN, joined, tells

_FAIL = ("ansible.builtin.fail", "fail")


class _Loader(yaml.SafeLoader):
    """Reads what Ansible marks, such as !unsafe, as plain values."""


_Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_object(node))


def found(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield the file, below the root, and the message."""
    for folder in ("playbooks", "roles"):
        for path in sorted((root / folder).rglob("*.yml")):
            if "molecule" in path.parts:
                continue
            for message in _messages(yaml.load(path.read_text(), _Loader)):
                for text in texts(message):
                    if tells(text):
                        yield path.relative_to(root), text


def _messages(data: Any) -> Iterator[str]:
    if isinstance(data, list):
        for one in data:
            yield from _messages(one)
    elif isinstance(data, dict):
        for name, value in data.items():
            if name == "fail_msg" and isinstance(value, str):
                yield value
            elif name in _FAIL and isinstance(value, dict) and isinstance(value.get("msg"), str):
                yield value["msg"]
            else:
                yield from _messages(value)


def texts(template: str) -> set[str]:
    """Return what a template may give; what is computed is left open."""
    with warnings.catch_warnings():
        # The backslashes of regular expressions are none of Python's.
        warnings.simplefilter("ignore", DeprecationWarning)
        parsed = Environment(autoescape=True).parse(template)
    return {text.strip() for text in _block(parsed.body)}


def _block(body: Sequence[nodes.Node]) -> set[str]:
    return joined(map(_part, body))


def _part(node: nodes.Node) -> set[str]:
    if isinstance(node, nodes.TemplateData):
        return {node.data}
    if isinstance(node, nodes.Output):
        return _block(node.nodes)
    if isinstance(node, nodes.Const):
        return {str(node.value)}
    if isinstance(node, nodes.CondExpr):
        return _part(node.expr1) | ({""} if node.expr2 is None else _part(node.expr2))
    if isinstance(node, nodes.Concat):
        return _block(node.nodes)
    if isinstance(node, nodes.If):
        rest = [node.else_] if node.else_ else []
        bodies = [node.body, *(other.body for other in node.elif_), *rest]
        return set[str]().union(*map(_block, bodies), set() if rest else {""})
    return {""} if isinstance(node, nodes.Assign) else {OPEN}
