# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forget: an operator removes all keys of hosts, such as decommissioned ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..._codecs.values import before_job, ledger_of_versions, text_of
from ..._common import runtime
from ..._common.errors import UpgradeError
from ..._common.names import check_name, did_you_mean, in_order, is_job, job_id, listing
from ..._common.sanitize import option
from ..._consul.client import KVEntry, Operation
from ..._consul.errors import Conflict
from ..._consul.operations import Change, compare, compare_and_put, compare_and_remove, net_changes, put, remove
from ..._consul.retry import retry_on_conflict
from ..._fleet.fleet import DEFAULT_ROLE_PATTERN, STARTED, HostRecord, Snapshot, compile_role_pattern, role_by_name
from ..._fleet.ledger import Ledger
from ..._host_states import state_names, states
from ..._host_states.host_state import HostState
from ..._rules.instructions import parse
from ..._state.gate_copies import GateCopies
from ..._state.keys import Keys
from ..._state.layout import refuse_to_plan
from ..._state.ledger_writer import LedgerWriter
from ..._state.legacy_keys import LegacyKeys
from ..._state.store import Store, current_user
from .command import Command, CommandResult, command_fields

_MOST_TRIES = 20
# Keys for one write. The ledger, comparisons, the key of all holds and a second copy of the gate need room too.
_MOST_KEYS = 50


def forget(
    store: Store, command: Command, hosts: Sequence[str], *, force: bool = False, dry: bool = False
) -> CommandResult:
    """Remove all keys of hosts: reports, record, gate, hold, health mark, lease and wake key, and their part of the ledger. One write for each host.

    The history stays. This works without a rollout too.

    :param force: whether to forget hosts that are being upgraded. Their slots become free.
    :raises UpgradeError: ``no_target``, ``bad_name``, ``at_work``, ``busy``.
    """
    names = [check_name("host", host, "hosts") for host in dict.fromkeys(hosts)]
    if not names:
        raise UpgradeError(
            "no_target",
            "hosts is empty, so no host is forgotten. Name the hosts: ansible-playbook convoy.upgrade.forget -e host=HOST.",
        )
    changes: list[Change] = []
    remarks: dict[str, list[str]] = {}

    def attempt() -> CommandResult:
        snapshot = store.snapshot()
        refuse_to_plan(store.keys, snapshot)
        of_rollout = store.of(snapshot)
        waiting = [host for host in names if host not in remarks]
        known = _known(store, waiting)
        if not force:
            _refuse_at_work(snapshot, command.fleet, [host for host in waiting if known[host]])
        writer = LedgerWriter(store, snapshot, current_user(), int(runtime.now()), dry=dry)
        sizes = Counter(_role_of(snapshot, command.fleet, one) for one in _known_hosts(snapshot, command.fleet))
        # The first write to the folder of holds changes its index.
        first_held = next((host for host in waiting if known[host] and host in snapshot.holds.hosts), None)
        try:
            for host in waiting:
                found = _remarks(snapshot, command.fleet, host, is_known=bool(known[host]), dry=dry)
                if known[host]:
                    entries, is_first = known[host], host == first_held
                    _remove(
                        of_rollout,
                        writer,
                        snapshot,
                        command,
                        host,
                        entries,
                        sizes,
                        changes,
                        force=force,
                        is_first=is_first,
                    )
                    sizes[_role_of(snapshot, command.fleet, host)] -= _is_counted(snapshot, command.fleet, host)
                remarks[host] = found
        except Conflict:
            # A host that keeps writing its record comes last, so that it stops no other.
            names.append(names.pop(names.index(host)))
            raise
        finally:
            changes.extend(writer.changes)
        of_changes = {_host_of(store.keys, one.key) for one in changes}
        gone = [host for host in names if host in of_changes]
        return CommandResult(
            writer.ledger,
            changes=net_changes(changes),
            hosts=in_order(gone),
            remarks=[line for host in names for line in remarks[host]],
        )

    def changed() -> str:
        gone = [host for host in names if host in remarks]
        left = listing([host for host in names if host not in remarks])
        return f"{f'{listing(gone)}: forgotten. ' if gone else ''}{left}: the ledger or a record"

    return retry_on_conflict(
        attempt, changed, "Stop the agent of the host, then run the same command again.", _MOST_TRIES
    )


