# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrates from layout 0, which python-jiocloud writes, to layout 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ....module_utils._common.names import in_order
from ....module_utils._state.keys import Keys
from ....module_utils._state.legacy_keys import LegacyKeys
from .._layout_0 import gates, reports, version
from ..step import KeyMove, KeyProblem, KeysFound, MigrationStep


class ToOne(MigrationStep):
    """Copies reports, creates holds for operators' pauses, and removes white space around the version."""

    number = 1
    release = "0.1.0"
    title = "reports move to the keys that all tools of convoy.upgrade read, and operators' pauses become holds"

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the folders and keys that it reads."""
        keys, old = Keys(prefix), LegacyKeys(prefix)
        new = (keys.current_version, keys.reports, keys.gates, keys.holds, keys.records, keys.ledger)
        return (*new, old.reports, *old.gate_folders)

    def problems(self, found: KeysFound) -> list[KeyProblem]:
        """Return the problems because of which it can't run, in the order of the keys."""
        every = chain(version.version_problems(found), reports.report_problems(found), gates.gate_problems(found))
        return sorted(every, key=lambda one: one.key)

    def moves(self, found: KeysFound) -> list[KeyMove]:
        """Return the moves that are left."""
        return [*gates.moves(found), *reports.moves(found), *version.moves(found)]

    def removals(self, found: KeysFound) -> list[KeyMove]:
        """Return the moves that remove the legacy keys. Gates go last, so that a paused host stays paused until the end."""
        return [*reports.removals(found), *gates.removals(found)]

    def waiting(self, found: KeysFound) -> list[str]:
        """Return the hosts that reported through old code and not through convoy.upgrade after that."""
        return in_order({*reports.waiting(found), *gates.waiting(found)})


STEP = ToOne()
