# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that does not run what it reports is found, and so is a rollout report that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fire.facts import HISTORY, LEDGER, RECORDS, REPORTS
from fire.fleet import FLEET, NEW, OLD
from fire.replay import Entry, State, Step

from .real_versions import RealVersions
from .reported import mistakes_of_report

_TASKS = 2


def step_to(before: State, after: Mapping[str, Any]) -> Step:
    """Return a step that puts keys."""
    entries = {key: Entry(json.dumps(value), 1) for key, value in after.items()}
    return Step(1, before, {**before, **entries}, None)


def test_a_host_reports_what_it_does_not_run() -> None:
    real = RealVersions(_TASKS)
    step = step_to({}, {f"{REPORTS}{NEW}/web1": 1})
    assert [*real.mistakes(step, FLEET)] == [f"web1 reports {NEW}, and runs {OLD}"]
    assert [*real.mistakes(step, {})] == []
    real.runs["web1"] = NEW
    assert [*real.mistakes(step, FLEET)] == []


def test_a_rollout_is_complete_without_a_host() -> None:
    real = RealVersions(_TASKS)
    for host in FLEET:
        for _task in range(1 if host == "web1" else _TASKS):
            real.ran_tasks(host, NEW)
    for what in ("complete", "converge"):
        step = step_to({}, {LEDGER: {"version": NEW}, f"{HISTORY}1": {"what": what}})
        assert [*real.mistakes(step, FLEET)] == [f"the rollout to {NEW} is complete, and web1 do not run it"]
    real.ran_tasks("web1", NEW)
    assert [*real.mistakes(step, FLEET)] == []


def record(state: str, version: str = NEW, at: int = 1) -> dict[str, Any]:
    return {f"{RECORDS}web1": {"state": state, "version": version, "at": at}}


def event(what: str, epoch: int) -> dict[str, Any]:
    return {f"{HISTORY}{epoch}": {"what": what, "hosts": {"web1": ""}}}


_FAILED_TWICE = (
    record("started"),
    record("failed"),
    event("retry", 2),
    record("started", at=2),
    record("failed", at=2),
)


def report(failed: int = 0, retried: int = 0, phase: str = "upgraded", **more: Any) -> dict[str, Any]:
    """Return a report in which web1 has failed and was retried so often."""
    hosts: list[dict[str, Any]] = [
        {"host": host, "phase": "upgraded", "failures": [], "retries": []} for host in FLEET if host != "web1"
    ]
    hosts.append({"host": "web1", "phase": phase, "failures": [{"total": failed}], "retries": [{}] * retried})
    return {"version": NEW, "state": "complete", "hosts": hosts, **more}


@pytest.mark.parametrize(
    ("steps", "failed", "retried"),
    [
        (_FAILED_TWICE, 2, 1),
        # A report that says the same again is none.
        ((record("failed"), record("failed")), 1, 0),
        # A start that was not admitted is taken back.
        ((record("failed"), record("started"), record("failed")), 1, 0),
        ((record("failed"), record("upgraded", OLD), record("failed", at=2)), 1, 0),
        # What was before a rollout to another version is not in its report.
        ((record("failed"), record("upgraded", OLD)), 0, 0),
        ((event("retry", 1), event("begin", 2), event("retry", 3)), 0, 1),
    ],
)
def test_failures_and_retries_are_counted(steps: tuple[dict[str, Any], ...], failed: int, retried: int) -> None:
    state: State = {}
    found = []
    for keys in steps:
        found.append(step_to(state, keys))
        state = found[-1].after
    assert [*mistakes_of_report(report(failed, retried), found, NEW, steady=True)] == []
    assert len([*mistakes_of_report(report(failed + 1, retried), found, NEW, steady=True)]) == 1
    assert len([*mistakes_of_report(report(failed, retried + 1), found, NEW, steady=True)]) == 1


def test_the_report_is_of_another_rollout_or_of_fewer_hosts_or_shows_one_as_failed() -> None:
    wrong = (report(version=OLD), report(state="abort"), report(hosts=[]), report(phase="failed"))
    for one in wrong:
        assert len([*mistakes_of_report(one, [], NEW, steady=True)]) == 1
    assert [*mistakes_of_report(report(phase="failed"), [], NEW, steady=False)] == []
