# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds, which exempt hosts, roles or everything from a rollout: set them and end them."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from ..._codecs.record import encode_record
from ..._codecs.values import encode_hold
from ..._common import runtime
from ..._common.errors import UpgradeError
from ..._common.names import check_name, did_you_mean, in_order, is_job, listing, target_text
from ..._common.sanitize import sanitize, truncate_middle
from ..._consul.client import Operation
from ..._consul.operations import Change, compare, compare_and_put, net_changes, put, remove
from ..._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from ..._fleet.fleet import DEFAULT_ROLE_PATTERN, STARTED, Snapshot, compile_role_pattern, role_by_name
from ..._fleet.holds import MADE_OF_GATES, Hold, HoldOfFormerRole
from ..._state.gate_copies import GateCopies
from ..._state.keys import Keys
from ..._state.layout import refuse_newer_among
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.legacy_keys import LegacyKeys
from ..._state.snapshot import decode_snapshot
from ..._state.store import Store, current_user
from ..opened_gates import wake

# Of a long list, this many names get a sentence each.
_MOST_REMARKS = 5
# Of records in one write. Consul takes 512 KiB, and the ledger and the history need room too.
_MOST_BYTES = 150_000
# A held node gets no admission from then on, even if its earlier run was interrupted.
_CONTINUES = "The current run continues; no further run begins until the hold ends. The slot stays taken until then."


@dataclass(frozen=True, slots=True)
class HoldTargets:
    """What holds apply to.

    :param fleet: host -> role, for hosts whose names do not give their roles.
    :param allow_unknown: whether names of unknown hosts and roles are allowed, such as of hosts that will join the fleet.
    """

    everything: bool = False
    roles: Sequence[str] = ()
    hosts: Sequence[str] = ()
    fleet: Mapping[str, str] = field(default_factory=dict)
    allow_unknown: bool = False

    def scopes(self) -> list[tuple[str, str | None]]:
        """Return scope and name of each hold; the name is None for everything.

        :raises UpgradeError: ``bad_name``, ``no_target``.
        """
        found: list[tuple[str, str | None]] = [("global", None)] if self.everything else []
        found += [("role", check_name("role", name, "roles")) for name in dict.fromkeys(self.roles)]
        found += [("host", check_name("host", name, "hosts")) for name in dict.fromkeys(self.hosts)]
        if not found:
            raise UpgradeError(
                "no_target",
                "No target is given: give hosts, roles, or everything: true. In a playbook, these are -e host=H, -e role=R and -e everything=true.",
            )
        return found


@dataclass(slots=True)
class HoldResult:
    """The holds that were set or ended.

    :param ended: the keys of the holds that were ended, also of a pause of python-jiocloud that has no such key.
    :param remarks: sentences for the operator, such as on a host that has begun already.
    """

    holds: list[Hold] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def set_holds(store: Store, whom: HoldTargets, reason: str, by: str | None = None, *, dry: bool = False) -> HoldResult:
    """Hold hosts, roles or everything. An existing hold with the same reason is not changed, except that its name may be unknown from now on.

    A planner may be in the middle of a pass. So the write increments the ledger's epoch, which makes that pass retry. It also writes
    the folder's own key, which the beginning of a rollout compares. Holds work with an unreadable ledger too.

    :param by: the operator; None for the user of this process.
    :raises UpgradeError: ``bad_name``, ``no_target``, ``no_reason``, ``unknown_names``, ``busy``.
    """
    scopes = whom.scopes()
    if not reason.strip():
        raise UpgradeError(
            "no_reason",
            "reason is empty. Give a reason for operators who see the hold later.",
            variables={"reason": "WHY"},
        )
    at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(runtime.now()))
    reason, by = (truncate_middle(sanitize(text)) for text in (reason.strip(), by or current_user()))

    def change(snapshot: Snapshot, held: HoldResult) -> list[tuple[Operation, Change]]:
        found = []
        unknown = _refuse_unknown(snapshot, whom, scopes)
        for scope, name in scopes:
            key = store.keys.hold(scope, name)
            old = snapshot.holds.at(scope, name)
            if old is not None and old.key != key:
                old = None
            may_be_unknown = whom.allow_unknown and name is not None
            if old is not None and old.reason == reason and (old.allow_unknown or not may_be_unknown):
                held.holds.append(old)
                continue
            hold = Hold(key, reason, by, at, may_be_unknown)
            held.holds.append(hold)
            text = encode_hold(hold)
            found.append((put(key, text), Change(key, encode_hold(old) if old else None, text)))
        held.remarks = [*_begun(snapshot, whom), *unknown]
        return found

    return _write(store, change, {"what": "hold", "by": by, "reason": reason}, dry=dry)


