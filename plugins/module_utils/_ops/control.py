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
from .._model.fleet import RETRIED, STARTED, Record, Snapshot, place
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
from .plan import Request, is_same_rollout, make_pass

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

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
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

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
    """

    def act(writer: LedgerWriter, _snapshot: Snapshot, ledger: Ledger) -> Done:
        if ledger.state != RUNNING:
            _refuse_unless(ledger, (PAUSED,), "resumed")
            writer.write(replace(ledger, state=RUNNING, word={}), {"what": "resume", **_said(word.plain())})
        return Done(writer.ledger or ledger)

    return _write(store, act, dry=dry)


def abort(store: Store, word: Word, *, dry: bool = False) -> Done:
    """End a rollout: close what has not begun, and keep every record. Hosts that have begun keep their open gates.

    Where a role or the whole fleet is open by one gate, those of its hosts that have begun get one of their own before that
    is closed. The first write stops all planners; the gates are closed after that, and by a second call where that was cut short.

    :raises UpgradeError: ``no_rollout``, ``not_running``, ``overtaken``, ``busy``.
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
        for piece in _close_in_turn(writer.store.keys, gates):
            event = {"what": "close", **_closed(writer.store.keys, piece)}
            writer.write(ledger, event, [put(one.key, one.after or "") for one in piece], piece)
            prefix = writer.store.keys.gate("host", "")
            closed.update(one.key[len(prefix) :] for one in piece if one.after == CLOSED and one.key.startswith(prefix))
        return Done(writer.ledger or ledger, hosts=in_order(closed))

    return _write(store, act, dry=dry)


