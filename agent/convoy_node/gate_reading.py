# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One reading of the gate and of the node, and what follows from it. The locks of Puppet's own runs follow from it too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from . import agent_run
from .decision import DOUBT, HOLD, JOB, PUPPET, REPORT, UNHOLD, NextAction, NodeFacts, decide, own_share, unreachable
from .jobs.job_need import JobNeed, needs_run
from .jobs.spool import Spool
from .machine import puppet
from .machine.errors import ConsulError, Denied
from .machine.lock_file import is_locked, unlocked
from .node.consul import Consul, ConsulKey
from .node.gate import Answer, NodeKeys, admitted_job, answer, other_roles, read_keys
from .node.settings import NodeSettings, is_external
from .node.state import PuppetRuns, node_version

# A doubt that was reported is reported again after this time (seconds).
_DOUBT_AGAIN = 1800.0
# A report that is missing in the record is made up for again after this time (seconds), if something else runs Puppet.
_REPORT_AGAIN = 1800.0
# A job that could not begin or be reported is tried again after this time (seconds), then after twice of it, up to the interval.
_JOB_AGAIN = 10.0
# An agent run that could not be started, or found the lock of another run, is tried again after this time (seconds).
_RUN_AGAIN = 30.0
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
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is read yet.

        :param is_single: whether this process ends after it, as those of ``once`` and ``status`` do.
        :param alive: is called before each request to Consul.
        """
        self.settings = settings
        self.keys = NodeKeys(settings.host, settings.role, settings.prefix)
        self._alive = alive
        self.consul = Consul(settings.connection, alive)
        # Agent runs publish the checks there, and the other one may be a server.
        self._consul_agent = Consul(settings.consul_agent, alive)
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
        # How long the last job, run that found a lock, or report that was tried waits for its next try.
        self._job_pause = self._locked_pause = self._report_pause = 0.0
        self._is_single = is_single
        self._has_record = self._is_warned = False
        self._other_roles: tuple[str, ...] = ()
        self._wakes: dict[str, int] = {}
        self._facts = NodeFacts(None, None, 0, None, time.monotonic())
        if is_single:
            # The time at which this process started says nothing.
            self._facts = replace(self._facts, patience=0.0, started_at=float("-inf"))
        self._renewed = float("-inf")
        # An agent before this one may have left a maintenance, with settings that had it.
        self._ends_maintenance = True
        self._has_end_failed = False

    def with_settings(self, settings: NodeSettings) -> GateReading:
        """Return a reading for changed settings or another token. It knows when the agent began and when Puppet ran.

        For the same host and role, it also knows what was tried. Otherwise a token that changes often would end each pause after a failure.
        """
        found = GateReading(settings, self._runs, self._say, alive=self._alive)
        found._has_end_failed = self._has_end_failed
        if (settings.host, settings.role) == (self.settings.host, self.settings.role):
            found._facts, found._job_pause, found._wakes = self._facts, self._job_pause, self._wakes
            found._locked_pause, found._report_pause = self._locked_pause, self._report_pause
            if _without_token(settings) != _without_token(self.settings):
                # An operator may have corrected what failed.
                found._facts = replace(found._facts, not_before=0.0, job_not_before=0.0)
                found._job_pause = found._locked_pause = found._report_pause = 0.0
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
            self.entries.update(self._read_other_holds())
            self._failures = 0
            self.answer = answer(self.keys, self.entries, self.settings.default, self._other_roles)
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
        job = self._job() if self.is_answered else JobNeed()
        self._facts = facts = replace(
            facts,
            doubt_since=since if self.answer.is_open is None else None,
            job=job.job,
            job_reason=job.reason,
            reports_end=job.is_end,
        )
        decision = decide(self.settings, self.answer, facts)
        if not only:
            self._keep_puppet_out(decision)
            self.renew_checks()
            self._end_maintenance()
        return decision

    def read_keys(self) -> dict[str, ConsulKey]:
        """Return the keys of the node that exist.

        :raises ConsulError: what :func:`read_keys` raises.
        """
        return read_keys(self.consul, self.keys, bool(self.settings.connection.token))

    def _job(self) -> JobNeed:
        """Return what there is to do for a job; nothing if the token may not read the host's record of it."""
        try:
            return needs_run(self.keys, self.consul, self._spool, admitted_job(self.keys, self.entries))
        except ConsulError as error:
            self._say(f"{self.settings.host}: no job begins: {error}")
            return JobNeed()

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
            self._job_pause = self._locked_pause = self._report_pause = 0.0
            # Planners admit a host to post-upgrade tasks in its record, and an operator may have retried it.
            self._has_record = False
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
        is_report = what.startswith(REPORT)
        if not is_report:
            self._report_pause = 0.0
        # Behind a closed gate, a lost report is all that is made up for.
        is_closed = is_report and self.answer is not None and not self.answer.is_open
        if what not in (HOLD, UNHOLD, DOUBT) and not is_closed:
            self._runs.note()
        # Puppet has its own interval. Nor does it run more often because its report is refused each time.
        pause = {DOUBT: _DOUBT_AGAIN, PUPPET: 0.0}.get(what, self.settings.interval)
        if is_report and self.answer is not None and self.answer.report != ("started", self._facts.version):
            pause = max(pause, float(self.settings.puppet_interval or _REPORT_AGAIN))
            if self.answer.has_failed_report(self._facts.version):
                # What kept it from reporting an upgrade may have ended since.
                pause = self._report_pause = min(pause, max(2 * self._report_pause, self.settings.interval))
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
            # A last run in the future would not be believed, and each process would note it again. Within the interval, a longer splay is as even.
            share = own_share(settings.host) * settings.puppet_splay % settings.puppet_interval
            self._runs.note(settings.puppet_interval - share)

    def _read_record(self, facts: NodeFacts) -> dict[str, ConsulKey]:
        """Return the host's record, if it matters.

        The host itself sets a hold there, while its Puppet is disabled. Planners admit it there to post-upgrade tasks, and wake it.
        """
        last = self.answer
        has_changed = last is None or last.held is not None or last.post_upgrade is not None
        # An operator may have ended the hold of another role for this host. The wake that tells of it may be lost.
        has_changed = has_changed or (bool(self._other_roles) and last is not None and not last.is_open)
        if last is not None and last.report is not None:
            has_changed = has_changed or last.report != ("upgraded", facts.version)
        if self._has_record and not has_changed and facts.disabled is None:
            return {}
        entry = self.consul.get(self.keys.record)
        self._has_record = True
        record = entry or ConsulKey(b"", 0, 0)
        self._other_roles = other_roles(self.keys, record)
        return {self.keys.record: record}

    def _read_other_holds(self) -> dict[str, ConsulKey]:
        """Return the holds of other roles that the host had since it last started."""
        keys = [self.keys.role_hold(role) for role in self._other_roles if role]
        found = {key: self.consul.get(key) for key in keys}
        return {key: entry for key, entry in found.items() if entry is not None}

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

    def keep_puppet_out_until_read(self) -> bool:
        """Keep Puppet's own runs out until the gate is read again, if something else runs Puppet; return whether that was possible."""
        return _lock_puppet("closed: the global gate has changed", self._say)

    def keep_puppet_out_after_end(self) -> None:
        """Keep Puppet's own runs out while no agent reads the gate, if something else than the agent runs Puppet."""
        # Also while a run is under way: not each of them runs Puppet, and one that does puts the lock aside.
        if self.settings.is_external:
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

    def _end_maintenance(self) -> None:
        """End a maintenance that an agent run began and did not end, unless its upgrade goes on.

        It is kept as long as it is not known whether the node may go on.
        """
        answer, facts, settings = self.answer, self._facts, self.settings
        if not self._ends_maintenance or answer is None or answer.is_open is None:
            return
        goes_on = answer.is_open and answer.version is not None and answer.version != facts.version
        if goes_on and not settings.noop and answer.report != ("failed", answer.version):
            return
        # Without the setting, a node that can't find out most likely has none to end.
        is_left = settings.maintenance
        try:
            if self._consul_agent.has_own_maintenance():
                is_left = True
                self._end_maintenance_alone()
            # Settings without it were read, and nothing is left to end.
            self._ends_maintenance = settings.maintenance
            self._has_end_failed = False
        except ConsulError as error:
            if is_left and not self._has_end_failed:
                self._has_end_failed = True
                self._say(
                    f"{settings.host}: a maintenance in Consul that an upgrade may have left could not be ended: {error}"
                )

    def _end_maintenance_alone(self) -> None:
        """End the maintenance, unless an agent run is under way that may have begun it.

        :raises ConsulError: also :class:`Denied`.
        """
        with unlocked(agent_run.lock_file(self.settings)) as is_free:
            # A run that has ended meanwhile may have ended it itself.
            if is_free and self._consul_agent.has_own_maintenance():
                self._consul_agent.end_maintenance()
                self._say(f"{self.settings.host}: the maintenance in Consul that an upgrade began was ended")

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
