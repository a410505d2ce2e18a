# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a job ended on a host where Ansible ran it: the host's record and the outputs of its last jobs, in one transaction.

Nodes that run jobs by themselves write the same keys, see ``agent/convoy_node/jobs/reports.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._codecs.job import decode_job_record, encode_job_record, outputs_with
from .._common import runtime
from .._consul.client import Operation
from .._consul.operations import compare_and_put
from .._consul.retry import retry_on_conflict
from .._state.store import Store
from .host_report import HostReport, next_record


def write_job_report(
    store: Store, report: HostReport, command: str, checks: Callable[[], Sequence[Operation]] = tuple
) -> None:
    """Write a report: one request to read, one to write.

    :param store: the store with the keys of the job.
    :param report: whose version is the target of the job.
    :param command: the name of the tasks.
    :param checks: called before each try; returns what has to be true at the same time, such as that the caller has the lease of the host.
    :raises UpgradeError: ``busy``, and what the client raises.
    """
    retry_on_conflict(
        lambda: _report(store, report, command, checks),
        lambda: store.keys.record(report.host),
        "Another process reports for this host at the same time.",
    )


def _report(store: Store, report: HostReport, command: str, checks: Callable[[], Sequence[Operation]]) -> None:
    key, outputs_key = store.keys.record(report.host), store.keys.job_output(report.host)
    entries = {entry.key: entry for entry in store.client.read((key, outputs_key))}
    entry, outputs = entries.get(key), entries.get(outputs_key)
    now = int(runtime.now())
    after = next_record(decode_job_record(key, entry.value) if entry is not None else None, report, now)
    listed = outputs_with(outputs.value if outputs is not None else None, after, command, now)
    store.client.settle(
        [
            compare_and_put(key, encode_job_record(after), entry.modify_index if entry is not None else 0),
            compare_and_put(outputs_key, listed, outputs.modify_index if outputs is not None else 0),
            *checks(),
        ]
    )
