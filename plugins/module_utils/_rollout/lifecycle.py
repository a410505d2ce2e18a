# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle of a rollout: begin, change rules, complete, converge. Each is one planner write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from .._codecs.job import Job, encode_job
from .._codecs.migration import release_number
from .._codecs.values import REVERSED_FLAGS, encode_approval
from .._common.errors import UpgradeError
from .._consul.client import KVEntry, Operation
from .._consul.operations import Change, compare, compare_and_put, compare_and_remove, put, remove, remove_tree
from .._fleet.fleet import Snapshot
from .._fleet.gates import CLOSED, OPEN, Gates, GateValue
from .._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._rules.instructions import FORWARD, ROLLBACK_ORDER, parse
from .._state.keys import SCHEMA, Keys
from .._state.layout import RELEASE

# A transaction has room for so many removals beside the rest of a write.
_MOST_REMOVED = 20
# The same for the beginning of a rollout, which has few other operations.
_MOST_ONCES = 40


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """One planner write that is ready to be executed.

    :param event: its entry in the history.
    :param after: the snapshot after the write.
    """

    ledger: Ledger
    event: Mapping[str, Any]
    operations: tuple[Operation, ...]
    changes: tuple[Change, ...]
    after: Snapshot


def begin_rollout(
    keys: Keys, snapshot: Snapshot, ledger: Ledger, job: Job | None = None, onces: Sequence[KVEntry] | None = None
) -> LedgerMove:
    """Return the write that begins a rollout: it sets ``current_version``, removes all gates and closes the global one at once.

    In separate writes, hosts without a gate would be admitted in between, because a missing gate is open.

    :param job: the job that begins; None for a rollout to a version. It takes the place of the jobs before it.
    :param onces: the keys of task groups that run once for all hosts; None if no run works on a host.
    :raises UpgradeError: ``leased``.
    """
    wiped, changes = _one_gate(keys, snapshot, CLOSED)
    version = Change(keys.current_version, snapshot.current_version, ledger.version)
    # A fleet without any keys gets the newest layout with its first rollout.
    layout = [Change(keys.schema, None, str(SCHEMA))] if _is_new(snapshot) else []
    # One that begins again after an abort goes on with the soaks of its hosts.
    goes_on = _begins_again(snapshot.ledger, ledger)
    return LedgerMove(
        ledger,
        {
            "what": "begin",
            "from": ledger.previous_version,
            "instructions": ledger.instructions,
            **_why(snapshot.ledger, ledger),
            **(_what_runs(job) if job is not None else {}),
        },
        # Once-per-rollout tasks and approvals belong to the rollout before. So do health marks, unless it begins again.
        (
            # Fails if a hold was set since the read, because each hold writes the folder's own key.
            compare_and_put(keys.holds, "", snapshot.hold_index),
            *_as_read(keys, snapshot),
            put(keys.current_version, ledger.version, _version_flags(ledger)),
            *wiped,
            # A job comes between rollouts to versions, which keep what ran once for all hosts.
            *(() if keys.is_job else _without_onces(keys, ledger.version, onces)),
            *(() if goes_on else (remove_tree(keys.marks),)),
            remove_tree(keys.approvals),
            *(put(one.key, one.after or "", release_number(RELEASE)) for one in layout),
            *_job_operations(keys, snapshot, job),
        ),
        (version, *changes, *layout),
        replace(
            snapshot,
            current_version=ledger.version,
            ledger=ledger,
            gates=Gates(GateValue(keys.gate("global"), CLOSED)),
            marks=snapshot.marks if goes_on else {},
            approvals={},
            schema=SCHEMA if layout else snapshot.schema,
        ),
    )


def _without_onces(keys: Keys, version: str, onces: Sequence[KVEntry] | None) -> list[Operation]:
    """Return the operations that remove the keys of task groups that ran once for all hosts, except those that a run works on.

    A host goes on after an abort, and no other host may run the same task group beside it.
    """
    if onces is None:
        return [remove_tree(keys.onces)]
    mine = keys.once(version, "")
    busy = {_folder_of(keys, one): one.key for one in onces if one.session}
    others = dict.fromkeys(folder for one in onces if (folder := _folder_of(keys, one)) not in (*busy, mine))
    done = [one for one in onces if one.key.startswith(mine) and not one.session]
    if len(done) > _MOST_ONCES and mine not in busy:
        return [remove_tree(folder) for folder in (mine, *others)]
    if len(done) > _MOST_ONCES:
        raise UpgradeError(
            "leased",
            f"A run still works on {busy[mine]}, which runs once for all hosts, so the rollout does not begin. Nothing was written. Let that run end, or end "
            "it, then run the same command again.",
        )
    return [*map(remove_tree, others), *(compare_and_remove(one.key, one.modify_index) for one in done)]


