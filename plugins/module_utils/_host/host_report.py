# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of itself: started, upgraded, failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from .._common.errors import UpgradeError
from .._common.names import check_name, check_version
from .._common.sanitize import sanitize, truncate_middle
from .._consul.client import KVEntry, Operation
from .._consul.operations import Change, compare_and_put, put, remove
from .._consul.retry import retry_on_conflict
from .._fleet.checkpoints import is_checkpoint_group
from .._fleet.failures import MOST_ERROR as MOST_KEPT
from .._fleet.failures import Failure, newest_failures
from .._fleet.fleet import FAILED, HELD, RELEASED, REPORTED_STATES, RETRIED, STARTED, UPGRADED, HostRecord
from .._fleet.former_rollouts import with_former_rollout
from .._fleet.step_trail import extended_trail
from .._state.codec import text_of
from .._state.layout import refuse_newer
from .._state.migration_codec import decode_schema, release_of
from .._state.record_codec import LONGEST_NAME, decode_record, encode_record
from .._state.store import Store
from .start import Start, start

# Consul takes values up to 512 KiB; the end of an error is what explains it.
MOST_ERROR = 4000


@dataclass(frozen=True, slots=True)
class HostReport:
    """One report.

    :param version: the version the host moves to, or has reached.
    :param state: started, upgraded or failed; held or released for the host's own hold.
    :param reason: why it is held.
    :param machine: the ID of the machine that reports; None where the caller does not know.
    :param role: of the host; with it a start needs an admission that holds at that moment.
    :param default: whether the host may start where no gate is set.
    """

    host: str
    version: str
    state: str
    service: str | None = None
    step: str | None = None
    error: str | None = None
    reason: str | None = None
    machine: str | None = None
    role: str | None = None
    default: bool = True


def write_report(store: Store, word: HostReport, *, dry: bool = False) -> tuple[HostRecord, list[Change]]:
    """Write a report; return the host's record after it, and what changed.

    ``upgraded`` puts the host under its version and takes it away from the one that it stood under, in one
    transaction. Which one that is stands in the host's own record, so the cost does not grow with the fleet;
    only a host that has never reported this way has its former versions looked for. A host whose token allows its own
    record alone writes that, and planners publish what it says.

    ``started`` with a role is refused unless the host is admitted, as :func:`start` tells; the next service or step of a start is not.

    While a machine has started and not ended, reports of another one under the same name are refused, so that they give back no slot. The
    record says so.

    :raises UpgradeError: ``bad_name``, ``bad_report``, ``busy``, ``newer_schema``, ``unreadable_schema``, ``not_admitted``, ``other_machine``.
    """
    check_name("host", word.host, "name")
    check_version(word.version, "version")
    if word.error is not None and word.state != FAILED:
        raise UpgradeError("bad_report", f"error goes with state: failed, not with {word.state}.")
    if (word.reason is not None) != (word.state == HELD):
        raise UpgradeError("bad_report", f"reason goes with state: held, and only with that; state is {word.state}.")
    if word.role is not None and word.state == STARTED and word.service is None and word.step is None:
        try:
            return _start(store, word, word.role, dry=dry)
        except UpgradeError as error:
            # That another machine wants to start is to be seen in the record.
            if error.code != "other_machine":
                raise
    return retry_on_conflict(
        lambda: _report(store, word, dry=dry), lambda: store.keys.record(word.host), "Who else reports for it?"
    )


