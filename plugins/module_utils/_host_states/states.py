# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which of the six states a host is: every host is in exactly one, tested in the order given here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._fleet.fleet import FAILED as RECORDED_FAILED
from .._fleet.fleet import (
    MAY_START,
    POST_FAILED,
    POST_OPEN,
    POST_STARTED,
    REPORTED_LOST,
    STARTED,
    HostRecord,
    Snapshot,
)
from .._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from .._fleet.gates import GateAnswer
from .._fleet.health_marks import HealthMark
from .._fleet.holds import Hold
from .._rules.health_rules import HealthRules
from .admitted import admits, gate_of, is_listed
from .host_state import HostState
from .soak import HealthState, health_state, silent_since
from .state_names import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING


@dataclass(frozen=True, slots=True)
class StatesRead:
    """The states of a fleet and what they were read from, so that a later read can keep those of hosts that have not changed.

    :param members: host -> role.
    :param states: host -> state.
    """

    snapshot: Snapshot
    members: Mapping[str, str]
    rules: HealthRules
    states: Mapping[str, HostState]


def read_states(
    snapshot: Snapshot,
    members: Mapping[str, str],
    rules: HealthRules | None = None,
    before: StatesRead | None = None,
) -> dict[str, HostState]:
    """Return the state of every host, in the order of ``members``.

    A host without any gate is open: a fleet without a rollout runs Puppet as usual. A gate that can't be read counts as closed,
    because the lookup on the node fails for it.

    :param members: host -> role.
    :param rules: what hosts have to fulfill in addition to their reports; None for nothing.
    :param before: an earlier read. It saves time and changes nothing.
    """
    rules = rules or HealthRules(progress_deadline=None)
    current = snapshot.current_version
    goes_back = in_rollback(snapshot)
    were_broken = frozenset(snapshot.ledger.broken if snapshot.ledger is not None and goes_back else ())
    shared: dict[str, GateAnswer] = {}
    changed = _changed_hosts(before, snapshot, members, rules) if before is not None else None
    states = dict(before.states) if before is not None and changed is not None else {}
    due = members if changed is None else {host: members[host] for host in changed if host in members}
    for host, role in due.items():
        if host in snapshot.gates.hosts or role not in shared:
            gate = gate_of(snapshot, host, role)
            if host not in snapshot.gates.hosts:
                shared[role] = gate
        else:
            gate = shared[role]
        hold = snapshot.hold_of(host, role)
        is_target = snapshot.ledger is None or snapshot.ledger.is_for(host, role)
        other = snapshot.busy.get(host) or _may_start(snapshot, host, role)
        if other is None:
            other = _of_earlier_job(snapshot, host, is_target=is_target)
        record = other or snapshot.records.get(host)
        one = _HostFacts(host, reported_version(snapshot, host), gate, hold, record, host in were_broken)
        found = _state_of(snapshot, one, rules, is_busy=other is not None, is_target=is_target)
        is_in_post_upgrade = _is_in_post_upgrade(snapshot, one)
        lost_after = ""
        if found.state == UPGRADED and is_in_post_upgrade:
            lost_after, wake_at = _lost_after(snapshot, one, rules)
            found = found._replace(wake_at=wake_at)
        states[host] = HostState(
            host,
            role,
            found.state,
            one.version,
            gate,
            hold,
            record,
            found.trouble,
            found.wake_at,
            found.mark,
            in_rollback=goes_back,
            was_broken=one.was_broken,
            current=current,
            was_admitted=is_listed(snapshot, host),
            is_busy=other is not None,
            is_target=is_target,
            # A host may be rebooting in its post-upgrade tasks while the rollout begins again, or goes on for hosts that have joined.
            is_down=found.is_down
            or _is_down_before_job(snapshot, host)
            or (found.state == UPGRADED and (is_in_post_upgrade or _has_failed_after(snapshot, one))),
            is_in_post_upgrade=is_in_post_upgrade,
            lost_after=lost_after,
        )
    return states


