# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an agent has something to do for a job: one to run, or an end to report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ..node.consul import Consul
from ..node.gate import NodeKeys, is_job_id
from .job import parse_job
from .refusals import Refused
from .reports import is_over, parse_record
from .spool import STARTED, STARTING, Spool


class JobNeed(NamedTuple):
    """What :meth:`JobRun.run` has to do.

    :param job: the ID of the job; empty if there is nothing to do.
    :param reason: why, as a phrase for the journal.
    :param is_end: whether it only has to report the end of a run.
    """

    job: str = ""
    reason: str = ""
    is_end: bool = False


def needs_run(keys: NodeKeys, consul: Consul, spool: Spool, identifier: Optional[str]) -> JobNeed:
    """Return what :meth:`JobRun.run` has to do.

    :param identifier: the job that the node is admitted to; None for none.
    :raises ConsulError: if its record can't be read.
    """
    left = spool.to_report()
    if left:
        return JobNeed(left[0].id, f"the end of the job {left[0].id} has to be reported", is_end=True)
    is_admitted = identifier is not None and is_job_id(identifier)
    if not is_admitted and not any(one.state == STARTING for one in spool.entries()):
        return JobNeed()
    entry = consul.get(keys.job_record)
    record = parse_record(entry.value if entry else None)
    if never_ran(record, spool, identifier):
        job = str(record["job"])
        return JobNeed(job, f"the start of the job {job} has to be undone, because its command never ran")
    if identifier is None or not is_admitted or is_over(record, identifier) or is_by_ansible(keys, consul, identifier):
        return JobNeed()
    return JobNeed(identifier, f"the node is admitted to the job {identifier}")


def never_ran(record: Mapping[str, Any], spool: Spool, identifier: Optional[str]) -> bool:
    """Return whether a host's record is the start of a job whose command never ran: its answer was lost, and then the admission ended.

    Without the record, the host takes no slot. If it is admitted to the job again, it starts it again.

    :param identifier: the job that the node is admitted to; None for none.
    """
    job = record.get("job")
    if record.get("state") != STARTED or job == identifier or not isinstance(job, str) or not is_job_id(job):
        return False
    with contextlib.suppress(Refused):
        entry = spool.read(job)
        return entry is not None and entry.state == STARTING and entry.run == record.get("run")
    return False


def is_by_ansible(keys: NodeKeys, consul: Consul, identifier: str) -> bool:
    """Return whether Ansible runs the tasks of a job, so that nodes have nothing to do.

    :raises ConsulError: if the job can't be read.
    """
    key = keys.job(identifier)
    entry = consul.get(key)
    with contextlib.suppress(Refused):
        return entry is not None and parse_job(key, identifier, entry.value).by_ansible
    return False
