# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resident agent: reads the gate, starts an agent run when there is something to do, and waits for a reason to read again."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from . import agent_run, releases
from .decision import DOUBT, HOLD, JOB, PUPPET, UNHOLD, NextAction, NodeFacts, decide, own_share, unreachable
from .jobs.job_need import needs_run
from .jobs.spool import Spool
from .machine import puppet
from .machine.errors import BadSettings, BadToken, ConsulError, Denied, sanitize
from .machine.lock_file import is_locked
from .machine.signals import Signals
from .machine.systemd import SystemdNotifier
from .node.consul import Consul, ConsulKey, WakeWatch
from .node.gate import Answer, NodeKeys, admitted_job, answer, read_keys
from .node.settings import NodeSettings, is_external, keep_last_good, read_settings
from .node.state import PuppetRuns, node_version

# How often the agent looks at files of the node while it waits, at most (seconds).
_EVERY = 30.0
# A doubt that was reported is reported again after this time (seconds).
_DOUBT_AGAIN = 1800.0
# A job that could not begin or be reported is tried again after this time (seconds), then after twice of it, up to the interval.
_JOB_AGAIN = 10.0
# An agent run that could not be started, or found the lock of another run, is tried again after this time (seconds).
_RUN_AGAIN = 30.0
# After a query on a wake key that failed, the gate is read again after this time at most (seconds), then after twice of it, up to the interval.
_QUERY_AGAIN = 2.0
# Settings that can't be used are read once more after this time (seconds).
_HALF_WRITTEN = 1.0
# A token that can't be read is tried again after this time (seconds).
_TOKEN_AGAIN = 30.0
# How long the trial of a release waits (seconds).
_TRIAL_WAIT = 1.0
_CHECKS = ("puppet", "validation")
# What the agent itself writes to a wake key that is missing. It is no reason to do anything.
_OWN_WAKE = b"enrolled"


