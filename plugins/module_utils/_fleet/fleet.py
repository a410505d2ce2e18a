# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet: its hosts with their roles and records, and the snapshot of all that was read from Consul."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_name, in_order, is_valid_name, listing
from .._common.patterns import compiled
from .._common.sanitize import truncated_repr
from .failures import MOST_ERROR, Failure, newest_failures
from .gates import Gates
from .health_marks import Approval, HealthMark
from .holds import Hold, HoldOfFormerRole, Holds
from .ledger import Handover, Ledger
from .migration import Migration
from .providers import Provider
from .step_trail import StepStart

# That of python-jiocloud's get_host_match: letters, digits, then anything after a dash.
DEFAULT_ROLE_PATTERN = r"([a-z]+)(\d+)(-.*)?"

STARTED, UPGRADED, FAILED = "started", "upgraded", "failed"
# A host's own hold, set and ended. The state in its record stays the same.
HELD, RELEASED, DELIVERED = "held", "released", "delivered"
# The version in a host's files, when it is enrolled. It counts as upgraded unless its record outweighs that.
ENROLLED = "enrolled"
# The states that a host may report, and the one that an operator's retry gives a record.
REPORTED_STATES = (STARTED, UPGRADED, FAILED)
RETRIED = "retried"
RECORD_STATES = (*REPORTED_STATES, RETRIED)
# What a host reports of a job whose end no one saw.
REPORTED_LOST = "lost"
# With this, the error of post-upgrade tasks begins if the run that worked on the host lost it. The record has no time of that.
LOST_AFTER = "lost, and its task may still run there: "
# A host that has not started other work than the rollout's, and may at any time, because its gate for that is open.
MAY_START = "admitted"

# The states of a host's post-upgrade tasks: admitted, started, failed, done.
POST_OPEN, POST_STARTED, POST_FAILED, POST_DONE = POST_STATES = ("open", "started", "failed", "done")
# The time of a record at which these tasks failed last since the host was admitted to them.
TASKS_FAILED = "post_failed"
# What a host reports in place of the ID of its tasks of services if they come with the version.
WITH_VERSION = "{version}"


@dataclass(frozen=True, slots=True)
class VersionReport:
    """A host's report of the version that it runs, and its time (unix seconds, None if the value can't be read).

    :param index: the key's ModifyIndex in Consul.
    :param is_legacy: whether it is in the legacy layout.
    :param published: how many times planners have published a report of this host in the rollout in which they wrote this one.
    :param key: the Consul key, because ``version`` may not be part of it as it is; empty for one that was not read.
    """

    version: str
    at: float | None = None
    index: int = field(default=0, compare=False)
    is_legacy: bool = field(default=False, compare=False)
    published: int = field(default=0, compare=False)
    key: str = field(default="", compare=False)


def is_outdated(old: int, new: int, recorded: int) -> bool:
    """Return whether a host's report in the legacy layout is outdated, whatever its time.

    It is if both the host's other report and its record are newer. One of them is not enough: a migration copies reports, and a
    record is also written when an upgrade starts.

    :param old: the index of its report in the legacy layout.
    :param new: the index of its report in the current layout, 0 if there is none.
    :param recorded: the index of its record, 0 if the host has not reported in it.
    """
    return old < min(new, recorded)


