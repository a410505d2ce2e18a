# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Retry: an operator resets failed and lost hosts, so that they wait to be admitted again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ..._codecs.job import decode_job_record, retried_job_record
from ..._codecs.record import decode_record, encode_record
from ..._codecs.values import text_of
from ..._common import runtime
from ..._common.errors import UpgradeError
from ..._common.names import did_you_mean, in_order, is_job, job_id, listing
from ..._common.sanitize import option
from ..._consul.client import KVEntry, Operation
from ..._consul.operations import Change, compare_and_put, put, remove
from ..._fleet.checkpoints import is_checkpoint_group
from ..._fleet.failures import MOST_ERROR as MOST_KEPT
from ..._fleet.failures import Failure, newest_failures
from ..._fleet.fleet import FAILED, POST_DONE, RETRIED, STARTED, UPGRADED, HostRecord, Snapshot
from ..._fleet.former_rollouts import with_former_rollout
from ..._fleet.gates import CLOSED, GateValue
from ..._fleet.ledger import COMPLETE, PAUSED, RUNNING, Ledger
from ..._fleet.step_trail import extended_trail
from ..._host_states import state_names, states
from ..._host_states.soak import failing_checks
from ..._planner.explanations import POST_UPGRADE_FAILED
from ..._planner.plan import HostView, Plan
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.store import Store
from ..host_writes import HostWrite, left_out_warning, write_hosts
from .command import Command, CommandResult, command_fields, plan_of, refuse_unless, write_command


def retry(store: Store, command: Command, hosts: Sequence[str] | None = None, *, dry: bool = False) -> CommandResult:
    """Reset failed and lost hosts to pending. Holds stay.

    :param hosts: the hosts to reset; None for all that failed or are lost, an empty list for none. A lost host that has started and not
        reported an end has to be named. So has one that began an upgrade to another version and reported no end, or failed in it, or that
        started without an admission, or that reported and fails its checks, or that was admitted to its post-upgrade tasks. In a complete rollout,
        only these tasks can be retried.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``unknown_host``, ``fleet_too_small``, ``overtaken``, ``busy``.
    """
    # Over all tries: a try that ends in a conflict may have reset some hosts.
    put_back: set[str] = set()
    remarks: list[str] = []

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        if ledger.state != COMPLETE:
            refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        plan = plan_of(writer.store, snapshot, ledger, command.fleet)
        for name in hosts or ():
            if name not in plan.hosts:
                raise UpgradeError(
                    "unknown_host", f"hosts: {name!r} is no host of this fleet{did_you_mean(name, plan.hosts) or '.'}"
                )
        asked = frozenset(plan.hosts if hosts is None else hosts) - put_back
        named = frozenset(hosts or ())

        def is_retried(host: str, view: HostView) -> bool:
            if ledger.state == COMPLETE and not _is_in_tasks(snapshot, plan, host):
                return False
            if host in snapshot.busy:
                return host in named and _ends_job(snapshot, host)
            if view.state in state_names.BROKEN:
                return True
            if view.cause == POST_UPGRADE_FAILED:
                return _is_in_tasks(snapshot, plan, host)
            is_named = host in named and host not in snapshot.leases
            return is_named and (
                _is_midway(snapshot, plan, host) or _is_down(snapshot, plan, host) or _is_unwell(plan, host)
            )

        chosen = [host for host, view in plan.hosts.items() if host in asked and is_retried(host, view)]
        if not (chosen or put_back):
            refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        # The host refuses it.
        final = [host for host in chosen if host not in snapshot.busy and _is_final(snapshot, host)]
        chosen = [host for host in chosen if host not in final]
        # Only an operator who names a host that has started says that nothing runs there.
        silent = [host for host in chosen if host not in named and _started(snapshot, host) is not None]
        chosen = [host for host in chosen if host not in silent]
        busy = [
            host
            for host in in_order(snapshot.busy)
            if host in asked.difference(chosen) and (host in named or plan.hosts[host].state in state_names.BROKEN)
        ]
        well = [host for host in dict.fromkeys(hosts or ()) if host not in {*chosen, *put_back, *busy, *silent, *final}]
        fields = command_fields(command.plain())
        # Each host needs a write of its record, its health mark and its gate, which may be in two layouts.
        most = MOST_GATES // (2 + writer.places)

        def make(piece: Sequence[str], changed: Collection[str]) -> dict[str, HostWrite]:
            after = {host for host in piece if _is_in_tasks(snapshot, plan, host)}
            return _put_back(writer.store, snapshot, piece, changed, ledger.version, after)

        def write(piece: Sequence[str], operations: list[Operation], changes: list[Change]) -> None:
            before = {host: plan.hosts[host].reason for host in piece}
            why = f"{fields['reason']}; " if fields["reason"] else ""
            event = {
                "what": "retry",
                "hosts": {host: f"{why}it was: {text}" for host, text in before.items()},
                **fields,
            }
            # A host that is reset has to be admitted again.
            now = writer.ledger or ledger
            is_kept = {host for host in piece if host in snapshot.busy or _is_in_tasks(snapshot, plan, host)}
            admitted = {host: at for host, at in now.admitted.items() if host not in piece or host in is_kept}
            writer.write(replace(now, admitted=admitted), event, operations, changes)
            put_back.update(piece)
            remarks.extend(_remarks_on(snapshot, plan, piece, dry=dry))

        write_hosts(writer.store.keys, chosen, most, make, write)
        left_out = [host for host in chosen if host not in put_back]
        if left_out:
            warning = left_out_warning(writer.store.keys, left_out, "The retry is not written")
            if not put_back:
                raise UpgradeError("busy", warning, hosts=left_out)
            remarks.append(warning)
        are = "it is" if len(well) == 1 else "they are"
        left = [f"Not changed, because {are} neither failed nor lost: {listing(well)}."] if well else []
        if hosts is not None and not hosts:
            left = [
                "hosts is an empty list, so no host is retried. Leave hosts out to retry all failed and lost hosts."
            ]
        left += [_busy_remark(snapshot, host) for host in busy]
        left += [_silent_remark(snapshot, host) for host in silent]
        if final:
            left.append(
                f"Not changed: {listing(final)}. {state_names.NOT_AGAIN}. After the other hosts, run ansible-playbook convoy.upgrade.abort, and begin a "
                "new job with -e only=HOSTS."
            )
        return CommandResult(writer.ledger or ledger, hosts=in_order(put_back), remarks=[*remarks, *left])

    return write_command(store, act, dry=dry)


