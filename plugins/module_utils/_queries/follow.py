# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a rollout to its end, from Consul alone, without a word to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._consul.errors import Unreachable
from .._consul.settings import Settings
from .._consul.watch import Watch
from .._observe.progress import RolloutProgress, rollout_progress, watched_hosts
from .._planner.plan import HostView
from .._rules.instructions import parse
from .._state.legacy_keys import LegacyKeys
from .._state.store import Store
from .fleet_info import FleetView, read_fleet

# A caller hears something at least so often, to see to its own (seconds).
_LONGEST_SILENCE = 5.0
# A look costs time in proportion to the hosts, and a large fleet changes all the time. So there are no more of them than these
# seconds let, and they take a tenth of the time at most.
_LEAST_PAUSE = 0.5
_SHARE = 10
# A complete rollout whose gates are not open yet may go on with tasks after the upgrade. This is for how long nothing may
# happen before it is taken to be over (seconds).
_NOTHING_FOLLOWS = 15.0


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """What a look found, the newest of Consul's indexes in it, and what it had to pass over."""

    progress: RolloutProgress
    hosts: Mapping[str, HostView]
    index: int
    warnings: tuple[str, ...]


def follow(
    settings: Settings, fleet: Mapping[str, str] | None = None, patience: float = _NOTHING_FOLLOWS
) -> Iterator[ProgressUpdate | Unreachable | None]:
    """Yield what there is to see, now and after each change, until the rollout is over.

    A look is one request, and one more where the rules ask for checks. Between them five blocking queries wait, on a
    connection each.

    :param fleet: host -> role, for hosts that never reported.
    :param patience: seconds without news after which a complete rollout is over, though its gates are not open.
    :returns: what was found, why Consul can't be reached (it is asked again then), or None where nothing has happened.
    :raises UpgradeError: what :func:`read_fleet` raises, but for ``unreachable``.
    """
    store = Store(settings)
    keys = store.keys
    folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates)
    with closing(Watch(settings, (*folders, keys.current_version))) as watch:
        yield from _followed(store, watch, fleet, patience)


def _followed(
    store: Store, watch: Watch, fleet: Mapping[str, str] | None, patience: float
) -> Iterator[ProgressUpdate | Unreachable | None]:
    before: Mapping[str, HostView] | None = None
    quiet_since = time.monotonic()
    while True:
        mark = watch.mark()
        began = time.monotonic()
        try:
            view = read_fleet(store, fleet=fleet)
        except Unreachable as error:
            yield error
            # Each of the queries that wait fails by itself, and not each is worth a look.
            time.sleep(_LEAST_PAUSE)
            watch.wait(mark, _LONGEST_SILENCE)
            continue
        updates = _update(view)
        if before is None or updates.hosts != before:
            before, quiet_since = updates.hosts, time.monotonic()
        yield updates
        if _is_over(updates, quiet_since, patience):
            return
        pause = max(_LEAST_PAUSE, (time.monotonic() - began) * (_SHARE - 1))
        wake_at = view.plan.wake_at
        while not watch.wait(mark, min(patience, _LONGEST_SILENCE)):
            if _is_over(updates, quiet_since, patience):
                return
            yield None
            if wake_at is not None and time.time() > wake_at:
                break
        # What comes in meanwhile is seen in one look.
        time.sleep(max(0.0, began + pause - time.monotonic()))


def _is_over(updates: ProgressUpdate, quiet_since: float, patience: float) -> bool:
    return updates.progress.over or (updates.progress.done and time.monotonic() - quiet_since > patience)


def _update(view: FleetView) -> ProgressUpdate:
    snapshot, plan = view.snapshot, view.plan
    try:
        soak = parse(snapshot.ledger.instructions).health.soak if snapshot.ledger is not None else 0
    except UpgradeError:
        # A warning tells of it.
        soak = 0
    hosts = watched_hosts(snapshot, plan)
    return ProgressUpdate(rollout_progress(snapshot, plan, hosts, soak), hosts, snapshot.index, view.warnings)