# Fields of a record that are not among its plain data. Only records of jobs have the first one.
_NOT_SHOWN = ("repeatable", "readable", "index")


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What a host reported of its upgrade, from ``upgrade/hosts/<host>``.

    :param version: the version that it upgrades to, or ended at.
    :param state: started, upgraded or failed; retried if an operator has made it pending again.
    :param attempt: how many times it started to upgrade to this version.
    :param times: state -> when it was last entered (unix seconds), ``open`` -> when it was last admitted to its post-upgrade tasks, and ``post_failed`` ->
        when these failed since then.
    :param reported: the version of the host's key in ``running/versions``, if its reports wrote that key.
    :param done: the task groups that a push run has finished for this version, such as ``upgrade/nginx``. Those of checkpoints,
        such as ``upgrade/nginx@2.4``, stay finished when the target changes, until the host reports ``upgraded``.
    :param post: the state of the post-upgrade tasks; None before they have begun.
    :param origin: the version that it came from, as reported or declared by an operator, until it reports ``upgraded``.
    :param trail: the steps of the upgrade to this version, if it reported any.
    :param former: its last upgrades to other versions, shortened.
    :param held: why the host holds itself, such as the reason given to ``puppet agent --disable``, or a mistake in its settings; None if it does not.
    :param failures: the last failures of the upgrade to this version, also those that it has recovered from.
    :param machine: the ID of the machine that reported; None if it gave none.
    :param other_machine: the ID of another machine that reported under the same name during the upgrade to this version.
    :param release: the release of the node agent that reported last; None if none did.
    :param role: the role in the host's settings, as it last reported it; None if it gave none.
    :param former_role: the role that it reported before; empty if an operator has ended the hold of that role for it. It is None again once the host has
        started an upgrade with its present role; until then, a gate of that role which planners have opened does not admit it.
    :param services: the ID of the tasks of services that a pull host has; None if it has none.
    :param next_step: the first step that tags on the command line left to a later run, if its run ended between steps; None otherwise.
    :param repeatable: False if the command of the job failed or was lost there, and the host does not run it again, because it is not repeatable;
        None otherwise.
    :param readable: False if the record exists and can't be read; its host counts as failed.
    :param index: the key's ModifyIndex in Consul; 0 if the record is not from a snapshot.
    """

    version: str
    state: str
    service: str | None = None
    step: str | None = None
    attempt: int = 1
    error: str | None = None
    times: Mapping[str, int] = field(default_factory=dict)
    reported: str | None = None
    done: tuple[str, ...] = ()
    post: str | None = None
    origin: str | None = None
    trail: tuple[StepStart, ...] = ()
    former: tuple[HostRecord, ...] = ()
    held: str | None = None
    failures: tuple[Failure, ...] = ()
    machine: str | None = None
    other_machine: str | None = None
    release: str | None = None
    role: str | None = None
    services: str | None = None
    next_step: str | None = None
    former_role: str | None = None
    repeatable: bool | None = None
    readable: bool = True
    index: int = field(default=0, compare=False)

    @property
    def has_reported(self) -> bool:
        """Whether the host itself has reported in it. A record that only planners or operators wrote has no time of a report."""
        return self.readable and any(state in self.times for state in REPORTED_STATES)

    @property
    def is_by_ansible(self) -> bool:
        """Whether an Ansible run has begun something there. A pull host, and one that reports its steps, has neither an origin nor finished task groups,
        or has the ID of its tasks of services, and goes on by itself."""
        return self.readable and bool(self.done or self.origin) and self.services is None

    def is_final(self, target: str | None) -> bool:
        """Return whether the host does not run the command of the job again after it failed, or was lost.

        :param target: the job that is asked for. A record of another job says nothing of it.
        """
        return self.repeatable is False and self.version == target

    @property
    def not_ended(self) -> tuple[HostRecord, ...]:
        """Its upgrades to other versions, as far as they are kept, that had not ended when this one began; the oldest first."""
        ended = next((at for at, one in enumerate(reversed(self.former)) if one.state == UPGRADED), len(self.former))
        return self.former[len(self.former) - ended :]

    @property
    def trail_since_upgraded(self) -> tuple[StepStart, ...]:
        """The steps since it last reported that it is upgraded. It may upgrade to the same version again, as after a failed check.

        That report has ended the trail, so this does not depend on clocks. If the trail lacks that end, all steps count.
        """
        end = StepStart(self.times.get(UPGRADED, -1))
        return self.trail[self.trail.index(end) + 1 :] if end in self.trail else self.trail

    @property
    def is_lost(self) -> bool:
        """Whether it reported that it is lost, or the run that worked on it lost it: its failure has the same time then.

        In the post-upgrade tasks, the error says so.
        """
        if self.state == REPORTED_LOST:
            return True
        if self.post == POST_FAILED:
            return (self.error or "").startswith(LOST_AFTER)
        return self.readable and self.state == FAILED and self.times.get(REPORTED_LOST, -1) == self.times.get(FAILED)

    def failed_at(self, at: int) -> Failure:
        """Return the failure with which the record ended at a time (unix seconds)."""
        return Failure(at, self.attempt, self.service or "", self.step or "", (self.error or "")[-MOST_ERROR:])

    def failures_before_retry(self) -> tuple[Failure, ...]:
        """Return the failures with the last one, of which a retry removes time and error."""
        at = self.times.get(REPORTED_LOST if self.state == REPORTED_LOST else FAILED)
        if at is None or any(one.at == at for one in self.failures):
            return self.failures
        return newest_failures((*self.failures, self.failed_at(at)))

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
        # dataclasses.asdict() copies each value on its own, and takes six times as long.
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_SHOWN}
        lists = {
            "times": dict(self.times),
            "done": list(self.done),
            "trail": [list(one) for one in self.trail],
            "failures": [list(one) for one in self.failures],
        }
        return {**kept, **lists, "former": [one.slim() for one in self.former]}

    def slim(self) -> dict[str, Any]:
        """Return the record as plain data without empty fields, as it is stored."""
        return {name: value for name, value in self.plain().items() if value not in (None, [])}

    def other_roles(self, role: str) -> frozenset[str]:
        """Return the other roles of the host since it last started: the one that it reported last, and the one before that.

        :param role: the role that it has now.
        """
        known = (self.role, self.former_role) if self.readable else ()
        return frozenset(one for one in known if one and one != role)

    def has_changed_role(self, role: str) -> bool:
        """Return whether the host has another role than when it last started, as far as it is known."""
        return self.readable and (self.former_role is not None or self.role not in (None, role))

    def of_host(self) -> dict[str, Any]:
        """Return the fields that belong to the host, whatever version the record is for."""
        return {name: getattr(self, name) for name in ("held", "machine", "release", "role", "services", "former_role")}

    def may_run_post_upgrade(self, version: str) -> bool:
        """Return whether planners have admitted the host to the post-upgrade tasks of a version, and it has not finished them."""
        return self.version == version and self.post in (POST_OPEN, POST_STARTED, POST_FAILED)

    def has_services(self, tasks_id: str) -> bool:
        """Return whether the host has the tasks of services with an ID, or gets them with the version."""
        return self.readable and self.services in (tasks_id, WITH_VERSION)

    def where(self) -> str:
        """Return ``, service nova, step stop``, without the parts that are not known."""
        service = f", service {self.service}" if self.service else ""
        return service + (f", step {self.step}" if self.step else "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one atomic read of the store.

    :param index: the highest ModifyIndex of the entries; a blocking query waits for a higher one.
    :param ledger_index: the ledger's ModifyIndex for a compare-and-set, 0 if there is no ledger.
    :param version_index: the same for ``current_version``.
    :param gates: the gates of the current layout.
    :param holds: the holds, and pauses of python-jiocloud that no migration has turned into holds.
    :param legacy_gates: the gates of the legacy layout, where python-jiocloud keeps operators' pauses.
    :param legacy_reports: hosts that have a report in the legacy layout.
    :param leases: hosts on which a push run has a lease.
    :param providers: name -> provider.
    :param marks: host -> health mark.
    :param checks: host -> check -> status; None if Consul was not asked.
    :param approvals: stage -> approval.
    :param hold_index: the ModifyIndex of the key of the holds' folder, which is written whenever a hold is set or ended.
    :param commits: epoch -> commit, for the entries of the history that were requested and exist.
    :param busy: hosts that have started other work than the rollout's, and not reported its end: a job, or an upgrade while the rollout
        is a job. Each with its record of that work.
    :param others: further hosts that have reported, which have neither a report nor a record in this snapshot.
    :param is_job: whether target, gates and records are those of a job, and not those of versions.
    :param versions: the snapshot of versions at the same moment, in that of a job: whose gates are open may start an upgrade.
    :param job_hosts: hosts that have reported on jobs.
    :param job: the ledger of the job that came after the rollout to a version; None in the snapshot of a job, and without one.
    :param has_job_keys: whether there are gates or a target of a job.
    :param handover: the handover to planner services, of this rollout or of one before it; None if there is none that can be read.
    :param answers: planner service -> why it refuses that handover, empty if it carries the rollout.
    :param now: when it was read, by the reader's clock (unix seconds).
    :param schema: the version of the layout, None if none is written.
    :param release: the first release that supports that layout, empty if it is not known.
    :param migration: the migration of the layout, None if there is none and no legacy keys are kept.
    :param warnings: sentences on keys that were ignored.
    """

    current_version: str | None = None
    ledger: Ledger | None = None
    reports: Mapping[str, VersionReport] = field(default_factory=dict)
    records: Mapping[str, HostRecord] = field(default_factory=dict)
    gates: Gates = field(default_factory=Gates)
    holds: Holds = field(default_factory=Holds)
    legacy_gates: Gates = field(default_factory=Gates)
    legacy_reports: frozenset[str] = frozenset()
    leases: frozenset[str] = frozenset()
    providers: Mapping[str, Provider] = field(default_factory=dict)
    marks: Mapping[str, HealthMark] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, str]] | None = None
    approvals: Mapping[str, Approval] = field(default_factory=dict)
    hold_index: int = 0
    commits: Mapping[int, str] = field(default_factory=dict)
    busy: Mapping[str, HostRecord] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    is_job: bool = False
    versions: Snapshot | None = None
    job_hosts: frozenset[str] = frozenset()
    job: Ledger | None = None
    has_job_keys: bool = False
    handover: Handover | None = None
    answers: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    index: int = 0
    ledger_index: int = 0
    version_index: int = 0
    schema: int | None = None
    release: str = ""
    migration: Migration | None = None
    warnings: tuple[str, ...] = ()

    @property
    def has_legacy_keys(self) -> bool:
        """Whether there are keys that only the legacy layout has."""
        return bool(self.legacy_reports) or self.legacy_gates != Gates()

    @property
    def carriers(self) -> tuple[str, ...]:
        """Names of the planner services that carry the rollout of the ledger."""
        if self.ledger is None or self.handover is None or not self.handover.is_of(self.ledger):
            return ()
        return tuple(name for name, refusal in self.answers.items() if not refusal)

    def former_role(self, host: str) -> str | None:
        """Return the role that a host had before, if that has changed since it last started: empty if no hold of it counts any more; None if it has not."""
        # The record of a job does not have the roles.
        record = (self.versions or self).records.get(host)
        return record.former_role if record is not None else None

    def hold_of(self, host: str, role: str | None) -> Hold | None:
        """Return the first hold over a host. That of its former role comes last: the host starts nothing under it."""
        return self.holds.covering(host, role) or self.hold_of_former_role(host)

    def hold_of_former_role(self, host: str) -> HoldOfFormerRole | None:
        """Return the hold of the role that a host had before; None if there is none."""
        role = self.former_role(host)
        hold = self.holds.roles.get(role) if role else None
        return HoldOfFormerRole(hold.key, hold.reason, hold.by, hold.at, role=role or "") if hold is not None else None


