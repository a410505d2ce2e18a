# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications of a rollout: the events, that each is sent once, and their documentation in docs/watching.md."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, COMPLETE, Handover, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import (
    EVENTS,
    MOST_FAILURES,
    Notification,
    SentNotifications,
    caught_up,
    everything_sent,
    payload,
    pending_notifications,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import watched_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan
from devkit.agent import ROOT
from fleets import NEW, OLD, Fleet, fleet

PAGE = (ROOT / "docs/watching.md").read_text()
KINDS = {"text": str, "boolean": bool, "number": int, "dictionary": dict, "list": list}


def rollout(state: str = "running", **roles: int) -> Fleet:
    site = fleet(**roles)
    site.ledger = Ledger(9, NEW, OLD, state=state, who="ann@vm", since=1_763_790_601)
    return site


def entry(epoch: int, what: str, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "what": what, "at": 1_763_790_601, "who": "ann@vm", "version": NEW, **more}


def pending(
    site: Fleet,
    entries: Sequence[Mapping[str, Any]] = (),
    sent_before: SentNotifications | None = None,
    rules: dict[str, Any] | None = None,
) -> tuple[list[tuple[str, dict[str, Any]]], SentNotifications]:
    """Return each event with its payload, and what has been sent after them."""
    snapshot, plan = site.snapshot(), site.plan(rules) if rules else site.plan()
    hosts = watched_hosts(snapshot, plan)
    found, after = pending_notifications(snapshot, plan, hosts, entries, sent_before or SentNotifications())
    return [(one.event, payload(one, snapshot, plan, hosts)) for one in found], after


