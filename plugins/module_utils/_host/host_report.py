# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host reports: started, upgraded, failed, enrolled, held and released, written to the host's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._codecs.migration import decode_schema, release_of
from .._codecs.record import LONGEST_NAME, decode_record, encode_record
from .._codecs.values import text_of
from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import check_name, check_version
from .._common.sanitize import option, sanitize, truncate_middle
from .._consul.client import KVEntry, Operation
from .._consul.operations import Change, compare_and_put, put, remove
from .._consul.retry import retry_on_conflict
from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.failures import Failure, newest_failures
from .._fleet.fleet import (
    DELIVERED,
    ENROLLED,
    FAILED,
    HELD,
    RELEASED,
    REPORTED_LOST,
    REPORTED_STATES,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from .._fleet.former_rollouts import with_former_rollout
from .._fleet.step_trail import extended_trail
from .._state.layout import refuse_newer
from .._state.store import Store
from .gate_question import unreported_role
from .start import Start, not_admitted, start

# Consul takes values up to 512 KiB. The end of an error is kept, because it explains most.
MOST_ERROR = 4000


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host report.

    :param version: the version that the host upgrades to, or runs.
    :param state: started, upgraded or failed; enrolled for a version that no run has brought; held or released for the host's own hold.
    :param reason: why the host holds itself.
    :param machine: the ID of the machine that reports; None if it is not known.
    :param release: the release of the node agent that reports; None if something else does.
    :param services: the ID of the tasks of services that the host has; empty if it has none any more, None if the caller does not know.
    :param role: the host's role. With it, a start is refused unless the host is admitted at that moment.
    :param default: whether the host may start if no gate is set.
    :param is_lost: whether it failed because the run that worked on it lost it, so that no one knows what still runs there.
    """

    host: str
    version: str
    state: str
    service: str | None = None
    step: str | None = None
    error: str | None = None
    reason: str | None = None
    machine: str | None = None
    release: str | None = None
    services: str | None = None
    role: str | None = None
    default: bool = True
    is_lost: bool = False


def write_report(
    store: Store, report: HostReport, checks: Callable[[], Sequence[Operation]] = tuple, *, dry: bool = False
) -> tuple[HostRecord, list[Change]]:
    """Write a report; return the host's record after it, and the changes.

    ``upgraded`` sets the host's key under its version and deletes its key under the former version, in one transaction. The
    record has the former version, so the cost does not grow with the fleet. Only for a host whose record has none, all versions
    are searched. If the host's token may write only its record, only that is written, and planners publish the version.

    ``started`` with a role is refused unless the host is admitted, see :func:`start`. Reports of further services and steps after
    a start are not.

    If one machine has started and not ended, reports of another machine under the same name are refused, so that they do not free
    the slot. The record then has the ID of the other machine.

    :param checks: called before each try; returns what has to be true at the same time, such as that the caller has the lease of the host. A start
        of a host with a role has no checks.
    :param dry: check mode: write nothing.
    :raises UpgradeError: ``bad_name``, ``bad_report``, ``busy``, ``newer_schema``, ``unreadable_schema``, ``not_admitted``, ``other_machine``.
    """
    check_name("host", report.host, "name")
    if report.state != DELIVERED:
        check_version(report.version, "version")
    elif report.services is None and report.role is None:
        raise UpgradeError("bad_report", "services or role is required with state: delivered.")
    if report.error is not None and report.state != FAILED:
        raise UpgradeError("bad_report", f"error is valid only with state: failed; state is {report.state}.")
    if (report.reason is not None) != (report.state == HELD):
        raise UpgradeError(
            "bad_report", f"reason is valid only with state: held, and required there; state is {report.state}."
        )
    if report.role is not None and report.state == STARTED and report.service is None and report.step is None:
        try:
            return _start(store, report, report.role, dry=dry)
        except UpgradeError as error:
            # _report stores the ID of the other machine in the record.
            if error.code != "other_machine":
                raise
    return retry_on_conflict(
        lambda: _report(store, report, checks, dry=dry),
        lambda: store.keys.record(report.host),
        "Another process reports for this host at the same time.",
    )


def _report(
    store: Store, report: HostReport, checks: Callable[[], Sequence[Operation]], *, dry: bool
) -> tuple[HostRecord, list[Change]]:
    keys = store.keys
    key, own = keys.record(report.host), keys.report(report.version, report.host)
    # If the token may not read keys.schema, it is missing from the answer, which is no error.
    entries = {entry.key: entry for entry in store.client.read((key, own, keys.schema))}
    if (schema := entries.get(keys.schema)) is not None:
        refuse_newer(keys, decode_schema(keys.schema, schema.value), release_of(schema.flags))
    entry = entries.get(key)
    before = decode_record(key, entry.value) if entry else None
    if entry is not None and before is not None and _is_of_another(before, report):
        updated = replace(before, other_machine=report.machine)
        if updated != before and not dry:
            store.client.settle([compare_and_put(key, encode_record(updated), entry.modify_index)])
        raise _other_machine(key, before, report)
    if report.state == ENROLLED:
        report = replace(report, state=DELIVERED if _outweighs_files(before, report.version) else UPGRADED)
    goes_on = (report.service, report.step) != (None, None) and _has_started(before, report.version)
    if report.role is not None and report.state == STARTED and not goes_on:
        return _start(store, report, report.role, dry=dry)
    after = next_record(before, report, int(runtime.now()))
    published = _publication(store, before, report, is_there=own in entries) if report.state == UPGRADED else _Writes()
    for writes in (published, None):
        if writes is None or writes.denied:
            # The token allows only the record: planners publish the version.
            after = replace(after, reported=before.reported if before is not None else None)
            writes = _Writes()
        own_record = _record_writes(key, entry, before, after, report)
        operations = [*own_record.operations, *writes.operations]
        try:
            if operations and not dry:
                store.client.settle([*operations, *checks()])
        except UpgradeError as error:
            if error.code != "denied" or not writes.operations:
                raise
            continue
        return after, [*own_record.changes, *writes.changes]
    raise AssertionError("the last turn returns or raises")


def _start(store: Store, report: HostReport, role: str, *, dry: bool) -> tuple[HostRecord, list[Change]]:
    asked = Start(report.host, role, report.version, report.default)

    def change(before: HostRecord | None) -> HostRecord:
        if before is not None and _is_of_another(before, report):
            raise _other_machine(store.keys.record(report.host), before, report)
        if before is not None and before.readable and before.role not in (None, role):
            # Planners have admitted it with the role that it reported, and a hold of that role would not be seen.
            raise not_admitted(asked, unreported_role(report.host, role, before))
        return next_record(before, report, int(runtime.now()))

    done = start(store, asked, change, dry=dry)
    return done.record, done.changes


def _is_of_another(before: HostRecord, report: HostReport) -> bool:
    """Return whether another machine than the one that reports has started and not ended."""
    known = before.machine is not None and report.machine is not None
    known = known and report.state in (*REPORTED_STATES, ENROLLED)
    return known and before.state == STARTED and before.machine != report.machine


def _outweighs_files(record: HostRecord | None, version: str) -> bool:
    """Return whether a record outweighs what the files of its host say. They do not say whether Puppet failed at this version, or may run at all."""
    if record is None:
        return False
    is_retried = record.state == RETRIED and record.version == version
    return is_retried or record.state in (STARTED, FAILED) or record.held is not None


def _other_machine(key: str, before: HostRecord, report: HostReport) -> UpgradeError:
    return UpgradeError(
        "other_machine",
        f"{report.host} reports {report.state} from the machine {report.machine}, but {key} says that the machine {before.machine} has begun the "
        f"upgrade to {before.version} and has not ended it. Nothing is reported. If two machines have this name, rename one. If the other "
        f"one is gone, because the host was reinstalled, run ansible-playbook convoy.upgrade.forget {option('host', report.host)} -e force=true.",
    )


def _has_started(record: HostRecord | None, version: str) -> bool:
    return record is not None and record.readable and (record.state, record.version) == (STARTED, version)


@dataclass(slots=True)
class _Writes:
    """Operations and their changes.

    :param denied: whether the token does not allow them.
    """

    operations: list[Operation] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    denied: bool = False


def _record_writes(
    key: str, entry: KVEntry | None, before: HostRecord | None, after: HostRecord, report: HostReport
) -> _Writes:
    if after == before or (before is None and report.state in (RELEASED, DELIVERED)):
        return _Writes()
    text = encode_record(after)
    change = Change(key, text_of(entry.value) if entry else None, text)
    return _Writes([compare_and_put(key, text, entry.modify_index if entry else 0)], [change])


def _publication(store: Store, before: HostRecord | None, report: HostReport, *, is_there: bool) -> _Writes:
    """Return the writes that set a host's key under its version and delete its keys under others."""
    own = store.keys.report(report.version, report.host)
    writes = _Writes()
    try:
        if store.settings.token and not is_there:
            # Raises an error if the token may not read the key.
            store.client.get(own)
        for old in _elsewhere(store, before, report):
            writes.changes.append(Change(old.key, text_of(old.value) or "", None))
            writes.operations.append(remove(old.key))
    except UpgradeError as error:
        if error.code != "denied":
            raise
        return _Writes(denied=True)
    if not is_there:
        now = str(int(runtime.now()))
        writes.changes.append(Change(own, None, now))
        writes.operations.append(put(own, now))
    return writes


def _elsewhere(store: Store, before: HostRecord | None, report: HostReport) -> list[KVEntry]:
    """Return the host's keys under other versions, at most 60."""
    if before is not None and before.reported is not None:
        versions = {before.reported}
    else:
        versions = {name[:-1] for name in store.client.folders(store.keys.reports) if name.endswith("/")}
    requested = [store.keys.report(version, report.host) for version in sorted(versions - {report.version, ""})]
    found: list[KVEntry] = []
    # Old fleets keep a few versions. A transaction takes 64 operations, of which the report needs two.
    for at in range(0, len(requested), 60):
        chunk = set(requested[at : at + 60])
        found += [entry for entry in store.client.read(sorted(chunk)) if entry.key in chunk]
    return found[:60]


def next_record(before: HostRecord | None, report: HostReport, now: int) -> HostRecord:
    """Return a host's record after a report.

    :param now: unix seconds.
    """
    if report.state in (HELD, RELEASED):
        return _with_own_hold(before, report)
    if report.state == DELIVERED:
        return _with_services(before, report)
    # The texts as decode_record returns them, so that the same report changes nothing the second time.
    service, step = (
        None if text is None else truncate_middle(sanitize(text), LONGEST_NAME)
        for text in (report.service, report.step)
    )
    error = sanitize(truncate_error(report.error) or "") or None if report.state == FAILED else None
    machine, other = _machines(before, report)
    after = HostRecord(report.version, report.state, service, step, error=error, machine=machine, other_machine=other)
    role, former_role = _roles(before, report)
    after = replace(
        after,
        release=_release(report) or (before.release if before is not None else None),
        role=role,
        former_role=former_role,
        services=_services(before, report),
    )
    at_step = (service, step) if report.state == STARTED else (None, None)
    if before is None or not before.readable:
        after = replace(
            after,
            times=_times({}, report, now),
            trail=extended_trail((), now, *at_step),
            failures=_with_failure((), after, now),
        )
        return replace(after, reported=report.version if report.state == UPGRADED else None)
    same_rollout = before.version == report.version
    attempt = before.attempt if same_rollout else 1
    if report.state == STARTED and same_rollout and before.state != STARTED:
        attempt += 1
    after = replace(after, attempt=attempt, times=before.times, reported=before.reported)
    if report.state == UPGRADED:
        after = replace(after, reported=report.version)
    else:
        # Finished task groups stay finished for the same target, and those of checkpoints also for another target. Another machine has finished none.
        done = before.done if same_rollout else tuple(filter(is_checkpoint_group, before.done))
        done = () if before.machine not in (None, machine) else done
        after = replace(after, origin=before.origin, done=done)
    if same_rollout:
        after = replace(after, post=before.post, trail=before.trail, failures=before.failures, former=before.former)
    else:
        after = replace(after, former=with_former_rollout(before))
    unchanged = replace(before, reported=after.reported)
    if after == unchanged:
        return unchanged
    again = replace(
        unchanged,
        release=after.release,
        role=after.role,
        former_role=after.former_role,
        services=after.services,
        machine=before.machine or after.machine,
    )
    if report.state == UPGRADED and after == again:
        # The upgrade is as old as before. With a new time, the host would soak again.
        return again
    times = _times(before.times if same_rollout else {}, report, now)
    if same_rollout and before.state == report.state == STARTED and before.next_step is None:
        # The next service or step of the same start.
        times[STARTED] = before.times.get(STARTED, now)
    failures = _with_failure(after.failures, after, now)
    return replace(after, times=times, trail=extended_trail(after.trail, now, *at_step), failures=failures)


def _times(before: Mapping[str, int], report: HostReport, now: int) -> dict[str, int]:
    """Return when the host reported each state. A host that was lost has that time too, until it fails otherwise."""
    times = {**before, report.state: now}
    if report.state == FAILED:
        times.pop(REPORTED_LOST, None)
        if report.is_lost:
            times[REPORTED_LOST] = now
    return times


def _machines(before: HostRecord | None, report: HostReport) -> tuple[str | None, str | None]:
    """Return the record's ``machine`` and ``other_machine`` after a report; a new target clears the latter."""
    if before is None or not before.readable or before.machine is None:
        return report.machine, None
    if report.machine not in (None, before.machine):
        return report.machine, before.machine
    return before.machine, before.other_machine if before.version == report.version else None


def _with_failure(failures: tuple[Failure, ...], after: HostRecord, now: int) -> tuple[Failure, ...]:
    """Return the failures, with that of the new record if its state is failed."""
    if after.state != FAILED:
        return failures
    return newest_failures((*failures, after.failed_at(now)))


def _with_own_hold(before: HostRecord | None, report: HostReport) -> HostRecord:
    """Return the record with the host's own hold set or removed, and nothing else changed."""
    if before is not None and not before.readable:
        return before
    held = truncate_middle(sanitize(report.reason or ""), LONGEST_NAME) if report.state == HELD else None
    # A new record gets the state that makes its host pending.
    return replace(before or HostRecord(report.version, RETRIED), held=held)


def _with_services(before: HostRecord | None, report: HostReport) -> HostRecord:
    """Return the record with what has been installed: the tasks of services, the role in its settings and the release, and nothing else changed."""
    if before is None or not before.readable:
        return before or HostRecord(report.version, RETRIED)
    role, former_role = _roles(before, report)
    return replace(
        before,
        release=_release(report) or before.release,
        services=_services(before, report),
        role=role,
        former_role=former_role,
    )


def _roles(before: HostRecord | None, report: HostReport) -> tuple[str | None, str | None]:
    """Return the role in the host's settings, and the one that it last started with if that is another one."""
    role = truncate_middle(sanitize(report.role), LONGEST_NAME) if report.role else None
    if before is None:
        return role, None
    if role is None or role == before.role:
        return before.role, None if role is not None and report.state == STARTED else before.former_role
    # Of several changes, the first one counts, because the host last started with that role. If it has that one again, a hold of the other one may
    # still be meant for it.
    return role, before.former_role if before.former_role and before.former_role != role else before.role


def _release(report: HostReport) -> str | None:
    return truncate_middle(sanitize(report.release), LONGEST_NAME) if report.release else None


def _services(before: HostRecord | None, report: HostReport) -> str | None:
    if report.services is None:
        return before.services if before is not None else None
    return truncate_middle(sanitize(report.services), LONGEST_NAME) or None


def truncate_error(error: str | None) -> str | None:
    """Return the error; of one that is too long to be stored, its end and how much is missing."""
    if error is None or len(error) <= MOST_ERROR:
        return error
    return f"[the first {len(error) - MOST_ERROR} characters are left out] {error[-MOST_ERROR:]}"