def _started(snapshot: Snapshot, host: str) -> HostRecord | None:
    """Return the record of what a host has started, an upgrade or the command of a job, and not reported the end of, so that it may still run."""
    record = snapshot.busy.get(host) or snapshot.records.get(host)
    return record if record is not None and record.state == STARTED else None


def _is_final(snapshot: Snapshot, host: str) -> bool:
    record = snapshot.records.get(host)
    return record is not None and record.is_final(snapshot.current_version)


def _ends_job(snapshot: Snapshot, host: str) -> bool:
    """Return whether a host has started an earlier job and not ended it, and no run has a lease on it.

    Only the run that began it, or the host's agent while the job is under way, reports its end. The run may be gone.
    """
    return not snapshot.is_job and host not in snapshot.leases and is_job(snapshot.busy[host].version)


def _silent_remark(snapshot: Snapshot, host: str) -> str:
    started = "the job" if snapshot.is_job else "an upgrade"
    what = "command" if snapshot.is_job else "upgrade"
    return (
        f"{host} is not changed, because it has started {started} and not reported its end, so its {what} may still run. Once you have made sure that "
        f"it does not, run ansible-playbook convoy.upgrade.retry {option('host', host)}."
    )


def _busy_remark(snapshot: Snapshot, host: str) -> str:
    """Return a remark on a host that has started other work than the rollout's, and is not retried."""
    version = snapshot.busy[host].version
    what = f"the job {job_id(version)}" if is_job(version) else f"an upgrade to {version}"
    if host in snapshot.leases:
        return f"{host} is not changed, because an Ansible run works on it. Wait for that run, or end it first."
    if is_job(version):
        return (
            f"{host} is not changed, because it has started {what} and not reported its end, so its command may still run. Once you have made sure that "
            f"it does not, run ansible-playbook convoy.upgrade.retry {option('host', host)}."
        )
    return (
        f"{host} is not changed, because it has started {what} and not reported its end. It reports once its agent runs again. If the host is gone, "
        f"run ansible-playbook convoy.upgrade.forget {option('host', host)} -e force=true."
    )


