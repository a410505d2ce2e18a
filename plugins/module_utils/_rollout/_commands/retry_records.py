# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of hosts after a retry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..._codecs.job import decode_job_record, retried_job_record
from ..._codecs.record import decode_record, encode_record
from ..._codecs.values import text_of
from ..._common import runtime
from ..._consul.client import KVEntry, Operation
from ..._consul.operations import Change, compare, compare_and_put, put, remove
from ..._fleet.checkpoints import is_checkpoint_group
from ..._fleet.fleet import (
    FAILED,
    POST_DONE,
    POST_STARTED,
    REPORTED_LOST,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
    Snapshot,
)
from ..._fleet.former_rollouts import with_former_rollout
from ..._fleet.gates import CLOSED, GateValue
from ..._fleet.step_trail import extended_trail
from ..._host_states import states
from ..._state.store import Store
from ..host_writes import HostWrite


def put_back_record(before: HostRecord | None, version: str, reported: str | None, now: int) -> HostRecord:
    """Return a host's record after a retry.

    If the host had begun an upgrade to another version, its finished checkpoints and its origin stay. If that origin is the version
    that it reported, the other version takes its place, because the host may run that version already.

    :param version: the target version of the rollout.
    :param reported: the version that the host reported; None if it never reported.
    :param now: unix seconds.
    """
    kept = before if before is not None and before.readable else None
    of_host = kept.of_host() if kept is not None else {}
    if kept is None or kept.state == UPGRADED:
        former = with_former_rollout(kept) if kept is not None else ()
        kept = (
            kept
            if kept is not None and kept.version == version
            else HostRecord(version, RETRIED, attempt=0, former=former)
        )
    elif kept.version != version:
        origin = kept.version if reported and kept.origin == reported else kept.origin
        kept = HostRecord(
            version,
            RETRIED,
            attempt=0,
            done=tuple(filter(is_checkpoint_group, kept.done)),
            origin=origin,
            former=with_former_rollout(kept),
        )
    # It is to be upgraded again, and its post-upgrade tasks come after that, unless they are done.
    post = kept.post if kept.post == POST_DONE else None
    # With the time of a failure, the host would count as failed when it starts again.
    times = {state: at for state, at in kept.times.items() if state not in (FAILED, REPORTED_LOST)}
    return replace(
        kept,
        state=RETRIED,
        error=None,
        post=post,
        other_machine=None,
        **of_host,
        failures=kept.failures_before_retry(),
        times={**times, RETRIED: now},
        trail=extended_trail(kept.trail, now),
    )


def snapshot_after_retry(snapshot: Snapshot, hosts: Collection[str], version: str) -> Snapshot:
    """Return a snapshot as it would be if these hosts had been retried in that moment, to see what a plan would admit then.

    :param version: the target of the rollout.
    """
    now, gates = int(snapshot.now), snapshot.gates
    records = {
        host: replace(
            put_back_record(snapshot.records.get(host), version, states.reported_version(snapshot, host), now),
            # Newer than the host's report, as the write of a retry is.
            index=snapshot.index + 1,
        )
        for host in hosts
    }
    closed = {host: GateValue("", CLOSED) for host in hosts}
    admitted = {} if snapshot.ledger is None else snapshot.ledger.admitted
    return replace(
        snapshot,
        records={**snapshot.records, **records},
        gates=replace(gates, hosts={**gates.hosts, **closed}),
        marks={host: mark for host, mark in snapshot.marks.items() if host not in records},
        ledger=snapshot.ledger
        and replace(snapshot.ledger, admitted={host: at for host, at in admitted.items() if host not in records}),
    )


def reset_writes(
    store: Store,
    snapshot: Snapshot,
    hosts: Sequence[str],
    changed: Collection[str],
    version: str,
    only_tasks_of: Collection[str],
) -> dict[str, HostWrite]:
    """Return host -> the write that resets it, without hosts whose state or version has changed since the snapshot.

    :param changed: hosts that have written their records since the snapshot.
    :param version: the target version of the rollout.
    :param only_tasks_of: upgraded hosts, of which only the post-upgrade tasks are reset.
    """
    keys = store.keys
    key_of = {host: f"{keys.job_records}{host}" if host in snapshot.busy else keys.record(host) for host in hosts}
    entries = {entry.key: entry for entry in store.client.read(list(key_of.values()))}
    found = {}
    for host, key in key_of.items():
        entry = entries.get(key)
        if host in snapshot.busy:
            idle = [compare(keys.lease(host), 0)]
            write = _end_of_job(entry, snapshot.busy[host], idle) if entry is not None else None
        else:
            write = _reset_write(
                store, snapshot, host, entry, version, has_changed=host in changed, only_tasks=host in only_tasks_of
            )
        if write is not None:
            found[host] = write
    return found


def _reset_write(
    store: Store,
    snapshot: Snapshot,
    host: str,
    entry: KVEntry | None,
    version: str,
    *,
    has_changed: bool,
    only_tasks: bool,
) -> HostWrite | None:
    """Return the write that resets a host, or its post-upgrade tasks; None if its state or version has changed since the snapshot.

    :param entry: its record as it is now; None if it has none.
    :param has_changed: whether it has written its record since the snapshot.
    """
    keys = store.keys
    key, gate, mark = keys.record(host), keys.gate("host", host), keys.mark(host)
    decode = decode_job_record if keys.is_job else decode_record
    before = decode(key, entry.value) if entry is not None else None
    seen = snapshot.records.get(host)
    index = seen.index if seen is not None else 0
    if has_changed:
        if entry is None or before is None or seen is None or _progress(before) != _progress(seen):
            return None
        index = entry.modify_index
    has_begun = before is not None and (before.state == STARTED or before.post == POST_STARTED)
    # A run that goes on with a host does not write its record at once. So the write fails if one has acquired the lease since the snapshot.
    idle = [compare(keys.lease(host), 0)] if has_begun and host not in snapshot.leases else []
    if only_tasks and entry is not None and before is not None:
        text = encode_record(replace(before, post=None, service=None, step=None, error=None, next_step=None))
        # Its gate and its health stay as they are.
        return HostWrite([*idle, compare_and_put(key, text, index)], [Change(key, text_of(entry.value), text)])
    now = int(runtime.now())
    if keys.is_job:
        text = retried_job_record(entry.value if entry is not None else None, version, now)
    else:
        text = encode_record(put_back_record(before, version, states.reported_version(snapshot, host), now))
    old = snapshot.gates.hosts.get(host)
    return HostWrite(
        # Fails if the host has written its record since it was read.
        [*idle, compare_and_put(key, text, index), put(gate, CLOSED), remove(mark)],
        [
            Change(key, text_of(entry.value) if entry is not None else None, text),
            Change(gate, old.text if old is not None else None, CLOSED),
        ],
    )


def _progress(record: HostRecord) -> tuple[str, str, str | None]:
    return record.version, record.state, record.post


def _end_of_job(entry: KVEntry, record: HostRecord, idle: Sequence[Operation]) -> HostWrite:
    """Return the write after which a host does not count as being in the middle of an earlier job.

    :param entry: its record of that job.
    :param record: the same, as the snapshot has it. The write fails if it has changed since.
    :param idle: operations that fail if a run works on it.
    """
    text = retried_job_record(entry.value, record.version, int(runtime.now()))
    return HostWrite(
        [*idle, compare_and_put(entry.key, text, record.index)], [Change(entry.key, text_of(entry.value), text)]
    )
