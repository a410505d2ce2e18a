# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a migration of the key layout, from ``upgrade/migration``."""

from __future__ import annotations

from dataclasses import dataclass

RUNNING = "running"
KEPT = "kept"
REMOVING = "removing"
STATES = (RUNNING, KEPT, REMOVING)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration that is under way, or a finished one whose legacy keys are kept.

    :param state: ``running`` until the new layout is in use, ``kept`` after that, ``removing`` while the legacy keys are removed.
    :param origin: the layout before the migration.
    :param target: the layout after it.
    :param phase: the name of the current phase.
    :param done: how many keys of this phase are done.
    :param total: how many keys this phase has.
    :param by: who runs it: user and machine.
    :param since: when that run began (unix seconds), 0 if it is not known.
    :param readable: whether the key could be read. One that can't be read counts as under way.
    """

    state: str
    origin: int = 0
    target: int = 0
    phase: str = ""
    done: int = 0
    total: int = 0
    by: str = "unknown"
    since: int = 0
    readable: bool = True

    @property
    def is_under_way(self) -> bool:
        """Whether keys are being moved or removed, or were when the migration was interrupted. Planners write nothing then."""
        return self.state != KEPT

    @property
    def keeps_legacy_keys(self) -> bool:
        """Whether the new layout is in use and legacy keys are kept, so that gates have to be set in both layouts."""
        return self.state == KEPT
