# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One pass over the fleet: read, see to the ledger, plan, open. What `consul_upgrade_plan` does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._model.brakes import said
from .._model.errors import UpgradeError
from .._model.fleet import DEFAULT_ROLE_PATTERN, Snapshot, place
from .._model.gates import OPEN, GateValue
from .._model.health import failing_checks
from .._model.instructions import Instructions, parse
from .._model.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._model.names import check_version
from .._model.planner import HostView, Opening, Plan, make_plan
from .._model.rule_changes import changed_keys, named_in, refuse_left_out
from .._model.staging import carried
from .._model.states import BROKEN, UPGRADED, UPGRADING, HostState, read_states
from .._model.windows import shut
from .._store.client import Operation
from .._store.errors import Conflict
from .._store.keys import Keys
from .._store.ledger_writer import MOST_GATES, LedgerWriter
from .._store.operations import Change, put, real_changes
from .._store.store import Store, whoami
from .notes import note, with_checks
from .past import read_on
from .rollout import Move, begin, finish, go_on
from .rules import effective_rules

# Other planners and reports can make a pass begin again; each time somebody got something done.
_MOST_TRIES = 200
# What a planner has read is good for so long (seconds). Much can have failed while it slept.
GOOD_FOR = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks of a pass.

    :param version: None to go on with the rollout of the ledger.
    :param rules: instructions in their stored form, and keys that are empty on purpose; None for those of the ledger.
    :param role_order: order added to the rules.
    :param fleet: host -> role; None where the caller knows none.
    :param limit: hosts, roles or groups that may be opened; None for all.
    :param since: set by a caller that goes on with what it began: such a pass never begins a rollout.
    :param epoch: the newest epoch that the caller has seen; an older one is refused.
    :param commit: the commit of that epoch; another one is refused too. Empty where the caller does not know it.
    :param restart: whether to begin a rollout anew that was aborted.
    :param takes_back: the rollout that the one which this begins takes back; where another one is on its way by now,
        nothing is begun.
    :param word: of whoever takes it back: ``by``, ``at`` (unix seconds), ``reason``, for the ledger and the history.
    """

    version: str | None = None
    rules: Mapping[str, Any] | None = None
    role_order: Mapping[str, Any] | None = None
    fleet: Mapping[str, str] | None = None
    role_pattern: str | None = None
    limit: Sequence[str] | None = None
    converge: bool = False
    since: int | None = None
    epoch: int = 0
    commit: str = ""
    restart: bool = False
    takes_back: Ledger | None = None
    word: Mapping[str, Any] = field(default_factory=dict)


def is_same_rollout(one: Ledger, other: Ledger | None) -> bool:
    """Return whether two ledgers are of the same rollout, however far each is."""
    return other is not None and (one.version, one.since) == (other.version, other.since)


@dataclass(slots=True)
class Outcome:
    """What a pass did, or in check mode would do.

    :param plan: the plan that its openings come from.
    :param openings: the hosts that this pass let through; other planners may have let more through meanwhile.
    :param index: the newest Consul index that the plan has seen.
    :param begun: whether this pass began a rollout.
    :param snapshot: what the plan was made from, with its fleet (host -> role) and its rules.
    """

    plan: Plan = field(default_factory=Plan)
    ledger: Ledger | None = None
    index: int = 0
    begun: bool = False
    openings: list[Opening] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=Snapshot)
    members: Mapping[str, str] = field(default_factory=dict)
    rules: Instructions = field(default_factory=Instructions)

    def hosts(self) -> dict[str, HostView]:
        """Return every host as it is after the openings."""
        hosts = dict(self.plan.hosts)
        for one in self.openings:
            hosts[one.host] = replace(hosts[one.host], state=UPGRADING, reason=f"let through now: {one.reason}")
        return hosts


def make_pass(store: Store, request: Request, *, dry: bool = False) -> Outcome:
    """Read, plan and open, reading and planning again whenever somebody else wrote in between.

    :param dry: write nothing, and return what would be done.
    :raises UpgradeError: whatever keeps the pass from being made; nothing is opened then.
    """
    if request.version is not None:
        check_version(request.version, "version")
    outcome = Outcome()
    first_version: str | None = None
    for attempt in range(_MOST_TRIES):
        read_at = time.monotonic()
        snapshot = read_on(store, request.epoch, request.commit)
        if attempt == 0:
            first_version = snapshot.current_version
        elif not outcome.begun and snapshot.current_version not in (first_version, request.version):
            raise _overtaken(snapshot)
        writer = LedgerWriter(store, snapshot, whoami(), int(time.time()), dry=dry)
        try:
            _try_once(writer, request, snapshot, outcome, good_until=read_at + GOOD_FOR)
        except Conflict:
            continue
        finally:
            outcome.changes = real_changes([*outcome.changes, *writer.changes])
        return outcome
    raise UpgradeError(
        "busy", f"{store.keys.ledger} changed under each of {_MOST_TRIES} tries. Are there very many planners at work?"
    )


def _try_once(
    writer: LedgerWriter, request: Request, snapshot: Snapshot, outcome: Outcome, *, good_until: float
) -> None:
    outcome.warnings = []
    keys = writer.store.keys
    wanted = _wanted(keys, request, snapshot, outcome)
    if wanted.begins and wanted.ledger.rollback:
        broken = _broken(writer.store, snapshot, wanted.members, wanted.ledger.version)
        wanted = replace(wanted, ledger=replace(wanted.ledger, broken=broken))
    move = _ledger_move(keys, snapshot, wanted)
    # What has to be refused is refused before the first write, so that no rollout begins that can't go on.
    snapshot = replace(move.after if move else snapshot, index=snapshot.index, ledger=wanted.ledger)
    _refuse_unreadable(snapshot)
    snapshot = with_checks(writer.store, snapshot, wanted.rules)
    plan = make_plan(snapshot, wanted.members, wanted.rules, request.limit)
    if plan.missing:
        raise UpgradeError("fleet_too_small", f"Nothing is opened: {'; '.join(plan.missing)}.")
    if move is not None:
        _do(writer, move)
        outcome.begun |= wanted.begins
    outcome.plan, outcome.index = plan, snapshot.index
    outcome.snapshot, outcome.members, outcome.rules = snapshot, wanted.members, wanted.rules
    outcome.warnings += plan.warnings
    ledger = replace(wanted.ledger, stage=plan.stage_mark, stopped=plan.stopped)
    note(writer, snapshot, plan, ledger)
    _open(writer, plan, snapshot, replace(ledger, state=RUNNING), outcome, good_until=good_until)
    end = finish(keys, snapshot, ledger, converge=request.converge) if plan.complete else None
    if end is not None:
        _do(writer, end)
    outcome.ledger = writer.ledger


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the ledger should say, and what follows from it."""

    ledger: Ledger
    rules: Instructions
    members: Mapping[str, str]
    begins: bool


