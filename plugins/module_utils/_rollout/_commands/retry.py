# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator puts failed and lost hosts back among those that wait."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ..._common.errors import UpgradeError
from ..._common.names import did_you_mean, in_order, listing
from ..._consul.client import Operation
from ..._consul.operations import Change, compare_and_put, put, remove
from ..._fleet.checkpoints import is_checkpoint_group
from ..._fleet.fleet import RETRIED, STARTED, UPGRADED, HostRecord, Snapshot
from ..._fleet.former_rollouts import with_former_rollout
from ..._fleet.gates import CLOSED
from ..._fleet.ledger import PAUSED, RUNNING, Ledger
from ..._fleet.step_trail import extended_trail
from ..._host_states import states
from ..._planner.plan import HostView, Plan
from ..._state.codec import text_of
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.record_codec import decode_record, encode_record
from ..._state.store import Store
from ..host_writes import HostWrite, left_out_warning, write_hosts
from .command import Command, CommandResult, command_fields, plan_of, refuse_unless, write_command


def retry(store: Store, word: Command, hosts: Sequence[str] | None = None, *, dry: bool = False) -> CommandResult:
    """Put failed and lost hosts back among those that wait. Holds stay.

    :param hosts: these; None for all that failed or are lost, and no one where the list is empty. One that is named is put
        back also where it began to go to another version and never ended that, as when it died on the way to one that is
        taken back.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``unknown_host``, ``fleet_too_small``, ``overtaken``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has put back some already.
    put_back: set[str] = set()
    remarks: list[str] = []

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        plan = plan_of(writer.store, snapshot, ledger, word.fleet)
        for name in hosts or ():
            if name not in plan.hosts:
                raise UpgradeError(
                    "unknown_host", f"hosts: {name!r} is no host of this fleet{did_you_mean(name, plan.hosts) or '.'}"
                )
        asked = frozenset(plan.hosts if hosts is None else hosts) - put_back
        named = frozenset(hosts or ())
        chosen = [
            host
            for host, view in plan.hosts.items()
            if host in asked and (view.state in states.BROKEN or (host in named and _is_midway(snapshot, host, view)))
        ]
        well = [host for host in dict.fromkeys(hosts or ()) if host not in {*chosen, *put_back}]
        said = command_fields(word.plain())
        # Beside its gate, a host's record and its mark are written.
        most = MOST_GATES // (2 + writer.places)

        def make(piece: Sequence[str], changed: Collection[str]) -> dict[str, HostWrite]:
            return _put_back(writer.store, snapshot, piece, changed, ledger.version)

        def write(piece: Sequence[str], operations: list[Operation], changes: list[Change]) -> None:
            before = {host: plan.hosts[host].reason for host in piece}
            why = f"{said['reason']}; " if said["reason"] else ""
            event = {"what": "retry", "hosts": {host: f"{why}it was: {text}" for host, text in before.items()}, **said}
            # Whoever is put back has to be admitted again.
            now = writer.ledger or ledger
            admitted = {host: at for host, at in now.admitted.items() if host not in piece}
            writer.write(replace(now, admitted=admitted), event, operations, changes)
            put_back.update(piece)
            remarks.extend(_remarks_on(snapshot, plan, piece))

        write_hosts(writer.store.keys, chosen, most, make, write)
        left_out = [host for host in chosen if host not in put_back]
        if left_out:
            warning = left_out_warning(writer.store.keys, left_out, "Nothing is put back")
            if not put_back:
                raise UpgradeError("busy", warning, hosts=left_out)
            remarks.append(warning)
        left = [f"Neither failed nor lost, and left as they are: {listing(well)}."] if well else []
        if hosts is not None and not hosts:
            left = [
                "The list of hosts is empty, so no one is put back. Leave it out to put back all that failed or are lost."
            ]
        return CommandResult(writer.ledger or ledger, hosts=in_order(put_back), remarks=[*remarks, *left])

    return write_command(store, act, dry=dry)


def _is_midway(snapshot: Snapshot, host: str, view: HostView) -> bool:
    """Return whether a host has begun to go to another version than the wanted one, or was not admitted, and no run is at work on it."""
    record = snapshot.records.get(host)
    if record is None or host in snapshot.leases:
        return False
    elsewhere = record.version != snapshot.current_version
    return view.state == states.UPGRADING and record.state == STARTED and (elsewhere or view.unadmitted)


def _remarks_on(snapshot: Snapshot, plan: Plan, hosts: Iterable[str]) -> list[str]:
    """Return what is worth knowing of hosts that were put back."""
    remarks = []
    for host in hosts:
        record, view = snapshot.records.get(host), plan.hosts[host]
        if record is not None and _is_midway(snapshot, host, view):
            remarks.append(
                f"{host} had begun to go to {record.version} and did not say that it ended. On your word it is taken for "
                "ended, and its slot is free: make sure that nothing is at work there any more."
            )
        hold = snapshot.holds.covering(host, view.role)
        if hold is not None:
            remarks.append(f"{host} is {hold.words()}, so it goes when that has ended.")
    return remarks


def put_back_record(before: HostRecord | None, version: str, reported: str | None, now: int) -> HostRecord:
    """Return a host's record after it was put back among those that wait.

    Where it had begun to go elsewhere, what it has behind it of a path stays, and where it came from. Where that is what it
    reported, it is noted instead where it was going, as it may be there already.

    :param version: the rollout's.
    :param reported: the version that the host reported, None where it never did.
    :param now: unix seconds.
    """
    kept = before if before is not None and before.readable else None
    machine = kept.machine if kept is not None else None
    if kept is None or kept.state == UPGRADED:
        former = with_former_rollout(kept) if kept is not None else ()
        kept = (
            kept
            if kept is not None and kept.version == version
            else HostRecord(version, RETRIED, attempt=0, former=former)
        )
    elif kept.version != version:
        came = kept.version if reported and kept.origin == reported else kept.origin
        kept = HostRecord(
            version,
            RETRIED,
            attempt=0,
            done=tuple(filter(is_checkpoint_group, kept.done)),
            origin=came,
            former=with_former_rollout(kept),
        )
    return replace(
        kept,
        state=RETRIED,
        error=None,
        machine=machine,
        other_machine=None,
        times={**kept.times, RETRIED: now},
        trail=extended_trail(kept.trail, now),
    )


def _put_back(
    store: Store, snapshot: Snapshot, hosts: Sequence[str], changed: Collection[str], version: str
) -> dict[str, HostWrite]:
    """Return what puts hosts back, for those of them that still say what they said.

    :param changed: hosts that have written their records since the snapshot.
    """
    keys = store.keys
    entries = {entry.key: entry for entry in store.client.read([keys.record(host) for host in hosts])}
    found = {}
    for host in hosts:
        key, gate, mark = keys.record(host), keys.gate("host", host), keys.mark(host)
        entry = entries.get(key)
        before = decode_record(key, entry.value) if entry is not None else None
        seen = snapshot.records.get(host)
        index = seen.index if seen is not None else 0
        if host in changed:
            if (
                entry is None
                or before is None
                or seen is None
                or (before.version, before.state) != (seen.version, seen.state)
            ):
                continue
            index = entry.modify_index
        after = put_back_record(before, version, states.reported_version(snapshot, host), int(time.time()))
        text = encode_record(after)
        old = snapshot.gates.hosts.get(host)
        found[host] = HostWrite(
            # As long as the host has not said anything else meanwhile.
            [compare_and_put(key, text, index), put(gate, CLOSED), remove(mark)],
            [
                Change(key, text_of(entry.value) if entry is not None else None, text),
                Change(gate, old.text if old is not None else None, CLOSED),
            ],
        )
    return found
