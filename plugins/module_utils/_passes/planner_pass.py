# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One planner pass: read, update the ledger, plan, admit hosts. `consul_upgrade_plan` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._codecs.job import Job
from .._common import runtime
from .._common.errors import UpgradeError, needs_memory
from .._common.lazy import LazyMapping
from .._common.names import JOB, check_version, listing, target_text
from .._common.sanitize import truncated_repr
from .._consul.errors import Conflict
from .._consul.operations import Change, net_changes
from .._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from .._fleet.fleet import FAILED as RECORDED_FAILED
from .._fleet.fleet import Membership, Snapshot
from .._fleet.ledger import RUNNING, Ledger, names_that_fit
from .._host_states.host_state import HostState
from .._host_states.soak import failing_checks
from .._host_states.state_names import BROKEN, UPGRADED, UPGRADING
from .._host_states.states import read_states
from .._planner.plan import Admission, HostView, Plan
from .._planner.reconcile import make_plan
from .._rollout.conflicts import other_rollout, other_under_way
from .._rollout.desired_ledger import DesiredLedger, desired_ledger
from .._rollout.host_health_notes import ledger_to_write, noted_at, with_checks, write_health
from .._rollout.job_request import beginning, needs_tasks
from .._rollout.legacy_closures import with_holds_for_closed_gates
from .._rollout.lifecycle import LedgerMove, begin_rollout, change_rules, finish_rollout
from .._rollout.opened_gates import MOST_SLOW, ReadTooOld, SlowTries, admit_hosts, may_still_admit, refuse_old_read
from .._rollout.pass_request import PassRequest
from .._rule_checks.changes import changed_keys
from .._rules.instructions import Instructions, parse
from .._state.layout import refuse_to_plan
from .._state.ledger_writer import LedgerWriter
from .._state.store import Store, current_user
from .closed_gates import close_role_gates
from .restored_consul import RepeatedRead

__all__ = ["PassResult", "PassRequest", "make_pass", "may_still_admit"]


@dataclass(slots=True)
class PassResult:
    """What a pass did, or in check mode would do.

    :param plan: the plan that the admissions come from.
    :param index: the newest Consul index that the plan was made from.
    :param begun: whether this pass began a rollout.
    :param replaces: the rollout under way that it replaced; None for none.
    :param admissions: the hosts that this pass admitted. Other planners may have admitted more meanwhile.
    :param begin_warnings: the warnings of the try that began the rollout; later tries add theirs to ``warnings``.
    :param snapshot: what the plan was made from, with its fleet and its rules.
    """

    plan: Plan = field(default_factory=Plan)
    ledger: Ledger | None = None
    index: int = 0
    begun: bool = False
    replaces: Ledger | None = None
    admissions: list[Admission] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    begin_warnings: list[str] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=Snapshot)
    membership: Membership | None = None
    rules: Instructions = field(default_factory=Instructions)

    @property
    def members(self) -> Mapping[str, str]:
        """Host -> role, of the whole fleet."""
        return self.membership.members if self.membership is not None else {}

    def hosts(self) -> Mapping[str, HostView]:
        """Return every host as it is once the admissions are written."""
        plan, admitted = self.plan, {one.host: one for one in self.admissions}

        def view(host: str) -> HostView:
            found = plan.hosts[host]
            if host not in admitted:
                return found
            return replace(found, state=UPGRADING, reason=f"admitted, because {admitted[host].reason}")

        return LazyMapping(plan.hosts, view)

    def transitions(self) -> list[dict[str, str]]:
        """Return the admitted hosts as plain data."""
        return [
            {"host": one.host, "role": one.role, "from": one.before, "to": UPGRADING, "reason": one.reason}
            for one in self.admissions
        ]


