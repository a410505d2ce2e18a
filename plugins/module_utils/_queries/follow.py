# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows a rollout to its end by reading Consul. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from .._cache.cached_store import CachedStore
from .._common import runtime
from .._common.errors import UpgradeError
from .._consul.errors import Unreachable
from .._consul.settings import Settings
from .._consul.watch import BlockingQueries, Watch
from .._fleet.ledger import ABORTED
from .._host_states.state_names import UPGRADING
from .._observe.operator_needs import is_interrupted, next_need_at
from .._observe.progress import RolloutProgress, rollout_progress, watched_hosts
from .._planner.plan import HostView
from .._rules.instructions import parse
from .._state.legacy_keys import LegacyKeys
from .._state.store import Store
from .fleet_info import FleetView, read_fleet

# The caller gets control back at least this often (seconds).
_LONGEST_SILENCE = 5.0
# A read and what its caller does with it take time in proportion to the hosts, and a large fleet changes all the time. So this is the shortest
# time between two reads (seconds), and they take at most a quarter of a processor and half of the time. Only the latter grows if others keep the
# machine busy. With 5,000 hosts, the page takes about 0.2 s of processor, so it follows a busy rollout within a second.
_LEAST_PAUSE = 0.5
_SHARE = 4
# Post-upgrade tasks may follow a complete rollout whose gates are not open yet. It counts as over after this time without a change
# (seconds).
_NOTHING_FOLLOWS = 15.0
# The fleet is read at least this often (seconds): health checks change without a write to a key, and only a read shows that Consul is still there.
_REFRESH = 30.0


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """The result of one read.

    :param hosts: what :func:`watched_hosts` returns.
    :param view: all that was read.
    :param read_at: when the read began: unix seconds, and those of the monotonic clock.
    """

    progress: RolloutProgress
    hosts: Mapping[str, HostView]
    view: FleetView
    read_at: tuple[float, float] = field(default_factory=lambda: (runtime.now(), runtime.monotonic()), compare=False)

    @property
    def index(self) -> int:
        """The newest Consul index of the read."""
        return self.view.snapshot.index

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the read."""
        return self.view.warnings

    @property
    def age(self) -> float:
        """How long ago it was read (seconds), also if this process or its machine was suspended since."""
        known_at, read_at = self.read_at
        return -runtime.seconds_until(known_at, known_at, read_at)


def follow(
    settings: Settings,
    fleet: Mapping[str, str] | None = None,
    patience: float = _NOTHING_FOLLOWS,
    queries: BlockingQueries | None = None,
    *,
    until_hosts_finish: bool = False,
    endless: bool = False,
) -> Iterator[ProgressUpdate | Unreachable | None]:
    """Yield the progress of a rollout, now and after each change, until it is over.

    The fleet stays in memory, so a read takes one request for up to 1,500 hosts, and above that reads only what has changed. It takes one more if
    the rules require checks. Between reads, five blocking queries wait on a connection each.

    :param fleet: host -> role, for hosts that never reported.
    :param patience: seconds without a change after which a complete rollout counts as over, though its gates are not open.
    :param queries: the blocking queries of this process; None for queries of its own.
    :param until_hosts_finish: whether an aborted rollout is over only once the hosts that had begun have finished.
    :param endless: whether to go on after the end, with changes of the fleet between rollouts, and with the next rollout.
    :returns: the progress; the error if Consul can't be reached, before the next try; or None if nothing has changed.
    :raises UpgradeError: what :func:`read_fleet` raises, except ``unreachable``.
    """
    store = CachedStore(settings)
    keys = store.keys
    folders = (keys.upgrade, keys.reports, LegacyKeys(keys.prefix).reports, keys.gates)
    with closing(Watch(settings, (*folders, keys.current_version), queries)) as watch:
        yield from _followed(store, watch, fleet, patience, until_hosts_finish=until_hosts_finish, endless=endless)


def _followed(
    store: Store,
    watch: Watch,
    fleet: Mapping[str, str] | None,
    patience: float,
    *,
    until_hosts_finish: bool,
    endless: bool,
) -> Iterator[ProgressUpdate | Unreachable | None]:
    before: Mapping[str, HostView] | None = None
    view: FleetView | None = None
    quiet_since = runtime.monotonic()
    # A job that is followed is shown until its end, also when it is complete.
    of_job: bool | None = None
    while True:
        mark = watch.mark()
        began, busy = runtime.monotonic(), runtime.processor_seconds()
        read_at = runtime.now(), began
        try:
            view = read_fleet(store, fleet=fleet, of_job=of_job, before=view)
            if view.snapshot.is_job and (view.snapshot.ledger is None or not view.snapshot.ledger.is_job):
                # A rollout to a version has begun after it.
                of_job = None
                continue
            had_job, of_job = of_job, True if view.snapshot.is_job else None
        except Unreachable as error:
            yield error
            # All blocking queries fail, and each would cause a read.
            runtime.sleep(_LEAST_PAUSE)
            watch.wait(mark, _LONGEST_SILENCE)
            continue
        updates = progress_update(view, read_at)
        if before is None or updates.hosts != before:
            before, quiet_since = updates.hosts, runtime.monotonic()
        yield updates
        at_work = until_hosts_finish and _is_at_work_after_abort(updates)
        is_over = not at_work and _is_over(updates, quiet_since, patience)
        if is_over and not endless:
            return
        if is_over:
            of_job = None
        pause = max(_LEAST_PAUSE, (runtime.processor_seconds() - busy) * _SHARE, (runtime.monotonic() - began) * 2)
        # The plan and the needs may change though nothing is written.
        wakes = (view.plan.wake_at, next_need_at(view.snapshot, view.plan))
        # The fleet's rollout to a version is shown again right after the end of a job.
        while not (is_over and had_job) and not watch.wait(mark, min(patience, _LONGEST_SILENCE)):
            if not endless and not at_work and _is_over(updates, quiet_since, patience):
                return
            yield None
            if any(runtime.seconds_until(at, view.snapshot.now, began) < 0 for at in wakes):
                break
            if runtime.monotonic() - began >= _REFRESH:
                break
        # One read covers all changes during this pause.
        runtime.sleep(max(0.0, began + pause - runtime.monotonic()))


def read_progress(settings: Settings, fleet: Mapping[str, str] | None = None) -> ProgressUpdate:
    """Return the progress of the rollout now.

    :param fleet: host -> role, for hosts that never reported.
    :raises UpgradeError: what :func:`read_fleet` raises.
    """
    read_at = runtime.now(), runtime.monotonic()
    return progress_update(read_fleet(Store(settings), fleet=fleet), read_at)


def _is_at_work_after_abort(updates: ProgressUpdate) -> bool:
    """Return whether the rollout was aborted and hosts that had begun finish. No run finishes those that a push run has left between steps."""
    snapshot = updates.view.snapshot
    return updates.progress.state == ABORTED and any(
        view.state == UPGRADING and not is_interrupted(snapshot, host) for host, view in updates.hosts.items()
    )


def _is_over(updates: ProgressUpdate, quiet_since: float, patience: float) -> bool:
    return updates.progress.over or (updates.progress.done and runtime.monotonic() - quiet_since > patience)


def progress_update(view: FleetView, read_at: tuple[float, float] | None = None) -> ProgressUpdate:
    """Return the progress of a rollout at one read. Takes time linear in hosts.

    :param read_at: as for :class:`ProgressUpdate`; None for now.
    """
    snapshot, plan = view.snapshot, view.plan
    try:
        soak = parse(snapshot.ledger.instructions).health.soak if snapshot.ledger is not None else 0
    except UpgradeError:
        # view.warnings has this error.
        soak = 0
    hosts = watched_hosts(snapshot, plan)
    found = ProgressUpdate(rollout_progress(snapshot, plan, hosts, soak), hosts, view)
    return found if read_at is None else replace(found, read_at=read_at)
