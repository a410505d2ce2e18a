# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences the alerts of hosts while they are being upgraded.

What is silenced follows from the rollout in Consul and from the silences in the monitoring system, so a process that is killed leaves nothing
that another one does not find. Each silence lasts some minutes and is renewed, so without any process it ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._fleet.ledger import ABORTED, COMPLETE
from ...module_utils._host_states.admitted import gate_of, is_listed, was_admitted
from ...module_utils._host_states.state_names import UPGRADED, UPGRADING
from ...module_utils._planner.plan import HostView
from ...module_utils._queries.follow import ProgressUpdate
from . import alertmanager, icinga
from .settings_file import load_settings, refuse_unknown
from .silences import MaintenanceError, Monitoring, Silence, mapping_of

# After an error, the next try comes after so many seconds, and without a change the silences are looked at again after at most so many.
_AGAIN = 5.0
_LONGEST_WAIT = 60.0
# Silences begin and end only by a read that is not older (seconds). With a connection that loses everything, or after a suspension, another process
# may know of hosts that have begun or ended since.
_FRESH = 10.0


class Maintenance:
    """Keeps the hosts that are being upgraded silenced, in a thread of its own, which can delay nothing else.

    :ivar warning: what does not work now; empty for nothing.
    """

    def __init__(self, place: Monitoring) -> None:
        """Keep the place, and start the thread."""
        self._place = place
        self._changed = runtime.condition()
        self._requested: Mapping[str, str] = {}
        # Hosts of the fleet. Silences of other hosts are left alone.
        self._known: frozenset[str] = frozenset()
        self._reads = 0
        self._read_at, self._read_time = runtime.monotonic(), runtime.now()
        self._is_over = False
        self._latest: ProgressUpdate | None = None
        # Another process may know more by then, so silences are only renewed.
        self._is_cut_off = False
        # Whether silences were only renewed the last time, so that more may have to be done.
        self._has_only_renewed = False
        self.warning = ""
        self._thread = runtime.start_thread(self._run)

    def update(self, read: ProgressUpdate | Exception | None) -> None:
        """Silence the hosts that are being upgraded, and end the silences of all others of the fleet.

        :param read: None if nothing is known to have changed. Some seconds after the last read, and after the error if the fleet can't be read,
            silences are only renewed, for as long as they last.
        """
        if isinstance(read, Exception):
            with self._changed:
                self._is_cut_off = True
            return
        self._read_at, self._read_time = runtime.monotonic(), runtime.now()
        if read is None:
            return
        target = read.progress.version
        requested = {host: target for host, view in read.hosts.items() if _may_be_silenced(read, host, view)}
        with self._changed:
            self._is_cut_off = False
            is_new = requested != self._requested or not self._reads or self._has_only_renewed
            self._latest, self._requested, self._known = read, requested, frozenset(read.hosts)
            if is_new:
                self._reads += 1
                self._changed.notify_all()

    def close(self, seconds: float = 15.0) -> None:
        """Make the last changes. Silences of hosts that are still being upgraded end by themselves, unless another process renews them.

        :param seconds: how long this may take.
        """
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        done = 0
        while True:
            with self._changed:
                # Silences are renewed at half of their time, and looked at a little earlier.
                wait = min(_LONGEST_WAIT, self._place.lasts / 4) if not self.warning else _AGAIN
                if not self._is_over and self._reads == done:
                    self._changed.wait(wait)
                over, reads, requested, known = self._is_over, self._reads, self._requested, self._known
                latest = None if self._is_cut_off else self._latest
            silence = runtime.monotonic() - self._read_at
            if reads and silence > max(self._place.lasts, _LONGEST_WAIT):
                # Hosts that an outage has broken must not stay silenced.
                # The same sentence each time, so that a log has it once.
                at = time.strftime("%H:%M:%S", time.gmtime(self._read_time))
                self.warning = f"Silences are not renewed, because the rollout could not be read from Consul since {at} UTC. They end by themselves."
            elif reads:
                try:
                    self._sync(requested, known, latest)
                    self.warning = ""
                except MaintenanceError as error:
                    self.warning = f"Alerts of {listing(list(requested), 3) or 'hosts'} may not be silenced as they should: {error}. It is tried again."
                except Exception as error:
                    self.warning = f"Alerts are not silenced: {error!r}. It is tried again."
            done = reads
            if over:
                return

    def _sync(self, requested: Mapping[str, str], known: frozenset[str], read: ProgressUpdate | None) -> None:
        """Let the silences be as they should. As soon as the read is too old, they are only renewed.

        :param read: the last one that says so; None if the fleet can't be read.
        :raises MaintenanceError: after all other hosts, that of the first host which has one.
        """
        first: MaintenanceError | None = None

        def only_renews() -> bool:
            self._has_only_renewed = self._has_only_renewed or read is None or read.age > _FRESH
            return self._has_only_renewed

        self._has_only_renewed = False
        only_renews()
        place, now = self._place, runtime.now()
        found: dict[str, list[Silence]] = {}
        for silence in place.silences():
            found.setdefault(silence.host, []).append(silence)
        for host, target in requested.items():
            latest = max(found.get(host, ()), key=lambda one: one.until, default=None)
            if latest is None and only_renews():
                continue
            if latest is None or latest.until < now + place.lasts / 2:
                try:
                    place.begin(host, target, now + place.lasts, latest)
                except MaintenanceError as error:
                    first = first or error
        for host, silences in found.items():
            if host in known and host not in requested:
                for silence in silences:
                    if only_renews():
                        break
                    try:
                        place.end(silence)
                    except MaintenanceError as error:
                        first = first or error
        if first is not None:
            raise first


def _may_be_silenced(read: ProgressUpdate, host: str, view: HostView) -> bool:
    """Return whether a host is being upgraded by what planners wrote. Its own record is not enough, because a stolen token could write it."""
    if view.state != UPGRADING:
        return False
    snapshot = read.view.snapshot
    ledger = snapshot.ledger
    if read.view.plan.hosts[host].state == UPGRADED:
        # The ledger names these roles until all hosts have run their post-upgrade tasks.
        return ledger is not None and view.role in ledger.post_upgrade
    if ledger is not None and ledger.state in (COMPLETE, ABORTED):
        # After a rollout, the global gate is open, and every host may say that it has started.
        return was_admitted(snapshot, host, view.role)
    if view.busy:
        # A host that only may start other work than the rollout's has an alert for another reason.
        return view.started
    return bool(gate_of(snapshot, host, view.role).is_open) or is_listed(snapshot, host)


def read_maintenance(loader: Any, file: str) -> list[Monitoring]:
    """Return the monitoring systems that a settings file names.

    :param loader: Ansible's.
    :raises UpgradeError: ``bad_maintenance``.
    """
    try:
        settings = mapping_of(load_settings(loader, file), "it")
        refuse_unknown(settings, (alertmanager.SECTION, icinga.SECTION))
        found: list[Monitoring] = []
        if alertmanager.SECTION in settings:
            found.append(alertmanager.read_alertmanager(settings))
        if icinga.SECTION in settings:
            found.append(icinga.read_icinga(settings))
    except ValueError as error:
        why = f"maintenance: {file}: {error}. Nothing was done: correct the file, or give another one."
        raise UpgradeError("bad_maintenance", why, file=file) from error
    return found
