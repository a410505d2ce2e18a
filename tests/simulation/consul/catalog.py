# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes of a Consul server, and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

SERF = "serfHealth"
# Consul knows no quote in a text, escaped or not.
_TERM = re.compile(r'(CheckID|Name) == "([^"]*)"')


@dataclass
class Catalog:
    """Nodes with their checks.

    :param checks: node -> check ID -> name and status.
    """

    checks: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)

    def add(self, node: str) -> None:
        """Add a node, which is alive."""
        self.checks.setdefault(node, {})[SERF] = ("Serf Health Status", "passing")

    def set(self, node: str, check: str, status: str) -> None:
        """Set the status of a check."""
        self.checks[node][check] = (check if check != SERF else "Serf Health Status", status)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as Consul's JSON has them, as far as the collection reads it."""
        return [{"Node": name, "Address": "127.0.0.1", "Meta": {}} for name in sorted(self.checks)]

    def matching(self, expression: str) -> list[dict[str, Any]]:
        """Return the checks that fit a filter: terms with C(==), of which one has to fit.

        :raises ValueError: for a filter that Consul can't parse.
        """
        if not all(_TERM.fullmatch(one) for one in expression.split(" or ") if expression):
            raise ValueError("Failed to create boolean expression evaluator")
        terms = [(name, text.replace("\\\\", "\\")) for name, text in _TERM.findall(expression)]
        found = [
            {"Node": node, "CheckID": check, "Name": name, "Status": status}
            for node, checks in sorted(self.checks.items())
            for check, (name, status) in sorted(checks.items())
        ]
        return [one for one in found if not expression or any(one[name] == text for name, text in terms)]