def _wanted(keys: Keys, request: Request, snapshot: Snapshot, outcome: Outcome) -> _Wanted:
    old = snapshot.ledger
    version = request.version or (old.version if old else None)
    if version is None:
        raise UpgradeError(
            "no_rollout", f"version is not given, and {keys.ledger} holds no rollout to go on with. Give version."
        )
    if request.version is None and snapshot.current_version != version:
        raise UpgradeError(
            "foreign_version",
            f"{keys.current_version} is {snapshot.current_version!r}, but the rollout in {keys.ledger} goes "
            f"to {version!r}: something else has set it. Give version to say which of the two you want.",
        )
    # A rollout that was aborted is over, and nobody begins it anew unawares, as by a command that runs every hour.
    over = (
        old is not None
        and old.state == ABORTED
        and old.version == snapshot.current_version == request.version
        and request.since is None
        and not outcome.begun
    )
    if old is not None and over and not (request.restart or request.takes_back):
        raise UpgradeError(
            "aborted",
            f"The rollout to {version} was aborted{said(old)}. Nothing is opened. Begin it anew with restart: true "
            "(-e restart=true), or go back with rollback.yml.",
        )
    begins = snapshot.current_version != version or over
    if begins and (request.since is not None or outcome.begun):
        raise _overtaken(snapshot)
    if begins and request.takes_back is not None and not is_same_rollout(request.takes_back, old):
        raise _overtaken(snapshot)
    if begins and old is not None and old.state == PAUSED and request.takes_back is None:
        raise UpgradeError(
            "paused",
            f"The rollout to {old.version} is paused{said(old)}, so none to {version} begins in its place. End the pause with "
            "resume.yml, or that rollout with abort.yml, then begin this one.",
        )
    same = old if old is not None and old.version == version and not begins else None
    plain, rules = effective_rules(request.rules, same.instructions if same else {}, request.role_order)
    if request.rules is not None and same is not None and same.state in (RUNNING, PAUSED):
        refuse_left_out(same.instructions, named_in(request.rules) | set(plain), version, keys.ledger)
    # Of two planners that go on side by side, each with a pattern of its own, the ledger's must hold for both.
    pattern = (request.role_pattern if request.since is None else None) or (old.role_pattern if old else None)
    members = place(request.fleet or {}, sorted({*snapshot.reports, *snapshot.records}), pattern)
    if not members:
        outcome.warnings.append(
            f"No host is known: none has reported under {keys.reports}, and fleet names none. Is kv_prefix right?"
        )
    if begins and not plain:
        outcome.warnings.append(
            f"No instructions: all {len(members)} hosts may go to {version} at once. Give rolling_rules to limit that."
        )
    ledger = Ledger(
        epoch=old.epoch if old else 0,
        version=version,
        previous_version=same.previous_version if same else _previous(snapshot, version),
        state=same.state if same else RUNNING,
        instructions=plain,
        role_pattern=pattern if pattern != DEFAULT_ROLE_PATTERN else None,
        members=dict(Counter(members.values())) if request.fleet else dict(old.members if old else {}),
        who=same.who if same else str(request.word.get("by") or whoami()),
        since=same.since if same else int(time.time()),
        word=same.word if same else dict(request.word),
        rollback=same.rollback if same else request.takes_back is not None,
        stage=_stage(same, rules) if same else {},
        begun_index=same.begun_index if same else snapshot.index,
        broken=same.broken if same else (),
        stopped=same.stopped if same else (),
    )
    return _Wanted(ledger, rules, members, begins)