def _changed_hosts(
    before: StatesRead, snapshot: Snapshot, members: Mapping[str, str], rules: HealthRules
) -> set[str] | None:
    """Return the hosts whose states may not be those of an earlier read; None for all hosts.

    Values of unchanged keys are the same objects in both snapshots, so comparing identities is enough, and quick.
    """
    old, new = before.snapshot, snapshot
    if new.is_job or old.is_job:
        # Their states also depend on gates and reports of versions.
        return None
    if before.members is not members or before.rules != rules or not _is_same_frame(old, new):
        return None
    if new.now < old.now:
        # The clock was set back, so times that had come lie in the future: a host that was upgraded has not soaked.
        return None
    places: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
        (old.reports, new.reports),
        (old.records, new.records),
        (old.busy, new.busy),
        (old.gates.hosts, new.gates.hosts),
        (old.holds.hosts, new.holds.hosts),
        (old.holds.own, new.holds.own),
        (old.marks, new.marks),
    )
    changed = {host for was, now in places for host in _changed_names(was, now)} | (old.leases ^ new.leases)
    if old.checks != new.checks:
        checks = (old.checks or {}, new.checks or {})
        changed |= {host for host in members if checks[0].get(host) != checks[1].get(host)}
    # A text may tell how long ago something was, and a time may have come.
    changed.update([host for host, one in before.states.items() if one.wake_at is not None or one.state == LOST])
    return changed


def _may_start(snapshot: Snapshot, host: str, role: str) -> HostRecord | None:
    """Return a record of the upgrade that a host may start at any time while the rollout is a job; None if it may start none.

    Its gate admits it, and it does not run the version. A job changes no such gate.
    """
    versions = snapshot.versions
    if versions is None or versions.current_version is None or versions.hold_of(host, role) is not None:
        return None
    if not admits(versions, host, gate_of(versions, host, role)):
        return None
    report, record = versions.reports.get(host), versions.records.get(host)
    has_left = (
        record is not None and record.state != RECORDED_UPGRADED and record.index > (report.index if report else 0)
    )
    if reported_version(versions, host) == versions.current_version and not has_left:
        return None
    return HostRecord(versions.current_version, MAY_START)


def _of_earlier_job(snapshot: Snapshot, host: str, *, is_target: bool) -> HostRecord | None:
    """Return the record of an earlier job that a host has started and not ended; None if there is none.

    Such a host takes a slot of the present job, also of one that is not for it. It is admitted to the present job like any other host, once
    the earlier one has ended.
    """
    record = snapshot.records.get(host)
    if record is None or not record.readable or record.state != STARTED:
        return None
    is_present = is_target and (not snapshot.is_job or record.version == snapshot.current_version)
    return None if is_present else record