class GateReading:
    """Reads the gate and the node, and decides: once for ``convoy-node once``, repeatedly for the resident agent."""

    def __init__(
        self,
        settings: NodeSettings,
        runs: Optional[PuppetRuns] = None,
        say: Callable[[str], None] = print,
        is_single: bool = False,
    ) -> None:
        """Prepare; nothing is read yet.

        :param is_single: whether this process ends after it, as those of ``once`` and ``status`` do.
        """
        self.settings = settings
        self.keys = NodeKeys(settings.host, settings.role, settings.prefix)
        self.consul = Consul(settings.connection)
        # Agent runs publish the checks there, and the other one may be a server.
        self._consul_agent = Consul(settings.consul_agent)
        self.entries: dict[str, ConsulKey] = {}
        self.answer: Optional[Answer] = None
        self._runs = runs or PuppetRuns()
        self._spool = Spool()
        self._say = say
        self.is_answered = False
        # Whether Puppet's own lock could not be set or removed at the last read.
        self.has_lock_failed = False
        # Whether the last read has set Puppet's own lock, or found it.
        self.keeps_puppet_out = False
        # In a process that ends, no later read finds out whether Consul was only starting again.
        self._failures = 1 if is_single else 0
        # How long the last job that was tried waits for its next try.
        self._job_pause = self._locked_pause = 0.0
        self._is_single = is_single
        self._has_record = self._is_warned = False
        self._wakes: dict[str, int] = {}
        self._facts = NodeFacts(None, None, 0, None, time.monotonic())
        if is_single:
            # The time at which this process started says nothing.
            self._facts = replace(self._facts, patience=0.0, started_at=float("-inf"))
        self._renewed = float("-inf")

    def with_settings(self, settings: NodeSettings) -> GateReading:
        """Return a reading for changed settings or another token. It knows when the agent began and when Puppet ran.

        For the same host and role, it also knows what was tried. Otherwise a token that changes often would end each pause after a failure.
        """
        found = GateReading(settings, self._runs, self._say)
        if (settings.host, settings.role) == (self.settings.host, self.settings.role):
            found._facts, found._job_pause, found._wakes = self._facts, self._job_pause, self._wakes
            found._locked_pause = self._locked_pause
            if _without_token(settings) != _without_token(self.settings):
                # An operator may have corrected what failed.
                found._facts = replace(found._facts, not_before=0.0, job_not_before=0.0)
                found._job_pause = found._locked_pause = 0.0
        else:
            found._facts = replace(found._facts, started_at=self._facts.started_at)
        return found

    @property
    def facts(self) -> NodeFacts:
        """What is known of the node."""
        return self._facts

    def read(self, only: bool = False) -> NextAction:
        """Read, and return what to do.

        :param only: change nothing: neither Puppet's lock nor the checks of the node.
        """
        if self._is_single and not only:
            self._spread_first_run()
        facts = self._facts = self._read_node()
        self.is_answered = False
        try:
            found = self.read_keys()
            facts = self._note_wakes(found)
            self.entries = {**found, **self._read_record(facts)}
            self._failures = 0
            self.answer = answer(self.keys, self.entries, self.settings.default)
            self.is_answered = True
        except Denied as error:
            self._failures, self._has_record = 0, False
            self.answer = Answer(None, str(error))
        except ConsulError as error:
            self._failures += 1
            decision = unreachable(self.settings, str(error), facts, self._failures)
            if not only:
                self._keep_puppet_out(decision)
            return decision
        since = facts.now if self.answer.is_open is None and facts.doubt_since is None else facts.doubt_since
        job, job_reason = self._job() if self.is_answered else ("", "")
        self._facts = facts = replace(
            facts,
            doubt_since=since if self.answer.is_open is None else None,
            job=job,
            job_reason=job_reason,
        )
        decision = decide(self.settings, self.answer, facts)
        if not only:
            self._keep_puppet_out(decision)
            self.renew_checks()
        return decision

    def read_keys(self) -> dict[str, ConsulKey]:
        """Return the keys of the node that exist.

        :raises ConsulError: what :func:`read_keys` raises.
        """
        return read_keys(self.consul, self.keys, bool(self.settings.connection.token))

    def _job(self) -> tuple[str, str]:
        """Return the job for which there is something to do, and why; empty for none, and if the token may not read the host's record of it."""
        try:
            return needs_run(self.keys, self.consul, self._spool, admitted_job(self.keys, self.entries))
        except ConsulError as error:
            self._say(f"{self.settings.host}: no job begins: {error}")
            return "", ""

    @property
    def wake_keys(self) -> tuple[str, ...]:
        """The keys that wake the agent: it reads at once, and retries recent failures."""
        # What else runs Puppet has to be kept out as soon as a rollout begins.
        return (self.keys.wake, self.keys.global_gate) if self.settings.is_external else (self.keys.wake,)

    def _note_wakes(self, found: Mapping[str, ConsulKey]) -> NodeFacts:
        """Note whether the keys that wake this node have changed since the last read; return what is known of the node now.

        The indexes of both reads are compared, because a planner may also write during an agent run, when no query waits.
        """
        wakes = {key: found[key].index for key in self.wake_keys if key in found and found[key].value != _OWN_WAKE}
        if any(self._wakes.get(key) != index for key, index in wakes.items()):
            # What failed lately may be tried again.
            self._facts = replace(self._facts, not_before=0.0, job_not_before=0.0)
            self._job_pause = self._locked_pause = 0.0
            # Planners admit a host to post-upgrade tasks in its record.
            self._has_record = self._has_record and not self.settings.services
        self._wakes = wakes
        return self._facts

    def ended(self, what: str, has_worked: bool = True) -> None:
        """Note that an agent run has ended.

        :param has_worked: whether it could work. Runs of jobs note that themselves.
        """
        now = time.monotonic()
        if what.startswith(f"{JOB} "):
            # What has ended is not begun again. A run that was killed has left something to report.
            job = what[len(f"{JOB} ") :]
            is_again = job == self._facts.job_tried and self._job_pause > 0
            self._job_pause = (
                min(self._job_pause * 2, max(self.settings.interval, _JOB_AGAIN)) if is_again else _JOB_AGAIN
            )
            self._facts = replace(self._facts, job_tried=job, job_not_before=now + self._job_pause)
            return
        # The run may have set a hold there that ended before the next read.
        self._has_record = False
        if not has_worked:
            # As long as another run has the lock, each try starts Ansible for nothing.
            self._locked_pause = min(max(2 * self._locked_pause, _RUN_AGAIN), self.settings.interval)
            self._facts = replace(self._facts, tried=what, not_before=now + self._locked_pause)
            return
        self._locked_pause = 0.0
        if what not in (HOLD, UNHOLD, DOUBT):
            self._runs.note()
        # Puppet has its own interval.
        pause = {DOUBT: _DOUBT_AGAIN, PUPPET: 0.0}.get(what, self.settings.interval)
        self._facts = replace(self._facts, tried=what, not_before=now + pause, doubt_since=None)

    def ensure_wake_key(self) -> bool:
        """Create the key that planners write to wake this node, if it is missing; return whether it exists.

        :raises ConsulError: if there is no answer. A token that may not create it is a line in the log.
        """
        if self.keys.wake in self.entries:
            return True
        try:
            self.consul.create(self.keys.wake, _OWN_WAKE.decode())
        except Denied as error:
            if not self._is_warned:
                self._say(
                    f"{self.settings.host}: no key can wake it, so it reads its gate every {self.settings.interval:g} s: {error}"
                )
            self._is_warned = True
            return False
        return True

    def _spread_first_run(self) -> None:
        """Let the first run of Puppet be due after the node's share of the splay, for processes that do not know of each other."""
        settings = self.settings
        if settings.puppet_interval is not None and self._runs.last() is None:
            self._runs.note(settings.puppet_interval - own_share(settings.host) * settings.puppet_splay)

    def _read_record(self, facts: NodeFacts) -> dict[str, ConsulKey]:
        """Return the host's record, if it matters.

        The host itself sets a hold there, while its Puppet is disabled. Planners admit it there to post-upgrade tasks, and wake it.
        """
        has_changed = self.answer is None or self.answer.held is not None or self.answer.post_upgrade is not None
        if self._has_record and not has_changed and facts.disabled is None:
            return {}
        entry = self.consul.get(self.keys.record)
        self._has_record = True
        return {self.keys.record: entry} if entry is not None else {}

    def _read_node(self) -> NodeFacts:
        return replace(
            self._facts,
            version=node_version(self.settings.version_file),
            disabled=puppet.disabled_by_operator(),
            now=time.monotonic(),
            puppet_at=self._runs.last(),
        )

    def _keep_puppet_out(self, decision: NextAction) -> None:
        """Use Puppet's own lock, if something else than the agent runs Puppet."""
        self.keeps_puppet_out = self.settings.is_external and decision.keeps_puppet_out
        self.has_lock_failed = not _lock_puppet(decision.reason if self.keeps_puppet_out else None, self._say)

    def keep_puppet_out_after_end(self) -> None:
        """Keep Puppet's own runs out while no agent reads the gate, if something else than the agent runs Puppet."""
        # An agent run that is under way sets the lock again itself.
        if self.settings.is_external and not self._has_run:
            _lock_puppet(
                "closed: convoy-node was stopped. To let Puppet in without it, run convoy-node leave", self._say
            )

    @property
    def _has_run(self) -> bool:
        """Whether a run is under way that removes Puppet's own lock for its own Puppet, and sets it again."""
        return is_locked(agent_run.lock_file(self.settings)) or is_locked(Path(puppet.RUN_LOCK))

    @property
    def has_lost_lock(self) -> bool:
        """Whether something has removed Puppet's own lock since the last read, so that Puppet could run with a closed gate."""
        return (
            self.keeps_puppet_out
            and not self.has_lock_failed
            and puppet.is_enabled()
            and puppet.disabled_by_operator() is None
            and not self._has_run
        )

    @property
    def renew_every(self) -> float:
        """After how many seconds the checks of the node have to be renewed; infinite if they do not become critical."""
        settings = self.settings
        is_needed = settings.health and settings.health_critical
        return min(settings.interval, settings.health_ttl / 3) if is_needed else float("inf")

    def renew_checks(self) -> None:
        """Renew the checks of the node if it is time, because they would become critical otherwise. Their result is that of the last agent run."""
        now, every = time.monotonic(), self.renew_every
        if every == float("inf") or now - self._renewed < every:
            return
        self._renewed = now
        with contextlib.suppress(ConsulError):
            for name in _CHECKS:
                # Read right before it is written, because an agent run may change it.
                check = self._consul_agent.checks().get(name)
                if isinstance(check, dict) and not check.get("ServiceID"):
                    self._consul_agent.update_check(
                        name, str(check.get("Status") or "warning"), str(check.get("Output") or "")
                    )


