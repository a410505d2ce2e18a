# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the job that this node is admitted to: check it, start it in one transaction, run its command, report."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from ..machine import puppet
from ..machine.errors import ConsulError, LockError, sanitize
from ..machine.lock_file import open_lock_file, wait_for_lock
from ..machine.machine_id import is_this_machine, machine_id
from ..machine.processes import start_ticks
from ..node.consul import Consul, ConsulKey
from ..node.gate import NodeKeys, admitted_job, read_keys
from ..node.settings import NodeSettings
from .command_schema import check_arguments
from .execution import NotStarted, execute
from .job import CLOCK_SKEW, MOST_SECONDS, NodeJob, check_clock, check_time, parse_job
from .job_need import is_by_ansible, never_ran
from .node_commands import NodeCommand, find_command
from .refusals import Refused
from .reports import (
    RETRIED,
    is_over,
    is_started,
    last_lines,
    next_outputs,
    next_record,
    parse_record,
    report_of,
    start_operations,
)
from .signature import verify_signature
from .spool import DONE, ENDED, FAILED, LOST, STARTED, STARTING, JobEntry, Spool, new_entry, own_process

# How often a write is tried that another one got in the way of, and a report that Consul did not take.
_TRIES = 5
_REPORT_SECONDS = 60.0


class Busy(Exception):
    """Something else works on this node: an agent run, or another job."""


class NotAdmitted(Exception):
    """The node is not admitted to the job any more."""


class NotRepeatable(Refused):
    """The command has run, and does not run again, also after a retry."""


class OtherMachine(Exception):
    """Another machine with the name of this one has begun the job."""