def _changed_names(was: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Return the names whose values are not the same objects."""
    if was is now:
        return set()
    found = {name for name, value in now.items() if was.get(name) is not value}
    if len(was) + len(found) > len(now):
        found |= was.keys() - now.keys()
    return found


def _is_same_frame(old: Snapshot, new: Snapshot) -> bool:
    """Return whether all is the same that the state of every host depends on."""

    def frame(snapshot: Snapshot) -> tuple[Any, ...]:
        ledger = snapshot.ledger
        of_ledger = (
            (
                ledger.version,
                ledger.rollback,
                ledger.broken,
                ledger.admitted,
                ledger.begun_index,
                ledger.all_soak,
                ledger.targets,
            )
            if ledger
            else ()
        )
        return (snapshot.current_version, of_ledger, snapshot.checks is None)

    shared = (
        ({"": old.gates.everywhere}, {"": new.gates.everywhere}),
        (old.gates.roles, new.gates.roles),
        ({"": old.holds.everywhere}, {"": new.holds.everywhere}),
        (old.holds.roles, new.holds.roles),
    )
    return frame(old) == frame(new) and not any(_changed_names(*both) for both in shared)


def in_rollback(snapshot: Snapshot) -> bool:
    """Return whether the rollout under way is a rollback."""
    ledger = snapshot.ledger
    return ledger is not None and ledger.rollback and ledger.version == snapshot.current_version


def reported_version(snapshot: Snapshot, host: str) -> str | None:
    """Return the version that a host reported last; None if it never reported.

    A host that may write only its own record reports there, and planners publish it. The last write counts, by Consul's index: hosts'
    clocks may be wrong.
    """
    report, record = snapshot.reports.get(host), snapshot.records.get(host)
    version = report.version if report is not None else None
    if record is None or not record.readable or record.state != RECORDED_UPGRADED or record.version == version:
        return version
    return record.version if report is None or record.index > report.index else version


class _HostFacts(NamedTuple):
    """What the state of a host is read from, with the names and meanings of the fields of :class:`HostState`."""

    host: str
    version: str | None
    gate: GateAnswer
    hold: Hold | None
    record: HostRecord | None
    was_broken: bool


class _StateFound(NamedTuple):
    """The state of a host, and what belongs to it."""

    state: str
    trouble: str = ""
    wake_at: float | None = None
    mark: HealthMark | None = None
    is_down: bool = False


def _state_of(
    snapshot: Snapshot, one: _HostFacts, rules: HealthRules, *, is_busy: bool, is_target: bool
) -> _StateFound:
    current, record = snapshot.current_version, one.record
    waiting = HELD if one.hold else PENDING
    if current is None:
        return _StateFound(waiting)
    if is_busy:
        return _upgrading_or_lost(snapshot, one, rules)
    if not is_target:
        return _StateFound(UPGRADED)
    if one.version == current and not _is_superseded(snapshot, one):
        if not rules.asks_more:
            return _StateFound(UPGRADED)
        mark, checks = snapshot.marks.get(one.host), _checks(snapshot, one.host)
        reported, was_there = _reported_at(record, current), _was_there(snapshot, one)
        # After its post-upgrade tasks, its services need time, and it has a slot.
        since = None if record is None or record.post is not None else _silent_since(snapshot, one)
        found = health_state(rules, snapshot.now, current, mark, checks, reported, was_there=was_there, last_sign=since)
        return _of_health(found)
    if one.was_broken and not one.gate.is_open and (record is None or record.version != current):
        return _StateFound(waiting)
    if record is not None and record.state == RECORDED_FAILED and (record.version == current or not record.readable):
        return _StateFound(LOST if record.is_lost else FAILED)
    if record is not None and record.state == REPORTED_LOST and record.version == current:
        return _StateFound(LOST, (record.error or "").removeprefix("lost: "))
    if one.gate.is_open or (record is not None and record.state == STARTED):
        return _upgrading_or_lost(snapshot, one, rules)
    return _StateFound(waiting, is_down=_is_down(snapshot, one))


def _is_down(snapshot: Snapshot, one: _HostFacts) -> bool:
    """Return whether a host is down, or may be, because of another version: until it is upgraded or retried, or until a run has ended.

    It failed in the upgrade to that version, or failed or stopped in its post-upgrade tasks, or a run works on these, and may be rebooting it. In
    a rollback, no host waits for the failed ones that it brings back, but one in the middle of its post-upgrade tasks has not failed. A failed command of
    another job says nothing of a host.
    """
    if _is_in_post_upgrade(snapshot, one):
        return True
    if snapshot.is_job or not _has_failed_or_stopped(snapshot, one.host):
        return False
    if in_rollback(snapshot) and snapshot.ledger is not None and one.record is not None:
        return one.record.post == POST_STARTED and one.host not in snapshot.ledger.broken
    return True


def _is_in_post_upgrade(snapshot: Snapshot, one: _HostFacts) -> bool:
    """Return whether a run works on the post-upgrade tasks of a host, or may at any time, because planners have admitted the host to them.

    A run that was interrupted may have left the host in the middle of them.
    """
    record = one.record
    if record is None or not record.readable:
        return False
    if record.post == POST_STARTED and one.host in snapshot.leases:
        return True
    return record.version == snapshot.current_version and record.post in (POST_OPEN, POST_STARTED)


def _lost_after(snapshot: Snapshot, one: _HostFacts, rules: HealthRules) -> tuple[str, float | None]:
    """Return why a host is lost in its post-upgrade tasks, empty if it is not, and when it will be (unix seconds), None for never.

    One that tags on the command line left between steps never is.
    Only the times of its record show that. The planner, which reads more, counts it as lost in the passes for these tasks.
    """
    record, deadline = one.record, rules.progress_deadline
    if record is None or deadline is None or one.host in snapshot.leases or record.next_step is not None:
        return "", None
    since = silent_since(snapshot.now, record.times.get(POST_OPEN), record.times)
    if since is None or snapshot.now <= since + deadline:
        return "", None if since is None else since + deadline
    return f"silent in its post-upgrade tasks, and health.progress_deadline is {deadline} s", None


def _has_failed_after(snapshot: Snapshot, one: _HostFacts) -> bool:
    """Return whether the post-upgrade tasks of the target failed on a host, and it was not retried."""
    record = one.record
    if record is None or not record.readable:
        return False
    return (record.version, record.post) == (snapshot.current_version, POST_FAILED)


def _is_down_before_job(snapshot: Snapshot, host: str) -> bool:
    """Return whether a host is down, or may be, during a job, because it failed in an upgrade, or may work on its post-upgrade tasks.

    The job can't end that.
    """
    versions = snapshot.versions
    if not snapshot.is_job or versions is None:
        return False
    record = versions.records.get(host)
    # An admission to the tasks of another version has ended with the rollout to it.
    may_begin = record is not None and (record.version, record.post) == (versions.current_version, POST_OPEN)
    return may_begin or _has_failed_or_stopped(versions, host)


def _has_failed_or_stopped(snapshot: Snapshot, host: str) -> bool:
    """Return whether a host has failed in an upgrade, or failed or stopped in the tasks after it, since it last reported a version."""
    record, report = snapshot.records.get(host), snapshot.reports.get(host)
    if record is None:
        return False
    is_newer = report is None or record.index > report.index
    if record.post in (POST_STARTED, POST_FAILED):
        # Planners may have published the end of that upgrade later.
        return is_newer or (report is not None and report.version == record.version)
    return record.state == RECORDED_FAILED and is_newer


def _is_superseded(snapshot: Snapshot, one: _HostFacts) -> bool:
    """Return whether a newer record supersedes a host's report: the host has started or failed since then, or was retried.

    The version of that record does not matter: either way, the host is not known to run the reported version any more. A newer record
    that can't be read counts as a failure.
    """
    record, report = one.record, snapshot.reports.get(one.host)
    if record is None or report is None or record.index <= report.index:
        return False
    return not record.readable or record.state != RECORDED_UPGRADED


def _was_there(snapshot: Snapshot, one: _HostFacts) -> bool:
    """Return whether a host reported the version before the rollout began, and nothing since then."""
    report = snapshot.reports.get(one.host)
    newest = max(report.index if report is not None else 0, one.record.index if one.record is not None else 0)
    ledger = snapshot.ledger
    if ledger is None or ledger.begun_index is None or ledger.all_soak:
        return False
    return newest <= ledger.begun_index


def _reported_at(record: HostRecord | None, version: str) -> int | None:
    """Return when a host reported in its record that it is upgraded, by its own clock (unix seconds)."""
    if record is None or (record.state, record.version) != (RECORDED_UPGRADED, version):
        return None
    return record.times.get(RECORDED_UPGRADED)


def _checks(snapshot: Snapshot, host: str) -> Mapping[str, str] | None:
    return None if snapshot.checks is None else snapshot.checks.get(host, {})


def _of_health(found: HealthState) -> _StateFound:
    state = UPGRADED if found.is_well else FAILED if found.is_broken else LOST if found.is_lost else UPGRADING
    return _StateFound(state, found.reason, found.wake_at, found.mark)


def _silent_since(snapshot: Snapshot, one: _HostFacts) -> float | None:
    """Return when a host was admitted or last reported (unix seconds); None if that is not known."""
    # The global gate's time is no time of admission: it opens after a rollout, also for hosts that join the fleet long after that.
    admitted_at = one.gate.at if one.gate.is_open and one.gate.scope != "global" else None
    return silent_since(snapshot.now, admitted_at, _times(snapshot, one.record))


def _times(snapshot: Snapshot, record: HostRecord | None) -> Mapping[str, int] | None:
    """Return when a host reported what, in this rollout or in an upgrade that it is in the middle of; None if it did not."""
    is_current = record is not None and (record.version == snapshot.current_version or record.state == STARTED)
    return record.times if record is not None and is_current else None


def _upgrading_or_lost(snapshot: Snapshot, one: _HostFacts, rules: HealthRules) -> _StateFound:
    record = one.record
    # A host that a push run has a lease on is not lost as long as the run lives, nor is one that tags on the command line left between steps.
    is_between = record is not None and record.state == STARTED and record.next_step is not None
    if rules.progress_deadline is None or one.host in snapshot.leases or is_between:
        return _StateFound(UPGRADING)
    since = _silent_since(snapshot, one)
    if since is None:
        # A time in the future, by a clock that is ahead, counts once it has come.
        times = _times(snapshot, record)
        return _StateFound(
            UPGRADING, wake_at=min((at for at in (times or {}).values() if at > snapshot.now), default=None)
        )
    lost_at = since + rules.progress_deadline
    if snapshot.now <= lost_at:
        return _StateFound(UPGRADING, wake_at=lost_at)
    silent = int(snapshot.now - since)
    return _StateFound(LOST, f"silent for {silent} s, and health.progress_deadline is {rules.progress_deadline} s")