def _report(store: Store, word: HostReport, *, dry: bool) -> tuple[HostRecord, list[Change]]:
    keys = store.keys
    key, own = keys.record(word.host), keys.report(word.version, word.host)
    # A token that may not read the version of the layout gets it left out, and is not refused for that.
    entries = {entry.key: entry for entry in store.client.read((key, own, keys.schema))}
    if (schema := entries.get(keys.schema)) is not None:
        refuse_newer(keys, decode_schema(keys.schema, schema.value), release_of(schema.flags))
    entry = entries.get(key)
    before = decode_record(key, entry.value) if entry else None
    if entry is not None and before is not None and _is_of_another(before, word):
        noted = replace(before, other_machine=word.machine)
        if noted != before and not dry:
            store.client.settle([compare_and_put(key, encode_record(noted), entry.modify_index)])
        raise _other_machine(key, before, word)
    goes_on = (word.service, word.step) != (None, None) and _has_started(before, word.version)
    if word.role is not None and word.state == STARTED and not goes_on:
        return _start(store, word, word.role, dry=dry)
    after = next_record(before, word, int(time.time()))
    published = _publication(store, before, word, is_there=own in entries) if word.state == UPGRADED else _Writes()
    for writes in (published, None):
        if writes is None or writes.denied:
            # A host that may write its own record alone: planners publish what it says there.
            after = replace(after, reported=before.reported if before is not None else None)
            writes = _Writes()
        own_record = _record_writes(key, entry, before, after, word)
        operations = [*own_record.operations, *writes.operations]
        try:
            if operations and not dry:
                store.client.settle(operations)
        except UpgradeError as error:
            if error.code != "denied" or not writes.operations:
                raise
            continue
        return after, [*own_record.changes, *writes.changes]
    raise AssertionError("the last turn returns or raises")


def _start(store: Store, word: HostReport, role: str, *, dry: bool) -> tuple[HostRecord, list[Change]]:
    def change(before: HostRecord | None) -> HostRecord:
        if before is not None and _is_of_another(before, word):
            raise _other_machine(store.keys.record(word.host), before, word)
        return next_record(before, word, int(time.time()))

    asked = Start(word.host, role, word.version, word.default)
    done = start(store, asked, change, dry=dry)
    return done.record, done.changes


def _is_of_another(before: HostRecord, word: HostReport) -> bool:
    """Return whether another machine than the one that reports has started and not ended."""
    known = before.machine is not None and word.machine is not None and word.state in REPORTED_STATES
    return known and before.state == STARTED and before.machine != word.machine


def _other_machine(key: str, before: HostRecord, word: HostReport) -> UpgradeError:
    return UpgradeError(
        "other_machine",
        f"{word.host} reports {word.state} from the machine {word.machine}, but {key} says that the machine {before.machine} has begun the "
        f"upgrade to {before.version} and has not ended it. Nothing is reported. If two machines have this name, rename one. If the other "
        f"one is gone, because the host was reinstalled, run forget.yml -e host={word.host} -e force=true.",
    )


def _has_started(record: HostRecord | None, version: str) -> bool:
    return record is not None and record.readable and (record.state, record.version) == (STARTED, version)


@dataclass(slots=True)
class _Writes:
    """Operations, and what they change.

    :param denied: whether the token is known not to allow them.
    """

    operations: list[Operation] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    denied: bool = False


def _record_writes(
    key: str, entry: KVEntry | None, before: HostRecord | None, after: HostRecord, word: HostReport
) -> _Writes:
    if after == before or (before is None and word.state == RELEASED):
        return _Writes()
    text = encode_record(after)
    change = Change(key, text_of(entry.value) if entry else None, text)
    return _Writes([compare_and_put(key, text, entry.modify_index if entry else 0)], [change])


def _publication(store: Store, before: HostRecord | None, word: HostReport, *, is_there: bool) -> _Writes:
    """Return what puts a host under its version and takes it away from others."""
    own = store.keys.report(word.version, word.host)
    writes = _Writes()
    try:
        if store.settings.token and not is_there:
            # What a token may not read comes back as if it were not there.
            store.client.get(own)
        for old in _elsewhere(store, before, word):
            writes.changes.append(Change(old.key, text_of(old.value) or "", None))
            writes.operations.append(remove(old.key))
    except UpgradeError as error:
        if error.code != "denied":
            raise
        return _Writes(denied=True)
    if not is_there:
        now = str(int(time.time()))
        writes.changes.append(Change(own, None, now))
        writes.operations.append(put(own, now))
    return writes