class Resident:
    """The loop."""

    def __init__(self, path: str, say: Callable[[str], None] = print, is_trial: bool = False) -> None:
        """Read the settings. As long as the token can't be read, wait for it.

        :param is_trial: whether it ends soon, and so does not wait.
        :raises BadSettings: if they can't be used.
        """
        self._path = path
        self._say = say
        self._notifier = SystemdNotifier(os.environ)
        self._signals = Signals()
        if not is_trial:
            self._wait_for_token()
        self._settings = read_settings(path)
        keep_last_good(self._settings, self._path)
        self._stamp = _stamp(path, self._settings)
        self._reading = GateReading(self._settings, say=say)
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
        # Another release would not know of a signal that ends the service.
        if not self._signals.is_over:
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
                self._watch, self._watched = WakeWatch(self._settings.connection, keys, self._signals), keys
            self._watch.note(self._reading.entries)
            # The next read finds out what has changed.
            self._watch.wait(seconds, self._every, lambda: self._has_reason(disabled))
            self._query_pause = _QUERY_AGAIN
        except ConsulError:
            if time.monotonic() - begun > self._query_pause:
                # The query was taken, and Consul was restarted meanwhile.
                self._query_pause = _QUERY_AGAIN
            # The next read finds out what it is: not at once, as a restarted agent needs a moment, and not with all other nodes. If reads work and
            # only queries fail, as with a limit on connections, they go on at the interval.
            self._pause(min(seconds, random.uniform(0.1, 1.0) * self._query_pause), disabled)
            self._query_pause = min(self._query_pause * 2, max(self._settings.interval, _QUERY_AGAIN))

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

        :raises BadSettings: if they can't be used any more.
        """
        stamp = _stamp(self._path, self._settings)
        if stamp == self._stamp:
            return
        try:
            self._settings = read_settings(self._path)
        except BadSettings:
            # It may have been read while it was written.
            self._signals.sleep(_HALF_WRITTEN)
            self._wait_for_token()
            stamp, self._settings = _stamp(self._path, self._settings), read_settings(self._path)
        keep_last_good(self._settings, self._path)
        self._stamp = stamp
        self._say(f"{self._settings.host}: the settings in {self._path} have changed")
        self._reading = self._reading.with_settings(self._settings)
        self._close_watch()

    def _wait_for_token(self) -> None:
        """Wait as long as the token can't be read, which something else may write. Meanwhile Puppet's own runs are kept out.

        :raises BadSettings: if the settings can't be used.
        """
        said = ""
        while not self._signals.is_over:
            self._signals.read_again = False
            try:
                read_settings(self._path)
                return
            except BadToken as error:
                reason = str(error)
            keep_puppet_out(self._path, reason, self._say)
            if reason != said:
                self._say(f"convoy-node: {reason}")
                said = reason
            self._notifier.status(reason)
            self._notifier.ready()
            until = time.monotonic() + _TOKEN_AGAIN
            while not (self._signals.is_over or self._signals.read_again) and (left := until - time.monotonic()) > 0:
                self._notifier.alive()
                self._signals.wait(min(left, self._notifier.every))
        # Nothing else can be done without a token.
        raise SystemExit(0)

    def _replace_release(self) -> None:
        """Go on as another release, if one was activated."""
        home = self._release.home
        current = releases.linked(home, releases.CURRENT) if home is not None else None
        if current is None or current == self._release.folder:
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


def keep_puppet_out(path: str, reason: str, say: Callable[[str], None]) -> None:
    """Keep Puppet's own runs out while the gate can't be read, if something else than the agent runs Puppet.

    :param path: the settings, which may be what can't be used.
    """
    if is_external(path):
        _lock_puppet(f"closed: {reason}", say)


def _lock_puppet(reason: Optional[str], say: Callable[[str], None]) -> bool:
    """Set Puppet's own lock, or remove it if there is no reason; return whether that was possible."""
    try:
        if reason is not None:
            if puppet.keep_out(reason):
                say(f"Puppet's own runs are kept out: {reason}")
        elif puppet.let_in():
            say("Puppet's own runs are let in again")
    except OSError as error:
        say(f"The lock of Puppet's own runs can't be changed: {error}")
        return False
    return True


