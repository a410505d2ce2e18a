# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One planner pass for the post-upgrade tasks: read, plan and admit hosts, under the rules of the rollout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._codecs.record import decode_record, encode_record
from .._codecs.values import text_of
from .._common import runtime
from .._common.errors import UpgradeError, needs_memory
from .._common.names import in_order
from .._consul.client import Operation
from .._consul.operations import Change, compare_and_put, net_changes, put
from .._consul.retry import TRIES_OF_LEDGER, retry_on_conflict
from .._fleet.fleet import POST_FAILED, POST_OPEN, TASKS_FAILED, UPGRADED, HostRecord, Snapshot, find_members
from .._fleet.former_rollouts import with_former_rollout
from .._fleet.gates import OPEN, GateValue
from .._fleet.ledger import BEGINNINGS, Ledger
from .._host_states.admitted import admits
from .._host_states.host_state import HostState
from .._host_states.states import read_states
from .._planner.plan import Admission
from .._planner.post_upgrade import begun_post_upgrade, post_upgrade_snapshot, without_post_upgrade
from .._planner.reconcile import make_plan
from .._rollout.conflicts import other_rollout
from .._rollout.host_health_notes import with_checks
from .._rollout.host_writes import HostWrite, left_out_warning, write_hosts
from .._rollout.opened_gates import MOST_SLOW, ReadTooOld, SlowTries, may_still_admit
from .._rules.instructions import parse
from .._state.layout import refuse_to_plan
from .._state.ledger_writer import MOST_GATES, LedgerWriter
from .._state.store import Store, current_user
from .planner_pass import PassRequest, PassResult, refuse_unreadable_gates
from .restored_consul import RepeatedRead


def make_post_upgrade_pass(
    store: Store, request: PassRequest, roles: Collection[str], *, handover: int = 0
) -> PassResult:
    """Admit hosts to their post-upgrade tasks; retry on conflict.

    :param request: needs a version and a fleet.
    :param roles: the roles that have such tasks; hosts of other roles count as done.
    :param handover: as for :class:`LedgerWriter`.
    :raises HandoverChanged: if the handover was replaced or ended. Earlier tries may have admitted hosts.
    :raises UpgradeError: ``not_complete`` before every host is upgraded, ``fleet_too_small``, ``overtaken``, ``busy``, ``too_slow``, ``went_back``,
        ``out_of_memory``.
    """
    slow = SlowTries(store.settings.pass_limit, MOST_SLOW)
    repeated = RepeatedRead(request.epoch, request.commit)
    admissions: list[Admission] = []

    def attempt() -> PassResult:
        before = len(admissions)
        try:
            return _try_once(store, request, repeated, roles, admissions, handover)
        except ReadTooOld as error:
            slow.add(error.seconds, got_on=len(admissions) > before)
            raise

    def written() -> str:
        return "What was written before it obeys the rules." if admissions else "Nothing was written."

    with needs_memory("the post-upgrade tasks were planned", written):
        return retry_on_conflict(attempt, lambda: store.keys.ledger, tries=TRIES_OF_LEDGER)


# The newest admission names so many hosts that are at work, at most. With more, a host that is done may say that it still is.
_MOST_AT_WORK = 500