def _elsewhere(store: Store, before: HostRecord | None, word: HostReport) -> list[KVEntry]:
    """Return the host's reports under other versions."""
    if before is not None and before.reported is not None:
        versions = {before.reported}
    else:
        versions = {name[:-1] for name in store.client.folders(store.keys.reports) if name.endswith("/")}
    wanted = [store.keys.report(version, word.host) for version in sorted(versions - {word.version, ""})]
    found: list[KVEntry] = []
    # Old fleets keep a few versions. A transaction takes 64 operations, of which the report needs two.
    for at in range(0, len(wanted), 60):
        chunk = set(wanted[at : at + 60])
        found += [entry for entry in store.client.read(sorted(chunk)) if entry.key in chunk]
    return found[:60]


def next_record(before: HostRecord | None, word: HostReport, now: int) -> HostRecord:
    """Return a host's record after a report.

    :param now: unix seconds.
    """
    if word.state in (HELD, RELEASED):
        return _with_own_hold(before, word)
    # As it is read back, so that the same report changes nothing a second time.
    service, step = (
        None if text is None else truncate_middle(sanitize(text), LONGEST_NAME) for text in (word.service, word.step)
    )
    error = sanitize(truncate_error(word.error) or "") or None if word.state == FAILED else None
    machine, other = _machines(before, word)
    said = HostRecord(word.version, word.state, service, step, error=error, machine=machine, other_machine=other)
    at_step = (service, step) if word.state == STARTED else (None, None)
    if before is None or not before.readable:
        said = replace(
            said,
            times={word.state: now},
            trail=extended_trail((), now, *at_step),
            failures=_with_failure((), said, now),
        )
        return replace(said, reported=word.version if word.state == UPGRADED else None)
    same_rollout = before.version == word.version
    attempt = before.attempt if same_rollout else 1
    if word.state == STARTED and same_rollout and before.state != STARTED:
        attempt += 1
    said = replace(said, attempt=attempt, times=before.times, reported=before.reported)
    if word.state == UPGRADED:
        said = replace(said, reported=word.version)
    else:
        # What a push run has finished of this move stays finished, and what it has gone of a path is behind it also on the way
        # to another version. After the upgrade no one needs either any more.
        done = before.done if same_rollout else tuple(filter(is_checkpoint_group, before.done))
        said = replace(said, origin=before.origin, done=done)
    if same_rollout:
        said = replace(said, post=before.post, trail=before.trail, failures=before.failures, former=before.former)
    else:
        said = replace(said, former=with_former_rollout(before))
    unchanged = replace(before, reported=said.reported)
    if said == unchanged:
        return unchanged
    times = {**(before.times if same_rollout else {}), word.state: now}
    if same_rollout and before.state == word.state == STARTED:
        # The next service or step of the same start.
        times[STARTED] = before.times.get(STARTED, now)
    failures = _with_failure(said.failures, said, now)
    return replace(said, times=times, trail=extended_trail(said.trail, now, *at_step), failures=failures)


def _machines(before: HostRecord | None, word: HostReport) -> tuple[str | None, str | None]:
    """Return the machine of a record after a report, and the other one that has the same name, as long as the move is the same."""
    if before is None or not before.readable or before.machine is None:
        return word.machine, None
    if word.machine not in (None, before.machine):
        return word.machine, before.machine
    return before.machine, before.other_machine if before.version == word.version else None


def _with_failure(failures: tuple[Failure, ...], said: HostRecord, now: int) -> tuple[Failure, ...]:
    """Return the failures of a move with the one that a report tells of, if it does."""
    if said.state != FAILED:
        return failures
    failure = Failure(now, said.attempt, said.service or "", said.step or "", (said.error or "")[-MOST_KEPT:])
    return newest_failures((*failures, failure))


def _with_own_hold(before: HostRecord | None, word: HostReport) -> HostRecord:
    """Return a record with the host's own hold put on or taken off, and all else as it was."""
    if before is not None and not before.readable:
        return before
    held = truncate_middle(sanitize(word.reason or ""), LONGEST_NAME) if word.state == HELD else None
    # A host that never wrote one is among those that wait.
    return replace(before or HostRecord(word.version, RETRIED), held=held)


def truncate_error(error: str | None) -> str | None:
    """Return the end of an error that is too long to be stored, and say how much is missing."""
    if error is None or len(error) <= MOST_ERROR:
        return error
    return f"[the first {len(error) - MOST_ERROR} characters are left out] {error[-MOST_ERROR:]}"