def _without_token(settings: NodeSettings) -> dict[str, Any]:
    """Return settings apart from a token, which something else may change often."""
    return {name: value for name, value in settings.data.items() if name != "upgrade_consul_token"}


def report_bad_settings(error: BadSettings, last_good: str) -> bool:
    """Let an agent run report that the settings can't be used, with the last that could; return whether that was possible.

    :param last_good: where the last ones are.
    """
    try:
        settings = read_settings(last_good)
    except BadSettings:
        # The token may be what can't be read. Then nothing can be reported.
        return False
    if is_locked(agent_run.lock_file(settings)):
        # An upgrade may be under way. Its record must go on to say that it has started.
        return False
    facts = {"puppet_gate_unusable": sanitize(str(error), 2000)}
    # In the service, another folder of the lock and of temporary files is read-only. This run ends before it takes the lock.
    if folder := os.environ.get("RUNTIME_DIRECTORY"):
        facts["puppet_gate_lock_file"] = f"{folder}/node.lock"
        settings = replace(settings, data={**settings.data, "puppet_gate_lock_file": facts["puppet_gate_lock_file"]})
    more = ["-e", agent_run.as_variables(**facts)]
    has_ended = agent_run.start(agent_run.own_release(), settings, last_good, more).wait() >= 0
    agent_run.note_end(settings)
    return has_ended
