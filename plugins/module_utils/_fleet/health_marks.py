# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planners and operators write down beside the ledger: how well a host was seen to be, and what was approved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HealthMark:
    """What planners have seen of a host that reported a version, from ``upgrade/health/<host>``.

    :param since: since when all its checks pass (unix seconds, of a planner's clock); None while one does not.
    :param upgraded: whether it has counted as upgraded.
    :param reported: when the host reported that, by its own clock (unix seconds), None where it keeps no record: one that says
        something else meanwhile, and then that again, has another time, and has to soak again.
    :param lost: whether it has lost its health since it counted as upgraded, and has not soaked again.
    :param written: how many times it was written in this rollout.
    :param written_at: when it was written last (unix seconds).
    """

    version: str
    since: int | None
    upgraded: bool = False
    reported: int | None = None
    lost: bool = False
    written: int = field(default=0, compare=False)
    written_at: int = field(default=0, compare=False)

    def plain(self) -> dict[str, Any]:
        """Return the mark as it is stored."""
        plain: dict[str, Any] = {"version": self.version, "since": self.since, "upgraded": self.upgraded}
        if self.reported is not None:
            plain["reported"] = self.reported
        return {**plain, "lost": True} if self.lost else plain


@dataclass(frozen=True, slots=True)
class Approval:
    """Somebody's word that a rollout may go on after a stage, from ``upgrade/approval/<stage>``."""

    by: str
    at: int
    reason: str = ""
