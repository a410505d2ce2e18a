# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start of a host's upgrade, or of its post-upgrade tasks: one transaction that succeeds only if the host is still admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .._codecs.job import decode_job_record, encode_job_record
from .._codecs.record import decode_record, encode_record
from .._codecs.values import text_of
from .._common.errors import UpgradeError
from .._common.names import check_name, check_version, is_job, target_text
from .._consul.client import KVEntry, Operation
from .._consul.errors import Conflict, Unreachable
from .._consul.operations import Change, compare, compare_and_put, put, read_along, remove
from .._consul.retry import retry_on_conflict
from .._fleet.fleet import HostRecord
from .._fleet.gates import Gates
from .._state.keys import Keys
from .._state.layout import refuse_newer
from .._state.snapshot import decode_snapshot
from .._state.store import Store
from .gate_question import keys_to_read, permission


@dataclass(frozen=True, slots=True)
class Start:
    """A request to start a host's upgrade, its post-upgrade tasks, or a job.

    :param version: the version, or the target of the job.
    :param default: whether the host may start if no gate is set. No host may start a job then.
    :param is_post_upgrade: whether it starts its post-upgrade tasks.
    :param has_gate: whether gates decide, and not only holds. Post-upgrade tasks of a host that Ansible upgrades have no gate.
    """

    host: str
    role: str
    version: str
    default: bool = True
    is_post_upgrade: bool = False
    has_gate: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """A start that was written, or would be without check mode.

    :param index: the ModifyIndex of the record, 0 in check mode.
    """

    record: HostRecord
    index: int = 0
    changes: list[Change] = field(default_factory=list)


def start(
    store: Store, request: Start, change: Callable[[HostRecord | None], HostRecord], *, dry: bool = False
) -> Started:
    """Write that a host starts, if it is admitted at that moment: one request to read, one to write.

    The write compares the ModifyIndexes of ``current_version``, of every gate and hold that the admission may depend on, and of
    the folder of holds. That folder's key is written whenever a hold is set or ended. A node's token may compare only keys that exist, so
    missing keys are read in the same transaction. If one of them exists by then, the start is undone, before anything is done on
    the host, and tried again.

    :param change: returns the host's record after the start.
    :raises UpgradeError: ``not_admitted``, ``busy``, ``bad_name``, ``newer_schema``, ``unreadable_gate``.
    """
    check_name("host", request.host, "name")
    check_name("role", request.role, "role")
    if store.keys.is_job != is_job(request.version):
        raise ValueError(f"{request.version} does not belong to these keys")
    if not store.keys.is_job:
        check_version(request.version, "version")
    # A conflict means that a gate, a hold, the version or the record was written between the read and the start.
    return retry_on_conflict(
        lambda: _start(store, request, change, dry=dry),
        lambda: f"{request.host} does not start: its record, a gate or a hold of it",
        "Start it again.",
    )


def _start(store: Store, request: Start, change: Callable[[HostRecord | None], HostRecord], *, dry: bool) -> Started:
    keys = store.keys
    key = keys.record(request.host)
    entries = {entry.key: entry for entry in _read(store, request, key)}
    _refuse_unless_admitted(store, request, entries.values())
    entry = entries.get(key)
    decode, encode = (decode_job_record, encode_job_record) if keys.is_job else (decode_record, encode_record)
    before = decode(key, entry.value) if entry is not None else None
    after = change(before)
    text = encode(after)
    changes = [Change(key, text_of(entry.value) if entry else None, text)] if after != before else []
    if dry:
        return Started(after, changes=changes)
    dependencies = {keys.current_version, keys.holds, *keys_to_read(keys, request.host, request.role)}
    dependencies |= _holds_of_other_roles(keys, request, entries.values())
    absent = dependencies - entries.keys()
    operations = [
        compare_and_put(key, text, entry.modify_index if entry is not None else 0),
        *(compare(one, entries[one].modify_index) for one in sorted(dependencies & entries.keys())),
        *(read_along(one) for one in sorted(absent - {keys.holds})),
    ]
    try:
        written = store.client.write(operations)
        index = next(int(one["ModifyIndex"]) for one in written if one["Key"] == key)
        is_created = not absent.isdisjoint(one["Key"] for one in written)
    except Unreachable as error:
        index, is_created = _after_lost_answer(store, key, text, entry, absent - {keys.holds}, error)
    if is_created:
        store.client.write(_undo(key, entry, index))
        raise Conflict("conflict", f"A gate or a hold of {request.host} was created while it started.", key=key)
    return Started(after, index, changes)


