# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resident agent: reads the gate, starts an agent run when there is something to do, and waits for a reason to read again."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any, Callable, Optional

from . import agent_run, releases
from .bad_settings import keep_good
from .decision import JOB, NextAction
from .gate_reading import GateReading
from .machine import puppet
from .machine.errors import BadSettings, ConsulError
from .machine.signals import Signals
from .machine.systemd import SystemdNotifier
from .node.consul import WakeWatch
from .node.settings import NodeSettings, read_settings

# How often the agent looks at files of the node while it waits, at most (seconds).
_EVERY = 30.0
# After a query on a wake key that failed, the gate is read again after this time at most (seconds), then after twice of it, up to the interval.
_QUERY_AGAIN = 2.0
# Settings that can't be used are read once more after this time (seconds).
_HALF_WRITTEN = 1.0
# A change of the global gate wakes all nodes whose Puppet something else runs. They read their gates over this time (seconds).
_SPREAD = 10.0
# How long the trial of a release waits (seconds).
_TRIAL_WAIT = 1.0


class Resident:
    """The loop."""

    def __init__(self, path: str, say: Callable[[str], None] = print) -> None:
        """Read the settings.

        :raises BadSettings: if they can't be used, or the token can't be read.
        """
        self._path = path
        self._say = say
        self._notifier = SystemdNotifier(os.environ)
        self._signals = Signals()
        self._settings = read_settings(path)
        keep_good(self._settings, self._path)
        self._stamp = _stamp(path, self._settings)
        self._reading = GateReading(self._settings, say=say, alive=self._notifier.alive)
        self._release = agent_run.own_release()
        self._watch: Optional[WakeWatch] = None
        self._watched: tuple[str, ...] = ()
        # The pause after the next query that fails.
        self._query_pause = _QUERY_AGAIN
        self._said: Optional[NextAction] = None

    def run(self) -> int:
        """Work until the service is stopped, or systemd has to start it again; return the exit code."""
        self._say(
            f"convoy-node {self._release.name} waits for the gate of {self._settings.host} (role {self._settings.role})"
        )
        while not self._signals.is_over:
            decision = self._next_action()
            # Not before the first read: a Puppet that systemd starts after this service has to find its lock.
            self._notifier.ready()
            if self._reading.has_lock_failed and self._notifier.is_started_by_systemd and puppet.is_outside_service():
                self._say(
                    f"{self._settings.host}: a folder of Puppet was created after this service started, and is read-only in it. The service ends, "
                    "so that systemd starts it again with that folder"
                )
                return 1
            self._act(decision)
        self._reading.keep_puppet_out_after_end()
        return 0

    def try_once(self) -> int:
        """Read once, start nothing, and wait for a moment; return the exit code. So a new release shows that its loop works."""
        self._reading.read(only=True)
        self._wait(_TRIAL_WAIT)
        self._close_watch()
        return 0

    def _next_action(self) -> NextAction:
        self._signals.read_again = False
        self._reload()
        decision = self._reading.read()
        self._notifier.alive()
        if not decision.is_same(self._said):
            self._say(
                f"{self._settings.host}: {decision.reason}" + (f" (agent run: {decision.run})" if decision.run else "")
            )
            self._notifier.status(decision.reason)
            self._said = decision
        return decision

    def _act(self, decision: NextAction) -> None:
        if decision.run is None:
            self._wait(decision.seconds)
            return
        if self._signals.is_over:
            return
        self._make_run(decision.run)
        self._said = None
        self._replace_release()

    def _make_run(self, what: str) -> None:
        self._notifier.status(f"agent run: {what}")
        is_job = what.startswith(f"{JOB} ")
        unit = agent_run.JOB_UNIT if is_job else agent_run.UNIT
        before = agent_run.last_run(self._settings)
        if agent_run.has_unit(unit):
            process = agent_run.start_unit(unit)
        else:
            process = agent_run.start_program(self._path, "job" if is_job else "run")
        while (code := process.poll()) is None:
            self._signals.wait(min(self._notifier.every, self._reading.renew_every))
            self._notifier.alive()
            self._reading.renew_checks()
            if self._signals.is_over:
                # The unit goes on without the agent. Without one, the run is a child, which a supervisor may end too.
                return
        if code:
            remedy = f". Look at it with journalctl -u {unit}" if agent_run.has_unit(unit) else ""
            self._say(f"{self._settings.host}: the agent run ({what}) ended with {code}{remedy}")
        self._reading.ended(what, agent_run.has_worked(self._settings, before, code))

    def _wait(self, seconds: float) -> None:
        """Wait for a change in Consul or on the node, at most for so long."""
        # So that the nodes of a fleet do not read at the same time.
        seconds *= random.uniform(0.9, 1.1)
        disabled = puppet.disabled_by_operator()
        if not self._reading.is_answered:
            # Blocking queries would fail too, and at once.
            self._close_watch()
            self._pause(seconds, disabled)
            return
        begun = time.monotonic()
        try:
            keys = self._keys_to_watch()
            if self._watch is None or keys != self._watched:
                self._close_watch()
                self._watch = WakeWatch(self._settings.connection, keys, self._signals, self._notifier.alive)
                self._watched = keys
            self._watch.note(self._reading.entries)
            # The next read finds out what has changed.
            self._watch.wait(seconds, self._every, lambda: self._has_reason(disabled))
            is_herd = self._watch.changed == {self._reading.keys.global_gate}
            # The gate may be closed now.
            if is_herd and self._reading.keep_puppet_out_until_read():
                self._spread(disabled)
            self._query_pause = _QUERY_AGAIN
        except ConsulError:
            if time.monotonic() - begun > self._query_pause:
                # The query was taken, and Consul was restarted meanwhile.
                self._query_pause = _QUERY_AGAIN
            # The next read finds out what it is: not at once, as a restarted agent needs a moment, and not with all other nodes. If reads work and
            # only queries fail, as with a limit on connections, they go on at the interval.
            self._pause(min(seconds, random.uniform(0.1, 1.0) * self._query_pause), disabled)
            self._query_pause = min(self._query_pause * 2, max(self._settings.interval, _QUERY_AGAIN))

    def _spread(self, disabled: Optional[str]) -> None:
        """Wait for a share of the time over which nodes read their gates that were woken together, or for the host's own key."""
        assert self._watch is not None
        until = time.monotonic() + random.uniform(0.0, _SPREAD)
        while (left := until - time.monotonic()) > 0 and not self._has_reason(disabled):
            self._watch.wait(left, min(left, self._every), lambda: self._has_reason(disabled))
            if self._watch.changed - {self._reading.keys.global_gate}:
                return

    def _pause(self, seconds: float, disabled: Optional[str]) -> None:
        """Wait for so long, or until something on the node is a reason to read again."""
        until = time.monotonic() + seconds
        while not self._has_reason(disabled) and (left := until - time.monotonic()) > 0:
            self._signals.wait(min(left, self._every))

    def _keys_to_watch(self) -> tuple[str, ...]:
        # A query on a missing key would end whenever a key near it is written.
        reading = self._reading
        is_there = bool(reading.entries) and reading.ensure_wake_key()
        return tuple(
            key for key in reading.wake_keys if key in reading.entries or (key == reading.keys.wake and is_there)
        )

    @property
    def _every(self) -> float:
        """How often something else than Consul's answers needs the agent while it waits (seconds)."""
        return min(self._notifier.every, self._reading.renew_every, _EVERY)

    def _has_reason(self, disabled: Optional[str]) -> bool:
        """Tell systemd that the agent works, and renew its checks; return whether something on the node is a reason to read again."""
        self._notifier.alive()
        self._reading.renew_checks()
        return (
            self._signals.is_over
            or self._signals.read_again
            or puppet.disabled_by_operator() != disabled
            or self._reading.has_lost_lock
            or _stamp(self._path, self._settings) != self._stamp
        )

    def _reload(self) -> None:
        """Read the settings again if they have changed.

        :raises BadSettings: if they can't be used any more, or the token can't be read.
        """
        stamp = _stamp(self._path, self._settings)
        if stamp == self._stamp:
            return
        try:
            self._settings = read_settings(self._path)
        except BadSettings:
            # It may have been read while it was written.
            self._signals.sleep(_HALF_WRITTEN)
            stamp, self._settings = _stamp(self._path, self._settings), read_settings(self._path)
        keep_good(self._settings, self._path)
        self._stamp = stamp
        self._say(f"{self._settings.host}: the settings in {self._path} have changed")
        self._reading = self._reading.with_settings(self._settings)
        self._close_watch()

    def _replace_release(self) -> None:
        """Go on as another release, if one was activated."""
        home = self._release.home
        current = releases.linked(home, releases.CURRENT) if home is not None else None
        if current is None or current == self._release.folder:
            return
        if not self._signals.leave_to_system():
            # The service ends. systemd would wait for the other release, which does not know of the signal, until it kills it.
            return
        self._say(f"{self._settings.host}: the release {current.name} goes on in place of {self._release.name}")
        self._close_watch()
        os.environ.update(self._notifier.environ())
        program = str(current / "bin/convoy-node")
        os.execv(program, [program, "--settings", self._path, "agent"])

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None


def _stamp(path: str, settings: NodeSettings) -> tuple[Any, ...]:
    """Return what changes with the settings file and the token file."""
    found: list[Any] = []
    for one in (path, settings.token_file):
        if one is None:
            continue
        try:
            facts = Path(one).stat()
            found.append((facts.st_mtime_ns, facts.st_ino, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)