def make_pass(
    store: Store,
    request: PassRequest,
    *,
    dry: bool = False,
    most_slow: int = MOST_SLOW,
    before: PassResult | None = None,
    handover: int = 0,
    outcome: PassResult | None = None,
) -> PassResult:
    """Read, plan and admit hosts; retry on conflict, and once a rollout has begun.

    :param dry: write nothing, and return what would be done.
    :param most_slow: the number of tries in a row over ``pass_limit`` at which the pass fails.
    :param before: an earlier pass of this process, which saves time.
    :param handover: as for :class:`LedgerWriter`.
    :param outcome: an empty one, which is filled and returned, and has what was done also if the pass fails; None for a new one.
    :raises HandoverChanged: if the handover was replaced or ended. Earlier tries may have admitted hosts.
    :raises UpgradeError: ``too_slow``, ``out_of_memory``, and every refusal of the request, the rules or the keys. Earlier tries may have admitted hosts.
    """
    if request.version is not None and not request.is_job:
        if request.version.startswith(JOB):
            raise UpgradeError(
                "unknown_job",
                f"{truncated_repr(request.version.removeprefix(JOB))} can't be the ID of a job, which has lowercase letters, digits, - and _. Look at "
                "the last one with ansible-playbook convoy.upgrade.status -e job=last.",
            )
        check_version(request.version, "version")
    outcome = outcome if outcome is not None else PassResult()
    if before is not None:
        outcome.membership, outcome.plan = before.membership, before.plan
    first: Snapshot | None = None
    # Consul may also be restored between two tries.
    repeated = RepeatedRead(request.epoch, request.commit)
    slow = SlowTries(store.settings.pass_limit, most_slow)

    def attempt() -> PassResult:
        nonlocal first
        read_at = runtime.since_boot()
        snapshot = repeated.read(store, request.is_job)
        refuse_to_plan(store.keys, snapshot)
        first = first or snapshot
        first_version = first.current_version
        if not outcome.begun and snapshot.current_version not in (first_version, request.version):
            if request.job is not None and snapshot.ledger is not None and snapshot.ledger.is_under_way:
                raise other_under_way(snapshot.ledger, request.job.target)
            raise other_rollout(snapshot)
        if first.is_job != snapshot.is_job:
            raise other_rollout(snapshot)
        writer = LedgerWriter(store, snapshot, current_user(), int(runtime.now()), dry=dry, handover=handover)
        before = (outcome.begun, len(outcome.admissions))
        try:
            _try_once(writer, request, snapshot, outcome, read_at=read_at)
        except ReadTooOld as error:
            slow.add(error.seconds, got_on=not dry and before != (outcome.begun, len(outcome.admissions)))
            raise
        finally:
            outcome.changes = net_changes([*outcome.changes, *writer.changes])
            if not dry:
                repeated.note(writer.ledger)
        if request.version not in (None, first_version) and snapshot.ledger is not None and not outcome.begun:
            outcome.warnings.append(
                f"{snapshot.ledger.who} began the rollout to {request.version} at the same time, so this run continues that one."
            )
        return outcome

    def written() -> str:
        return "What was written before it obeys the rules." if outcome.changes and not dry else "Nothing was written."

    with needs_memory("the fleet was read and planned", written):
        return retry_on_conflict(
            attempt,
            lambda: store.keys.ledger,
            "Too many planners may be running. Run the same command again.",
            tries=TRIES_OF_LEDGER,
        )


