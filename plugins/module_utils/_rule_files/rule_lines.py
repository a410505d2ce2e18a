# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line of each key in an instructions file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import yaml

    HAS_YAML = True
except ImportError:
    HAS_YAML = False


class RuleLines:
    """The lines of the keys in a YAML or JSON file.

    :param text: the content of the file.
    """

    def __init__(self, text: str) -> None:
        """Parse the text. If that fails, no line is known."""
        self._root: Any = None
        if HAS_YAML:
            try:
                self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            except (yaml.YAMLError, RecursionError, ValueError):
                self._root = None

    def of(self, path: Sequence[Any]) -> int:
        """Return the line of a key, counted from 1; for a missing key, the line of its parent; 0 if unknown.

        :param path: names and indexes from the root.
        """
        node, line = self._root, 0
        for step in path:
            if isinstance(node, yaml.MappingNode):
                # Names in ``path`` are text, even if YAML reads them as another type.
                pair = next((pair for pair in node.value if pair[0].value == str(step)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line