def compile_role_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern, whose first group is the role.

    :raises UpgradeError: ``bad_role_pattern`` if it is not valid or has no group.
    """
    try:
        found = compiled(pattern)
    except ValueError as error:
        raise UpgradeError(
            "bad_role_pattern", f"role_pattern: {truncated_repr(pattern)} is not a valid regular expression: {error}."
        ) from error
    if not found.groups:
        raise UpgradeError(
            "bad_role_pattern", f"role_pattern: {truncated_repr(pattern)} has no group; the first group is the role."
        )
    return found


def role_by_name(host: str, pattern: re.Pattern[str]) -> str | None:
    """Return the role that the pattern finds in a host's name, None if it finds none."""
    found = pattern.search(host)
    # A pattern may find text that can't be part of a key.
    return found[1] if found and found[1] and is_valid_name(found[1]) else None


def roles_of_hosts(named: Mapping[str, str], seen: Iterable[str], role_pattern: str | None = None) -> dict[str, str]:
    """Return host -> role for the whole fleet, in natural order.

    :param named: host -> role, for hosts whose role is given.
    :param seen: hosts that have reported or have a record. Those that ``named`` lacks get their role from their name.
    :param role_pattern: None for the default.
    :raises UpgradeError: ``bad_name``, ``bad_role_pattern``, ``unplaced_hosts``.
    """
    roles = {
        check_name("host", host, "fleet"): check_name("role", role, f"fleet.{host}") for host, role in named.items()
    }
    pattern = compile_role_pattern(role_pattern or DEFAULT_ROLE_PATTERN)
    unplaced = []
    for host in seen:
        if host in roles:
            continue
        role = role_by_name(host, pattern)
        if role is None:
            unplaced.append(host)
        else:
            roles[host] = role
    if unplaced:
        unplaced = in_order(unplaced)
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {listing(unplaced)}: the host reported to Consul, and role_pattern "
            f"{pattern.pattern!r} finds none in its name. Name it in fleet (host: role), or remove its keys if it is gone.",
            hosts=unplaced,
        )
    return {host: roles[host] for host in in_order(roles)}


@dataclass(frozen=True, slots=True)
class Membership:
    """The hosts of a fleet with their roles, and what they were found from, so that a later read need not find them again.

    :param named: host -> role, for hosts whose role is given.
    :param seen: the hosts that have reported or have a record.
    :param members: host -> role for the whole fleet, in natural order.
    """

    named: Mapping[str, str]
    seen: frozenset[str]
    role_pattern: str | None
    members: Mapping[str, str]


def find_members(
    named: Mapping[str, str] | None, snapshot: Snapshot, role_pattern: str | None, before: Membership | None = None
) -> Membership:
    """Return the hosts of a snapshot, and those that are named. If nothing has changed, ``members`` is the same object as before.

    :param named: host -> role; None for none.
    :param before: those of an earlier snapshot, which saves time.
    :raises UpgradeError: what :func:`roles_of_hosts` raises.
    """
    named = named or {}
    seen = frozenset(snapshot.reports.keys() | snapshot.records.keys() | snapshot.others)
    if before is not None and before.role_pattern == role_pattern and before.named == named and before.seen == seen:
        return before
    return Membership(named, seen, role_pattern, roles_of_hosts(named, sorted(seen), role_pattern))