def end_holds(store: Store, whom: HoldTargets, by: str | None = None, *, dry: bool = False) -> HoldResult:
    """End holds. A hold that does not exist gets a remark.

    A named host is no longer held through the role that it had before, either. Its own gate still has to open: planners admit it by its present role.

    :param by: the operator; None for the user of this process.
    :raises UpgradeError: ``bad_name``, ``no_target``, ``unknown_names``, ``busy``.
    """
    scopes = whom.scopes()
    # Over all tries: a try that ends in a conflict may have ended some holds.
    were_held: set[tuple[str, str | None]] = set()
    of_former_roles: dict[str, HoldOfFormerRole] = {}

    def change(snapshot: Snapshot, held: HoldResult) -> list[tuple[Operation, Change]]:
        found = []
        for scope, name in scopes:
            old = snapshot.holds.at(scope, name)
            if old is not None:
                were_held.add((scope, name))
                found += _gate_of_hold(store, snapshot, old, scope, name)
                if old.key == store.keys.hold(scope, name):
                    found.append((remove(old.key), Change(old.key, encode_hold(old), None)))
            of_former = snapshot.hold_of_former_role(name) if scope == "host" and name is not None else None
            if of_former is not None and name is not None:
                were_held.add((scope, name))
                of_former_roles[name] = of_former
                found.append(_without_former_role(store, snapshot, name))
        left = [one for one in scopes if one not in were_held]
        _refuse_unknown(snapshot, whom, left)
        held.remarks = [
            *_no_longer_held(of_former_roles, dry=dry),
            *_still_held(snapshot, whom),
            *_not_held(snapshot, left, scopes),
        ]
        return found

    return _write(
        store, change, {"what": "unhold", "by": truncate_middle(sanitize(by or current_user())), "reason": ""}, dry=dry
    )


_Planned = list[tuple[Operation, Change]]


def _write(
    store: Store, change: Callable[[Snapshot, HoldResult], _Planned], event: Mapping[str, Any], *, dry: bool
) -> HoldResult:
    changes: list[Change] = []

    def write_some() -> HoldResult | None:
        """Write as much as a transaction takes; return the result once nothing is left, None before that."""
        held = HoldResult()
        snapshot, lost = _read(store)
        found = change(snapshot, held)
        # The folder's own key takes one operation, and a gate may be removed in two layouts. The rest is read again and written next.
        has_gates = any(not one.key.startswith(store.keys.holds) for _operation, one in found)
        most = (MOST_GATES - 1) // (2 if has_gates else 1)
        sizes = [*accumulate(len(one.after or "") for _operation, one in found)]
        piece = found if dry else found[: max(1, min(most, bisect_right(sizes, _MOST_BYTES)))]
        if piece and not dry:
            _send(store, snapshot, piece, event)
        changes.extend(one for _operation, one in piece)
        if len(piece) < len(found):
            return None
        held.changes, held.ended = net_changes(changes), _ended(store.keys, changes)
        held.remarks += lost if changes else []
        return held

    while True:
        held = retry_on_conflict(write_some, lambda: store.keys.ledger, tries=TRIES_OF_LEDGER)
        if held is not None:
            if not dry:
                _wake_hosts(store, changes)
            return held


def _target(keys: Keys, key: str) -> str | None:
    """Return what a written key holds, or held: ``global``, or ``role/`` or ``host/`` and its name; None for a key that holds nothing."""
    if key.startswith(keys.records):
        return f"host/{key[len(keys.records) :]}"
    if (place := LegacyKeys(keys.prefix).gate_of(key)) is not None:
        return "/".join(filter(None, place))
    return key[len(keys.holds) :] if key.startswith(keys.holds) else None


def _ended(keys: Keys, changes: Iterable[Change]) -> list[str]:
    """Return the keys of the holds that ended. An old tool's gate changes only because its pause ends, also if it stays closed."""
    old = LegacyKeys(keys.prefix)
    ends = [one.key for one in changes if one.after is None or old.gate_of(one.key) is not None]
    return sorted({f"{keys.holds}{target}" for key in ends if (target := _target(keys, key)) is not None})


def _wake_hosts(store: Store, changes: Sequence[Change]) -> None:
    """Wake the agents of hosts whose own holds have changed, because they may keep out a Puppet that something else runs."""
    targets = [_target(store.keys, one.key) or "" for one in changes]
    hosts = [name.partition("/")[2] for name in dict.fromkeys(targets) if name.startswith("host/")]
    # The holds are written. An agent that is not woken reads them some minutes later, as those of a held role do.
    with contextlib.suppress(UpgradeError):
        # A hold may end in the second in which it began.
        wake(store, hosts, runtime.new_id())