def retry(store: Store, word: Word, hosts: Sequence[str] | None = None, *, dry: bool = False) -> Done:
    """Put failed and lost hosts back among those that wait. Holds stay.

    :param hosts: these; None for all that failed or are lost. One that is named is put back also where it began to go to
        another version and never ended that, as when it died on the way to one that is taken back.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``unknown_host``, ``fleet_too_small``, ``overtaken``, ``busy``.
    """
    # Of all tries: one that somebody else's write cut short has put back some already.
    put_back: set[str] = set()
    remarks: list[str] = []

    def act(writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> Done:
        _refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        plan = _plan(writer.store, snapshot, ledger, word.fleet)
        for name in hosts or ():
            if name not in plan.hosts:
                raise UpgradeError(
                    "unknown_host", f"hosts: {name!r} is no host of this fleet{nearest(name, plan.hosts) or '.'}"
                )
        asked = frozenset(hosts or plan.hosts) - put_back
        named = frozenset(hosts or ())
        chosen = [
            host
            for host, view in plan.hosts.items()
            if host in asked
            and (view.state in states.BROKEN or (host in named and _is_midway(snapshot, host, view.state)))
        ]
        well = [host for host in dict.fromkeys(hosts or ()) if host not in {*chosen, *put_back}]
        said = _said(word.plain())
        for at in range(0, len(chosen), MOST_GATES // 3):
            piece = chosen[at : at + MOST_GATES // 3]
            operations, changes = _put_back(writer.store, snapshot, piece, ledger.version)
            before = {host: plan.hosts[host].reason for host in piece}
            why = f"{said['reason']}; " if said["reason"] else ""
            event = {"what": "retry", "hosts": {host: f"{why}it was: {text}" for host, text in before.items()}, **said}
            writer.write(ledger, event, operations, changes)
            put_back.update(piece)
            remarks.extend(_remarks_on(snapshot, plan, piece))
        left = [f"Neither failed nor lost, and left as they are: {some(well)}."] if well else []
        return Done(writer.ledger or ledger, hosts=in_order(put_back), remarks=[*remarks, *left])

    return _write(store, act, dry=dry)


def approve(store: Store, word: Word, stage: str | None = None, *, dry: bool = False) -> Done:
    """Say that the rollout may go on after a stage.

    :param stage: its name; None for the one that waits for it.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``nothing_to_approve``, ``fleet_too_small``, ``overtaken``,
        ``busy``.
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

    Said again it goes on with the same rollback, and begins it again where it was aborted. To turn round once more, the
    version has to be given.

    :param version: where to; None for the ledger's previous version, or for where a rollback goes already.
    :raises UpgradeError: ``no_rollout``, ``no_previous_version``, ``foreign_version``, and what :func:`make_pass` raises.
    """
    snapshot = store.snapshot("consistent")
    ledger = _ledger(store.keys, snapshot)
    if version is None and snapshot.current_version != ledger.version:
        raise UpgradeError(
            "foreign_version",
            f"{store.keys.current_version} is {snapshot.current_version!r}, but the rollout in {store.keys.ledger} goes to "
            f"{ledger.version!r}: something else has set it, so nobody knows where the fleet was before. Give version.",
        )
    remarks = []
    target = version or ledger.previous_version
    if ledger.rollback and version in (None, ledger.version):
        if ledger.state != ABORTED:
            return Done(ledger, remarks=[_taken_back_already(ledger)])
        target = ledger.version
        remarks.append(f"Taking the fleet back to {target} was aborted, and begins again.")
    elif target is None:
        raise UpgradeError(
            "no_previous_version",
            f"{store.keys.ledger} does not say where the fleet was before {ledger.version}. Give version.",
        )
    elif target == ledger.version:
        raise UpgradeError(
            "no_previous_version",
            f"version: {target} is where the rollout in {store.keys.ledger} goes, so it can't be taken back to that. Give "
            "another version, or begin it again with upgrade.yml.",
        )
    request = Request(
        target,
        rules=ledger.instructions,
        fleet=dict(word.fleet) or None,
        limit=[],
        takes_back=ledger,
        word=word.plain(),
    )
    outcome = make_pass(store, request, dry=dry)
    return Done(outcome.ledger or ledger, changes=outcome.changes, remarks=remarks)


def _taken_back_already(ledger: Ledger) -> str:
    if ledger.state == COMPLETE:
        return f"The fleet was taken back to {ledger.version} already. To go elsewhere, give version."
    paused = ", and that is paused: resume.yml lets it go on" if ledger.state == PAUSED else ""
    return f"The fleet is being taken back to {ledger.version} already{paused}."


def _write(store: Store, act: Callable[[LedgerWriter, Snapshot, Ledger], Done], *, dry: bool) -> Done:
    changes: list[Change] = []
    meant: Ledger | None = None
    for _try in range(_MOST_TRIES):
        snapshot = store.snapshot("consistent")
        ledger = _ledger(store.keys, snapshot)
        if meant is not None and not is_same_rollout(meant, ledger):
            raise UpgradeError(
                "overtaken",
                f"The rollout to {meant.version} that this was said of was overtaken by another one, to {ledger.version}, "
                f"begun by {ledger.who}. That one is left as it is; look at it with status.yml, and say it again if it is "
                "meant for that one.",
            )
        meant = ledger
        writer = LedgerWriter(store, snapshot, whoami(), int(time.time()), dry=dry)
        try:
            done = act(writer, snapshot, ledger)
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
    plan = make_plan(with_checks(store, snapshot, rules), _members(snapshot, ledger, fleet), rules)
    if plan.missing:
        raise UpgradeError("fleet_too_small", f"Nothing is written: {'; '.join(plan.missing)}.")
    return plan


def _is_midway(snapshot: Snapshot, host: str, state: str) -> bool:
    """Return whether a host has begun to go to another version than the wanted one, and no run is at work on it."""
    record = snapshot.records.get(host)
    if record is None or host in snapshot.driven:
        return False
    return state == states.UPGRADING and record.state == STARTED and record.version != snapshot.current_version


def _remarks_on(snapshot: Snapshot, plan: Plan, hosts: Iterable[str]) -> list[str]:
    """Return what is worth knowing of hosts that were put back."""
    remarks = []
    for host in hosts:
        record, view = snapshot.records.get(host), plan.hosts[host]
        if record is not None and _is_midway(snapshot, host, view.state):
            remarks.append(
                f"{host} had begun to go to {record.version} and did not say that it ended. On your word it is taken for "
                "ended, and its slot is free: make sure that nothing is at work there any more."
            )
        hold = snapshot.holds.covering(host, view.role)
        if hold is not None:
            remarks.append(f"{host} is {hold.words()}, so it goes when that has ended.")
    return remarks


def _to_close(keys: Keys, snapshot: Snapshot, members: Mapping[str, str]) -> list[Change]:
    """Return the gates to be closed, the widest last, and before them those that hosts which have begun get of their own.

    A host has begun that said so, whatever became of it, and one that a run of Ansible is at work on. One that was let
    through and has been silent since has not, also where it is lost.
    """
    found = states.read_states(snapshot, members)
    ended = (states.UPGRADED, states.FAILED)
    begun = {host for host, one in found.items() if one.has_started or one.state in ended} | set(snapshot.driven)
    gates = snapshot.gates

    def open_ones(of: Mapping[str, GateValue]) -> list[str]:
        return [name for name, gate in of.items() if _is_open(gate, snapshot.current_version)]

    own = [
        Change(keys.gate("host", host), None, OPEN)
        for host, one in found.items()
        if host in begun and host not in gates.hosts and one.gate.is_open
    ]
    closed = [("host", host, gates.hosts[host].text) for host in open_ones(gates.hosts) if host not in begun]
    closed += [("role", role, gates.roles[role].text) for role in sorted(open_ones(gates.roles))]
    wide = [Change(keys.gate(scope, name), text, CLOSED) for scope, name, text in closed]
    # Where there is none, everybody is let through that no other gate keeps.
    if gates.everywhere is None or _is_open(gates.everywhere, snapshot.current_version):
        wide.append(Change(keys.gate("global"), gates.everywhere.text if gates.everywhere else None, CLOSED))
    return own + wide


def _close_in_turn(keys: Keys, gates: Sequence[Change]) -> list[list[Change]]:
    """Return the gates in pieces, one for each write; that of the global one is told to all hosts."""
    narrow = [one for one in gates if one.key != keys.gate("global")]
    wide = [one for one in gates if one.key == keys.gate("global")]
    return [narrow[at : at + MOST_GATES] for at in range(0, len(narrow), MOST_GATES)] + ([wide] if wide else [])


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
        if scope == "global":
            return {"reason": "the rollout was aborted, and the global gate let everybody through"}
        if scope == "role":
            roles[name] = {"reason": "the rollout was aborted"}
        else:
            closed = one.after == CLOSED
            hosts[name] = "the rollout was aborted" if closed else "it has begun, so it keeps an open gate"
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
        if before is None or not before.readable or before.version != version:
            before = Record(version, RETRIED, attempt=0)
        times = {**before.times, RETRIED: int(time.time())}
        text = encode_record(replace(before, state=RETRIED, error=None, times=times))
        old = snapshot.gates.hosts.get(host)
        operations += [
            # As long as the host has not said anything else meanwhile.
            compare_and_put(key, text, snapshot.records[host].index if host in snapshot.records else 0),
            put(gate, CLOSED),
            remove(mark),
        ]
        changes += [
            Change(key, text_of(entry.value) if entry is not None else None, text),
            Change(gate, old.text if old is not None else None, CLOSED),
        ]
    return operations, changes
