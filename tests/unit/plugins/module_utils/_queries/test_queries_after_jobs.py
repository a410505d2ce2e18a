# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in explanations, reports and metrics."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import LAST_JOB, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.notifications import (
    RolloutEvents,
    initial_state,
    new_notifications,
    read_rollout,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry import retry
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout_report.rollout import entries_of
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_page import html_page
from job_fleet import FLEET, RULES, begin, complete_fleet, go_on, job, reports
from memory_consul import MemoryConsul


def explanation(store: Store, host: str) -> str:
    details = read_fleet(store, fleet=FLEET, name=host, job=LAST_JOB).details
    assert details is not None
    return " ".join(details["explanation"])


def test_a_host_is_explained_in_terms_of_a_job(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    assert "Next, it starts, runs the command and reports." in explanation(store, "web1")
    assert "If all commands succeed, it is admitted in wave" in explanation(store, "web3")
    reports(consul, "web1", "started")
    assert "It has been running since" in explanation(store, "web1")
    assert "Next, it reports the end of the command." in explanation(store, "web1")
    reports(consul, "web1", "done")
    assert "It has been done since" in explanation(store, "web1")
    assert "when it reported the end of the command" in explanation(store, "web1")
    assert "The next pass of ansible-playbook convoy.upgrade.command -e job=j1 admits it." in explanation(store, "web2")


def test_only_the_last_job_can_be_shown(store: Store, consul: MemoryConsul) -> None:
    with pytest.raises(UpgradeError, match="'j1' is no job of this rollout"):
        read_fleet(store, fleet=FLEET, job="j1")
    begin(store)
    assert read_fleet(store, fleet=FLEET, job="j1").plan.version == "job/j1"
    with pytest.raises(UpgradeError, match="'j2' is not the last job, which is j1") as refused:
        read_fleet(store, fleet=FLEET, job="j2")
    assert refused.value.code == "unknown_job"
    for host in FLEET:
        reports(consul, host, "done")
        go_on(store)
    assert read_fleet(store, fleet=FLEET, job="j1").plan.version == "job/j1"


def test_the_report_of_a_job_has_what_hosts_reported_of_it(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    for host in FLEET:
        reports(consul, host, "done")
        go_on(store)
    complete = read_rollout_report(store, fleet=FLEET)
    assert (complete["version"], complete["state"], complete["whole"]) == ("job/j1", "complete", True)
    assert {one["host"]: one["phase"] for one in complete["hosts"]} == dict.fromkeys(FLEET, "upgraded")
    page = html_page(complete)
    assert "<h1>Job j1</h1>" in page
    assert "<b>4 of 4</b>hosts done" in page
    # The metrics are those of the rollout to a version again, which admitted no host.
    view = read_fleet(store, fleet=FLEET)
    assert 'convoy_upgrade_admitted_hosts{role="web"} 0' in metrics_text(store, view)
    make_pass(store, PassRequest(version="3.0", rules=RULES, fleet=FLEET))
    begun = read_rollout_report(store, fleet=FLEET)
    assert (begun["version"], begun["whole"], begun["state"]) == ("3.0", True, "running")
    assert read_rollout_report(store, "job/j1", FLEET)["whole"] is False


def test_the_report_of_an_aborted_job_ends_with_the_abort(
    store: Store, consul: MemoryConsul, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    control.abort(store, Command(fleet=FLEET))
    first = read_rollout_report(store, fleet=FLEET)
    assert {one["host"]: one["phase"] for one in first["hosts"]} == dict.fromkeys(FLEET, "waiting")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert read_rollout_report(store, fleet=FLEET) == first
    # It goes on while a host is at work.
    reports(consul, "web1", "started")
    assert read_rollout_report(store, fleet=FLEET)["end"] >= now + 3599


def test_hosts_that_a_job_is_not_for_are_left_out(store: Store) -> None:
    begin(store, job(hosts=("web2",)))
    assert [one["host"] for one in read_rollout_report(store, fleet=FLEET)["hosts"]] == ["web2"]
    assert explanation(store, "db1") == "The job j1 is not for db1, so db1 does nothing and takes no slot. It is done."


def test_the_entries_of_a_rollout_go_on_after_a_job() -> None:
    def entry(epoch: int, what: str, version: str) -> dict[str, Any]:
        return {"epoch": epoch, "what": what, "version": version}

    of_job = [entry(3, "begin", "job/j1"), entry(4, "open", "job/j1"), entry(5, "complete", "job/j1")]
    history = [
        entry(1, "begin", "2.0"),
        entry(2, "complete", "2.0"),
        *of_job,
        entry(6, "open", "2.0"),
        entry(7, "converge", "2.0"),
    ]
    assert [one["epoch"] for one in entries_of(history[::-1], Ledger(7, "2.0"))] == [7, 6, 2, 1]
    assert [one["epoch"] for one in entries_of(history[4::-1], Ledger(5, "job/j1"))] == [5, 4, 3]
    assert [one["epoch"] for one in entries_of(history[1::-1], Ledger(2, "2.0"))] == [2, 1]


def test_the_report_of_a_job_has_failures_that_were_retried_and_what_ran(store: Store, consul: MemoryConsul) -> None:
    begin(store, job(hosts=("web1", "web2")))
    at = int(time.time())
    reports(consul, "web1", "failed", error="disk full", times={"started": at, "failed": at + 1})
    retry(store, Command("cleaned up", "ann"), ["web1"])
    retried = consul.data("upgrade/job_records/web1")
    reports(consul, "web1", "done", attempt=2, failures=retried["failures"], times={"done": at + 2})
    report = read_rollout_report(store, fleet=FLEET)
    (one,) = (one for one in report["hosts"] if one["host"] == "web1")
    assert (one["phase"], [each["error"] for each in one["failures"]]) == ("upgraded", ["disk full"])
    page = html_page(report)
    assert "<b>1</b>failure in all" in page
    begun = next(each["text"] for each in report["commands"] if each["what"] == "begin")
    assert begun.startswith('restart {"grace": 30}, only web1, web2: ann asked for restart'), begun


def test_an_id_that_no_job_can_have_is_refused_as_one(store: Store) -> None:
    with pytest.raises(UpgradeError, match="'WRONG' can't be the ID of a job") as refused:
        make_pass(store, PassRequest(version="job/WRONG", fleet=FLEET))
    assert refused.value.code == "unknown_job"
    with pytest.raises(UpgradeError, match=r"^only: 'wbe' fits no host, role or group"):
        requested_job(store, {"run": "restart", "only": ["wbe"]}, FLEET, None, RULES)


def test_a_host_whose_job_is_lost_is_a_failure_in_the_report(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    at = int(time.time())
    reports(consul, "web1", "lost", error="lost: its result is unknown", times={"started": at, "lost": at + 1})
    report = read_rollout_report(store, fleet=FLEET)
    (lost,) = (one for one in report["hosts"] if one["host"] == "web1")
    assert lost["phase"] == "failed"
    assert [(one["at"], one["error"]) for one in lost["failures"]] == [(at + 1, "lost: its result is unknown")]
    assert "its result is unknown" in html_page(report)
    view = read_fleet(store, fleet=FLEET)
    (need,) = operator_needs(view.snapshot, view.plan)
    assert (need.text, need.since) == ("1 host is lost: web1. Fix it, then retry.", at + 1)


@pytest.mark.parametrize("has_rollout", [True, False], ids=["after a rollout", "without a rollout"])
def test_the_end_of_a_job_is_sent_with_its_numbers(*, has_rollout: bool) -> None:
    before = complete_fleet()
    if not has_rollout:
        for key in [key for key in before.keys if key.startswith(("upgrade/ledger", "upgrade/history/"))]:
            del before.keys[key]
    with before.in_place() as consul:
        store = consul.store()
        events = RolloutEvents(store, FLEET)
        assert events.read() == []
        begin(store, rules=RULES)
        texts = [one["text"] for one in events.read()]
        for host in FLEET:
            reports(consul, host, "done")
            go_on(store)
        texts += [one["text"] for one in events.read()]
        assert [text.partition(" was begun")[0] for text in texts[:1]] == ["The job j1"]
        assert texts[1:] == ["The job j1 is complete; 4 of 4 hosts done."]
        assert events.read() == []
        # The next rollout begins with its own numbers, and a service that starts later finds everything sent.
        assert RolloutEvents(store, FLEET).read() == []
        make_pass(store, PassRequest(version="3.0", rules=RULES, fleet=FLEET))
        assert [one["event"] for one in events.read()] == ["begin"]


def test_a_run_that_begins_in_a_job_keeps_which_failures_of_the_rollout_before_it_were_sent() -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        first = initial_state(store, read_rollout(store, FLEET))
        sent = replace(first, broken=("web1",))
        store.client.write([put(store.keys.notified, json.dumps(sent.plain()))])
        # This is passed over: no run with a hook was there.
        set_holds(store, HoldTargets(hosts=["web1"], fleet=FLEET), "disk")
        begin(store, rules=RULES)
        of_job = initial_state(store, read_rollout(store, FLEET))
        assert (of_job.before, of_job.broken) == (sent, ())
        assert [one.event for one in new_notifications(store, read_rollout(store, FLEET), of_job)[0]] == ["begin"]
        reports(consul, "db1", "failed", error="disk")
        # The failures of a rollout that no hook saw count as sent, as far as records have them.
        control.abort(store, Command(fleet=FLEET))
        make_pass(store, PassRequest(version="3.0", rules=RULES, fleet=FLEET))
        control.abort(store, Command(fleet=FLEET))
        consul.write("upgrade/hosts/web2", {"version": "3.0", "state": "failed", "error": "disk full"})
        begin(store, job("j2"), rules=RULES)
        second = initial_state(store, read_rollout(store, FLEET)).before
        assert second is not None
        assert (second.broken, second.ended) == (("web2",), True)


def test_a_status_of_the_last_job_says_if_a_hold_has_removed_it(store: Store, consul: MemoryConsul) -> None:
    begin(store)
    for host in FLEET:
        reports(consul, host, "started")
        reports(consul, host, "done")
        go_on(store)
    assert not [one for one in read_fleet(store, fleet=FLEET, job=LAST_JOB).warnings if one.startswith("job:")]
    set_holds(store, HoldTargets(hosts=["web1"], fleet=FLEET), "disk")
    (warning,) = [one for one in read_fleet(store, fleet=FLEET, job=LAST_JOB).warnings if one.startswith("job:")]
    assert "no job is stored" in warning
