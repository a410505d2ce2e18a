# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs and reports on them, as they are stored and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import (
    Job,
    decode_job,
    decode_job_record,
    decode_outputs,
    encode_job,
    encode_job_record,
    outputs_with,
    retried_job_record,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    REPORTED_LOST,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from convoy_node.jobs.reports import next_record
from convoy_node.jobs.spool import JobEntry

KEY = "upgrade/job_records/web1"


@pytest.mark.parametrize("by_ansible", [False, True])
def test_a_job_is_read_as_it_was_written(by_ansible: bool) -> None:
    # Hosts that run it later get the same arguments.
    job = Job(
        "a-1",
        "a",
        2_000_000_000,
        {"grace": 30, "text": "a\nb\tc\x1b"},
        ("web",),
        ("db1",),
        by="ann",
        at=5,
        by_ansible=by_ansible,
    )
    assert decode_job(encode_job(job).encode()) == job


def test_the_signed_text_of_a_job_of_nodes_does_not_depend_on_who_runs_it() -> None:
    one, other = (Job("a-1", "a", 2_000_000_000, by_ansible=given) for given in (False, True))
    assert one.signed_text("") == other.signed_text("")


@pytest.mark.parametrize("state", [STARTED, UPGRADED, FAILED])
def test_a_record_of_ansible_is_read_as_those_of_nodes_are(state: str) -> None:
    error = "disk full" if state == FAILED else None
    record = HostRecord("job/a-1", state, attempt=2, error=error, times={STARTED: 10, state: 20}, role="web")
    assert decode_job_record(KEY, encode_job_record(record).encode()) == record


def test_the_newest_output_comes_first_and_takes_the_place_of_the_same_attempt() -> None:
    failed = HostRecord("job/a-1", FAILED, error="disk full", times={STARTED: 10})
    first = outputs_with(b"garbage", failed, "a", 14)
    assert decode_outputs(first.encode()) == [
        {
            "job": "a-1",
            "command": "a",
            "state": "failed",
            "exit_status": None,
            "at": 14,
            "seconds": 4,
            "error": "disk full",
            "output": "",
        }
    ]
    assert len(json.loads(outputs_with(first.encode(), failed, "a", 14))) == 1
    for number in range(2, 6):
        first = outputs_with(first.encode(), HostRecord(f"job/a-{number}", UPGRADED, times={STARTED: 10}), "a", 11)
    assert [one["job"] for one in decode_outputs(first.encode())] == ["a-5", "a-4", "a-3"]


def test_what_a_host_wrote_without_end_is_not_written_again() -> None:
    """A record or outputs of half a megabyte would fill the transactions of retry, and of the end of a job that Ansible runs."""
    junk = "x" * 300_000
    value = json.dumps({"job": "a-1", "run": junk, "state": "failed", "machine": junk, "junk": junk}).encode()
    found = json.loads(retried_job_record(value, "job/a-1", 90))
    assert len(json.dumps(found)) < 2000
    assert (found["state"], found["attempt"], found["times"]) == ("retried", 1, {"retried": 90})
    before = json.dumps([{"job": f"b-{number}", "output": junk, "junk": junk} for number in range(9)]).encode()
    record = HostRecord("job/a-1", UPGRADED, times={STARTED: 5})
    assert len(outputs_with(before, record, "restart", 9)) < 50_000


@pytest.mark.parametrize(("state", "stored"), [(FAILED, "failed"), (REPORTED_LOST, "lost")])
def test_a_failure_stays_in_the_record_when_it_is_retried_and_when_the_job_is_done(state: str, stored: str) -> None:
    failed = HostRecord("job/a-1", state, attempt=2, error="disk full", times={STARTED: 10, state: 20})
    value = encode_job_record(failed)
    assert json.loads(value)["state"] == stored
    for now in (90, 91):
        value = retried_job_record(value.encode(), "job/a-1", now)
    retried = decode_job_record(KEY, value.encode())
    assert (retried.state, retried.error, retried.failures) == (RETRIED, None, (Failure(20, 2, error="disk full"),))
    # As the agent of a node goes on from there.
    entry = JobEntry("a-1", "restart", 99, "started", "run2", at=95, attempt=3)
    for one in (entry, replace(entry, state="done", ended=99)):
        value = next_record(json.loads(value), one, {}).decode()
    done = decode_job_record(KEY, value.encode())
    assert (done.state, done.failures) == (UPGRADED, retried.failures)
    # Another job has none of them.
    assert "failures" not in json.loads(next_record(json.loads(value), replace(entry, id="b-1"), {}))
    endless = {**json.loads(value), "failures": ["x" * 3000]}
    assert "failures" not in json.loads(next_record(endless, entry, {}))


@pytest.mark.parametrize("odd", [[], {}, 5, None, float("inf")])
def test_odd_values_in_outputs_and_jobs_are_no_error(odd: Any) -> None:
    names = ("state", "exit_status", "seconds", "at", "error", "command", "output", "attempt")
    (found,) = decode_outputs(json.dumps([{"job": "a-1", **dict.fromkeys(names, odd)}, {"job": odd}]).encode())
    assert (found["job"], found["state"], found["at"]) == ("a-1", "failed", 0 if odd != 5 else 5)
    job = {"id": "a-1", "command": "restart", "expires": 9, "roles": [odd]}
    assert decode_job(json.dumps(job).encode()) is None
    assert decode_job(json.dumps({**job, "roles": ["web"], "id": odd}).encode()) is None