def _stage(same: Ledger, rules: Instructions) -> Mapping[str, int]:
    """Return where a rollout is in its stages, under the rules that it goes on with."""
    before = parse(same.instructions).stages
    return same.stage if before == rules.stages else carried(before, rules.stages, same.stage)


def _broken(store: Store, snapshot: Snapshot, members: Mapping[str, str], version: str) -> tuple[str, ...]:
    """Return the hosts that are broken before a rollback begins, by the rules under which they broke.

    :param version: where it goes; a host that is there already, and whose checks fail, did not get broken by what follows.
    """
    ledger = snapshot.ledger
    rules = parse(ledger.instructions) if ledger is not None else Instructions()
    snapshot = with_checks(store, snapshot, rules)
    found = read_states(snapshot, members, rules.health)

    def is_broken(one: HostState) -> bool:
        if one.state in BROKEN or (one.was_broken and one.state != UPGRADED):
            return True
        checks = (snapshot.checks or {}).get(one.host, {})
        return one.version == version and bool(failing_checks(rules.health, checks))

    return tuple(host for host, one in found.items() if is_broken(one))


def _ledger_move(keys: Keys, snapshot: Snapshot, wanted: _Wanted) -> Move | None:
    if wanted.begins:
        return begin(keys, snapshot, wanted.ledger)
    # How many hosts there are is written along with other things, never for its own sake: two planners with
    # different fleets would take turns at it for ever.
    if snapshot.ledger is None or replace(snapshot.ledger, members=wanted.ledger.members) != wanted.ledger:
        move = go_on(keys, snapshot, wanted.ledger)
        return replace(move, event={**move.event, **_new_rules(snapshot.ledger, wanted.ledger)})
    return None


def _new_rules(old: Ledger | None, new: Ledger) -> dict[str, Any]:
    """Return what the history tells of rules that change in the middle of a rollout."""
    found = changed_keys(old.instructions, new.instructions) if old is not None and old.version == new.version else {}
    return {"changed": found, "reason": f"other instructions were given: {', '.join(found)}"} if found else {}


