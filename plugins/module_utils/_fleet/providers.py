# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A provider: something that is no host, such as a cloud or a cluster, and has a version of its own all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UPGRADED, UPGRADING, FAILED = "upgraded", "upgrading", "failed"


@dataclass(frozen=True, slots=True)
class Provider:
    """What there is of a provider in ``upgrade/providers/<name>``.

    :param version: the one that it runs, or came from while it is being upgraded; empty where no one knows.
    :param target: the one that it goes to, or went to when that failed; empty once it is there.
    :param host: the host that upgrades it, or did.
    :param unit: the unit that is under way, or that failed; empty between two.
    :param done: the units that are finished on this way. Those of a path, such as ``upgrade/cloud@2.4``, stay finished on
        the way to another version too.
    :param error: why it failed.
    :param at: when this was written (unix seconds), 0 where that is not known.
    :param readable: False where something is there and can't be read; ``error`` says what.
    """

    version: str = ""
    target: str = ""
    host: str = ""
    unit: str = ""
    done: tuple[str, ...] = ()
    error: str = ""
    at: int = 0
    readable: bool = True

    @property
    def state(self) -> str:
        """Whether it is upgraded, upgrading or failed."""
        return FAILED if self.error else UPGRADING if self.target else UPGRADED

    def is_at(self, version: str) -> bool:
        """Return whether it runs a version, and is not on its way to another."""
        return self.state == UPGRADED and self.version == version

    def plain(self) -> dict[str, Any]:
        """Return it as data, for people and programs."""
        return {
            "version": self.version,
            "target": self.target,
            "state": self.state,
            "host": self.host,
            "unit": self.unit,
            "done": list(self.done),
            "error": self.error,
        }
