# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a fleet in memory, for tests of the node agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convoy_node.machine.errors import ConsulError
from convoy_node.node.consul import ConsulKey


class AgentConsul:
    """The keys of a fleet, with the transactions that a node sends."""

    def __init__(self) -> None:
        self.keys: dict[str, ConsulKey] = {}
        self.index = 0
        # Called before each write; it may change keys, or raise an error.
        self.before_write: Callable[[], None] = lambda: None
        self.is_lossy = self.is_away = False
        self.time = 0.0

    def put(self, key: str, value: str | bytes, flags: int = 0) -> None:
        self.index += 1
        self.keys[key] = ConsulKey(value if isinstance(value, bytes) else value.encode(), self.index, flags)

    def data(self, key: str) -> Any:
        return json.loads(self.keys[key].value)

    def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
        self._answer()
        return {key: self.keys[key] for key in (*keys, folder) if key in self.keys}

    def get(self, key: str) -> ConsulKey | None:
        self._answer()
        return self.keys.get(key)

    def create(self, key: str, value: str) -> None:
        self._answer()
        if key not in self.keys:
            self.put(key, value)

    def write(self, operations: Sequence[Mapping[str, Any]]) -> dict[str, ConsulKey] | None:
        self._answer()
        self.before_write()
        if not all(map(self._holds, operations)):
            return None
        self.index += 1
        found: dict[str, ConsulKey] = {}
        for one in operations:
            key = one["Key"]
            if one["Verb"] == "cas":
                found[key] = self.keys[key] = ConsulKey(one["Value"], self.index)
            elif one["Verb"] == "delete-cas":
                del self.keys[key]
            elif one["Verb"] == "get-tree":
                found |= {name: entry for name, entry in self.keys.items() if name.startswith(key)}
            else:
                assert one["Verb"] == "check-index"
                found[key] = self.keys[key]
        if self.is_lossy:
            self.is_lossy = False
            raise ConsulError("the answer was lost")
        return found

    def _holds(self, operation: Mapping[str, Any]) -> bool:
        if operation["Verb"] == "get-tree":
            return True
        entry = self.keys.get(operation["Key"])
        return (entry.index if entry is not None else 0) == operation["Index"]

    def _answer(self) -> None:
        if self.is_away:
            raise ConsulError("no answer")
