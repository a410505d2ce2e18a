# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tokens of a Consul server may read and write. A token without rules may do nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RULE = re.compile(
    r'(key|key_prefix|node|node_prefix|session|session_prefix)\s+"([^"]*)"\s*{\s*policy\s*=\s*"(\w+)"\s*}'
)
_STRENGTH = {"deny": 0, "read": 1, "list": 1, "write": 2}


@dataclass(frozen=True)
class Policy:
    """Rules of a token.

    :param exact: kind and name -> strength: 0 for nothing, 1 for reading, 2 for writing.
    :param prefixes: kind -> prefixes with their strengths, the longest first.
    """

    exact: dict[tuple[str, str], int]
    prefixes: dict[str, list[tuple[str, int]]]

    def may(self, kind: str, name: str, *, write: bool = False) -> bool:
        """Return whether a key, a node or the session of a node may be read or written."""
        strength = self.exact.get((kind, name))
        if strength is None:
            strength = next((found for prefix, found in self.prefixes.get(kind, ()) if name.startswith(prefix)), 0)
        return strength > int(write)

    def may_all_below(self, prefix: str) -> bool:
        """Return whether all keys below a prefix may be written."""
        if not self.may("key", prefix, write=True):
            return False
        below = [strength for name, strength in self.prefixes.get("key", ()) if name.startswith(prefix)]
        below += [
            strength for (kind, name), strength in self.exact.items() if kind == "key" and name.startswith(prefix)
        ]
        return all(strength > 1 for strength in below)


def parse(rules: str) -> Policy:
    """Return the policy of rules in Consul's language, as far as the collection writes it."""
    exact: dict[tuple[str, str], int] = {}
    prefixes: dict[str, dict[str, int]] = {}
    for kind, name, word in _RULE.findall(rules):
        if kind.endswith("_prefix"):
            prefixes.setdefault(kind.removesuffix("_prefix"), {})[name] = _STRENGTH[word]
        else:
            exact[kind, name] = _STRENGTH[word]
    return Policy(exact, {kind: _longest_first(found.items()) for kind, found in prefixes.items()})


def _longest_first(found: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(found, key=lambda pair: -len(pair[0]))


ALL = parse(
    'key_prefix "" { policy = "write" } node_prefix "" { policy = "write" } session_prefix "" { policy = "write" }'
)
