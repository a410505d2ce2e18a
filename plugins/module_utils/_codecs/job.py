# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs, and what hosts report of them: decode and encode. A report that can't be read counts as a failure, so its host keeps its slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .._common.clock import is_time
from .._common.names import JOB, is_command_name, is_job, job_id
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .._fleet.fleet import FAILED, REPORTED_LOST, RETRIED, STARTED, UPGRADED, HostRecord
from .record import decode_failures, unreadable_record
from .values import MOST, decode_data, decode_time, is_count, sanitize_all

# A signature for another purpose is none for a job.
NAMESPACE = "job@convoy.upgrade"
# No job may last longer: nodes remember for so long which ones they have run.
MOST_SECONDS = 31 * 86400
_LONGEST = 255
_LONGEST_ERROR = 1000
_MOST_OUTPUT = 20_000
_MOST_OUTPUTS = 3
# What a host reports -> the state in its record.
_STATES = {"started": STARTED, "done": UPGRADED, "failed": FAILED, "lost": REPORTED_LOST, "retried": RETRIED}
_NAMES_OF_STATES = {state: name for name, state in _STATES.items()}


@dataclass(frozen=True, slots=True)
class Job:
    """A job: a command of the nodes, or tasks of Ansible, with its arguments and the hosts that it is for.

    :param command: the name of the command, or of the tasks.
    :param args: the arguments; plain data.
    :param roles: the roles that it is for.
    :param hosts: the hosts that it is for. Without roles and hosts, it is for the whole fleet.
    :param expires: no node begins it later (unix seconds).
    :param by_ansible: whether Ansible runs tasks on the hosts. Nodes ignore such a job.
    :param signature: the armored signature of :meth:`signed_text` by ``ssh-keygen -Y sign``; empty for none.
    """

    id: str
    command: str
    expires: int
    args: Mapping[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    signature: str = ""
    by: str = ""
    at: int = 0
    reason: str = ""
    by_ansible: bool = False

    @property
    def target(self) -> str:
        """The target of its rollout."""
        return f"{JOB}{self.id}"

    def signed_text(self, prefix: str) -> bytes:
        """Return the text that a signature is for: all that decides what runs where, and until when.

        :param prefix: the key prefix of the fleet: empty, or text that ends with a slash.
        """
        facts = {
            "args": self.args,
            "command": self.command,
            "expires": self.expires,
            "hosts": sorted(self.hosts),
            "id": self.id,
            "prefix": prefix,
            "roles": sorted(self.roles),
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"convoy.upgrade job 1\n{text}\n".encode()

    def targets(self) -> dict[str, tuple[str, ...]]:
        """Return its roles and hosts as the ledger has them."""
        return {name: found for name, found in (("roles", self.roles), ("hosts", self.hosts)) if found}


def encode_job(job: Job) -> str:
    """Return a job as it is stored."""
    facts = {
        "id": job.id,
        "command": job.command,
        "expires": job.expires,
        "args": job.args,
        "roles": list(job.roles),
        "hosts": list(job.hosts),
        "signature": job.signature,
        "by": job.by,
        "at": job.at,
        "reason": job.reason,
        **({"by_ansible": True} if job.by_ansible else {}),
    }
    return json.dumps(facts, sort_keys=True, allow_nan=False)


def decode_job(value: bytes) -> Job | None:
    """Return a job, None if it can't be read.

    Its arguments are those that it was begun with, so that hosts which run it later get the same. Sanitize what is printed of them.
    """
    try:
        stored = decode_data(value)
        data = sanitize_all(stored)
        job = Job(
            id=data["id"],
            command=data["command"],
            expires=data["expires"],
            args=stored.get("args", {}),
            roles=tuple(data.get("roles", ())),
            hosts=tuple(data.get("hosts", ())),
            by=str(data.get("by", "")),
            at=data.get("at", 0),
            reason=str(data.get("reason", "")),
            by_ansible=data.get("by_ansible", False) is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not all(isinstance(one, str) for one in (job.id, job.command, *job.roles, *job.hosts)):
        return None
    is_well = is_job(job.target) and is_command_name(job.command) and is_time(job.expires) and is_time(job.at)
    return job if is_well and isinstance(job.args, dict) else None


def decode_job_record(key: str, value: bytes) -> HostRecord:
    """Return what a host reported of a job as a record, whose version is the target of the job."""
    try:
        data = decode_data(value)
        target, state, attempt = f"{JOB}{data['job']}", _STATES[data["state"]], data.get("attempt", 1)
        if not is_job(target) or not is_count(attempt):
            raise ValueError(f"job {truncated_repr(data['job'])}, attempt {truncated_repr(attempt)}")
        times = data.get("times") or {}
        return HostRecord(
            target,
            state,
            attempt=attempt,
            error=_text(data.get("error"), _LONGEST_ERROR),
            times={_STATES[name]: decode_time(at) for name, at in times.items() if name in _STATES},
            failures=decode_failures(data.get("failures")),
            machine=_text(data.get("machine"), _LONGEST),
            release=_text(data.get("release"), _LONGEST),
            role=_text(data.get("role"), _LONGEST),
            repeatable=False if data.get("repeatable") is False else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        return unreadable_record(key, error)


def encode_job_record(record: HostRecord) -> str:
    """Return a host's record of a job that Ansible runs there, in the form in which nodes write theirs."""
    data = {
        "job": job_id(record.version),
        "state": _NAMES_OF_STATES[record.state],
        "attempt": record.attempt,
        "times": {_NAMES_OF_STATES[state]: at for state, at in record.times.items() if state in _NAMES_OF_STATES},
        "error": record.error,
        "failures": [list(one) for one in record.failures] or None,
        "machine": record.machine,
        "release": record.release,
        "role": record.role,
    }
    return json.dumps({name: value for name, value in data.items() if value is not None}, sort_keys=True)


def outputs_with(before: bytes | None, record: HostRecord, command: str, now: int) -> str:
    """Return the outputs of a host's last jobs with the end of one that Ansible ran there, the newest first.

    Ansible has printed what its tasks did, so there is no output besides the error.

    :param before: the outputs before, None for none.
    :param now: unix seconds.
    """
    job, began = job_id(record.version), record.times.get(STARTED, now)
    others = [
        {**one, "attempt": attempt}
        for attempt, one in _outputs(before or b"")
        if (one["job"], attempt) != (job, record.attempt)
    ]
    newest = {
        "job": job,
        "command": command,
        "attempt": record.attempt,
        "state": _NAMES_OF_STATES[record.state],
        "at": now,
        "seconds": max(0, now - began),
        "error": record.error or "",
    }
    return json.dumps([newest, *others][:_MOST_OUTPUTS], sort_keys=True)


def retried_job_record(value: bytes | None, target: str, now: int) -> str:
    """Return a host's record after an operator has put it back: as it was, so that a late report still counts, but retried.

    :param value: the record before; None if there is none.
    :param target: the target of the job.
    :param now: unix seconds.
    """
    record = decode_job_record(target, value) if value is not None else None
    kept: dict[str, Any] = {"attempt": 0, "times": {}}
    if value is not None and record is not None and record.readable and record.version == target:
        kept = json.loads(encode_job_record(replace(record, error=None, failures=record.failures_before_retry())))
        # A node knows its own record by this.
        if run := _text(decode_data(value).get("run"), _LONGEST):
            kept["run"] = run
    # With the time of a failure, the host would count as failed when it starts again.
    times = {name: at for name, at in kept["times"].items() if name != "failed"}
    new = {"job": target[len(JOB) :], "state": "retried", "times": {**times, "retried": now}}
    return json.dumps({**kept, **new}, sort_keys=True)


def decode_outputs(value: bytes, job: str | None = None) -> list[dict[str, Any]]:
    """Return the outputs of a host's last jobs, the newest first, each sanitized: ``job``, ``command``, ``state``, ``exit_status``, ``at``,
    ``seconds``, ``error`` and ``output``. What can't be read is left out.

    :param job: the ID of the job whose outputs to return; None for all.
    """
    return [found for _attempt, found in _outputs(value, job)]


def _outputs(value: bytes, job: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Return the outputs of a host's last jobs, each with the number of its attempt; 0 if that is unknown."""
    try:
        data = decode_data(value)
    except ValueError:
        return []
    found: list[tuple[int, dict[str, Any]]] = []
    for one in data[:_MOST_OUTPUTS] if isinstance(data, list) else []:
        if not isinstance(one, dict) or not isinstance(one.get("job"), str) or not is_job(f"{JOB}{one['job']}"):
            continue
        if job not in (None, one["job"]):
            continue
        state, status, seconds = (one.get(name) for name in ("state", "exit_status", "seconds"))
        attempt: Any = one.get("attempt")
        output = {
            "job": one["job"],
            "command": _text(one.get("command"), _LONGEST) or "",
            "state": state if isinstance(state, str) and state in _STATES else "failed",
            "exit_status": status
            if isinstance(status, int) and not isinstance(status, bool) and abs(status) < MOST
            else None,
            "at": one.get("at") if is_time(one.get("at")) else 0,
            "seconds": seconds if isinstance(seconds, (int, float)) and 0 <= seconds < MOST else 0,
            "error": _text(one.get("error"), _LONGEST_ERROR) or "",
            "output": "\n".join(sanitize(line) for line in str(one.get("output") or "")[:_MOST_OUTPUT].split("\n")),
        }
        found.append((attempt if is_count(attempt) else 0, output))
    return found


def _text(value: Any, most: int) -> str | None:
    return truncate_middle(sanitize(str(value)), most) if value not in (None, "") else None