def _previous(snapshot: Snapshot, version: str) -> str | None:
    """Return where the fleet comes from: what it was to run and got to, or what all hosts do run.

    A rollout that was not completed is passed over for where that one came from, as it may have been aborted because its
    version is bad. One that took the fleet back goes where it was well.
    """
    old, passed_over = snapshot.ledger, {version}
    known = [snapshot.current_version]
    if old is not None and old.version == snapshot.current_version != version and _is_cut_short(old):
        known = [old.version] if old.previous_version == version else [old.previous_version]
        passed_over |= {old.version} - set(known)
    elif old is not None:
        # Who begins an aborted rollout anew comes from where that one came from.
        known += [old.version, old.previous_version]
    for one in known:
        if one is not None and one != version:
            return one
    running = {report.version for report in snapshot.reports.values()} - passed_over
    return running.pop() if len(running) == 1 else None


def _is_cut_short(ledger: Ledger) -> bool:
    return ledger.state != COMPLETE and not ledger.rollback


def _overtaken(snapshot: Snapshot) -> UpgradeError:
    who = f", begun by {snapshot.ledger.who}" if snapshot.ledger else ""
    return UpgradeError(
        "overtaken",
        f"Another rollout is on its way, to {snapshot.current_version!r}{who}. This call ends; look at it with "
        "consul_upgrade_info, and give version again if yours is to take its place.",
    )


def _refuse_unreadable(snapshot: Snapshot) -> None:
    errors = snapshot.gates.unreadable(snapshot.current_version)
    if errors:
        raise UpgradeError(
            "unreadable_gate",
            "Nothing is opened: "
            + " ".join(error.message for error in errors[:5])
            + (f" And {len(errors) - 5} more." if len(errors) > 5 else ""),
            keys=[error.details["key"] for error in errors],
        )


def _do(writer: LedgerWriter, move: Move) -> None:
    writer.write(move.ledger, move.event, move.operations, move.changes)


@dataclass(frozen=True, slots=True)
class _Gate:
    """A gate to open, of a role or of a host."""

    name: str
    is_role: bool
    change: Change

    def operation(self, at: int) -> Operation:
        """Return what opens it, and notes when that was."""
        return put(self.change.key, OPEN, flags=at)


def may_still_open(rules: Instructions, now: float, good_until: float) -> bool:
    """Return whether hosts may be let through on a plan: time has passed since it was made, for writing and for waiting.

    :param now: unix seconds.
    :param good_until: by the clock that never goes back (seconds).
    :raises Conflict: where what the plan was made from is too old.
    """
    if time.monotonic() > good_until:
        raise Conflict("conflict", "What the plan was made from is too old to let anybody through on it.")
    return shut(rules.windows, rules.freezes, now) is None


def _gates(keys: Keys, plan: Plan, snapshot: Snapshot) -> list[_Gate]:
    def gate(scope: str, name: str, found: GateValue | None) -> _Gate:
        return _Gate(name, scope == "role", Change(keys.gate(scope, name), found.text if found else None, OPEN))

    roles = [gate("role", name, snapshot.gates.roles.get(name)) for name in plan.open_roles]
    return roles + [gate("host", name, snapshot.gates.hosts.get(name)) for name in plan.open_hosts]


def _open(
    writer: LedgerWriter, plan: Plan, snapshot: Snapshot, ledger: Ledger, outcome: Outcome, *, good_until: float
) -> None:
    gates = _gates(writer.store.keys, plan, snapshot)
    by_host = {one.host: one for one in plan.openings}
    by_role: dict[str, list[Opening]] = {}
    own_key = set(plan.open_hosts)
    for one in plan.openings:
        if one.host not in own_key:
            by_role.setdefault(one.role, []).append(one)
    for at in range(0, len(gates), MOST_GATES):
        now = time.time()
        if not may_still_open(outcome.rules, now, good_until):
            return
        piece = gates[at : at + MOST_GATES]
        hosts = [by_host[gate.name] for gate in piece if not gate.is_role]
        roles = {gate.name: by_role.get(gate.name, []) for gate in piece if gate.is_role}
        event = {
            "what": "open",
            "hosts": {one.host: one.reason for one in hosts},
            "roles": {
                role: {"hosts": len(found), "reason": f"nothing limits role {role}"} for role, found in roles.items()
            },
        }
        writer.write(ledger, event, [gate.operation(int(now)) for gate in piece], [gate.change for gate in piece])
        outcome.openings += [*hosts, *(one for found in roles.values() for one in found)]
