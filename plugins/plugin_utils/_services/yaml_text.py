# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML that operators read."""

from __future__ import annotations

import json
from typing import Any

import yaml


class _TextDumper(yaml.SafeDumper):
    """Indents lists in mappings, and writes no text whose end depends on the lines below it (``|+``)."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  the base's signature
        """Always indent."""
        super().increase_indent(flow, False)

    def analyze_scalar(self, scalar: str) -> Any:
        """Allow no block for a text that ends in blank lines."""
        found = super().analyze_scalar(scalar)
        if scalar and "+" in self.determine_block_hints(scalar):
            found.allow_block = False
        return found


def yaml_of(data: Any) -> str:
    """Return data as YAML. Ansible's own types of strings and containers become plain ones."""
    plain = json.loads(json.dumps(data, default=str))
    return yaml.dump(plain, Dumper=_TextDumper, sort_keys=False, width=116, allow_unicode=True)


def yaml_of_node(node: yaml.Node) -> str:
    """Return a composed node as YAML with its tags, such as ``!vault``, and its styles of text. Its lines are not folded."""
    text: str = yaml.serialize(node, Dumper=_TextDumper, width=float("inf"), allow_unicode=True)
    return text