def _is_midway(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether no run has a lease on a host, and it started an upgrade to another version, without an admission, or behind what is a closed gate now."""
    record, view = snapshot.records.get(host), plan.hosts[host]
    if record is None or host in snapshot.leases:
        return False
    is_closed = view.unadmitted or (plan.fleet is not None and plan.fleet.hosts[host].needs_its_gate)
    elsewhere = record.version != snapshot.current_version
    return view.state == state_names.UPGRADING and record.state == STARTED and (elsewhere or is_closed)


def _is_unwell(plan: Plan, host: str) -> bool:
    """Return whether a check keeps a host that reported from counting as upgraded."""
    fleet = plan.fleet
    if fleet is None or not fleet.hosts[host].is_soaking or fleet.snapshot.checks is None:
        return False
    return bool(failing_checks(fleet.rules.health, fleet.snapshot.checks.get(host, {})))


def _is_down(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether a host keeps a slot because it failed in an upgrade to another version, or in its tasks after one, and no run has a lease on it."""
    return (
        not snapshot.is_job
        and host not in snapshot.leases
        and plan.fleet is not None
        and plan.fleet.hosts[host].is_down
    )


def _is_in_tasks(snapshot: Snapshot, plan: Plan, host: str) -> bool:
    """Return whether an upgraded host keeps a slot because its post-upgrade tasks failed or may begin, and no run has a lease on it.

    A retry ends only that: planners admit it to these tasks again.
    """
    return _is_down(snapshot, plan, host) and plan.hosts[host].state == state_names.UPGRADED


def _remarks_on(snapshot: Snapshot, plan: Plan, hosts: Iterable[str], *, dry: bool) -> list[str]:
    """Return remarks for the operator on hosts that were reset."""
    remarks = []
    for host in hosts:
        if _is_in_tasks(snapshot, plan, host):
            remarks.append(
                f"{host} {'would wait' if dry else 'waits'} for its post-upgrade tasks again, and its slot {'would be' if dry else 'is'} free. Once all "
                f"hosts are upgraded, run ansible-playbook convoy.upgrade.post_upgrade {option('version', snapshot.current_version)}."
            )
        record, view = _started(snapshot, host), plan.hosts[host]
        if record is not None:
            what = f"the job {job_id(record.version)}" if is_job(record.version) else f"its upgrade to {record.version}"
            # The end of a job changes nothing of an upgrade that failed there.
            keeps = host in snapshot.busy and plan.fleet is not None and plan.fleet.hosts[host].is_down
            slot = (
                "it keeps its slot, because it failed in an upgrade"
                if keeps
                else f"its slot {'would be' if dry else 'is'} free"
            )
            remarks.append(
                f"{host} had begun {what} and reported no end. It {'would count' if dry else 'now counts'} as ended, and {slot}: make sure that "
                f"{'no command' if is_job(record.version) else 'no upgrade'} runs there."
            )
        hold = snapshot.holds.covering(host, view.role)
        if hold is not None:
            remarks.append(f"{host} is {hold.text()}, so it is not admitted before that.")
    return remarks


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
    failed_at = kept.times.get(FAILED)
    failures = kept.failures
    if failed_at is not None and all(one.at != failed_at for one in failures):
        last = Failure(failed_at, kept.attempt, kept.service or "", kept.step or "", (kept.error or "")[-MOST_KEPT:])
        failures = newest_failures((*failures, last))
    # It is to be upgraded again, and its post-upgrade tasks come after that, unless they are done.
    post = kept.post if kept.post == POST_DONE else None
    # With the time of a failure, the host would count as failed when it starts again.
    times = {state: at for state, at in kept.times.items() if state != FAILED}
    return replace(
        kept,
        state=RETRIED,
        error=None,
        post=post,
        other_machine=None,
        **of_host,
        failures=failures,
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


def _put_back(
    store: Store,
    snapshot: Snapshot,
    hosts: Sequence[str],
    changed: Collection[str],
    version: str,
    after: Collection[str],
) -> dict[str, HostWrite]:
    """Return host -> the write that resets it, without hosts whose state or version has changed since the snapshot.

    :param changed: hosts that have written their records since the snapshot.
    :param after: upgraded hosts, of which only the post-upgrade tasks are reset.
    """
    keys = store.keys
    ended = {host: f"{keys.job_records}{host}" for host in hosts if host in snapshot.busy}
    entries = {
        entry.key: entry for entry in store.client.read([ended.get(host) or keys.record(host) for host in hosts])
    }
    found = {}
    for host in hosts:
        if host in ended:
            entry = entries.get(ended[host])
            if entry is not None:
                found[host] = _end_of_job(entry, snapshot.busy[host])
            continue
        key, gate, mark = keys.record(host), keys.gate("host", host), keys.mark(host)
        entry = entries.get(key)
        decode = decode_job_record if keys.is_job else decode_record
        before = decode(key, entry.value) if entry is not None else None
        seen = snapshot.records.get(host)
        index = seen.index if seen is not None else 0
        if host in changed:
            if (
                entry is None
                or before is None
                or seen is None
                or (before.version, before.state, before.post) != (seen.version, seen.state, seen.post)
            ):
                continue
            index = entry.modify_index
        if host in after and entry is not None and before is not None:
            text = encode_record(replace(before, post=None, service=None, step=None, error=None))
            # Its gate and its health stay as they are.
            found[host] = HostWrite([compare_and_put(key, text, index)], [Change(key, text_of(entry.value), text)])
            continue
        now = int(runtime.now())
        if keys.is_job:
            text = retried_job_record(entry.value if entry is not None else None, version, now)
        else:
            text = encode_record(put_back_record(before, version, states.reported_version(snapshot, host), now))
        old = snapshot.gates.hosts.get(host)
        found[host] = HostWrite(
            # Fails if the host has written its record since it was read.
            [compare_and_put(key, text, index), put(gate, CLOSED), remove(mark)],
            [
                Change(key, text_of(entry.value) if entry is not None else None, text),
                Change(gate, old.text if old is not None else None, CLOSED),
            ],
        )
    return found


def _end_of_job(entry: KVEntry, record: HostRecord) -> HostWrite:
    """Return the write after which a host does not count as being in the middle of an earlier job.

    :param entry: its record of that job.
    :param record: the same, as the snapshot has it. The write fails if it has changed since.
    """
    text = retried_job_record(entry.value, record.version, int(runtime.now()))
    return HostWrite([compare_and_put(entry.key, text, record.index)], [Change(entry.key, text_of(entry.value), text)])
