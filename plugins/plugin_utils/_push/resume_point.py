# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has behind it when its turn begins, as far as its record may be believed, and whether it is where its way begins."""

from __future__ import annotations

from ...module_utils._fleet.checkpoints import is_checkpoint_group
from ...module_utils._fleet.fleet import HostRecord
from ...module_utils._planner.plan import HostView
from .run import AFTER, PushRun


def finished_groups(run: PushRun, host: str, record: HostRecord | None) -> dict[str, None]:
    """Return the units that a host has finished and needs not run again, in their order.

    Of a path it is what lies on the host's way: where that is another one, as back to where it came from, the rest is before
    the host again. The service's own units count for the version that the record is of. Units of providers never count, as a
    provider may have gone elsewhere since: its own key says what it has behind it.
    """
    if record is None or not record.readable:
        return {}
    same = record.version == run.version
    if not same and run.phase == AFTER:
        return {}
    units = {unit.name: unit for unit in run.units_of(host)}

    def counts(name: str) -> bool:
        unit = units.get(name)
        if unit is not None and unit.provider:
            return False
        if is_checkpoint_group(name):
            return unit is not None
        return same

    return dict.fromkeys(filter(counts, record.done))


def interrupted_at(run: PushRun, host: str, view: HostView) -> str:
    """Return where a host is that is no more where its way begins, empty for one that still is.

    A run works out the ways before it begins. Until a host's turn comes, another run may have brought it to another version: of the
    way from the old one, some is behind it that its record does not tell any more.

    :param view: the host as it is since this run has a claim on it, so that no other run moves it.
    """
    origin = run.origins.get(host)
    if run.phase == AFTER or not origin:
        return ""
    known = [version for version in (view.version, view.origin, view.begun) if version]
    return "" if origin in known or not known else known[0]
