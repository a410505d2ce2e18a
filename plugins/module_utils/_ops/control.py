# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's word on a rollout: pause, resume, abort, retry, approve, roll back. Each is a planner write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._model import states
from .._model.errors import UpgradeError
from .._model.fleet import RETRIED, Record, Snapshot, place
from .._model.gates import CLOSED, OPEN, GateValue
from .._model.instructions import parse
from .._model.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._model.names import in_order, nearest, some
from .._model.planner import Plan, make_plan
from .._model.shown import bounded
from .._store.client import Operation
from .._store.codec import decode_record, encode_approval, encode_record, text_of
from .._store.errors import Conflict
from .._store.keys import Keys
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.operations import Change, compare_and_put, put, real_changes, remove
from .._store.store import Store, whoami
from .notes import with_checks
from .plan import Request, make_pass

_MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Word:
    """Who says it, and why.

    :param fleet: host -> role, as for a plan.
    """

    reason: str = ""
    by: str = ""
    fleet: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return it as the ledger keeps it."""
        said = {"by": bounded(self.by or whoami()), "at": int(time.time())}
        return {**said, "reason": bounded(self.reason)} if self.reason else {**said}


@dataclass(slots=True)
class Done:
    """What came of it.

    :param hosts: the hosts that it was about: those closed by an abort, those put back by a retry.
    """

    ledger: Ledger
    changes: list[Change] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def pause(store: Store, word: Word, *, dry: bool = False) -> Done:
    """Open nothing more until it is resumed; hosts that have begun go on.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``busy``.
    """

    def act(writer: LedgerWriter, _snapshot: Snapshot, ledger: Ledger) -> Done:
        if ledger.state != PAUSED:
            _refuse_unless(ledger, (RUNNING,), "paused")
            said = word.plain()
            writer.write(replace(ledger, state=PAUSED, word=said), {"what": "pause", **_said(said)})
        return Done(writer.ledger or ledger)

    return _write(store, act, dry=dry)


def resume(store: Store, word: Word, *, dry: bool = False) -> Done:
    """Let a paused rollout go on.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``busy``.
    """

    def act(writer: LedgerWriter, _snapshot: Snapshot, ledger: Ledger) -> Done:
        if ledger.state != RUNNING:
            _refuse_unless(ledger, (PAUSED,), "resumed")
            writer.write(replace(ledger, state=RUNNING, word={}), {"what": "resume", **_said(word.plain())})
        return Done(writer.ledger or ledger)

    return _write(store, act, dry=dry)


def abort(store: Store, word: Word, *, dry: bool = False) -> Done:
    """End a rollout: close what has not begun, and keep every record. Hosts that have begun go on to their end.

    The first write stops all planners; the gates are closed after that, and by a second call where that was cut short.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has closed some already.
    closed: set[str] = set()

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> Done:
        # What has to be refused is refused before the first write.
        gates = _to_close(writer.store.keys, snapshot, _members(snapshot, ledger, word.fleet))
        if ledger.state != ABORTED:
            _refuse_unless(ledger, (RUNNING, PAUSED), "aborted")
            said = word.plain()
            ledger = replace(ledger, state=ABORTED, word=said)
            writer.write(ledger, {"what": "abort", **_said(said)})
        for at in range(0, len(gates), MOST_GATES):
            piece = gates[at : at + MOST_GATES]
            event = {"what": "close", **_closed(writer.store.keys, piece)}
            writer.write(ledger, event, [put(one.key, one.after or "") for one in piece], piece)
            prefix = writer.store.keys.gate("host", "")
            closed.update(one.key[len(prefix) :] for one in piece if one.after == CLOSED and one.key.startswith(prefix))
        return Done(writer.ledger or ledger, hosts=in_order(closed))

    return _write(store, act, dry=dry)