def table(heading: str) -> list[list[str]]:
    """Return the rows of a section's table as lists of cells."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [row.strip("| \n").split(" | ") for row in part.splitlines() if row.startswith("| ")]
    return rows[2:]


def test_the_page_has_every_event() -> None:
    assert [row[0].strip("`") for row in table("The events")] == list(EVENTS)


def test_the_page_has_every_field_with_its_type() -> None:
    ((_name, event),), _sent = pending(rollout(compute=2).failed("compute1"))
    documented = {
        name: KINDS[kind] for names, kind, *_rest in table("Event fields") for name in re.findall(r"`(\w+)`", names)
    }
    assert {name: type(value) for name, value in event.items()} == documented
    of_a_host = re.search(r"each with (.*?) \|", PAGE)
    assert of_a_host is not None
    assert set(event["failures"][0]) == set(re.findall(r"`(\w+)`", of_a_host[1]))


@pytest.mark.parametrize(
    ("change", "event", "text"),
    [
        (entry(1, "begin"), "begin", f"The rollout to {NEW} from {OLD} was begun by ann@vm, for 2 hosts."),
        (entry(1, "adopt"), "begin", f"The rollout to {NEW} from {OLD} was begun by ann@vm, for 2 hosts."),
        (entry(1, "stage", stage="canary"), "stage", f"The rollout to {NEW}: stage canary begins."),
        (
            entry(1, "pause", by="bob", reason="logins fail"),
            "pause",
            f"The rollout to {NEW} was paused by bob: logins fail.",
        ),
        (entry(1, "resume", by="bob"), "resume", f"The rollout to {NEW} was resumed by bob."),
        (
            entry(1, "budget", keys=["failure_rules.fleet"], reason="3 failed"),
            "pause",
            f"The rollout to {NEW} admits no more hosts: 3 failed.",
        ),
        (
            entry(1, "budget", keys=["failure_rules.fleet"], reason="no more hosts are admitted: 3 failed"),
            "pause",
            f"The rollout to {NEW} admits no more hosts: 3 failed.",
        ),
        (
            entry(1, "budget", keys=["failure_rules.roles.compute"], reason="role compute has 3 failed hosts"),
            "pause",
            f"A failure budget of the rollout to {NEW} is exhausted: role compute has 3 failed hosts.",
        ),
        (
            entry(1, "budget", reason="none is exhausted"),
            "resume",
            f"The rollout to {NEW} continues: none is exhausted.",
        ),
        (
            entry(1, "approve", by="bob", stage="canary"),
            "approved",
            f"The rollout to {NEW}: stage canary was approved by bob.",
        ),
        (entry(1, "complete"), "end", f"The rollout to {NEW} is complete; 0 of 2 hosts upgraded."),
        (entry(1, "converge"), "end", f"The rollout to {NEW} is complete; 0 of 2 hosts upgraded."),
        (entry(1, "abort", by="bob"), "end", f"The rollout to {NEW} was aborted by bob; 0 of 2 hosts upgraded."),
    ],
)
def test_an_entry_of_the_history_is_reported_in_a_sentence(change: dict[str, Any], event: str, text: str) -> None:
    ((name, found),), sent_before = pending(rollout(compute=2), [change])
    assert (name, found["text"], found["at"]) == (event, text, "2025-11-22T05:50:01Z")
    assert sent_before.epoch == 1
    assert pending(rollout(compute=2), sent_before=sent_before) == ([], sent_before)


def test_a_budget_that_recovers_while_another_is_exhausted_is_no_new_pause() -> None:
    fleet_key, compute, web = "failure_rules.fleet", "failure_rules.roles.compute", "failure_rules.roles.web"
    sent = SentNotifications()
    for keys, events in (
        ([compute, web], ["pause"]),
        ([web], []),
        ([compute, web], ["pause"]),
        ([fleet_key, web], ["pause"]),
        # Hosts of other roles are admitted again.
        ([web], ["pause"]),
        ([], ["resume"]),
    ):
        found, sent = pending(rollout(compute=1, web=1), [entry(sent.epoch + 1, "budget", keys=keys)], sent)
        assert [name for name, _found in found] == events
    stopped = rollout(compute=1)
    assert stopped.ledger is not None
    stopped.ledger = replace(stopped.ledger, stopped=(compute, web))
    assert everything_sent(stopped.snapshot(), stopped.plan(), {}).exhausted == (compute, web)


@pytest.mark.parametrize("change", [entry(1, "approve", stage="canary"), entry(1, "resume", by="bob")])
def test_after_an_operators_command_it_is_not_known_whether_a_run_is_in_progress(change: dict[str, Any]) -> None:
    site = rollout(compute=2)
    ((_name, found),), _sent = pending(site, [change])
    assert found["next"] == (
        f"If no run is in progress, start one: ansible-playbook convoy.upgrade.upgrade -e version={NEW}."
    )
    assert site.ledger is not None
    own = Handover(NEW, site.ledger.since, None, "h1", "ann@desk", site.ledger.since)
    snapshot, plan = replace(site.snapshot(), handover=own, answers={"one": ""}), site.plan()
    hosts = watched_hosts(snapshot, plan)
    (carried,), _sent = pending_notifications(snapshot, plan, hosts, [change], SentNotifications())
    assert payload(carried, snapshot, plan, hosts)["next"].startswith("Nothing: the rollout continues by itself.")
    # A budget recovers in a pass, so a run is in progress.
    ((_name, found),), _sent = pending(site, [entry(1, "budget")])
    assert found["next"].startswith("Nothing: the rollout continues by itself.")


def test_a_job_that_ansible_runs_is_continued_with_the_file_of_its_tasks() -> None:
    site = rollout(compute=2)
    job = Ledger(9, "job/j1", by_ansible=True)
    snapshot, plan = replace(site.snapshot(), ledger=job, current_version="job/j1", is_job=True), site.plan()
    change = entry(1, "resume", version="job/j1")
    (found,), _sent = pending_notifications(snapshot, plan, {}, [change], SentNotifications())
    assert payload(found, snapshot, plan, {})["next"] == (
        "If no run is in progress, start one: ansible-playbook convoy.upgrade.command -e job=j1 -e run_tasks=FILE, with the file of its tasks."
    )


@pytest.mark.parametrize("is_carried", [False, True])
def test_the_end_of_a_rollout_names_what_runs_the_post_upgrade_tasks_that_are_left(is_carried: bool) -> None:
    site = rollout("complete", compute=2).upgraded("compute1", "compute2")
    assert site.ledger is not None
    site.ledger = replace(site.ledger, post_upgrade=("compute",))
    snapshot, plan = site.snapshot(), site.plan()
    if is_carried:
        own = Handover(NEW, site.ledger.since, None, "h1", "ann@desk", site.ledger.since)
        snapshot = replace(snapshot, handover=own, answers={"one": ""})
    hosts = watched_hosts(snapshot, plan)
    (end,), _sent = pending_notifications(snapshot, plan, hosts, [entry(9, "complete")], SentNotifications())
    found = payload(end, snapshot, plan, hosts)
    assert found["text"] == (
        f"The rollout to {NEW} is complete; 2 of 2 hosts upgraded. Post-upgrade tasks have not run on 2 hosts."
    )
    command = f"If no run is in progress, run them with ansible-playbook convoy.upgrade.post_upgrade -e version={NEW}."
    goes_on = (
        "Nothing: the rollout continues by itself. Watch it with ansible-playbook convoy.upgrade.status -e follow=true."
    )
    assert found["next"] == (goes_on if is_carried else command)


def test_the_end_says_what_to_do_if_planner_services_wait_for_a_host_that_joined() -> None:
    site = rollout("complete", compute=3).upgraded("compute1", "compute2")
    assert site.ledger is not None
    site.ledger = replace(site.ledger, post_upgrade=("compute",))
    refusal = "1 of 3 hosts are not upgraded."
    own = Handover(NEW, site.ledger.since, None, "h1", "ann@desk", site.ledger.since)
    snapshot, plan = replace(site.snapshot(), handover=own, answers={"one": refusal}), site.plan()
    hosts = watched_hosts(snapshot, plan)
    (end,), _sent = pending_notifications(snapshot, plan, hosts, [entry(9, "complete")], SentNotifications())
    following = payload(end, snapshot, plan, hosts)["next"]
    assert (
        f"no planner service carries it, so no host is admitted unless a run is under way. one refuses it: {refusal} "
        in following
    )
    assert following.endswith(f" Run ansible-playbook convoy.upgrade.upgrade -e version={NEW}.")


def test_a_host_that_is_lost_in_its_post_upgrade_tasks_is_a_failure_and_the_end_does_not_say_that_a_held_one_goes_on() -> (
    None
):
    site = rollout("complete", compute=2).upgraded("compute1", "compute2")
    assert site.ledger is not None
    rules = {"health": {"progress_deadline": 60}}
    site.ledger = replace(site.ledger, post_upgrade=("compute",), instructions=rules)
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="started", times={"open": 9_000})
    own = Handover(NEW, site.ledger.since, None, "h1", "ann@desk", site.ledger.since)
    snapshot, plan = replace(site.snapshot(), handover=own, answers={"one": ""}), site.plan(rules)
    hosts = watched_hosts(snapshot, plan)
    (lost,), sent = pending_notifications(snapshot, plan, hosts, [], SentNotifications())
    found = payload(lost, snapshot, plan, hosts)
    assert [(one["host"], one["state"]) for one in found["failures"]] == [("compute1", "lost")]
    assert found["next"].endswith("Make sure that nothing runs there, then retry by name.")
    assert pending_notifications(snapshot, plan, hosts, [], sent) == ([], sent)
    del site.records["compute1"]
    site.held("host/compute2")
    snapshot, plan = replace(site.snapshot(), handover=own, answers={"one": ""}), site.plan(rules)
    hosts = watched_hosts(snapshot, plan)
    (end,), _sent = pending_notifications(snapshot, plan, hosts, [entry(9, "complete")], SentNotifications())
    assert payload(end, snapshot, plan, hosts)["next"].endswith(
        "Run ansible-playbook convoy.upgrade.unhold -e host=compute2."
    )


@pytest.mark.parametrize("what", ["open", "publish", "health", "rules", "close", "retry", "after", "hold", "migrate"])
def test_other_entries_are_passed_over(what: str) -> None:
    assert pending(rollout(compute=2), [entry(4, what)]) == ([], SentNotifications(4))


def test_a_rollback_says_so() -> None:
    site = rollout(compute=2)
    assert site.ledger is not None
    site.ledger = replace(site.ledger, rollback=True)
    ((_name, found),), _sent = pending(
        site, [entry(1, "begin", by="bob", reason="the fleet is rolled back: logins fail")]
    )
    assert found["rollback"]
    assert found["text"].startswith(f"The rollback to {NEW} from {OLD} was begun by bob")


def test_a_host_is_reported_as_broken_once_until_it_is_well_or_put_back() -> None:
    site = rollout(compute=3).failed("compute1")
    ((_name, found),), sent_before = pending(site)
    assert [(one["host"], one["role"], one["state"]) for one in found["failures"]] == [
        ("compute1", "compute", "failed")
    ]
    assert (found["broken"], found["hosts"], found["counts"]["compute"]["failed"]) == (1, 3, 1)
    assert pending(site, sent_before=sent_before) == ([], sent_before)

    # A node that retries by itself, and fails again.
    retrying = rollout(compute=3).started("compute1")
    _none, sent_before = pending(retrying, sent_before=sent_before)
    assert sent_before.broken == ("compute1",)
    assert pending(site, sent_before=sent_before) == ([], sent_before)

    again, _sent = pending(site, [entry(10, "retry", hosts={"compute1": "it was failed"})], sent_before)
    assert [name for name, _found in again] == ["failure"]
    _none, well = pending(rollout(compute=3).upgraded("compute1"), sent_before=sent_before)
    assert well.broken == ()
    again, _sent = pending(site, [entry(10, "begin")], sent_before)
    assert [name for name, _found in again] == ["begin", "failure"]


def test_a_failure_after_the_upgrade_is_reported_with_the_command_that_retries_it() -> None:
    site = rollout(compute=2).upgraded("compute1", "compute2")
    site.records["compute1"] = HostRecord(NEW, UPGRADED, post="failed", error="no kernel")
    ((_name, found),), _sent = pending(site)
    assert found["next"].endswith("convoy.upgrade.post_upgrade -e version=2.0 -e retry_failed=true.")
    # Until all hosts are upgraded, these tasks do not run.
    ((_name, found),), _sent = pending(site.running(OLD, "compute2"))
    assert found["next"].endswith("and run ansible-playbook convoy.upgrade.retry.")


def test_a_retry_is_named_only_where_it_would_not_be_refused_and_change_something() -> None:
    def after(site: Fleet) -> str:
        ((_name, found),), _sent = pending(site)
        return str(found["next"])

    retry = "fix what is broken, and run ansible-playbook convoy.upgrade.retry."
    assert after(rollout(compute=2).failed("compute1")).endswith(retry)
    ended = "fix what is broken. The next run that succeeds there ends this."
    assert after(rollout(ABORTED, compute=2).failed("compute1")).endswith(ended)
    complete = rollout(COMPLETE, compute=2).upgraded("compute1", "compute2")
    complete.records["compute1"] = HostRecord(NEW, "failed", error="disk full", index=99)
    assert "The next run that succeeds there ends this." in after(complete)
    assert "convoy.upgrade.retry" not in after(complete)
    silent = rollout(compute=2).opened("compute1")
    silent.records["compute1"] = HostRecord(NEW, "started", times={"started": 1}, index=99)
    ((_name, found),), _sent = pending(silent, rules={"health": {"progress_deadline": 60}})
    assert "What has begun there may still run. Make sure that it does not." in found["next"]
    assert "convoy.upgrade.retry" not in found["next"]


def test_an_aborted_first_rollout_of_a_fleet_has_nothing_to_go_back_to() -> None:
    site = rollout(ABORTED, compute=1)
    assert site.ledger is not None
    site.ledger = replace(site.ledger, previous_version=None)
    ((_event, found),), _sent = pending(site, [entry(5, "abort")])
    assert (
        found["next"] == "Begin it again with ansible-playbook convoy.upgrade.upgrade -e version=2.0 -e restart=true."
    )


def test_many_that_fail_together_are_reported_together_and_not_without_end() -> None:
    site = rollout(compute=MOST_FAILURES + 7)
    site.failed(*(f"compute{number}" for number in range(1, MOST_FAILURES + 8)))
    ((_name, found),), _sent = pending(site)
    assert (len(found["failures"]), found["more_failures"]) == (MOST_FAILURES, 7)
    assert f": {MOST_FAILURES + 7} hosts failed or lost: compute1 " in found["text"]
    assert found["text"].endswith(f"; and {MOST_FAILURES + 4} more.")


def test_an_approval_is_requested_once_and_again_where_it_was_not_needed_meanwhile() -> None:
    snapshot, hosts = rollout(compute=1).snapshot(), {"compute1": HostView("compute", None, "upgraded", NEW, "")}
    waiting = Plan(version=NEW, hosts=hosts, stage="canary", needs_approval=True)
    first, sent_before = pending_notifications(snapshot, waiting, hosts, [], SentNotifications(9, stage="canary"))
    assert [(one.event, one.stage) for one in first] == [("approval_needed", "canary")]
    assert pending_notifications(snapshot, waiting, hosts, [], sent_before) == ([], sent_before)
    _none, sent_before = pending_notifications(snapshot, replace(waiting, needs_approval=False), hosts, [], sent_before)
    assert [one.event for one in pending_notifications(snapshot, waiting, hosts, [], sent_before)[0]] == [
        "approval_needed"
    ]


def test_the_command_that_approves_a_stage_is_one_that_a_shell_reads() -> None:
    site = rollout(compute=2).upgraded("compute1")
    plan = site.plan({"stages": [{"hosts": 1, "approve": True}]})
    snapshot, hosts = site.snapshot(), watched_hosts(site.snapshot(), plan)
    (found,), _after = pending_notifications(snapshot, plan, hosts, [], SentNotifications())
    words = shlex.split(payload(found, snapshot, plan, hosts)["next"])
    assert words[words.index("-e") + 1] == "stage='stage 1'"


def test_a_stage_without_hosts_is_not_notified() -> None:
    last = [entry(8, "stage", stage="rest", reason="stage rest began"), entry(9, "complete")]
    names = [name for name, _found in pending(rollout(COMPLETE, compute=1).upgraded("compute1"), last)[0]]
    assert names == ["end"]
    with_hosts = [last[0], entry(9, "open"), entry(10, "complete")]
    names = [name for name, _found in pending(rollout(COMPLETE, compute=1).upgraded("compute1"), with_hosts)[0]]
    assert names == ["stage", "end"]


def test_the_end_is_reported_once_and_again_after_a_host_has_joined() -> None:
    site = rollout(COMPLETE, compute=2).upgraded("compute1", "compute2")
    ends = [entry(4, "complete"), entry(5, "converge")]
    assert [name for name, _found in pending(site, ends)[0]] == ["end"]
    joined = [*ends, entry(6, "open"), entry(7, "complete")]
    assert [name for name, _found in pending(site, joined)[0]] == ["end", "end"]


def test_the_abort_of_a_complete_rollout_is_an_end_of_its_own() -> None:
    changes = [entry(4, "complete"), entry(5, "pause"), entry(6, "abort")]
    found, sent = pending(rollout(ABORTED, compute=1), changes)
    assert [(name, one["outcome"]) for name, one in found] == [("end", "complete"), ("pause", ""), ("end", "aborted")]
    assert sent.ended


@pytest.mark.parametrize(
    ("rollback", "command"),
    [
        (True, "Begin it again with ansible-playbook convoy.upgrade.rollback -e version=2.0."),
        (
            False,
            "Begin it again with ansible-playbook convoy.upgrade.upgrade -e version=2.0 -e restart=true, "
            "or go back with ansible-playbook convoy.upgrade.rollback.",
        ),
    ],
)
def test_the_end_by_an_abort_says_how_it_begins_again(rollback: bool, command: str) -> None:
    site = rollout(ABORTED, compute=1)
    assert site.ledger is not None
    site.ledger = replace(site.ledger, rollback=rollback)
    ((event, found),) = pending(site, [entry(5, "abort")])[0]
    assert (event, found["outcome"]) == ("end", "aborted")
    assert command in found["text"] or command in str(found)


@pytest.mark.parametrize("state", [ABORTED, COMPLETE])
@pytest.mark.parametrize("is_read_between", [True, False])
def test_failures_of_a_rollout_are_not_sent_again_after_a_job_and_new_ones_are_sent(
    state: str, is_read_between: bool
) -> None:
    site = rollout(state, compute=2).failed("compute2")
    of_versions = (site.snapshot(), site.plan(), watched_hosts(site.snapshot(), site.plan()))
    found, sent = pending_notifications(*of_versions, [], SentNotifications(9, ended=True))
    assert [one.event for one in found] == ["failure"]
    for first in (10, 20):
        job = [entry(first, "begin", version="job/j1"), entry(first + 1, "complete", version="job/j1")]
        events: list[Notification] = []
        if is_read_between:
            ledger = Ledger(first, "job/j1")
            of_job = replace(of_versions[0], is_job=True, ledger=ledger, versions=of_versions[0], records={})
            for change in job:
                found, sent = pending_notifications(of_job, Plan(version="job/j1"), {}, [change], sent)
                events += found
            assert SentNotifications.from_plain(json.loads(json.dumps(sent.plain()))) == sent
            job = []
        found, sent = pending_notifications(*of_versions, job, sent)
        assert [one.event for one in (*events, *found)] == ["begin", "end"]
        assert (sent.broken, sent.ended, sent.before) == (("compute2",), True, None)
    # A check that a job broke has no time of its own in a record.
    broken = {**of_versions[2], "compute1": replace(of_versions[2]["compute1"], state="failed")}
    found, sent = pending_notifications(*of_versions[:2], broken, [], sent)
    assert [(one.event, one.hosts) for one in found] == [("failure", ("compute1",))]
    # A host that joined is admitted after the job.
    joined = [entry(30, "begin", version="job/j1"), entry(31, "complete", version="job/j1")]
    found, sent = pending_notifications(
        *of_versions[:2], broken, [*joined, entry(32, "open"), entry(33, "complete")], sent
    )
    assert [(one.event, one.version) for one in found] == [("begin", "job/j1"), ("end", "job/j1"), ("end", NEW)]


def test_the_first_run_with_a_hook_during_a_job_takes_what_failed_before_it_for_sent() -> None:
    site = rollout(ABORTED, compute=2).failed("compute2")
    of_versions = (site.snapshot(), site.plan(), watched_hosts(site.snapshot(), site.plan()))
    of_job = replace(of_versions[0], is_job=True, ledger=Ledger(10, "job/j1"), versions=of_versions[0], records={})
    sent = everything_sent(of_job, Plan(version="job/j1"), {})
    found, _sent = pending_notifications(*of_versions, [entry(11, "complete", version="job/j1")], sent)
    assert [one.event for one in found] == ["end"]


def test_a_run_that_begins_sends_what_is_left_of_the_rollout_under_way() -> None:
    former = [entry(1, "begin"), entry(2, "complete")]
    now = [entry(3, "begin"), entry(4, "pause")]
    ledger = Ledger(4, NEW, OLD)
    assert caught_up(ledger, [*former, *now]) == now
    assert caught_up(ledger, now[1:]) == now[1:]
    for state in (COMPLETE, ABORTED):
        # It began and ended without a hook. A hook that got its beginning also gets its end.
        assert caught_up(replace(ledger, state=state), [*former, *now]) == []
        assert caught_up(replace(ledger, state=state), former[1:]) == former[1:]


def test_the_first_run_with_a_hook_begins_at_the_current_state() -> None:
    site = rollout(compute=2).failed("compute2")
    snapshot, plan = site.snapshot(), site.plan()
    sent_before = everything_sent(snapshot, plan, watched_hosts(snapshot, plan))
    assert sent_before == SentNotifications(9, broken=("compute2",))
    assert pending(site, sent_before=sent_before) == ([], sent_before)


def test_what_is_remembered_is_read_as_it_was_written() -> None:
    sent_before = SentNotifications(7, ("compute1", "compute2"), "canary", "canary", True)
    assert SentNotifications.from_plain(sent_before.plain()) == sent_before
    of_job = SentNotifications(8, exhausted=("failure_rules.fleet",), before=sent_before)
    assert SentNotifications.from_plain(of_job.plain()) == of_job
    older = {name: value for name, value in sent_before.plain().items() if name not in ("exhausted", "before")}
    assert SentNotifications.from_plain(older) == sent_before
    for broken in (
        {},
        {**sent_before.plain(), "epoch": "x"},
        {**sent_before.plain(), "broken": 3},
        {**sent_before.plain(), "exhausted": [3]},
        {**sent_before.plain(), "before": 3},
        {**sent_before.plain(), "before": {"epoch": 3}},
        {**sent_before.plain(), "before": [[1, 2]]},
        [],
        1.5,
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            SentNotifications.from_plain(broken)


def test_no_more_failed_hosts_are_remembered_than_fit_into_a_key() -> None:
    sent = SentNotifications(7, tuple(f"compute{number:05}" for number in range(40_000)))
    kept = SentNotifications.from_plain(sent.plain())
    assert kept.broken == sent.broken[: len(kept.broken)]
    assert 250_000 < len(json.dumps(sent.plain())) < 350_000
    assert 250_000 < len(json.dumps(replace(sent, before=sent).plain())) < 350_000


def test_texts_are_one_line_each_and_do_nothing_on_a_terminal() -> None:
    site = rollout(compute=1)
    snapshot, plan = site.snapshot(), site.plan()
    notification = Notification("pause", 0, NEW, SentNotifications(), by="ann\x1b[31m", reason="a\nb", cause="command")
    found = payload(notification, snapshot, plan, watched_hosts(snapshot, plan))
    assert (found["by"], found["reason"]) == ("ann?[31m", "a b")
    assert found["text"] == f"The rollout to {NEW} was paused by ann?[31m: a b."


@pytest.mark.parametrize(
    ("what", "text"),
    [("begin", "The rollout to 1.5 was begun by ann@vm."), ("complete", "The rollout to 1.5 is complete.")],
)
def test_an_event_of_an_earlier_rollout_has_no_numbers_of_the_current_one(what: str, text: str) -> None:
    ((_name, event), *_rest), _sent = pending(rollout(compute=2), [entry(1, what, version="1.5"), entry(2, "begin")])
    assert event["text"] == text
    assert not {"hosts", "upgraded", "broken", "counts"} & event.keys()