def _try_once(
    store: Store,
    request: PassRequest,
    repeated: RepeatedRead,
    roles: Collection[str],
    opened: list[Admission],
    handover: int,
) -> PassResult:
    read_at = runtime.since_boot()
    snapshot = repeated.read(store, of_job=False)
    refuse_to_plan(store.keys, snapshot)
    ledger = snapshot.ledger
    if ledger is None or snapshot.current_version != request.version or ledger.version != request.version:
        raise UpgradeError(
            "overtaken",
            f"The rollout to {request.version!r} is not the current one (current_version is {snapshot.current_version!r}), so its "
            "post-upgrade tasks do not run.",
        )
    if request.began not in (None, ledger.since):
        # It has begun again.
        raise other_rollout(snapshot)
    refuse_unreadable_gates(snapshot)
    membership = find_members(request.fleet, snapshot, ledger.role_pattern)
    members = membership.members
    rules = parse(ledger.instructions)
    snapshot = with_checks(store, snapshot, rules)
    hosts = read_states(snapshot, members, rules.health)
    unfinished = without_post_upgrade(hosts)
    if unfinished:
        raise UpgradeError(
            "not_complete",
            f"{len(unfinished)} of {len(members)} hosts are not upgraded to {request.version}, such as {unfinished[0]}, so the "
            "post-upgrade tasks do not run yet.",
        )
    begun = begun_post_upgrade(snapshot)
    # A pull host repeats tasks that failed, and keeps its slot meanwhile.
    unfinished_tasks = begun | {
        host for host, one in snapshot.records.items() if (one.version, one.post) == (request.version, POST_FAILED)
    }
    at_work = _admitted(store, ledger, unfinished_tasks)
    admitted = {host: at for host, at in at_work.items() if host in begun}
    view = post_upgrade_snapshot(snapshot, members, roles, store.keys.gate("global"), hosts, admitted)
    plan = make_plan(view, members, rules, request.limit)
    if plan.missing:
        # Another controller knows more hosts, and may have admitted them.
        raise UpgradeError("fleet_too_small", f"No host is admitted: {'; '.join(plan.missing)}.")
    writer = LedgerWriter(store, snapshot, current_user(), int(runtime.now()), handover=handover)
    outcome = PassResult(plan, ledger, snapshot.index, snapshot=view, membership=membership, rules=rules)
    admissions = [one for one in plan.admissions if one.before == "pending"]
    by_host = {one.host: one for one in admissions}
    closed = _closed_gates(store, snapshot, hosts, by_host)
    # A record, a wake key, and perhaps a gate each.
    most = MOST_GATES // (2 + (writer.places if closed else 0))

    def make(hosts: Sequence[str], _changed: object) -> dict[str, HostWrite]:
        return (
            _records(store, hosts, str(request.version), closed)
            if may_still_admit(store, rules, runtime.now(), read_at)
            else {}
        )

    def write(hosts: Sequence[str], operations: list[Operation], changes: list[Change]) -> None:
        event: dict[str, Any] = {"what": "after", "hosts": {host: by_host[host].reason for host in hosts}}
        names = in_order({*at_work, *(one.host for one in opened)})
        if len(names) <= _MOST_AT_WORK:
            event["at_work"] = names
        writer.write(replace(ledger), event, operations, changes)
        repeated.note(writer.ledger)
        outcome.admissions += [by_host[host] for host in hosts]
        opened.extend(by_host[host] for host in hosts)

    left_out = write_hosts(store.keys, by_host, most, make, write)
    if left_out:
        outcome.warnings.append(left_out_warning(store.keys, left_out, "The post-upgrade tasks can't begin"))
    outcome.changes = net_changes(writer.changes)
    outcome.ledger = writer.ledger
    return outcome


def _admitted(store: Store, ledger: Ledger, begun: Collection[str]) -> dict[str, int]:
    """Return the hosts of ``begun`` that were admitted in this rollout, by its history, and when (unix seconds).

    The newest admission names the hosts that were at work then. An earlier admission of another host has ended, whatever its record says now, and so
    has one before a retry of the host.

    One request for each 64 entries since the oldest of these admissions; none if ``begun`` is empty.
    """
    found: dict[str, int] = {}
    missing = set(begun)
    is_newest = True
    for event in store.history(ledger) if missing else ():
        hosts = event.get("hosts", {}).keys()
        if event["what"] in ("retry", "forget"):
            missing -= hosts
        if event["what"] == "after":
            found |= dict.fromkeys(missing & hosts, int(event["at"]))
            missing -= hosts
            if is_newest and "at_work" in event:
                missing &= set(event["at_work"])
            is_newest = False
        if not missing or event["what"] in BEGINNINGS:
            break
    return found


def _closed_gates(
    store: Store, snapshot: Snapshot, hosts: Mapping[str, HostState], names: Iterable[str]
) -> dict[str, GateValue]:
    """Return the gates of hosts that no gate admits, to be opened for their tasks: host -> its own gate, with the index 0 if there is none.

    A host that was at the version when the rollout began, or when it began again, was not admitted to its upgrade. Nor was one that was put back, and
    whose upgrade ended after that.
    """
    gates = snapshot.gates.hosts
    return {
        host: gates.get(host) or GateValue(store.keys.gate("host", host), None)
        for host in names
        if not admits(snapshot, host, hosts[host].gate)
    }


def _records(store: Store, hosts: Sequence[str], version: str, closed: Mapping[str, GateValue]) -> dict[str, HostWrite]:
    entries = {entry.key: entry for entry in store.client.read([store.keys.record(host) for host in hosts])}
    found = {}
    for host in hosts:
        key = store.keys.record(host)
        entry = entries.get(key)
        before = decode_record(key, entry.value) if entry is not None else None
        if before is None or not before.readable or before.version != version:
            kept = before if before is not None and before.readable else None
            former, of_host = (with_former_rollout(kept), kept.of_host()) if kept is not None else ((), {})
            before = HostRecord(version, UPGRADED, reported=version, former=former, **of_host)
        # A pull host runs these tasks when it is woken.
        at = int(runtime.now())
        times = {name: time for name, time in before.times.items() if name != TASKS_FAILED}
        text = encode_record(replace(before, post=POST_OPEN, times={**times, POST_OPEN: at}, next_step=None))
        operations = [compare_and_put(key, text, entry.modify_index if entry is not None else 0)]
        changes = [Change(key, text_of(entry.value) if entry is not None else None, text)]
        if host in closed:
            gate = closed[host]
            operations.append(compare_and_put(gate.key, OPEN, gate.index, flags=at))
            changes.append(Change(gate.key, gate.text, OPEN))
        found[host] = HostWrite([*operations, put(store.keys.wake(host), str(at))], changes)
    return found