def retry(store: Store, word: Word, hosts: Sequence[str] | None = None, *, dry: bool = False) -> Done:
    """Put failed and lost hosts back among those that wait.

    :param hosts: these; None for all that failed or are lost.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``unknown_host``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has put back some already.
    put_back: set[str] = set()

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> Done:
        _refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        plan = _plan(writer.store, snapshot, ledger, word.fleet)
        for name in hosts or ():
            if name not in plan.hosts:
                raise UpgradeError(
                    "unknown_host", f"hosts: {name!r} is no host of this fleet{nearest(name, plan.hosts) or '.'}"
                )
        asked = frozenset(hosts or plan.hosts) - put_back
        broken = [host for host, view in plan.hosts.items() if view.state in states.BROKEN and host in asked]
        done = Done(ledger)
        well = [host for host in dict.fromkeys(hosts or ()) if host not in {*broken, *put_back}]
        if well:
            done.remarks.append(f"Neither failed nor lost, and left as they are: {some(well)}.")
        for at in range(0, len(broken), MOST_GATES // 3):
            piece = broken[at : at + MOST_GATES // 3]
            operations, changes = _put_back(writer.store, snapshot, piece, ledger.version)
            event = {"what": "retry", "hosts": {host: plan.hosts[host].reason for host in piece}, **_said(word.plain())}
            writer.write(ledger, event, operations, changes)
            put_back.update(piece)
        done.ledger, done.hosts = writer.ledger or ledger, in_order(put_back)
        return done

    return _write(store, act, dry=dry)


def approve(store: Store, word: Word, stage: str | None = None, *, dry: bool = False) -> Done:
    """Say that the rollout may go on after a stage.

    :param stage: its name; None for the one that waits for it.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``nothing_to_approve``, ``busy``.
    """

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> Done:
        _refuse_unless(ledger, (RUNNING, PAUSED), "approved")
        given = snapshot.approvals.get(stage) if stage is not None else None
        if given is not None:
            return Done(ledger, remarks=[f"Stage {stage} was approved by {given.by} already."])
        plan = _plan(writer.store, snapshot, ledger, word.fleet)
        if not plan.wants_approval or (stage is not None and stage != plan.stage):
            now = f"the rollout is in stage {plan.stage}" if plan.stage else "the rules have no stages"
            why = "; it waits for approval" if plan.wants_approval else "; nothing waits for approval now"
            whom = f"stage {stage}" if stage is not None else "the current stage"
            raise UpgradeError(
                "nothing_to_approve",
                f"{whom} can't be approved: {now}{why}. Look at it with status.yml, and approve once its hosts are upgraded.",
            )
        said = word.plain()
        key = writer.store.keys.approval(str(plan.stage))
        text = encode_approval(said)
        event = {"what": "approve", "stage": plan.stage, **_said(said)}
        writer.write(ledger, event, [put(key, text)], [Change(key, None, text)])
        return Done(writer.ledger or ledger)

    return _write(store, act, dry=dry)


def roll_back(store: Store, word: Word, version: str | None = None, *, dry: bool = False) -> Done:
    """Begin a rollout to where the fleet was, under the rules of the one that it takes back. It opens nothing yet.

    :param version: where to; None for the ledger's previous version.
    :raises UpgradeError: ``no_rollout``, ``no_previous_version``, and what :func:`make_pass` raises.
    """
    snapshot = store.snapshot("consistent")
    ledger = _ledger(store.keys, snapshot)
    if ledger.rollback and ledger.state in (RUNNING, PAUSED) and version in (None, ledger.version):
        return Done(ledger, remarks=[f"The fleet is being taken back to {ledger.version} already."])
    target = version or ledger.previous_version
    if target is None:
        raise UpgradeError(
            "no_previous_version",
            f"{store.keys.ledger} does not say where the fleet was before {ledger.version}. Give version.",
        )
    if target == ledger.version:
        raise UpgradeError("no_previous_version", f"version: the fleet is on its way to {target} already.")
    request = Request(target, rules=ledger.instructions, fleet=dict(word.fleet) or None, limit=[], rollback=True)
    outcome = make_pass(store, request, dry=dry)
    return Done(outcome.ledger or ledger, changes=outcome.changes)


def _write(store: Store, act: Callable[[LedgerWriter, Snapshot, Ledger], Done], *, dry: bool) -> Done:
    changes: list[Change] = []
    for _try in range(_MOST_TRIES):
        snapshot = store.snapshot("consistent")
        writer = LedgerWriter(store, snapshot, whoami(), int(time.time()), dry=dry)
        try:
            done = act(writer, snapshot, _ledger(store.keys, snapshot))
        except Conflict:
            changes += writer.changes
            continue
        done.changes = real_changes([*changes, *writer.changes])
        return done
    raise UpgradeError("busy", f"{store.keys.ledger} changed under each of {_MOST_TRIES} tries.")


def _ledger(keys: Keys, snapshot: Snapshot) -> Ledger:
    if snapshot.ledger is None:
        raise UpgradeError(
            "no_rollout", f"There is no rollout: {keys.ledger} is not there. Begin one with upgrade.yml."
        )
    return snapshot.ledger


def _refuse_unless(ledger: Ledger, allowed: Iterable[str], what: str) -> None:
    if ledger.state in allowed:
        return
    hint = "Begin one with upgrade.yml." if ledger.state in (COMPLETE, ABORTED) else "Look at it with status.yml."
    raise UpgradeError(
        "not_running",
        f"The rollout to {ledger.version} is {ledger.state}, so it can't be {what}. {hint}",
        state=ledger.state,
    )


def _said(said: Mapping[str, object]) -> dict[str, object]:
    return {"by": said["by"], "reason": said.get("reason", "")}


def _members(snapshot: Snapshot, ledger: Ledger, fleet: Mapping[str, str]) -> dict[str, str]:
    return place(fleet, sorted({*snapshot.reports, *snapshot.records}), ledger.role_pattern)


def _plan(store: Store, snapshot: Snapshot, ledger: Ledger, fleet: Mapping[str, str]) -> Plan:
    rules = parse(ledger.instructions)
    return make_plan(with_checks(store, snapshot, rules), _members(snapshot, ledger, fleet), rules)


def _to_close(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates to be closed, and those that hosts which have begun get of their own before that."""
    found = states.read_states(snapshot, members)
    begun = {host for host, one in found.items() if one.has_started} | set(snapshot.driven)
    gates = snapshot.gates

    def open_ones(of: Mapping[str, GateValue]) -> list[str]:
        return [name for name, gate in of.items() if _is_open(gate, snapshot.current_version)]

    roles = set(open_ones(gates.roles))
    own = [
        Change(keys.gate("host", host), None, OPEN)
        for host, one in found.items()
        if one.role in roles and host not in gates.hosts and host in begun and one.state == states.UPGRADING
    ]
    closed = [("host", host, gates.hosts[host].text) for host in open_ones(gates.hosts) if host not in begun]
    closed += [("role", role, gates.roles[role].text) for role in sorted(roles)]
    return own + [Change(keys.gate(scope, name), text, CLOSED) for scope, name, text in closed]