def _folder_of(keys: Keys, once: KVEntry) -> str:
    """Return the folder of the version of a task group's key."""
    return keys.once(once.key[len(keys.onces) :].partition("/")[0], "")


def _as_read(keys: Keys, snapshot: Snapshot) -> tuple[Operation, ...]:
    """Return the check that no operator has closed all gates since the read: the next try says so.

    With legacy keys there is no check: this planner itself may close the global gate in a transaction before that of the beginning.
    """
    if keys.is_job or snapshot.has_legacy_keys:
        return ()
    gate = snapshot.gates.everywhere
    return (compare(keys.gate("global"), gate.index if gate is not None else 0),)


def _begins_again(old: Ledger | None, ledger: Ledger) -> bool:
    """Return whether a rollout to a version begins again, and its hosts have to soak from its first beginning on."""
    if old is None or old.is_job or ledger.is_job:
        return False
    return (old.version, old.begun_index) == (ledger.version, ledger.begun_index)


def _job_operations(keys: Keys, snapshot: Snapshot, job: Job | None) -> tuple[Operation, ...]:
    """Return the operations that store a job, or that end the admissions to the last one."""
    if job is not None:
        return (remove_tree(keys.jobs), put(keys.job(job.id), encode_job(job)))
    if snapshot.is_job or not snapshot.has_job_keys:
        return ()
    return (remove_tree(keys.job_gates), remove(keys.current_job))


def _what_runs(job: Job) -> dict[str, Any]:
    """Return fields of the history entry: what a job runs, and for which hosts."""
    facts = {"command": job.command, "args": dict(job.args), "expires": job.expires, "only": [*job.roles, *job.hosts]}
    reason = f"{job.by} asked for {job.command}" + (f": {job.reason}" if job.reason else "")
    return {**facts, "by": job.by, "reason": reason, "signed": bool(job.signature), "by_ansible": job.by_ansible}


def _is_new(snapshot: Snapshot) -> bool:
    """Return whether a fleet has no keys yet."""
    known = (snapshot.schema, snapshot.ledger, snapshot.current_version, snapshot.others or None)
    return all(one is None for one in known) and not snapshot.reports and snapshot.gates == Gates()


def _why(old: Ledger | None, ledger: Ledger) -> dict[str, Any]:
    """Return fields of the history entry: who began a rollout and why, and which rollout it replaces."""
    if not ledger.rollback:
        reason = f"{ledger.who} asked for {ledger.version}"
        if old is None or old.state not in (RUNNING, PAUSED) or old.version == ledger.version:
            return {"reason": reason}
        return {"reason": f"{reason} in place of {old.version}, which was {old.state}", "replaces": old.version}
    given = ledger.command.get("reason")
    return {"by": ledger.who, "reason": "the fleet is rolled back" + (f": {given}" if given else "")}


