# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a migration of the stored layout is, as ``upgrade/migration`` tells it."""

from __future__ import annotations

from dataclasses import dataclass

RUNNING = "running"
KEPT = "kept"
REMOVING = "removing"
STATES = (RUNNING, KEPT, REMOVING)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration that is under way, or one that is over and whose old keys are kept.

    :param state: ``running`` up to the switch, ``kept`` from then on, ``removing`` while the old keys are removed.
    :param origin: the layout that it began at.
    :param target: the layout that it leads to.
    :param phase: what it is doing, in a word.
    :param done: how many keys of this phase are done,
    :param total: of so many.
    :param by: who runs it: user and machine.
    :param since: when that run began (unix seconds), 0 where no one knows.
    :param readable: whether all of that could be read. One that can't be read counts as under way.
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
        """Whether keys are being moved, or were when the migrator died, so that nothing may be opened."""
        return self.state != KEPT

    @property
    def keeps_legacy_keys(self) -> bool:
        """Whether the switch is over, and gates have to be set in their old places too."""
        return self.state == KEPT