def _read(store: Store) -> tuple[Snapshot, list[str]]:
    """Return a snapshot, without the ledger if that can't be read, and remarks on that."""
    try:
        return store.snapshot(), []
    except UpgradeError as error:
        if error.code != "unreadable_ledger":
            raise
    keys, legacy_keys = store.keys, LegacyKeys(store.keys.prefix)
    reports, gates = (keys.reports, legacy_keys.reports), (keys.gates, *legacy_keys.gate_folders)
    folders = (
        keys.schema,
        keys.migration,
        keys.current_version,
        keys.ledger,
        keys.records,
        keys.holds,
        *reports,
        *gates,
    )
    entries = store.client.read(folders)
    refuse_newer_among(keys, entries)
    snapshot = decode_snapshot(keys, (entry for entry in entries if entry.key != keys.ledger))
    index = next((entry.modify_index for entry in entries if entry.key == keys.ledger), 0)
    remark = f"The ledger {keys.ledger} can't be read. The holds are changed, but the history has no entry for that."
    return replace(snapshot, ledger_index=index), [remark]


def _send(store: Store, snapshot: Snapshot, piece: _Planned, event: Mapping[str, Any]) -> None:
    keys = store.keys
    # The value is unique, because Consul ignores a write that changes nothing. The index of this key has to change: a rollout that
    # begins and a host that starts compare it.
    mark = compare_and_put(keys.holds, runtime.new_id(), snapshot.hold_index)
    operations = [mark, *(operation for operation, _change in piece)]
    if snapshot.ledger is None:
        # A planner that has written a ledger since the read may have planned without this hold.
        check = compare(keys.ledger, snapshot.ledger_index)
        store.client.settle([check, *GateCopies(keys, snapshot.versions or snapshot).operations(operations)])
        return
    names = [name for _operation, one in piece if (name := _target(keys, one.key)) is not None]
    targets = _targets(names, str(event["reason"]))
    LedgerWriter(store, snapshot, current_user(), int(runtime.now())).write(
        snapshot.ledger, {**event, **targets}, operations
    )


def _targets(names: Sequence[str], reason: str) -> dict[str, Any]:
    """Return the targets of holds as fields of a history entry; empty for everything."""
    if "global" in names:
        return {}
    of = {
        scope: [name.partition("/")[2] for name in names if name.startswith(f"{scope}/")] for scope in ("role", "host")
    }
    return {"hosts": dict.fromkeys(of["host"], reason), "roles": {role: {"reason": reason} for role in of["role"]}}


def _without_former_role(store: Store, snapshot: Snapshot, host: str) -> tuple[Operation, Change]:
    """Return the write after which a host is not held through the role that it had before.

    Its record still says that its role has changed, so that no gate which planners opened before admits it. The write fails if the host has
    written its record since it was read.
    """
    record = (snapshot.versions or snapshot).records[host]
    key, text = store.keys.record(host), encode_record(replace(record, former_role=""))
    return compare_and_put(key, text, record.index), Change(key, encode_record(record), text)


def _gate_of_hold(store: Store, snapshot: Snapshot, hold: Hold, scope: str, name: str | None) -> _Planned:
    """Return the writes that end the pause of a hold, and remove the closed gate that the hold was made from.

    They fail if the gate was set since the read.
    """
    # Those of a job are others, which no hold was made from.
    gates = snapshot.versions or snapshot
    gate = gates.gates.at(scope, name)
    is_made_of_gate = name is not None and hold.by in MADE_OF_GATES  # The closed global gate is a rollout's.
    is_gone = gate is not None and is_made_of_gate and gate.was_closed_by_hand(gates.current_version)
    copies = GateCopies(store.keys, replace(gates, legacy_gates=snapshot.legacy_gates))
    pause = copies.unpaused(scope, name, is_gone=is_gone)
    found = [pause] if pause is not None else []
    if gate is not None and is_gone:
        found.append((remove(gate.key), Change(gate.key, gate.text or "", None)))
    if found:
        # A piece that ends after this one is no harm: the rest begins with it again.
        key, text = store.keys.gate(scope, name), (gate.text or "" if gate is not None else None)
        found.insert(0, (compare(key, gate.index if gate is not None else 0), Change(key, text, text)))
    return found


def _begun(snapshot: Snapshot, whom: HoldTargets) -> list[str]:
    """Return remarks on held hosts that have begun: one for each named host, and one for all others."""
    records = {**snapshot.records, **snapshot.busy}
    begun = {host: record.version for host, record in records.items() if record.state == STARTED}
    named = [host for host in dict.fromkeys(whom.hosts) if host in begun]
    what = {
        host: f"the {target_text(begun[host])}" if is_job(begun[host]) else f"its upgrade to {begun[host]}"
        for host in named
    }
    remarks = [f"{host} has begun {what[host]}. {_CONTINUES}" for host in named]
    others = [host for host in in_order(begun) if host not in named]
    if not whom.everything:
        role_of, roles = _roles(snapshot, whom, others), frozenset(whom.roles)
        others = [host for host in others if role_of[host] in roles]
    if others:
        remarks.append(f"{listing(others)} had begun to upgrade. {_CONTINUES}")
    return remarks