def _is_open(gate: GateValue, current_version: str | None) -> bool:
    """Return whether a gate lets anybody through. One that can't be read does not, and so is no reason not to abort."""
    try:
        return gate.is_open(current_version)
    except UpgradeError:
        return False


def _closed(keys: Keys, gates: Sequence[Change]) -> dict[str, object]:
    """Return whose gates an abort writes, as the history tells it."""
    hosts, roles = {}, {}
    for one in gates:
        scope, _slash, name = one.key[len(keys.gates) :].partition("/")
        if scope == "role":
            roles[name] = {"reason": "the rollout was aborted"}
        else:
            closed = one.after == CLOSED
            hosts[name] = "the rollout was aborted" if closed else "it has begun, so it goes on, and its role is closed"
    return {"hosts": hosts, "roles": roles}


def _put_back(
    store: Store, snapshot: Snapshot, hosts: Sequence[str], version: str
) -> tuple[list[Operation], list[Change]]:
    keys = store.keys
    entries = {entry.key: entry for entry in store.client.read([keys.record(host) for host in hosts], "consistent")}
    operations: list[Operation] = []
    changes: list[Change] = []
    for host in hosts:
        key, gate, mark = keys.record(host), keys.gate("host", host), keys.mark(host)
        entry = entries.get(key)
        before = decode_record(key, entry.value) if entry is not None else None
        base = (
            before
            if before is not None and before.readable and before.version == version
            else Record(version, RETRIED, attempt=0)
        )
        times = {**base.times, RETRIED: int(time.time())}
        text = encode_record(replace(base, state=RETRIED, error=None, times=times))
        old = snapshot.gates.hosts.get(host)
        operations += [
            compare_and_put(key, text, entry.modify_index if entry is not None else 0),
            put(gate, CLOSED),
            remove(mark),
        ]
        changes += [
            Change(key, text_of(entry.value) if entry is not None else None, text),
            Change(gate, old.text if old is not None else None, CLOSED),
        ]
    return operations, changes
