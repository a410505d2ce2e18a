# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Silences the alerts of hosts while they are being upgraded.

What is silenced follows from the rollout in Consul and from the silences in the monitoring system, so a process that is killed leaves nothing
that another one does not find. Each silence lasts some minutes and is renewed, so without any process it ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._fleet.ledger import ABORTED
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
# may know of hosts that have begun or ended since. If the monitoring system takes longer to answer, the fleet is read again.
_FRESH = 10.0


class Maintenance:
    """Keeps the hosts that are being upgraded silenced, in a thread of its own, which can delay nothing else.

    :param read_again: reads the fleet now; None to wait for the next update instead.
    :ivar warning: what does not work now; empty for nothing.
    """

    def __init__(self, place: Monitoring, read_again: Callable[[], ProgressUpdate] | None = None) -> None:
        """Keep the arguments, and start the thread."""
        self._place, self._read_again = place, read_again
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
        # Why the fleet could not be read again.
        self._unread = ""
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
        requested = _requested_by(read)
        with self._changed:
            self._is_cut_off = False
            self._keep(read, requested, again=not self._reads or self._has_only_renewed)

    def _keep(self, read: ProgressUpdate, requested: Mapping[str, str], *, again: bool = False) -> None:
        """Keep a read, and let the thread make the changes that it asks for.

        :param again: also if it asks for the same as before.
        """
        is_new = requested != self._requested or again
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
        done, has_failed = 0, False
        while True:
            with self._changed:
                # Silences are renewed at half of their time, and looked at a little earlier.
                wait = min(_LONGEST_WAIT, self._place.lasts / 4) if not has_failed else _AGAIN
                if not self._is_over and self._reads == done:
                    self._changed.wait(wait)
                over, reads, requested, known = self._is_over, self._reads, self._requested, self._known
            has_failed = bool(reads)
            silence = runtime.monotonic() - self._read_at
            if reads and silence > max(self._place.lasts, _LONGEST_WAIT):
                # Hosts that an outage has broken must not stay silenced.
                # The same sentence each time, so that a log has it once.
                at = time.strftime("%H:%M:%S", time.gmtime(self._read_time))
                self.warning = f"Silences are not renewed, because the rollout could not be read from Consul since {at} UTC. They end by themselves."
            elif reads:
                try:
                    self.warning = self._sync(requested, known)
                    has_failed = bool(self._unread)
                except MaintenanceError as error:
                    self.warning = f"Alerts of {listing(list(requested), 3) or 'hosts'} may not be silenced as they should: {error}. It is tried again."
                except Exception as error:
                    self.warning = f"Alerts are not silenced: {error!r}. It is tried again."
            done = reads
            if over:
                return

    def _sync(self, requested: Mapping[str, str], known: frozenset[str]) -> str:
        """Let the silences be as they should; return what an operator has to know, empty for nothing. Without a read that is new enough, they are
        only renewed.

        :raises MaintenanceError: after all other hosts, that of the first host which has one.
        """
        first: MaintenanceError | None = None
        place, began = self._place, runtime.monotonic()
        self._unread = ""
        with self._changed:
            is_old = self._latest is None or self._latest.age > _FRESH
            self._has_only_renewed = self._is_cut_off or (is_old and self._read_again is None)
        found: dict[str, list[Silence]] = {}
        for silence in place.silences():
            found.setdefault(silence.host, []).append(silence)
        now = runtime.now()
        # Those that are renewed come first, as another read takes time.
        for host, target in sorted(requested.items(), key=lambda one: one[0] not in found):
            latest = max(found.get(host, ()), key=lambda one: one.until, default=None)
            if latest is None and not self._may_change(host, is_wanted=True):
                continue
            if latest is None or latest.until < now + place.lasts / 2:
                try:
                    place.begin(host, target, runtime.now() + place.lasts, latest)
                except MaintenanceError as error:
                    first = first or error
        for host, silences in found.items():
            if host in known and host not in requested:
                for silence in silences:
                    if not self._may_change(host, is_wanted=False):
                        break
                    try:
                        place.end(silence)
                    except MaintenanceError as error:
                        first = first or error
        if first is not None:
            raise first
        if self._unread:
            return f"Silences are only renewed, because the fleet could not be read from Consul again: {self._unread} It is tried again."
        # The same sentence each time.
        is_slow = runtime.monotonic() - began >= _FRESH
        slow = f"{place.name} takes {_FRESH:.0f} s or longer to change the silences, so alerts may come before they begin. Look at its load."
        return slow if is_slow else ""

    def _may_change(self, host: str, *, is_wanted: bool) -> bool:
        """Return whether a read that is new enough says that a silence of a host begins, or that it ends.

        :param is_wanted: whether it begins.
        """
        with self._changed:
            read, is_cut_off = self._latest, self._is_cut_off
        if is_cut_off or read is None or (read.age > _FRESH and not self._reads_again()):
            self._has_only_renewed = True
            return False
        with self._changed:
            return (host in self._requested) == is_wanted and host in self._known

    def _reads_again(self) -> bool:
        """Read the fleet again; return whether that could be done. After an error, it is not tried again for the other hosts."""
        if self._read_again is None or self._unread:
            return False
        try:
            read = self._read_again()
        except UpgradeError as error:
            self._unread = error.message
            return False
        with self._changed:
            self._keep(read, _requested_by(read))
        return True


def _requested_by(read: ProgressUpdate) -> Mapping[str, str]:
    """Return host -> target for the hosts that a read lets be silenced."""
    target = read.progress.version
    return {host: target for host, view in read.hosts.items() if _may_be_silenced(read, host, view)}


def _may_be_silenced(read: ProgressUpdate, host: str, view: HostView) -> bool:
    """Return whether a host is being upgraded by what planners wrote. Its own record is not enough, because a stolen token could write it."""
    if view.state != UPGRADING:
        return False
    snapshot = read.view.snapshot
    ledger = snapshot.ledger
    if read.view.plan.hosts[host].state == UPGRADED:
        # The ledger names these roles until all hosts have run their post-upgrade tasks.
        return ledger is not None and view.role in ledger.post_upgrade
    if ledger is not None and (ledger.was_complete or ledger.state == ABORTED):
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