def _known(store: Store, hosts: Sequence[str]) -> dict[str, list[KVEntry]]:
    """Return host -> the entries of all keys that belong to it alone."""
    keys, old = store.keys, LegacyKeys(store.keys.prefix)
    of_jobs = replace(keys, is_job=True)
    folders = (
        keys.reports,
        keys.gates,
        keys.records,
        of_jobs.gates,
        of_jobs.records,
        keys.job_outputs,
        keys.holds,
        keys.marks,
        keys.job_marks,
        keys.leases,
        keys.wakes,
        old.reports,
        *old.gate_folders,
    )
    found: dict[str, list[KVEntry]] = {host: [] for host in hosts}
    for entry in store.client.read(folders):
        host = _host_of(keys, entry.key)
        if host in found:
            found[host].append(entry)
    return found


def _host_of(keys: Keys, key: str) -> str | None:
    """Return the host that a key belongs to; None for a key that belongs to no single host."""
    old = LegacyKeys(keys.prefix)
    plain, of_jobs = replace(keys, is_job=False), replace(keys, is_job=True)
    single = (plain.records, of_jobs.records, keys.job_outputs, plain.marks, keys.job_marks, keys.leases, keys.wakes)
    for folder in (*single, *(f"{one}host/" for one in (keys.holds, plain.gates, of_jobs.gates))):
        if key.startswith(folder):
            return key[len(folder) :]
    for folder in (keys.reports, old.reports):
        if key.startswith(folder):
            return key[len(folder) :].partition("/")[2]
    place = old.gate_of(key)
    return place[1] if place is not None and place[0] == "host" else None


def _role_of(snapshot: Snapshot, fleet: Mapping[str, str], host: str) -> str:
    pattern = (snapshot.ledger.role_pattern if snapshot.ledger else None) or DEFAULT_ROLE_PATTERN
    return fleet.get(host) or role_by_name(host, compile_role_pattern(pattern)) or ""


def _refuse_at_work(snapshot: Snapshot, fleet: Mapping[str, str], hosts: Sequence[str]) -> None:
    rules = parse(snapshot.ledger.instructions).health if snapshot.ledger is not None else None
    found = states.read_states(snapshot, {host: _role_of(snapshot, fleet, host) for host in hosts}, rules)
    for host, one in found.items():
        if host in snapshot.leases:
            why = "an Ansible run has a lease on it"
        elif (begun := _begun(snapshot, one)) is not None:
            target = begun.version
            what = f"the job {job_id(target)}" if is_job(target) else f"its upgrade to {target}"
            why = f"it has begun {what} and not finished it"
        elif one.state == state_names.UPGRADING:
            why = f"it {one.trouble or 'was admitted'}"
        else:
            continue
        raise UpgradeError(
            "at_work",
            f"{host} is not forgotten, because {why}. Its slot would be free while it may be down. Wait until it is done, or make sure that "
            f"no upgrade runs there and run ansible-playbook convoy.upgrade.forget {option('host', host)} -e force=true.",
            hosts=[host],
        )


def _begun(snapshot: Snapshot, one: HostState) -> HostRecord | None:
    """Return the record of work that a host has begun and not ended, of the rollout or besides; None if there is none."""
    # A lost host too: its upgrade may still run.
    if one.record is not None and one.record.state == STARTED:
        return one.record
    return snapshot.busy.get(one.host)


