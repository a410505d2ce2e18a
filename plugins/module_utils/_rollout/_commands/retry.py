# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Retry: an operator resets failed and lost hosts, so that they wait to be admitted again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ..._common.errors import UpgradeError
from ..._common.names import did_you_mean, in_order, is_job, job_id, listing
from ..._common.sanitize import option
from ..._consul.client import Operation
from ..._consul.operations import Change
from ..._fleet.fleet import Snapshot
from ..._fleet.ledger import COMPLETE, PAUSED, RUNNING, Ledger
from ..._host_states import state_names
from ..._planner.plan import Plan
from ..._state.ledger_writer import MOST_GATES, LedgerWriter
from ..._state.store import Store
from ..host_writes import HostWrite, left_out_warning, write_hosts
from .command import Command, CommandResult, command_fields, plan_of, refuse_unless, write_command
from .retry_choice import RetryChoice, choose_hosts, is_down_after_upgrade, started_record
from .retry_records import reset_writes


def retry(store: Store, command: Command, hosts: Sequence[str] | None = None, *, dry: bool = False) -> CommandResult:
    """Reset failed and lost hosts to pending. Holds stay.

    :param hosts: the hosts to reset; None for all that failed or are lost, an empty list for none. A lost host that has started and not
        reported an end has to be named. So has one that began an upgrade to another version and reported no end, or failed in it, or that
        started without an admission, or that reported and fails its checks, or that was admitted to its post-upgrade tasks. In a complete rollout,
        only these tasks can be retried.
    :raises UpgradeError: ``no_rollout``, ``not_running``, ``unknown_host``, ``fleet_too_small``, ``overtaken``, ``busy``.
    """
    return write_command(store, _Retry(command, hosts, dry=dry).act, dry=dry)


class _Retry:
    """A retry over all its tries: one that ends in a conflict may have reset some hosts."""

    def __init__(self, command: Command, asked: Sequence[str] | None, *, dry: bool) -> None:
        self._command = command
        self._asked = asked
        self._dry = dry
        self._reset: set[str] = set()
        self._remarks: list[str] = []

    def act(self, writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger) -> CommandResult:
        """Make one try."""
        if ledger.state != COMPLETE:
            refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        plan = plan_of(writer.store, snapshot, ledger, self._command.fleet)
        for name in self._asked or ():
            if name not in plan.hosts:
                raise UpgradeError(
                    "unknown_host", f"hosts: {name!r} is no host of this fleet{did_you_mean(name, plan.hosts) or '.'}"
                )
        choice = choose_hosts(snapshot, plan, self._asked, self._reset)
        if not (choice.hosts or choice.final or choice.silent or self._reset):
            refuse_unless(ledger, (RUNNING, PAUSED), "retried")
        self._write(writer, snapshot, ledger, plan, choice.hosts)
        left_out = [host for host in choice.hosts if host not in self._reset]
        if left_out:
            warning = left_out_warning(writer.store.keys, left_out, "The retry is not written")
            if not self._reset:
                raise UpgradeError("busy", warning, hosts=left_out)
            self._remarks.append(warning)
        remarks = [*self._remarks, *_remarks_on_left(snapshot, choice, self._asked)]
        return CommandResult(writer.ledger or ledger, hosts=in_order(self._reset), remarks=remarks)

    def _write(
        self, writer: LedgerWriter, snapshot: Snapshot, ledger: Ledger, plan: Plan, hosts: Sequence[str]
    ) -> None:
        """Reset hosts, as many in each write as it has room for."""
        fields = command_fields(self._command.plain())
        why = f"{fields['reason']}; " if fields["reason"] else ""
        only_tasks_of = {host for host in hosts if is_down_after_upgrade(snapshot, plan, host)}
        # Any other host that is reset has to be admitted again.
        keep_admission = only_tasks_of.union(snapshot.busy)
        # Each host needs a write of its record, its health mark and its gate, which may be in two layouts, and perhaps a look at its lease.
        most = MOST_GATES // (3 + writer.places)

        def make(piece: Sequence[str], changed: Collection[str]) -> dict[str, HostWrite]:
            return reset_writes(writer.store, snapshot, piece, changed, ledger.version, only_tasks_of)

        def write(piece: Sequence[str], operations: list[Operation], changes: list[Change]) -> None:
            reasons = {host: f"{why}it was: {plan.hosts[host].reason}" for host in piece}
            ended = set(piece).difference(keep_admission)
            now = writer.ledger or ledger
            admitted = {host: at for host, at in now.admitted.items() if host not in ended}
            event = {"what": "retry", "hosts": reasons, **fields}
            writer.write(replace(now, admitted=admitted), event, operations, changes)
            self._reset.update(piece)
            self._remarks.extend(_remarks_on_reset(snapshot, plan, piece, dry=self._dry))

        write_hosts(writer.store.keys, hosts, most, make, write)


def _remarks_on_left(snapshot: Snapshot, choice: RetryChoice, asked: Sequence[str] | None) -> list[str]:
    """Return remarks for the operator on hosts that were not reset."""
    if asked is not None and not asked:
        return ["hosts is an empty list, so no host is retried. Leave hosts out to retry all failed and lost hosts."]
    remarks = []
    if choice.well:
        are = "it is" if len(choice.well) == 1 else "they are"
        remarks.append(f"Not changed, because {are} neither failed nor lost: {listing(choice.well)}.")
    remarks += [_busy_remark(snapshot, host) for host in choice.busy]
    remarks += [_silent_remark(snapshot, host) for host in choice.silent]
    if choice.final:
        remarks.append(
            f"Not changed: {listing(choice.final)}. {state_names.NOT_AGAIN}. After the other hosts, run ansible-playbook convoy.upgrade.abort, and "
            "begin a new job with -e only=HOSTS."
        )
    return remarks


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


def _remarks_on_reset(snapshot: Snapshot, plan: Plan, hosts: Iterable[str], *, dry: bool) -> list[str]:
    """Return remarks for the operator on hosts that were reset."""
    remarks = []
    for host in hosts:
        if is_down_after_upgrade(snapshot, plan, host):
            remarks.append(
                f"{host} {'would wait' if dry else 'waits'} for its post-upgrade tasks again, and its slot {'would be' if dry else 'is'} free. Once all "
                f"hosts are upgraded, run ansible-playbook convoy.upgrade.post_upgrade {option('version', snapshot.current_version)}."
            )
        record, view = started_record(snapshot, host), plan.hosts[host]
        if record is not None:
            what = f"the job {job_id(record.version)}" if is_job(record.version) else f"its upgrade to {record.version}"
            # The end of a job changes nothing of an upgrade that failed there.
            keeps = host in snapshot.busy and plan.fleet is not None and plan.fleet.hosts[host].is_down
            slot = (
                "it keeps its slot, because it has not finished an upgrade"
                if keeps
                else f"its slot {'would be' if dry else 'is'} free"
            )
            remarks.append(
                f"{host} had begun {what} and reported no end. It {'would count' if dry else 'now counts'} as ended, and {slot}: make sure that "
                f"{'no command' if is_job(record.version) else 'no upgrade'} runs there."
            )
        hold = snapshot.hold_of(host, view.role)
        if hold is not None:
            remarks.append(f"{host} is {hold.text()}, so it is not admitted before that.")
    return remarks
