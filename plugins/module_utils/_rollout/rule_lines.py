# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where in its file each key of the instructions stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import yaml

    HAS_YAML = True
except ImportError:
    HAS_YAML = False


class RuleLines:
    """The lines of a file's keys. YAML's reader knows those of JSON too.

    :param text: the file.
    """

    def __init__(self, text: str) -> None:
        """Read it; where that can't be done, no line is known."""
        self._root: Any = None
        if HAS_YAML:
            try:
                self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            except (yaml.YAMLError, RecursionError, ValueError):
                self._root = None

    def of(self, path: Sequence[Any]) -> int:
        """Return the line of a key, from 1; of what holds it where it is not there itself; 0 where nothing is known.

        :param path: names and indexes from the top down.
        """
        node, line = self._root, 0
        for step in path:
            if isinstance(node, yaml.MappingNode):
                # Names that YAML reads as something else than text have been made text of.
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