def _after_lost_answer(
    store: Store, key: str, text: str, before: KVEntry | None, absent: set[str], error: Unreachable
) -> tuple[int, bool]:
    """Find out whether a start was written whose answer was lost.

    If the write still arrives after this, it fails, or the next try finds that the host has started.

    :returns: the ModifyIndex of the record, and whether one of the keys that were missing exists now.
    :raises Conflict: if it was not written, as far as can be seen.
    """
    found = {one.key: one for one in store.client.read([key, *sorted(absent)])}
    written = found.get(key)
    index = before.modify_index if before is not None else 0
    if written is None or written.modify_index == index or written.value != text.encode():
        raise Conflict("conflict", f"{error.message} The start was not written.", key=key) from None
    return written.modify_index, not absent.isdisjoint(found)


def _read(store: Store, request: Start, record: str) -> list[KVEntry]:
    keys = store.keys
    requested = {record, keys.schema, keys.current_version, *keys_to_read(keys, request.host, request.role)}
    requested.add(_record_of_upgrade(keys, request.host))
    entries = store.read_beside_hold_key(sorted(requested))
    if more := _holds_of_other_roles(keys, request, entries) - requested:
        entries = store.read_beside_hold_key(sorted(requested | more))
    store.refuse_hidden_keys(entries, (keys.gates, keys.holds))
    return entries


def _record_of_upgrade(keys: Keys, host: str) -> str:
    """Return the key of a host's record of upgrades, which has its roles, also for the keys of jobs."""
    return replace(keys, is_job=False).record(host)


def _holds_of_other_roles(keys: Keys, request: Start, entries: Iterable[KVEntry]) -> set[str]:
    """Return the keys of the holds of other roles that a host had since it last started, whether they exist or not."""
    key = _record_of_upgrade(keys, request.host)
    record = next((decode_record(one.key, one.value) for one in entries if one.key == key), None)
    return {keys.hold("role", role) for role in record.other_roles(request.role)} if record is not None else set()


def _refuse_unless_admitted(store: Store, request: Start, entries: Iterable[KVEntry]) -> None:
    of_job = store.keys.is_job
    snapshot = decode_snapshot(replace(store.keys, is_job=False), entries, of_job)
    refuse_newer(store.keys, snapshot.schema, snapshot.release)
    current = snapshot.current_version
    default = (request.default or not request.has_gate) and not of_job
    if not request.has_gate:
        snapshot = replace(snapshot, gates=Gates())
    found = permission(snapshot, request.host, request.role, default=default, current=current)
    reason = found.reason
    if found.value and current != request.version:
        reason = f"{store.keys.current_version} is {current or 'not set'}"
    elif found.value:
        return
    raise not_admitted(request, reason)


def not_admitted(request: Start, reason: str) -> UpgradeError:
    """Return the error for a host that may not start."""
    what = target_text(request.version)
    return UpgradeError(
        "not_admitted",
        f"{request.host} does not start {f'the post-upgrade tasks of {what}' if request.is_post_upgrade else what}, as it is not admitted: "
        f"{reason}. Nothing was done. Run ansible-playbook convoy.upgrade.status to see what it waits for; it starts by itself once it is admitted.",
        host=request.host,
        reason=reason,
    )


def _undo(key: str, before: KVEntry | None, index: int) -> list[Operation]:
    """Return the operations that restore a record as it was before a start; they fail if it was written since."""
    if before is None:
        return [compare(key, index), remove(key)]
    return [compare(key, index), put(key, before.value.decode("utf-8", "replace"))]