def _remove(
    store: Store,
    writer: LedgerWriter,
    snapshot: Snapshot,
    command: Command,
    host: str,
    entries: Sequence[KVEntry],
    sizes: Mapping[str, int],
    changes: list[Change],
    *,
    force: bool,
    is_first: bool,
) -> None:
    """Remove the keys of one host.

    :param is_first: whether this is the first held host, so that the write fails if any hold has changed since the snapshot. After that, the write of each
        host fails if its own hold has changed.
    """
    keys, old = store.keys, LegacyKeys(store.keys.prefix)
    gates, hold = (keys.gate("host", host), old.gate("host", host)), keys.hold("host", host)
    found = [
        (
            compare_and_remove(one.key, one.modify_index) if one.key == hold else remove(one.key),
            Change(one.key, text_of(one.value) or "", None),
        )
        for one in entries
        if one.key not in gates
    ]
    gate = snapshot.gates.hosts.get(host)
    if gate is not None or host in snapshot.legacy_gates.hosts:
        found.insert(0, (remove(gates[0]), Change(gates[0], gate.text or "" if gate is not None else None, None)))
        pause = GateCopies(keys, snapshot).unpaused("host", host, is_gone=True)
        if pause is not None:
            found.insert(1, pause)
    record = snapshot.records.get(host)
    # Fails if the host has written its record since it was read, or if a run has taken a lease on it.
    checks = [compare(keys.record(host), record.index if record is not None else 0)]
    # The same for its record of the job, or beside a job for that of its upgrade.
    other = replace(keys, is_job=not keys.is_job).record(host)
    checks.append(compare(other, next((one.modify_index for one in entries if one.key == other), 0)))
    checks += [] if force else [compare(keys.lease(host), 0)]
    if host in snapshot.holds.hosts:
        mark = runtime.new_id()
        checks.append(compare_and_put(keys.holds, mark, snapshot.hold_index) if is_first else put(keys.holds, mark))
    fields = command_fields(command.plain())
    event = {"what": "forget", "hosts": {host: str(fields["reason"]) or "all of its keys are removed"}, **fields}
    for at in range(0, len(found), _MOST_KEYS):
        piece = found[at : at + _MOST_KEYS]
        operations: list[Operation] = [*(checks if not at else ()), *(operation for operation, _change in piece)]
        piece_changes = [change for _operation, change in piece]
        if writer.ledger is not None:
            ledger = _without(writer.ledger, snapshot, command.fleet, sizes, host) if not at else writer.ledger
            writer.write(ledger, event, operations, piece_changes)
            continue
        copies = GateCopies(keys, snapshot)
        if not writer.dry:
            # A planner that has written a ledger since the read has planned with this host.
            store.client.settle([compare(keys.ledger, snapshot.ledger_index), *copies.operations(operations)])
        changes += copies.changes(piece_changes)


def _without(
    ledger: Ledger, snapshot: Snapshot, fleet: Mapping[str, str], sizes: Mapping[str, int], host: str
) -> Ledger:
    """Return the ledger without a host. Its role counts one host less if the count includes a host that is not known otherwise.

    A job keeps the last rollout to a version, which goes on after it, so that one is without the host too.

    :param sizes: role -> number of hosts that are in ``fleet`` or stored, without those that were forgotten before this one.
    """
    kept = ledger_of_versions(ledger) if ledger.is_job else None
    if kept is not None:
        ledger = replace(ledger, before=before_job(_without(kept, snapshot, fleet, sizes, host)))
    role = _role_of(snapshot, fleet, host)
    left = sizes.get(role, 0) - _is_counted(snapshot, fleet, host)
    count = ledger.members.get(role, 0)
    members = {**ledger.members, role: count - 1} if count > left else dict(ledger.members)
    return replace(
        ledger,
        members={of: number for of, number in members.items() if number},
        admitted={other: at for other, at in ledger.admitted.items() if other != host},
        broken=tuple(other for other in ledger.broken if other != host),
    )


def _is_counted(snapshot: Snapshot, fleet: Mapping[str, str], host: str) -> bool:
    """Return whether a host counts only because it is stored. One that is only held, or has only a gate, does not count."""
    return host not in fleet and (host in snapshot.reports or host in snapshot.records or host in snapshot.others)


def _known_hosts(snapshot: Snapshot, fleet: Mapping[str, str]) -> set[str]:
    return {*fleet, *snapshot.reports, *snapshot.records, *snapshot.others}


def _remarks(snapshot: Snapshot, fleet: Mapping[str, str], host: str, *, is_known: bool, dry: bool) -> list[str]:
    """Return remarks for the operator on a host that is forgotten."""
    if not is_known:
        others = {*fleet, *snapshot.reports, *snapshot.records}
        return [f"Nothing is stored about {host}{did_you_mean(host, others - {host}) or '.'}"]
    remarks = [
        f"{host} {'would be' if dry else 'is'} forgotten. If it still runs, stop its agent, or its next run reports it again."
    ]
    hold = snapshot.holds.hosts.get(host)
    if hold is not None:
        remarks.append(f"{host} was {hold.text()}. That hold {'would be' if dry else 'is'} removed too.")
    if host in fleet:
        remarks.append(
            f"{host} is in the inventory, so it {'would count' if dry else 'counts'} as a host that never reported. Remove it from the inventory."
        )
    return remarks
