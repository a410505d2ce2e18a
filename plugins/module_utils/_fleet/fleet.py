# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet: which hosts there are, what each one is, and what was read about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_name, in_order, is_valid_name, listing
from .._common.patterns import compiled
from .._common.sanitize import truncated_repr
from .failures import Failure
from .gates import Gates
from .health_marks import Approval, HealthMark
from .holds import Holds
from .ledger import Ledger
from .migration import Migration
from .providers import Provider
from .step_trail import StepStart

# The rule of python-jiocloud's get_host_match: letters, digits, and whatever follows a dash.
DEFAULT_ROLE_PATTERN = r"([a-z]+)(\d+)(-.*)?"

STARTED, UPGRADED, FAILED = "started", "upgraded", "failed"
# A host's own hold, put on and taken off: its state stays what it is.
HELD, RELEASED = "held", "released"
# What a host may report, and what an operator's retry makes of a record.
REPORTED_STATES = (STARTED, UPGRADED, FAILED)
RETRIED = "retried"
RECORD_STATES = (*REPORTED_STATES, RETRIED)

# Where a host is with its tasks after the upgrade: let through, at work, failed, done.
POST_OPEN, POST_STARTED, POST_FAILED, POST_DONE = POST_STATES = ("open", "started", "failed", "done")


@dataclass(frozen=True, slots=True)
class VersionReport:
    """What a host said it runs: the version, and when (unix seconds, None where the value can't be read).

    :param index: the key's ModifyIndex in Consul.
    :param is_legacy: whether it stands where the old code put it.
    :param published: how many times planners have published a report of this host in the rollout in which they wrote this one.
    :param key: where it was read, as the version in it need not be one; empty for one that was not read.
    """

    version: str
    at: float | None = None
    index: int = field(default=0, compare=False)
    is_legacy: bool = field(default=False, compare=False)
    published: int = field(default=0, compare=False)
    key: str = field(default="", compare=False)


def is_outdated(old: int, new: int, spoken: int) -> bool:
    """Return whether a host's report in the old place does not count, whatever its clock said then.

    It has said otherwise through convoy.upgrade after that: there its report and its record are both newer. One of them alone
    does not tell, as a migrator copies reports, and a record also says that an upgrade began.

    :param old: the index of its report in the old place,
    :param new: that in the new one, 0 where there is none,
    :param spoken: that of its record, 0 where there is none in which it has said anything.
    """
    return old < min(new, spoken)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """The host's own account of its upgrade, from ``upgrade/hosts/<host>``.

    :param version: the version it moves to, or ended at.
    :param state: started, upgraded or failed; retried where an operator has put it back among those that wait.
    :param attempt: how many times it started this version.
    :param times: state -> unix seconds at which it was entered last.
    :param reported: the version under which the host stands in ``running/versions``, if it came there by a report.
    :param done: what a push run has finished of the upgrade to this version: its units, such as ``upgrade/nginx``. Those of
        a path, such as ``upgrade/nginx@2.4``, stay finished on the way to another version that lies beyond them, until the host reports.
    :param post: where it is with the tasks after the upgrade; None before they have begun.
    :param origin: the version that it came from, as it reported or as an operator declared it, until it reports again.
    :param trail: the steps that it went through on the way to this version, as far as it reported any.
    :param former: its last moves to other versions, without what no one needs any more once they are over.
    :param held: why the host holds itself, such as the reason given to ``puppet agent --disable``; None where it does not.
    :param failures: its failures on the way to this version, those that it has recovered from too, as far as there is room.
    :param machine: the ID of the machine that reported; None where none was given.
    :param other_machine: that of another machine that has reported under the same name on the way to this version.
    :param readable: False for a record that is there and can't be read; its host counts as failed.
    :param index: the key's ModifyIndex in Consul, as far as a whole snapshot was read.
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
    readable: bool = True
    index: int = field(default=0, compare=False)

    @property
    def has_reported(self) -> bool:
        """Whether the host has written in it: what planners and operators write of it has no time of a report."""
        return self.readable and any(state in self.times for state in REPORTED_STATES)

    def plain(self) -> dict[str, Any]:
        """Return the record as data, as it is stored and shown."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("readable", "index")}
        lists = {
            "done": list(self.done),
            "trail": [list(one) for one in self.trail],
            "failures": [list(one) for one in self.failures],
        }
        return {**kept, **lists, "former": [one.slim() for one in self.former]}

    def slim(self) -> dict[str, Any]:
        """Return what :meth:`plain` does, as far as it says anything."""
        return {name: value for name, value in self.plain().items() if value not in (None, [])}

    def where(self) -> str:
        """Return ``, service nova, step stop`` for what of it is known."""
        service = f", service {self.service}" if self.service else ""
        return service + (f", step {self.step}" if self.step else "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one atomic read of the store says.

    :param index: the newest Consul index among the entries; a blocking query waits for what comes after it.
    :param ledger_index: the ledger's ModifyIndex, 0 where there is none: what its compare-and-set needs.
    :param version_index: the same for ``current_version``.
    :param gates: those of rollouts.
    :param holds: those that are set, and the pauses of python-jiocloud that are no holds yet.
    :param legacy_gates: all those that stand where python-jiocloud keeps operators' pauses.
    :param legacy_reports: hosts that have a report where the old code put it.
    :param leases: hosts that a run of Ansible is at work on.
    :param providers: name -> what there is of a provider's version.
    :param marks: host -> what planners have seen of its health.
    :param checks: host -> check -> status; None where Consul was not asked.
    :param approvals: stage -> whose word there is that the rollout may go on after it.
    :param hold_index: the ModifyIndex of the folder of holds, which every hold that is set or ended writes.
    :param commits: epoch -> commit, for the entries of the history that were asked for and are there.
    :param now: when it was read, by the reader's clock (unix seconds).
    :param schema: the layout's own version, None where none is written.
    :param release: the first release that knows that layout, empty where the migrator did not say.
    :param migration: the migration of the layout, None where there is none and no old keys are kept.
    :param warnings: sentences on what was found and passed over.
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
        """Whether anything stands where only the old code put it."""
        return bool(self.legacy_reports) or self.legacy_gates != Gates()


def compile_role_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern, made sure to have a first group.

    :raises UpgradeError: ``bad_role_pattern``.
    """
    try:
        found = compiled(pattern)
    except ValueError as error:
        raise UpgradeError(
            "bad_role_pattern", f"role_pattern: {truncated_repr(pattern)} is not a valid regular expression: {error}."
        ) from error
    if not found.groups:
        raise UpgradeError(
            "bad_role_pattern", f"role_pattern: {truncated_repr(pattern)} has no group; its first one is the role."
        )
    return found


def role_by_name(host: str, pattern: re.Pattern[str]) -> str | None:
    """Return the role that a host's name tells, None where it tells none."""
    found = pattern.search(host)
    # A pattern may find what can be no part of a key.
    return found[1] if found and found[1] and is_valid_name(found[1]) else None


def roles_of_hosts(named: Mapping[str, str], seen: Iterable[str], role_pattern: str | None = None) -> dict[str, str]:
    """Return host -> role for the whole fleet, in natural order.

    :param named: the hosts whose role is given.
    :param seen: hosts that have reported or have a record; those that ``named`` lacks are placed by their names.
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
