# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A provider: something other than a host that has a version of its own, such as a cloud or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UPGRADED, UPGRADING, FAILED = "upgraded", "upgrading", "failed"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's version and upgrade, from ``upgrade/providers/<name>``.

    :param version: the version that it runs, or the one before the upgrade under way; empty if it is not known.
    :param target: the version of the upgrade under way, or of the one that failed; empty after it.
    :param host: the host that upgrades it, or upgraded it last.
    :param task_group: the task group that is under way, or that failed; empty between two.
    :param done: the finished task groups of this upgrade. Those of checkpoints, such as ``upgrade/cloud@2.4``, stay finished
        when the target changes.
    :param error: why the upgrade failed; empty if it did not.
    :param at: when this was written (unix seconds), 0 if it is not known.
    :param readable: False if the key exists and can't be read; ``error`` says why.
    """

    version: str = ""
    target: str = ""
    host: str = ""
    task_group: str = ""
    done: tuple[str, ...] = ()
    error: str = ""
    at: int = 0
    readable: bool = True

    @property
    def state(self) -> str:
        """``upgraded``, ``upgrading`` or ``failed``."""
        return FAILED if self.error else UPGRADING if self.target else UPGRADED

    def is_at(self, version: str) -> bool:
        """Return whether it runs a version, and no upgrade of it is under way."""
        return self.state == UPGRADED and self.version == version

    def plain(self) -> dict[str, Any]:
        """Return the provider as plain data."""
        return {
            "version": self.version,
            "target": self.target,
            "state": self.state,
            "host": self.host,
            "task_group": self.task_group,
            "done": list(self.done),
            "error": self.error,
        }