def _roles(snapshot: Snapshot, whom: HoldTargets, hosts: Iterable[str]) -> dict[str, str | None]:
    """Return host -> role, from the fleet or from the host's name."""
    pattern = compile_role_pattern((snapshot.ledger.role_pattern if snapshot.ledger else None) or DEFAULT_ROLE_PATTERN)
    return {host: whom.fleet.get(host) or role_by_name(host, pattern) for host in hosts}


def _refuse_unknown(snapshot: Snapshot, whom: HoldTargets, scopes: Sequence[tuple[str, str | None]]) -> list[str]:
    """Refuse names of unknown hosts and roles, because a typo would hold no host. If they are allowed, return remarks on them.

    :raises UpgradeError: ``unknown_names``.
    """
    role_of = _roles(snapshot, whom, {*whom.fleet, *snapshot.reports, *snapshot.records, *snapshot.others})
    known = {"role": {role for role in role_of.values() if role}, "host": set(role_of)}
    found = [(scope, name) for scope, name in scopes if name is not None and name not in known[scope]]
    texts = [
        f"Unknown {scope} {name}: it is neither in fleet nor in a report{did_you_mean(name, known[scope]) or '.'}"
        for scope, name in found[:_MOST_REMARKS]
    ]
    if len(found) > _MOST_REMARKS:
        texts.append(f"Also unknown: {listing([name for _scope, name in found[_MOST_REMARKS:]])}.")
    if found and not whom.allow_unknown:
        raise UpgradeError(
            "unknown_names",
            f"{' '.join(texts)} Nothing is changed. Correct the name, or give allow_unknown: true (-e allow_unknown=true) if it is right.",
            names=[name for _scope, name in found],
        )
    return texts


def _not_held(
    snapshot: Snapshot, scopes: Sequence[tuple[str, str | None]], asked: Sequence[tuple[str, str | None]]
) -> list[str]:
    """Return remarks on holds that do not exist.

    :param asked: all holds that are ended. None of them is suggested for another.
    """
    holds = snapshot.holds
    remarks = ["There was no hold on everything."] if ("global", None) in scopes else []
    named = [(scope, name) for scope, name in scopes if name is not None]
    for scope, name in named[:_MOST_REMARKS]:
        known = holds.roles if scope == "role" else holds.hosts
        others = [one for one in known if (scope, one) not in asked]
        remarks.append(f"There was no hold on {scope} {name}{did_you_mean(name, others) or '.'}")
    if len(named) > _MOST_REMARKS:
        remarks.append(f"Nor on {listing([name for _scope, name in named[_MOST_REMARKS:]])}.")
    return remarks


def _no_longer_held(holds: Mapping[str, HoldOfFormerRole], *, dry: bool) -> list[str]:
    """Return remarks on hosts that were held through the roles that they had before.

    :param holds: host -> that hold.
    """
    ends = "would no longer be" if dry else "is no longer"
    remarks = [
        f"{host} {ends} held through its former role {hold.role}. Other hosts still are. Planners admit it by its present role."
        for host, hold in (*holds.items(),)[:_MOST_REMARKS]
    ]
    if len(holds) > _MOST_REMARKS:
        remarks.append(f"The same goes for {listing([*holds][_MOST_REMARKS:])}.")
    return remarks


def _still_held(snapshot: Snapshot, whom: HoldTargets) -> list[str]:
    """Return remarks on other holds over the hosts whose holds end."""
    holds = snapshot.holds
    if holds.everywhere is not None and not whom.everything:
        return [f"A hold on everything remains: {holds.everywhere.text()}."]
    left = replace(
        holds,
        everywhere=None,
        roles={role: hold for role, hold in holds.roles.items() if role not in whom.roles},
        hosts={host: hold for host, hold in holds.hosts.items() if host not in whom.hosts},
    )
    # The role of a host may be unknown.
    role_of = _roles(snapshot, whom, {**whom.fleet, **snapshot.reports, **snapshot.records})
    found = {
        host: hold
        for host, role in role_of.items()
        if (whom.everything or role in whom.roles or host in whom.hosts) and (hold := left.covering(host, role))
    }
    remarks = [f"{host} is still {hold.text()}." for host, hold in (*found.items(),)[:_MOST_REMARKS]]
    if len(found) > _MOST_REMARKS:
        remarks.append(f"So are {listing([*found][_MOST_REMARKS:])}, perhaps for other reasons.")
    return remarks
