# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes in Consul's catalog, put there as their agents would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devkit.kv import RawKV


@dataclass
class Catalog:
    """The catalog of one Consul."""

    consul: RawKV

    def register(
        self, name: str, address: str = "10.0.0.1", tagged: Mapping[str, str] | None = None, **meta: str
    ) -> None:
        """Put a node there, with its metadata."""
        node = {"Node": name, "Address": address, "TaggedAddresses": tagged, "NodeMeta": meta}
        code, _headers, body = self.consul.call("PUT", "catalog/register", node)
        assert code == 200, body
