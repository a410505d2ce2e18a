# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node does next. No IO and no clock: the same facts give the same decision.

Reading the gate and running Puppet have separate intervals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Optional

from .node.gate import Answer
from .node.settings import NodeSettings

# Why an agent run is started.
UPGRADE, POST_UPGRADE, PUPPET, DOUBT, JOB = "upgrade", "post-upgrade", "puppet", "doubt", "job"
# The report of the version, which was lost.
REPORT = "report"
# The report that a hold began, and the report that it ended. They are two actions, so that the pause after one does not delay the other.
HOLD, UNHOLD = "hold", "unhold"
# How the reason of a hold begins that an agent run reports because the settings can't be used.
_SETTINGS_HOLD = "its settings can't be used: "


@dataclass(frozen=True)
class NodeFacts:
    """What the agent knows of its node. Times are seconds of one clock that no one sets.

    :param version: the version of the node; empty during an upgrade, None if it never had one.
    :param disabled: the reason that was given to ``puppet agent --disable``; None if Puppet is not disabled.
    :param now: the present time.
    :param puppet_at: when Puppet last ran; None if that is not known.
    :param started_at: when the agent began to work.
    :param tried: what the last agent run was for, with the version; empty if there was none. Runs of jobs do not count.
    :param not_before: when the same may be tried again.
    :param job_tried: the last job that was run or reported; empty if there was none.
    :param job_not_before: when the same job may be tried again.
    :param doubt_since: since when the gate can't be read; None if it can.
    :param patience: how long the gate may be unreadable before that is reported.
    :param job: the job that has to run, or whose end has to be reported; empty for none.
    :param job_reason: why, as a phrase for the journal.
    :param reports_end: whether only the end of that job has to be reported.
    """

    version: Optional[str]
    disabled: Optional[str]
    now: float
    puppet_at: Optional[float]
    started_at: float
    tried: str = ""
    not_before: float = 0.0
    job_tried: str = ""
    job_not_before: float = 0.0
    doubt_since: Optional[float] = None
    patience: float = 30.0
    job: str = ""
    job_reason: str = ""
    reports_end: bool = False


@dataclass(frozen=True)
class NextAction:
    """What to do.

    :param run: what an agent run is started for; None to wait.
    :param reason: why, as a phrase for the journal.
    :param seconds: how long to wait at most before the gate is read again.
    :param keeps_puppet_out: whether a Puppet that something else runs has to be kept out.
    """

    run: Optional[str]
    reason: str
    seconds: float
    keeps_puppet_out: bool = True

    def is_same(self, other: Optional[NextAction]) -> bool:
        """Return whether another decision says the same, so that it need not be logged again."""
        return other is not None and (self.run, self.reason) == (other.run, other.reason)


def decide(settings: NodeSettings, answer: Answer, facts: NodeFacts) -> NextAction:
    """Return what to do, given the answer of the gates."""
    if answer.is_open is None and not facts.job:
        return _in_doubt(settings, answer, facts)
    # Without a version, there is no record that could have the hold, and a node with noop reports none. So the run of a job reports why it can't be.
    reports_no_hold = answer.version is None or settings.noop
    # A disabled Puppet keeps no end of a job from being reported, or the host would count as lost, and what is left of the command would go on.
    reports_end = facts.reports_end and _seconds_to_job(facts) <= 0
    if facts.disabled is not None and not (facts.job and (reports_no_hold or reports_end)):
        what = f"held: Puppet is disabled on this host: {facts.disabled}"
        is_reported = reports_no_hold or (answer.held is not None and not answer.held.startswith(_SETTINGS_HOLD))
        return NextAction(None, what, settings.interval) if is_reported else _run(settings, facts, HOLD, what)
    if facts.disabled is None and answer.held is not None and not settings.noop:
        return _run(settings, facts, UNHOLD, "the reason for which this host is held is gone")
    if not facts.job:
        return _by_gate(settings, answer, facts)
    # A job does not depend on the gates, which are Puppet's.
    left = _seconds_to_job(facts)
    if left <= 0:
        return NextAction(f"{JOB} {facts.job}", facts.job_reason, settings.interval)
    # Nor does Puppet wait for a job that could not begin, or whose end Consul does not take.
    found = _by_gate(settings, answer, facts) if answer.is_open is not None else _in_doubt(settings, answer, facts)
    if found.run is not None:
        return found
    reason = f"{found.reason}; the job {facts.job} is tried again later"
    return replace(found, reason=reason, seconds=min(left, found.seconds))


def _seconds_to_job(facts: NodeFacts) -> float:
    """Return for how long a job that was just tried waits (seconds); 0 or less if it may run."""
    return facts.job_not_before - facts.now if facts.job == facts.job_tried else 0.0