def _try_once(
    writer: LedgerWriter, request: PassRequest, snapshot: Snapshot, outcome: PassResult, *, read_at: float
) -> None:
    keys = writer.store.keys
    desired = desired_ledger(keys, request, snapshot, writer.clock, begun=outcome.begun, before=outcome.membership)
    if desired.ledger.by_ansible and request.limit is None and not writer.dry:
        raise needs_tasks(desired.ledger)
    outcome.membership = desired.membership
    outcome.warnings = [*dict.fromkeys((*outcome.begin_warnings, *desired.warnings))]
    if desired.begins and desired.ledger.rollback:
        broken = _broken(writer.store, snapshot, desired.members, desired.ledger.version)
        listed = _listed(broken, desired.ledger)
        if left_out := len(broken) - len(listed):
            outcome.warnings.append(
                f"{len(broken)} hosts are broken, and the ledger has room for the names of {len(listed)}. Of the other {left_out}, those that failed are "
                "admitted after all other hosts too. One that fails again takes a slot and counts for the failure budgets, and one that is lost has "
                "to be retried: fix it, and run ansible-playbook convoy.upgrade.retry -e host=HOST."
            )
        desired = replace(desired, ledger=replace(desired.ledger, broken=listed))
    move = _ledger_move(writer.store, snapshot, desired, request.job)
    if move is not None and snapshot.ledger is None and not snapshot.is_job:
        move, warnings = with_holds_for_closed_gates(writer, snapshot, move, desired.members)
        outcome.warnings += warnings
    ends_job = snapshot.job is not None
    # All refusals come before the first write, so that no rollout begins that can't continue.
    snapshot = replace(move.after if move else snapshot, index=snapshot.index, ledger=desired.ledger)
    refuse_unreadable_gates(snapshot)
    snapshot = with_checks(writer.store, snapshot, desired.rules)
    plan = make_plan(snapshot, desired.members, desired.rules, request.limit, outcome.plan)
    if plan.missing:
        raise UpgradeError("fleet_too_small", f"No host is admitted: {'; '.join(plan.missing)}.")
    if desired.begins:
        # The beginning of a rollout closes all gates. A planner that is too slow to admit a host must not do that.
        refuse_old_read(writer.store, read_at)
    if move is not None:
        with beginning(request.job if desired.begins else None):
            _do(writer, move)
        outcome.replaces = desired.replaces or outcome.replaces
        outcome.begun |= desired.begins
        outcome.begin_warnings = list(outcome.warnings) if desired.begins else outcome.begin_warnings
        if (desired.begins or ends_job) and not writer.dry:
            # Hosts may have started between the read and this write, which removed their gates. Without another read, this pass would
            # give their slots to other hosts.
            raise Conflict("conflict", "Gates were removed. The keys are read again before a host is admitted.")
    outcome.plan, outcome.index = plan, snapshot.index
    outcome.snapshot, outcome.rules = snapshot, desired.rules
    outcome.warnings += plan.warnings
    ledger = replace(desired.ledger, stage=plan.stage_mark, stopped=plan.exhausted_keys)
    ledger = ledger_to_write(writer.ledger, ledger, writer.clock)
    if (ledger.stage, ledger.stopped) != (plan.stage_mark, plan.exhausted_keys):
        due = noted_at(ledger)
        outcome.plan = replace(plan, wake_at=due if plan.wake_at is None else min(due, plan.wake_at))
    if plan.marks or (writer.ledger is not None and ledger.stage != writer.ledger.stage):
        # The time is that before the read. If the process was stopped meanwhile, soaks would begin too early.
        refuse_old_read(writer.store, read_at)
    outcome.warnings += write_health(writer, snapshot, plan, ledger)
    if plan.role_gates_to_close:
        snapshot = close_role_gates(writer, snapshot, ledger, desired.members, plan.role_gates_to_close)
        if not writer.dry:
            raise Conflict("conflict", "Gates of roles were closed. The keys are read again before a host is admitted.")
        outcome.plan = plan = make_plan(snapshot, desired.members, desired.rules, request.limit)
        outcome.snapshot = snapshot
    running = replace(ledger, state=RUNNING)
    admit_hosts(writer, plan, snapshot, running, desired.rules, outcome.admissions, read_at=read_at)
    end = (
        finish_rollout(keys, snapshot, ledger, converge=request.converge and not plan.post_upgrade)
        if plan.complete
        else None
    )
    if end is not None:
        # Hosts that have joined or failed since the read have written no ledger, and the global gate would admit them.
        refuse_old_read(writer.store, read_at)
        _do(writer, end)
    _end_admissions(writer, replace(ledger, state=writer.ledger.state) if writer.ledger is not None else ledger)
    outcome.ledger = writer.ledger


def _end_admissions(writer: LedgerWriter, ledger: Ledger) -> None:
    """Write that hosts which were admitted, and have not started, are not admitted any more: to the rollout before, or by the gate of their role.

    Until then, a host that reports a start would get its gate again. Whatever a pass writes has this too.
    """
    before = writer.ledger.admitted if writer.ledger is not None else {}
    if ended := [host for host in before if host not in ledger.admitted]:
        reason = f"{listing(ended, 5)} had not started, so {'its' if len(ended) == 1 else 'their'} admission has ended"
        writer.write(ledger, {"what": "close", "reason": reason})


