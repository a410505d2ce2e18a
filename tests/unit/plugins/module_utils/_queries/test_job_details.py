# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command and the outputs of a job in memory: what is read when, and how much of it is kept."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._queries.job_details import JobDetails
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from job_fleet import begin, reports
from memory_consul import MemoryConsul


def ends(consul: MemoryConsul, host: str, state: str = "done", identifier: str = "j1", **facts: Any) -> dict[str, Any]:
    """Let a host report the end of a job as its agent does, and return the output."""
    output = {
        "job": identifier, "command": "restart", "state": state, "attempt": 1, "exit_status": 0, "at": 5, "seconds": 1.5, "error": "",
        "output": f"{host} has restarted", **facts,
    }  # fmt: skip
    reports(consul, host, state, identifier)
    consul.write(f"upgrade/job_output/{host}", [output])
    return output


def test_only_outputs_of_hosts_that_have_ended_the_job_since_are_read(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    details = JobDetails(store)
    ends(consul, "web1")
    reports(consul, "web2", "started")
    before = consul.requests
    snapshot = store.snapshot()
    details.refresh(snapshot)
    assert consul.requests == before + 2
    assert details.job is not None
    assert (details.job.command, details.job.args) == ("restart", {"grace": 30})
    assert {host: one["output"] for host, one in details.outputs.items()} == {"web1": "web1 has restarted"}

    # Without a change, nothing is read.
    details.refresh(snapshot)
    assert consul.requests == before + 2
    ends(consul, "web2", "failed", exit_status=3, error="restart: exit status 3")
    snapshot = store.snapshot()
    before = consul.requests
    details.refresh(snapshot)
    assert consul.requests == before + 1
    assert (details.outputs["web2"]["state"], details.outputs["web2"]["exit_status"]) == ("failed", 3)


def test_without_a_job_nothing_is_read(consul: MemoryConsul, store: Store) -> None:
    consul.write("upgrade/job_output/web1", [{"job": "j0", "state": "done", "output": "old"}])
    snapshot = store.snapshot()
    before = consul.requests
    details = JobDetails(store)
    details.refresh(snapshot)
    assert (consul.requests, details.job, details.outputs) == (before, None, {})


def test_a_fleet_takes_one_request_for_each_64_hosts(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    for number in range(200):
        ends(consul, f"web{number}")
    snapshot = store.snapshot()
    before = consul.requests
    details = JobDetails(store)
    details.refresh(snapshot)
    # One more key is the job.
    assert consul.requests == before + 4
    assert len(details.outputs) == 200


def test_an_output_that_is_gone_or_of_another_job_is_none(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    ends(consul, "web1")
    ends(consul, "web2")
    ends(consul, "web3")
    del consul.keys["upgrade/job_output/web1"], consul.keys["upgrade/jobs/j1"]
    consul.write("upgrade/job_output/web2", [{"job": "j0", "state": "done"}])
    details = JobDetails(store)
    details.refresh(store.snapshot())
    assert (details.job, [*details.outputs]) == (None, ["web3"])
    # The operator has removed a host.
    del consul.keys["upgrade/job_records/web3"]
    details.refresh(store.snapshot())
    assert details.outputs == {}


def test_a_host_that_runs_the_job_again_has_its_output_of_before(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    ends(consul, "web1", "failed", error="no disk")
    reports(consul, "web1", "started", attempt=2, times={"failed": 4, "started": 9})
    details = JobDetails(store)
    details.refresh(store.snapshot())
    assert details.outputs["web1"]["error"] == "no disk"


def test_of_a_long_output_the_beginning_and_the_end_are_kept(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    text = "".join(f"line {number}\n" for number in range(1000))
    ends(consul, "web1", output=text)
    details = JobDetails(store)
    details.refresh(store.snapshot())
    found = details.outputs["web1"]
    assert len(found["output"]) < 2100
    assert found["output"].startswith("line 0\n") and found["output"].endswith("line 999\n")
    assert found["left_out"] == len(text) - 2000


def test_another_job_begins_without_outputs(consul: MemoryConsul, store: Store) -> None:
    begin(store)
    ends(consul, "web1")
    details = JobDetails(store)
    details.refresh(store.snapshot())
    ledger = json.loads(consul.keys["upgrade/ledger"])
    consul.write("upgrade/ledger", {**ledger, "version": "job/j2"})
    consul.write("upgrade/current_job", "job/j2")
    details.refresh(store.snapshot())
    assert (details.job, details.outputs) == (None, {})