class JobRun:
    """Runs what this node is admitted to."""

    def __init__(
        self,
        settings: NodeSettings,
        lock_file: Path,
        release: str,
        spool: Optional[Spool] = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Prepare; nothing is read yet.

        :param lock_file: the lock of the node, which agent runs use too.
        :param release: the name of the agent's release.
        """
        self._settings = settings
        self._keys = NodeKeys(settings.host, settings.role, settings.prefix)
        self._consul = Consul(settings.connection)
        self._spool = spool or Spool()
        self._lock_file = lock_file
        self._say = say
        self._facts = {"role": settings.role, "machine": machine_id(), "release": release}

    def run(self) -> int:
        """Report what earlier runs could not, and run the job that the node is admitted to; return an exit code.

        :raises ConsulError: if Consul gives no answer before the command starts. After that, the next run reports.
        """
        try:
            self._spool.prepare()
            with self._alone():
                self._spool.recover(int(time.time()))
                left = self._spool.to_report()
                if not all(map(self._report, left)):
                    # What is decided without that end could overwrite it.
                    return 75
                if left and puppet.disabled_by_operator() is not None:
                    # The host is held next. It would refuse another job.
                    return 0
                code = self._run_admitted()
                # After that, because the record of a start that never ran is recognized by its entry.
                self._spool.prune(int(time.time()))
                return code
        except (Refused, LockError) as error:
            # The node can't keep its own record of jobs, or its lock, so none is begun.
            self._say(f"{self._settings.host}: {error}")
            return self._refuse_without_entry(str(error))
        except Busy as error:
            self._say(f"{self._settings.host}: {error}")
            return 75
        except ConsulError:
            raise
        except Exception as error:
            # Whatever it is, the operator has to learn of it. The start of a run stays as it is, and the next run reports its end.
            traceback.print_exc()
            return self._refuse_without_entry(
                f"The agent failed with {type(error).__name__}: {sanitize(str(error), 300)}. Correct what this names, if you can. "
                "journalctl -u convoy-node-job on this node shows where it failed."
            )

    def _run_admitted(self) -> int:
        found = self._read_keys()
        identifier = admitted_job(self._keys, found)
        key = self._consul.get(self._keys.job_record)
        record = parse_record(key.value if key else None)
        if key is not None and never_ran(record, self._spool, identifier):
            # If the record has changed meanwhile, the next run removes it.
            self._consul.write([_delete(self._keys.job_record, key.index)])
            record = {}
        if identifier is None or is_over(record, identifier) or is_by_ansible(self._keys, self._consul, identifier):
            return 0
        before, problem = self._entry_of(identifier)
        try:
            # Before any refusal, which would take the place of the end of that run.
            ended = self._ended_run(record, identifier, before)
        except OtherMachine as error:
            # Its record stays as it is, so that its slot is not given away.
            self._say(f"{self._settings.host}: job {identifier} does not start: {error}")
            return 1
        if ended is not None:
            # Only an operator decides whether it runs again.
            self._say(f"{self._settings.host}: {report_of(ended)}")
            if not self._report(ended):
                return 75
            return 0 if ended.state == DONE else 1
        try:
            if problem:
                raise Refused(problem)
            job, command = self._checked(identifier, before, record)
        except Refused as error:
            self._refuse(identifier, str(error), record, is_final=isinstance(error, NotRepeatable))
            return 1
        attempt = 1 if before is None else before.attempt + (before.state != STARTING)
        # A start that did not go on may be in Consul all the same.
        run = before.run if before is not None and before.state == STARTING else uuid.uuid4().hex
        entry = new_entry(job, run, int(time.time()), attempt, is_repeatable=command.schema.is_repeatable)
        try:
            if before is None:
                self._spool.add(entry)
            else:
                self._spool.save(entry)
        except Refused as error:
            self._refuse(identifier, str(error), record)
            return 1
        try:
            entry = replace(entry, state=STARTED)
            self._start(entry)
        except (NotAdmitted, ConsulError) as error:
            # Nothing has run. The start may be in Consul all the same, so the entry stays, and the next run starts again.
            self._say(f"{self._settings.host}: job {job.id} does not start: {error}")
            return 75
        try:
            self._spool.save(entry)
        except Refused as error:
            entry = replace(entry, state=FAILED, ended=int(time.time()), error=f"refused: {error}", has_run=False)
        else:
            self._say(f"{self._settings.host}: job {job.id} runs {command.program}")
            entry = self._execute(job, command, entry)
        with contextlib.suppress(Refused):
            self._spool.save(entry)
        self._say(f"{self._settings.host}: {report_of(entry)}")
        self._report(entry)
        return 0 if entry.state == DONE else 1

    def _read_keys(self) -> dict[str, ConsulKey]:
        return read_keys(self._consul, self._keys, bool(self._settings.connection.token))

    def _entry_of(self, identifier: str) -> tuple[Optional[JobEntry], str]:
        """Return the entry of an earlier run, None if there is none, and why it can't be read; the latter is empty if it can."""
        try:
            return self._spool.read(identifier), ""
        except Refused as error:
            return None, str(error)

    def _checked(
        self, identifier: str, before: Optional[JobEntry], record: Mapping[str, Any]
    ) -> tuple[NodeJob, NodeCommand]:
        """Return the job and its command.

        :param before: the entry of an earlier run, which the job may have to repeat; None if there is none.
        :param record: the host's record.
        :raises Refused: if this node does not run it.
        """
        key = self._keys.job(identifier)
        entry = self._consul.get(key)
        if entry is None:
            raise Refused(f"{key} is missing, so it is unknown what should run. Begin a new job.")
        job = parse_job(key, identifier, entry.value)
        settings = self._settings
        if settings.noop:
            raise Refused(
                "This node only shows what Puppet would change (puppet_gate_noop). Set it to false, or begin a job without it."
            )
        if (disabled := puppet.disabled_by_operator()) is not None:
            raise Refused(
                f"Puppet is disabled on this host: {disabled}. Enable it with 'puppet agent --enable', then run ansible-playbook convoy.upgrade.retry -e "
                f"host={settings.host}."
            )
        if not job.is_for(settings.host, settings.role):
            raise Refused(
                f"The job is not for {settings.host} with role {settings.role}. Begin a job for it, or correct puppet_gate_role of this node."
            )
        now = time.time()
        check_clock(now, self._consul.time, f"the clock of Consul at {settings.connection.url}", "correct that one")
        check_clock(now, *self._spool.newest_time(), "it was ahead before, so wait for that time")
        check_time(job, now)
        if settings.require_signed_jobs or (job.signature and os.path.lexists(settings.allowed_signers)):
            signer = verify_signature(job, settings.prefix, settings.allowed_signers)
            self._say(f"{settings.host}: job {job.id} is signed by {signer}")
        command = find_command(job.command, settings.commands_dir)
        check_arguments(command.schema, job.arguments)
        is_new = before is None or before.state == STARTING or not before.has_run
        if before is not None and not is_new:
            self._check_repeat(before, command, record)
        return job, command

    def _check_repeat(self, before: JobEntry, command: NodeCommand, record: Mapping[str, Any]) -> None:
        """Refuse a job that has run here, unless it may run again, and an operator has retried it.

        :raises Refused: if it does not run again.
        """
        if before.state == DONE:
            # Consul was restored, or the job was written again from a copy. After a retry, it would be refused again.
            raise NotRepeatable("The job has run on this node already. Begin a new job for this host.")
        ended = {FAILED: "has failed", LOST: "was lost"}.get(before.state, "has begun")
        if not command.schema.is_repeatable:
            raise NotRepeatable(
                f"The job {ended} on this node, and {before.command} is not repeatable, so it does not run again. Begin a new job for this host."
            )
        if record.get("state") != RETRIED:
            raise Refused(
                f"The job {ended} on this node, and Consul does not know that, so it does not run again by itself. Run ansible-playbook "
                f"convoy.upgrade.retry -e host={self._settings.host}."
            )

    def _ended_run(self, record: Mapping[str, Any], identifier: str, before: Optional[JobEntry]) -> Optional[JobEntry]:
        """Return the end of a run that Consul has only the start of: as this node remembers it, or lost; None if there is none.

        :raises OtherMachine: if it is one of another machine with the name of this one.
        """
        run = record.get("run")
        if not is_started(record, identifier):
            return None
        if before is not None and before.run == run:
            # Its end was not reported in time.
            return None if before.state == STARTING else before
        machine = str(record.get("machine") or "")
        if not is_this_machine(machine):
            raise OtherMachine(
                f"The machine {sanitize(machine, 100)} has begun the job under the name of this one. If it is gone, run "
                f"ansible-playbook convoy.upgrade.forget -e host={self._settings.host} -e force=true. If not, rename one of the two."
            )
        if before is not None and before.state in ENDED:
            # What this node knows of the job stays, whatever run the record names.
            return replace(before, run=str(run))
        now, name = int(time.time()), str(record.get("command") or "")
        is_repeatable = True
        with contextlib.suppress(Refused):
            is_repeatable = find_command(name, self._settings.commands_dir).schema.is_repeatable
        error = f"lost: the job has started on this node, and {self._spool.folder} has no entry of that, so its result is unknown"
        # It began before now, so it expires before this. The job itself may be unreadable.
        return JobEntry(
            identifier,
            name,
            now + MOST_SECONDS + CLOCK_SKEW,
            LOST,
            str(run),
            at=now,
            ended=now,
            error=error,
            is_repeatable=is_repeatable,
        )

    def _start(self, entry: JobEntry) -> None:
        """Write that the job starts, if the node is admitted to it at that moment.

        :raises NotAdmitted: if it is not.
        """
        keys = self._keys
        for _try in range(_TRIES):
            found = self._read_keys()
            if admitted_job(keys, found) != entry.id:
                raise NotAdmitted("the node is not admitted to it any more")
            self._check_role(found)
            record = self._consul.get(keys.job_record)
            value, index = (record.value, record.index) if record is not None else (None, 0)
            operations, missing = start_operations(
                keys, next_record(parse_record(value), entry, self._facts), index, found
            )
            written = self._consul.write(operations)
            if written is None:
                continue
            if missing.isdisjoint(written):
                return
            # A hold was set in the same moment. What was there before is written back, before anything is done.
            index = written[keys.job_record].index
            undo = {"Verb": "cas", "Key": keys.job_record, "Value": value, "Index": index}
            self._consul.write([undo if value is not None else _delete(keys.job_record, index)])
        raise NotAdmitted("its keys changed during each try")

    def _check_role(self, found: Mapping[str, ConsulKey]) -> None:
        """Refuse a start if planners know the host with another role than its settings have, or may have known it so when they admitted it.

        Its caps and holds would be those of that role.

        :param found: key -> entry, from the read that showed the admission.
        :raises NotAdmitted: if it may not start.
        """
        keys, host = self._keys, self._settings.host
        entry = self._consul.get(keys.record)
        record = parse_record(entry.value if entry is not None else None)
        known, former = (
            one if isinstance(one := record.get(name), str) else keys.role for name in ("role", "former_role")
        )
        if known != keys.role:
            raise NotAdmitted(
                f"its settings have the role {keys.role}, and it reported {sanitize(known, 255)} before; if that is right, enroll it again "
                f"(ansible-playbook convoy.upgrade.enroll --limit {host})"
            )
        if former == keys.role:
            return
        if keys.job_gates[0] not in found:
            raise NotAdmitted(
                f"its role was {sanitize(former or 'another one', 255)} before, and planners may have admitted the role {keys.role} before that changed; "
                "it starts once they have admitted it by its own name"
            )
        if former and self._consul.get(keys.role_hold(former)) is not None:
            raise NotAdmitted(f"its role was {sanitize(former, 255)} before, and that role is held")

    def _execute(self, job: NodeJob, command: NodeCommand, entry: JobEntry) -> JobEntry:
        """Run the command; return the entry with its end."""

        def started(pid: int) -> None:
            nonlocal entry
            entry = replace(entry, child=pid, child_ticks=start_ticks(pid) or 0)
            with contextlib.suppress(Refused):
                self._spool.save(entry)

        facts = {
            "CONVOY_JOB": job.id,
            "CONVOY_ATTEMPT": str(entry.attempt),
            "CONVOY_HOST": self._settings.host,
            "CONVOY_ROLE": self._settings.role,
        }
        try:
            ended = execute(command.program, job.arguments, command.schema.timeout, facts, started)
        except NotStarted as error:
            problem = f"{command.program} can't be started: {error}. It has to be a program, or to begin with #! and an interpreter."
            return replace(entry, state=FAILED, ended=int(time.time()), error=problem, has_run=False)
        entry = replace(
            entry, ended=int(time.time()), seconds=ended.seconds, exit_status=ended.exit_status, output=ended.output
        )
        if ended.exit_status == 0 and not ended.is_timeout:
            return replace(entry, state=DONE)
        how = f"exit status {ended.exit_status}"
        if ended.is_timeout:
            how = f"killed after {command.schema.timeout:g} s, its time limit"
        elif ended.exit_status < 0:
            how = f"killed by signal {-ended.exit_status}"
        lines = last_lines(ended.output)
        return replace(entry, state=FAILED, error=f"{job.command}: {how}" + (f": {lines}" if lines else ""))

    def _refuse(self, identifier: str, reason: str, record: Mapping[str, Any], *, is_final: bool = False) -> None:
        """Report that the node does not run a job.

        :param record: the host's record. If it has a start of this job, that start was never followed by a run.
        :param is_final: whether it refuses it after a retry too.
        """
        now = int(time.time())
        self._say(f"{self._settings.host}: job {identifier} is refused: {reason}")
        run = str(record.get("run")) if is_started(record, identifier) else uuid.uuid4().hex
        error = f"refused: {reason}"
        entry = JobEntry(identifier, "", 0, FAILED, run, at=now, ended=now, error=error, is_repeatable=not is_final)
        self._report(entry, is_refusal=True)

    def _refuse_without_entry(self, reason: str) -> int:
        with contextlib.suppress(ConsulError):
            found = self._read_keys()
            identifier = admitted_job(self._keys, found)
            if identifier is not None and not is_by_ansible(self._keys, self._consul, identifier):
                # Not the start of a run: its end may be in the folder that can't be used now.
                self._refuse(identifier, reason, {})
        return 1

    def _report(self, entry: JobEntry, is_refusal: bool = False) -> bool:
        """Write how a job ended, and note that; return False if Consul does not take it, so that the next run has to.

        A record of another run is left alone: an operator has removed the host's keys, or the host has begun another job. So is one that
        has an end already. One that an operator has retried meanwhile takes the end: the command ran.

        :raises Refused: if the disk did not take the end.
        """
        if entry.state not in ENDED:
            raise Refused(
                f"The end of job {entry.id} can't be noted in {self._spool.folder}, so no job begins. Make room, or correct the disk."
            )
        keys, until, pause = self._keys, time.monotonic() + _REPORT_SECONDS, 0.5
        while True:
            try:
                record, outputs = self._consul.get(keys.job_record), self._consul.get(keys.job_output)
                before = parse_record(record.value if record else None)
                is_same = before.get("run") == entry.run
                if is_refusal and (is_over(before, entry.id) or (is_started(before, entry.id) and not is_same)):
                    return True
                if not is_refusal and not (is_same and before.get("state") in (STARTED, RETRIED)):
                    if is_same and before.get("state") in ENDED:
                        # A full disk may have taken the report, but not the note of it.
                        entry = replace(entry, state=str(before["state"]))
                    break
                operations = [
                    _cas(keys.job_record, next_record(before, entry, self._facts), record),
                    _cas(keys.job_output, next_outputs(outputs.value if outputs else None, entry), outputs),
                ]
                if self._consul.write(operations) is not None:
                    break
            except ConsulError as error:
                self._say(f"{self._settings.host}: the end of job {entry.id} is not reported yet: {error}")
            if time.monotonic() + pause > until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 10.0)
        if not is_refusal:
            with contextlib.suppress(Refused):
                self._spool.save(replace(entry, is_reported=True))
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the node, so that neither an upgrade nor Puppet runs meanwhile.

        :raises Busy: if an agent run or another job keeps it for too long.
        :raises LockError: if the file can't be trusted.
        """
        seconds = float(self._settings.data.get("puppet_gate_lock_timeout", 600))
        # Not inherited by the command, which may leave a daemon behind.
        file = open_lock_file(self._lock_file)
        try:
            if not wait_for_lock(file, seconds, pause=0.5):
                raise Busy(f"{self._lock_file} is still held by an agent run; the job waits")
            process = own_process()
            # As agent runs write it, so that their messages name this process.
            holder = {
                "who": "a job",
                "since": int(time.time()),
                "pid": process["pid"],
                "started": process["ticks"],
                "run": "job",
            }
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(holder).encode(), 0)
            yield
        finally:
            os.close(file)


def _delete(key: str, index: int) -> dict[str, object]:
    return {"Verb": "delete-cas", "Key": key, "Index": index}


def _cas(key: str, value: bytes, before: Optional[ConsulKey]) -> dict[str, object]:
    return {"Verb": "cas", "Key": key, "Value": value, "Index": before.index if before else 0}