def _by_gate(settings: NodeSettings, answer: Answer, facts: NodeFacts) -> NextAction:
    """Return what to do without jobs, given gates that can be read."""
    if _lacks_report(settings, answer, facts):
        reason = "the node has the version, and its record does not say so"
        return replace(
            _run(settings, facts, f"{REPORT} of {facts.version}", reason), keeps_puppet_out=not answer.is_open
        )
    if not answer.is_open:
        if settings.puppet_pending and answer.is_pending and facts.version:
            return _puppet(
                settings, facts, f"{answer.reason}; Puppet runs at {facts.version} until the node is admitted"
            )
        return NextAction(None, answer.reason, settings.interval)
    if answer.version is not None and answer.version != facts.version and not settings.noop:
        return _run(settings, facts, f"{UPGRADE} to {answer.version}", answer.reason)
    if settings.services and answer.version and answer.post_upgrade == answer.version and not settings.noop:
        return _run(
            settings,
            facts,
            f"{POST_UPGRADE} of {answer.version}",
            "the node is admitted to post-upgrade tasks",
        )
    return _puppet(settings, facts, answer.reason)


def _lacks_report(settings: NodeSettings, answer: Answer, facts: NodeFacts) -> bool:
    """Return whether the host's record, if it was read, does not say that the node has its version.

    The report may be lost in an outage, by a kill right before it, or with a Consul that was restored, and ``retry`` removes a failure.
    """
    if settings.noop or not facts.version or answer.report in (None, ("upgraded", facts.version)):
        return False
    if answer.report == ("started", facts.version):
        # All steps are done. Only the report is missing, which no gate forbids.
        return True
    if not answer.is_open or answer.version != facts.version:
        return False
    # The next ordinary run of Puppet, which has an interval of its own, makes up for a failure. If only the report of an upgrade failed, the host
    # would count as failed until then.
    is_failed = answer.report == ("failed", facts.version)
    return not is_failed or answer.has_failed_report(facts.version) or settings.puppet_interval is None


def unreachable(settings: NodeSettings, reason: str, facts: NodeFacts, failures: int) -> NextAction:
    """Return what to do while Consul gives no answer: nothing, except that a node without a version may be allowed to run Puppet, at its interval.

    :param failures: how many tries in a row had no answer. After one, Consul may only be starting again.
    """
    # The cause of most outages ends within seconds. Later tries are further apart, so that they do not make it worse.
    seconds = min(60.0, float(2 ** min(failures, 6)))
    if settings.bootstrap and facts.version is None and failures > 1 and facts.disabled is None:
        found = _puppet(settings, facts, f"{reason} The node never had a version, and may run Puppet without Consul")
        return replace(found, seconds=min(found.seconds, seconds))
    state = f"stays at {facts.version}" if facts.version else "waits"
    return NextAction(None, f"closed: {reason} The node {state}.", seconds)


def _in_doubt(settings: NodeSettings, answer: Answer, facts: NodeFacts) -> NextAction:
    """Wait, and if the doubt lasts start an agent run, which starts no upgrade either but reports the reason."""
    since = facts.doubt_since if facts.doubt_since is not None else facts.now
    if facts.now - since < min(facts.patience, settings.interval):
        return NextAction(None, f"closed: {answer.reason}", min(10.0, settings.interval))
    return _run(settings, facts, DOUBT, f"closed: {answer.reason}; an agent run reports it")


def _run(settings: NodeSettings, facts: NodeFacts, what: str, reason: str) -> NextAction:
    """Start an agent run, unless the same was tried lately."""
    left = facts.not_before - facts.now
    if facts.tried == what and left > 0:
        return NextAction(None, f"{reason}; {what} is tried again later", min(left, settings.interval))
    return NextAction(what, reason, settings.interval)


def _puppet(settings: NodeSettings, facts: NodeFacts, reason: str) -> NextAction:
    """Run Puppet if its own clock says so."""
    if settings.puppet_interval is None:
        return NextAction(None, reason, settings.interval, keeps_puppet_out=False)
    left = puppet_due(settings, facts) - facts.now
    if left <= 0:
        return replace(_run(settings, facts, PUPPET, reason), keeps_puppet_out=False)
    return NextAction(None, reason, min(left, settings.interval), keeps_puppet_out=False)


def puppet_due(settings: NodeSettings, facts: NodeFacts) -> float:
    """Return when Puppet is due.

    Every node has a fixed delay of its own below ``puppet_splay``. It counts if the last run is not known or long ago, so that the nodes of
    a fleet do not run Puppet all at once after they were enrolled, or after an outage.
    """
    assert settings.puppet_interval is not None
    first = facts.started_at + own_share(settings.host) * settings.puppet_splay
    if facts.puppet_at is None:
        return first
    due = facts.puppet_at + settings.puppet_interval
    return max(due, first) if due < facts.started_at else due


def own_share(host: str) -> float:
    """Return a number from 0 to below 1 that belongs to a host."""
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:4], "big") / 2**32