def change_rules(keys: Keys, snapshot: Snapshot, ledger: Ledger) -> LedgerMove:
    """Return the write that changes only the ledger: other rules, or a rollout that another tool began.

    Rules may change the order in a rollback, which the flags of ``current_version`` have too.
    """
    adopted = snapshot.ledger is None or snapshot.ledger.version != ledger.version
    event = {
        "what": "adopt" if adopted else "rules",
        "instructions": ledger.instructions,
        "reason": "current_version was set already, by something other than a planner"
        if adopted
        else "the instructions changed",
    }
    # Without a ledger, only the folder's own key shows a hold that was set since the read.
    checks: tuple[Operation, ...] = (
        () if snapshot.ledger is not None else (compare_and_put(keys.holds, "", snapshot.hold_index),)
    )
    checks = (*checks, *_job_operations(keys, snapshot, None))
    # Planner services may not write this key. They give no rules, so the order stays.
    if not adopted and snapshot.ledger is not None and _version_flags(snapshot.ledger) != _version_flags(ledger):
        checks = (*checks, put(keys.current_version, ledger.version, _version_flags(ledger)))
    after = replace(snapshot, ledger=ledger)
    if not snapshot.approvals or (not adopted and _stages_of(snapshot.ledger) == _stages_of(ledger)):
        return LedgerMove(ledger, event, checks, (), after)
    # Approvals apply to one version, and to the stages as they were: those from the first changed one on begin again.
    same = set() if adopted or snapshot.ledger is None else _same_stages(snapshot.ledger, ledger)
    kept = {stage: one for stage, one in snapshot.approvals.items() if stage in same}
    gone = [stage for stage in snapshot.approvals if stage not in kept]
    if not gone:
        return LedgerMove(ledger, event, checks, (), after)
    removals: tuple[Operation, ...] = tuple(remove(keys.approval(stage)) for stage in gone)
    if not kept or len(gone) > _MOST_REMOVED:
        gone, kept, removals = [*snapshot.approvals], {}, (remove_tree(keys.approvals),)
    forgotten = tuple(
        Change(keys.approval(stage), encode_approval(asdict(snapshot.approvals[stage])), None) for stage in gone
    )
    return LedgerMove(ledger, event, (*checks, *removals), forgotten, replace(after, approvals=kept))


def _stages_of(ledger: Ledger | None) -> object:
    return ledger.instructions.get("stages") if ledger is not None else None


def _same_stages(old: Ledger, new: Ledger) -> set[str]:
    """Return the names of the first stages, before the first one that has changed."""
    pairs = zip(parse(old.instructions).stages, parse(new.instructions).stages, strict=False)
    return {one.name for one, _other in takewhile(lambda pair: pair[0] == pair[1], pairs)}


def finish_rollout(keys: Keys, snapshot: Snapshot, ledger: Ledger, *, converge: bool) -> LedgerMove | None:
    """Return the write that completes a rollout in which every host is upgraded.

    None if the ledger says so already, and if the rollout is paused or aborted.

    :param converge: also open the global gate and remove the gates of roles and hosts.
    """
    if ledger.state in (PAUSED, ABORTED):
        return None
    done = replace(ledger, state=COMPLETE)
    plain = Gates(GateValue(keys.gate("global"), OPEN))
    gates = snapshot.gates
    is_plain = not (gates.roles or gates.hosts) and gates.everywhere is not None and gates.everywhere.is_true
    wiped: tuple[Operation, ...] = ()
    changes: tuple[Change, ...] = ()
    after = replace(snapshot, ledger=done)
    # With open gates too, no one may wait for post-upgrade tasks any more.
    if converge and not ledger.is_job and (ledger.post_upgrade or not is_plain):
        wiped, changes = _one_gate(keys, snapshot, OPEN)
        done = replace(done, post_upgrade=())
        after = replace(after, gates=plain, ledger=done)
    elif ledger.state != RUNNING:
        return None
    elif ledger.is_job:
        # A host that joins the fleet later must not find an open gate.
        wiped, changes = _one_gate(keys, snapshot, CLOSED)
        after = replace(after, gates=Gates(GateValue(keys.gate("global"), CLOSED)))
    event = {
        "what": "converge" if wiped and not ledger.is_job else "complete",
        "reason": "every host has run the job"
        if ledger.is_job
        else "every host is upgraded" + ("; the global gate opens" if wiped else ""),
    }
    return LedgerMove(done, event, wiped, changes, after)


def _one_gate(keys: Keys, snapshot: Snapshot, value: str) -> tuple[tuple[Operation, ...], tuple[Change, ...]]:
    everywhere = keys.gate("global")
    gates = snapshot.gates
    old = {gate.key: gate.text or "" for gate in gates.values()}
    changes = [Change(key, text, None) for key, text in old.items() if key != everywhere]
    # The time tells nodes that a rollout closed it. An operator who closes all gates leaves none.
    at = max(1, int(snapshot.now)) if value == CLOSED else 0
    return (
        (remove_tree(keys.gates), put(everywhere, value, at)),
        (*changes, Change(everywhere, old.get(everywhere), value)),
    )


def _version_flags(ledger: Ledger) -> int:
    """Return the flags of ``current_version``: :data:`REVERSED_FLAGS` in a rollback, unless its rules keep the order; otherwise 0."""
    return REVERSED_FLAGS if ledger.rollback and ledger.instructions.get(ROLLBACK_ORDER) != FORWARD else 0
