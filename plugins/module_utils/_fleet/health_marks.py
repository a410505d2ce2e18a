# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Health marks, in which planners remember the health of hosts, and approvals of operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HealthMark:
    """The health of a host that reported a version, as planners have seen it, from ``upgrade/health/<host>``.

    :param since: since when all its checks pass (unix seconds, by a planner's clock); None while one does not.
    :param upgraded: whether the host has counted as upgraded.
    :param reported: when the host reported the version, by its own clock (unix seconds); None if it has no record. A host that
        reports the version again has another time, and has to soak again.
    :param lost: whether the host became unhealthy after it counted as upgraded, and has not soaked again.
    :param since_behind: since when it soaks for planners by whose clocks ``since`` is in the future, by theirs; None if there was none.
    :param written: how many times the mark was written in this rollout.
    :param written_at: when the mark was last written (unix seconds).
    """

    version: str
    since: int | None
    upgraded: bool = False
    reported: int | None = None
    lost: bool = False
    since_behind: int | None = None
    written: int = field(default=0, compare=False)
    written_at: int = field(default=0, compare=False)

    def plain(self) -> dict[str, Any]:
        """Return the mark as it is stored."""
        plain: dict[str, Any] = {"version": self.version, "since": self.since, "upgraded": self.upgraded}
        if self.reported is not None:
            plain["reported"] = self.reported
        if self.since_behind is not None:
            plain["since_behind"] = self.since_behind
        return {**plain, "lost": True} if self.lost else plain


@dataclass(frozen=True, slots=True)
class Approval:
    """An operator's approval that a rollout goes on after a stage, from ``upgrade/approval/<stage>``.

    :param at: unix seconds, 0 if it is not known.
    """

    by: str
    at: int
    reason: str = ""