def _broken(store: Store, snapshot: Snapshot, members: Mapping[str, str], version: str) -> list[HostState]:
    """Return the hosts that are broken before a rollback begins, by the rules of the rollout before.

    :param version: the target of the rollback. Hosts that run it and whose checks fail count as broken too.
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

    return [one for one in found.values() if is_broken(one)]


def _listed(broken: Sequence[HostState], ledger: Ledger) -> tuple[str, ...]:
    """Return which of the broken hosts the ledger of a rollback lists, as many as fit.

    Those come first that would take slots or budgets if they were not listed, and last those whose records say that they failed elsewhere.
    """

    def rank(one: HostState) -> int:
        record = one.record
        if (
            record is not None
            and record.readable
            and record.state == RECORDED_FAILED
            and record.version != ledger.version
        ):
            return 2
        return 0 if one.version == ledger.version else 1

    chosen = {*names_that_fit([one.host for one in sorted(broken, key=rank)], ledger.room_for_broken)}
    return tuple(one.host for one in broken if one.host in chosen)


def _ledger_move(store: Store, snapshot: Snapshot, desired: DesiredLedger, job: Job | None) -> LedgerMove | None:
    keys = store.keys
    if desired.begins:
        # A host that runs a task group for all hosts has a lease.
        onces = store.client.read([keys.onces]) if snapshot.leases else None
        return begin_rollout(keys, snapshot, desired.ledger, job, onces)
    if snapshot.ledger is None or _with_facts(snapshot.ledger, desired.ledger) != desired.ledger:
        move = change_rules(keys, snapshot, desired.ledger)
        return replace(move, event={**move.event, **_new_rules(snapshot.ledger, desired.ledger)})
    # A larger number of hosts alone is no reason to write: two planners with different fleets would overwrite each other's forever. Commands and planner
    # services, which do not know the fleet, refuse to act on fewer hosts than the ledger has.
    if _is_smaller(snapshot.ledger.members, desired.ledger.members):
        move = change_rules(keys, snapshot, desired.ledger)
        return replace(move, event={**move.event, "reason": "the fleet has fewer hosts"})
    if snapshot.job is not None:
        move = change_rules(keys, snapshot, desired.ledger)
        reason = f"the {target_text(snapshot.job.version)} is over, and the rollout goes on"
        return replace(move, event={**move.event, "reason": reason})
    return None


def _is_smaller(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return whether a fleet has become smaller, and no role larger.

    :param before, after: role -> number of hosts.
    """
    return before != after and all(count <= before.get(role, 0) for role, count in after.items())


def _with_facts(old: Ledger, new: Ledger) -> Ledger:
    """Return the old ledger with the fields of the new one that are written only together with other changes."""
    return replace(old, members=new.members, post_upgrade=new.post_upgrade, admitted=new.admitted)


def _new_rules(old: Ledger | None, new: Ledger) -> dict[str, object]:
    """Return fields of the history entry for rules, or tasks of services, that change during a rollout."""
    found = changed_keys(old.instructions, new.instructions) if old is not None and old.version == new.version else {}
    if found:
        return {"changed": found, "reason": f"the instructions changed: {', '.join(found)}"}
    if old is not None and old.version == new.version and old.services != new.services:
        return {"reason": "the tasks of services changed"}
    return {}


def refuse_unreadable_gates(snapshot: Snapshot) -> None:
    """Refuse to admit hosts while a gate can't be read.

    :raises UpgradeError: ``unreadable_gate``.
    """
    errors = snapshot.gates.unreadable(snapshot.current_version)
    if errors:
        raise UpgradeError(
            "unreadable_gate",
            "No host is admitted: "
            + " ".join(error.message for error in errors[:5])
            + (f" And {len(errors) - 5} more." if len(errors) > 5 else ""),
            keys=[error.details["key"] for error in errors],
        )


def _do(writer: LedgerWriter, move: LedgerMove) -> None:
    writer.write(move.ledger, move.event, move.operations, move.changes)
