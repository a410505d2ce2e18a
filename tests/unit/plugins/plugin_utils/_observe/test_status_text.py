# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as text."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.failure_budgets import ExhaustedBudget
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import OperatorNeed
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import fleet_summary, holds_summary
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.blockers import rollout_blocker
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan, rollout_blockers
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import Instructions
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.task_order import composition_of_rollback
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe import status_text


def view(role: str, state: str, version: str | None = "v1", reason: str = "because") -> HostView:
    return HostView(role, None, state, version, reason)


def result(hosts: dict[str, HostView], **more: Any) -> dict[str, Any]:
    return {"version": "v2", "previous_version": "v1", **fleet_summary(hosts), "instructions": {}, **more}


def post_upgrade_need(variables: dict[str, str], playbook: str = "post_upgrade") -> dict[str, Any]:
    return OperatorNeed("post_upgrade", "Post-upgrade tasks.", playbook, variables).plain()


PAUSED = {
    "code": "paused",
    "reason": "the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume",
    "until": 0,
}


def test_columns_are_aligned() -> None:
    assert status_text.table_lines([["role", "hosts", "what"], ["a", "10", "b"]], left=(0, 2)) == [
        "role  hosts  what",
        "a        10  b",
    ]


def test_the_table_counts_each_role_and_the_fleet() -> None:
    hosts = {
        "c10": view("compute", "pending", "v0"),
        "c2": view("compute", "upgrading"),
        "c3": view("compute", "pending", None),
        "k1": view("controller", "upgraded", "v2"),
    }
    assert status_text.status_lines(result(hosts))[:6] == [
        "Rollout to v2 from v1: 1 of 4 hosts upgraded",
        "",
        "role        hosts  upgraded  upgrading  pending  held  failed  lost  versions",
        "compute         3         -          1        2     -       -     -  v0 (1), v1 (1), never reported (1)",
        "controller      1         1          -        -     -       -     -  v2 (1)",
        "fleet           4         1          1        2     -       -     -  v0 (1), v1 (1), never reported (1), v2 (1)",
    ]


def test_failed_hosts_come_first_and_each_reason_is_shown_once() -> None:
    hosts = {
        "c1": view("compute", "failed", reason="failed: no space left"),
        "c2": view("compute", "held", reason="held by ann"),
        "c9": view("compute", "pending", reason="waits for a slot"),
        "c10": view("compute", "pending", reason="waits for a slot"),
    }
    lines = status_text.status_lines(result(hosts))
    assert lines[lines.index("failed:") :] == [
        "failed:",
        "  c1: failed: no space left",
        "",
        "held:",
        "  c2: held by ann",
        "",
        "pending:",
        "  c9, c10: waits for a slot",
    ]


def test_each_hold_is_shown_also_for_upgraded_hosts_and_unknown_names() -> None:
    hosts = {name: view("web", state) for name, state in (("web1", "upgraded"), ("web2", "pending"))}
    hold = Hold("upgrade/hold/x", "its disk", "ann", "today")
    scopes = [("global", ""), ("role", "web"), ("role", "wbe"), ("host", "web1"), ("host", "web9")]
    holds = holds_summary([(scope, name, hold) for scope, name in scopes], hosts)
    lines = status_text.status_lines(result(hosts, holds=holds))
    assert lines[lines.index("holds:") :] == [
        "holds:",
        "  everything (2 hosts, 1 upgraded): held by ann since today: its disk",
        "  role web (2 hosts, 1 upgraded): held by ann since today: its disk",
        "  role wbe (no such role is known): held by ann since today: its disk",
        "  host web1 (1 host, 1 upgraded): held by ann since today: its disk",
        "  host web9 (no such host is known): held by ann since today: its disk",
    ]


def test_providers_are_at_the_end_of_a_status() -> None:
    nothing = {"target": "", "state": "upgraded", "host": "", "task_group": "", "done": [], "error": ""}
    way = {
        **nothing,
        "version": "2.4",
        "target": "2.6",
        "state": "upgrading",
        "host": "c1",
        "task_group": "upgrade/cloud@2.6",
    }
    providers = {
        "cloud": way,
        "broken": {**way, "state": "failed", "error": "no quota"},
        "ready": {**nothing, "version": "2.6", "host": "c1"},
        "odd": {**nothing, "version": "", "state": "failed", "error": "the key can't be read"},
        "new": {**way, "version": "", "host": ""},
        "next": {**way, "task_group": ""},
    }
    assert status_text.status_lines(result({}, providers=providers))[-8:] == [
        "",
        "providers:",
        "  broken: 2.4, on the way to 2.6, c1 failed at upgrade/cloud@2.6: no quota",
        "  cloud: 2.4, on the way to 2.6, c1 is at upgrade/cloud@2.6",
        "  new: no known version, on the way to 2.6",
        "  next: 2.4, on the way to 2.6",
        "  odd: the key can't be read",
        "  ready: 2.6",
    ]


def test_the_status_without_a_rollout() -> None:
    assert status_text.status_lines(result({}, version=""))[0] == "No rollout has begun: current_version is not set."


def test_the_headline_has_who_began_the_rollout_and_when() -> None:
    line = status_text.headline(result({}, ledger={"since": 1789000000, "who": "ann@ops"}))
    assert line.startswith("Rollout to v2 from v1, begun 2026-09-")
    assert line.endswith("by ann@ops: 0 of 0 hosts upgraded")


@pytest.mark.parametrize(("group", "shown"), [(None, "(role compute)"), ("nodes", "(role compute, group nodes)")])
def test_the_history_of_a_host_is_ordered_by_time_then_by_cause(group: str | None, shown: str) -> None:
    host = {
        **asdict(view("compute", "upgraded", "v2", "runs v2")),
        "name": "c1",
        "group": group,
        "explanation": ["c1 runs v2.", "It is done."],
        "record": {"version": "v2", "times": {"upgraded": 30, "started": 20}},
        "events": [
            {"epoch": 3, "at": 30, "what": "converge", "version": "v2", "reason": "all done"},
            {"epoch": 2, "at": 20, "what": "open", "version": "v2", "hosts": {"c1": "a slot was free"}},
            {"epoch": 1, "at": 10, "what": "begin", "version": "v2", "reason": "ann asked for v2"},
        ],
    }
    lines = status_text.host_lines(host)
    assert lines[:4] == [f"c1 {shown}: upgraded", "  c1 runs v2.", "  It is done.", ""]
    assert status_text.host_lines(host, of_job=True)[0] == f"c1 {shown}: done"
    assert [line.split("  ")[2] for line in lines[4:]] == [
        "begin v2: ann asked for v2 (epoch 1)",
        "admitted to v2: a slot was free (epoch 2)",
        "reported: started v2",
        "reported: upgraded v2",
        "gates opened after v2: all done (epoch 3)",
    ]


def test_a_host_admitted_with_its_role_has_the_reason_of_the_role() -> None:
    host = {
        **asdict(view("compute", "upgrading")),
        "name": "c1",
        "explanation": [],
        "record": None,
        "events": [
            {
                "epoch": 1,
                "at": 1,
                "what": "open",
                "version": "v2",
                "roles": {"compute": {"hosts": 2, "reason": "no cap"}},
            }
        ],
    }
    assert status_text.host_lines(host)[-1].endswith("admitted to v2: no cap (epoch 1)")


def test_a_composition_is_shown_step_by_step() -> None:
    def task_group(step: str, service: str, tasks: int, once: bool = False) -> dict[str, Any]:
        return {"name": f"{step}/{service}", "step": step, "service": service, "tasks": tasks, "once": once}

    task_groups = [
        task_group("stop", "web", 2),
        task_group("upgrade", "web", 1),
        task_group("upgrade", "db", 1, once=True),
    ]
    found = {
        "folder": "/composed",
        "roles": {
            "node": {"plane": "dataplane", "task_groups": task_groups, "dropped": ["x: left out."]},
            "empty": {"plane": None, "task_groups": [], "dropped": []},
        },
        "reasons": {"node": {"core": "web requires db, which core has"}},
        "lockstep": [["a", "b"]],
        "kept_order": ["node: web requires db."],
        "remarks": ["Mind this."],
    }
    assert status_text.composition_lines(found) == [
        "Composed in /composed:",
        "node (dataplane):",
        "  stop     web (2 tasks)",
        "  upgrade  web (1 task), db (1 task, one host for all)",
        "  x: left out.",
        "  waits for core: web requires db, which core has",
        "empty:",
        "  no tasks",
        "a and b require each other, so they are upgraded together.",
        "node: web requires db.",
        "Mind this.",
    ]
    # Folders of this release have no such sentences.
    del found["kept_order"]
    assert "Mind this." in status_text.composition_lines(found)
    back = ["verify/web", "upgrade/web", "upgrade/db"]
    role = {
        "plane": None,
        "task_groups": [*task_groups, task_group("verify", "web", 1)],
        "dropped": [],
        "reversed_task_groups": back,
    }
    line = "  a rollback replaces web, then db"
    assert line in status_text.composition_lines({**found, "roles": {"node": role}})
    # A rollback shows its own order step by step, whether it is reversed or not.
    for is_reversed in (True, False):
        shown = composition_of_rollback({**found, "roles": {"node": role}}, is_reversed=is_reversed)
        assert line not in status_text.composition_lines(shown)


# The lines above all hosts


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ({}, []),
        (
            {"ledger": {"rollback": True, "state": "running", "command": {"reason": "so"}}},
            ["It rolls the fleet back: so"],
        ),
        # Then the last command is the pause.
        ({"ledger": {"rollback": True, "state": "paused", "command": {"reason": "so"}}}, ["It rolls the fleet back"]),
        ({"stage": "", "needs_approval": False, "blocker": {}}, []),
        ({"stage": "canary", "needs_approval": False, "blocker": {}}, ["Stage canary"]),
        ({"stage": "canary", "needs_approval": True, "blocker": {}}, ["Stage canary; it waits for approval"]),
        (
            {"stage": "", "needs_approval": False, "blocker": PAUSED},
            ["No host is admitted: the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume"],
        ),
        (
            {"stage": "canary", "needs_approval": True, "blocker": PAUSED},
            [
                "Stage canary; it waits for approval",
                "No host is admitted: the rollout is paused by ann; continue with ansible-playbook convoy.upgrade.resume",
            ],
        ),
    ],
)
def test_stage_and_blocker_follow_the_headline_of_a_status(found: dict[str, Any], lines: list[str]) -> None:
    shown = status_text.status_lines(result({"c1": view("compute", "pending")}, **found))
    assert shown[: len(lines) + 2] == ["Rollout to v2 from v1: 0 of 1 host upgraded", *lines, ""]


def test_the_command_for_post_upgrade_tasks_retries_those_that_failed() -> None:
    failed = replace(view("compute", "upgraded", reason="its post-upgrade tasks failed"), cause="post_upgrade_failed")
    again = {"version": "v2", "retry_failed": "true"}
    left = {"post_upgrade": ["c1"], "complete": True}
    shown = status_text.status_lines(result({"c1": failed}, **left, needs_operator=[post_upgrade_need(again)]))
    assert shown[2] == "Next: ansible-playbook convoy.upgrade.post_upgrade -e version=v2 -e retry_failed=true"
    assert shown[-2:] == ["upgraded:", "  c1: its post-upgrade tasks failed"]
    needs = [post_upgrade_need({"version": "v2"})]
    shown = status_text.status_lines(result({"c1": view("compute", "upgraded")}, **left, needs_operator=needs))
    assert shown[2] == "Next: ansible-playbook convoy.upgrade.post_upgrade -e version=v2"


@pytest.mark.parametrize("needs", [[], [post_upgrade_need({"host": "c1"}, "unhold")]])
def test_the_status_names_no_command_for_post_upgrade_tasks_that_it_would_not_run_and_says_who_carries_them(
    needs: list[dict[str, Any]],
) -> None:
    left = {"post_upgrade": ["c1"], "complete": True, "carried_by": ["one"], "needs_operator": needs}
    assert status_text.status_lines(result({"c1": view("compute", "upgraded")}, **left))[1:4] == [
        "Post-upgrade tasks have not run on 1 host: c1",
        "Carried by planner services: one",
        "",
    ]
    done = result({"c1": view("compute", "upgraded")}, complete=True, carried_by=["one"])
    assert status_text.status_lines(done)[1] == ""


def test_an_exhausted_budget_is_shown_once() -> None:
    exhausted = ExhaustedBudget("the fleet", "failure_rules.fleet", 1, ("c1",))
    blocker = rollout_blocker(Snapshot(current_version="v2"), Instructions(), exhausted)
    shown = status_text.status_lines(result({}, **rollout_blockers(Plan(blocker=blocker))))
    assert shown[1] == (
        "No host is admitted: the fleet has 1 failed or lost host (c1), and failure_rules.fleet stops it at 1; fix it, "
        "or give all rules again with failure_rules.fleet raised"
    )


def test_lost_hosts_are_counted_and_come_after_the_failed_ones() -> None:
    hosts = {
        "c1": view("compute", "lost", reason="silent for 90 s"),
        "c2": view("compute", "failed", reason="failed: no disk"),
        "c3": view("compute", "upgrading", reason="reported v2 and soaks for 30 s more"),
    }
    lines = status_text.status_lines(result(hosts))
    assert lines[2:4] == [
        "role     hosts  upgraded  upgrading  pending  held  failed  lost  versions",
        "compute      3         -          1        -     -       1     1  v1 (3)",
    ]
    assert lines[5:] == [
        "failed:",
        "  c2: failed: no disk",
        "",
        "lost:",
        "  c1: silent for 90 s",
        "",
        "upgrading:",
        "  c3: reported v2 and soaks for 30 s more",
    ]


def test_the_history_of_a_host_says_if_older_entries_are_left_out() -> None:
    host = {"name": "a1", "role": "a", "group": None, "state": "pending", "explanation": ["a1 runs 1."], "record": None}
    events = [{"what": "begin", "version": "2", "at": 1, "epoch": 9, "who": "ann"}]
    short, long = (status_text.host_lines({**host, "events": events, "older_events": older}) for older in (False, True))
    assert long == [
        *short[:3],
        "  older history entries, of earlier rollouts, are left out or no longer kept",
        *short[3:],
    ]


# Commands of operators in the history of a host


def history_lines(events: list[dict[str, Any]], record: dict[str, Any] | None = None) -> list[str]:
    """Return the lines on the history of a host, without its head and times; the events are given with the oldest first."""
    entries = [{"at": 10, "epoch": number, "version": "v2", **event} for number, event in enumerate(events, 1)]
    host = {
        **asdict(view("compute", "pending")),
        "name": "c1",
        "explanation": [],
        "record": record,
        "events": entries[::-1],
    }
    return [line.split("  ")[2] for line in status_text.host_lines(host)[2:]]


def test_commands_of_the_same_second_are_ordered_by_cause() -> None:
    events = ["complete", "abort", "pause", "unhold", "hold", "health", "publish", "open", "stage", "approve", "resume"]
    lines = history_lines([{"what": what, "reason": "so"} for what in [*events, "rules", "begin"]])
    assert [line.partition(" ")[0] for line in lines] == [
        *("begin", "rules", "resume", "approve", "stage", "admitted", "publish", "health", "hold", "unhold", "pause"),
        *("abort", "complete"),
    ]


def test_a_retry_is_shown_as_an_operators_command() -> None:
    lines = history_lines(
        [
            {"what": "open", "hosts": {"c1": "a slot was free"}, "at": 11},
            {"what": "retry", "hosts": {"c1": "failed: no disk"}, "reason": "fixed", "by": "ann"},
        ],
        {"version": "v2", "times": {"retried": 10, "failed": 9}},
    )
    assert lines == [
        "reported: failed v2",
        "retry v2 by ann: failed: no disk (epoch 2)",
        "by an operator: retried v2",
        "admitted to v2: a slot was free (epoch 1)",
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"what": "pause", "reason": "logins fail", "by": "ann", "who": "x@y"},
            "pause v2 by ann: logins fail (epoch 1)",
        ),
        ({"what": "pause", "reason": "", "by": "ann", "who": "x@y"}, "pause v2 by ann (epoch 1)"),
        ({"what": "unhold", "reason": "", "hosts": {"c1": ""}, "who": "x@y"}, "unhold v2 by x@y (epoch 1)"),
        ({"what": "unhold", "reason": ""}, "unhold v2 (epoch 1)"),
        ({"what": "close", "hosts": {"c1": "the rollout was aborted"}}, "close v2: the rollout was aborted (epoch 1)"),
        ({"what": "hold", "roles": {"compute": {"reason": "RAM test"}}}, "hold v2: RAM test (epoch 1)"),
    ],
)
def test_a_command_has_its_operator_and_reason(event: dict[str, Any], line: str) -> None:
    assert history_lines([event]) == [line]


def test_the_number_of_hosts_is_not_made_of_a_list_that_was_cut() -> None:
    def line(listed: int, count: int) -> str:
        hosts = [f"web{number}" for number in range(1, listed + 1)]
        return status_text.rollout_lines({"post_upgrade": hosts, "more_post_upgrade": count - listed})[0]

    for listed, count in ((99, 99), (100, 100), (100, 2000), (2000, 2000)):
        assert line(listed, count).startswith(f"Post-upgrade tasks have not run on {count} hosts: web1, ")
        assert line(listed, count).endswith(f", web8 and {count - 8} more")
    assert line(1, 1) == "Post-upgrade tasks have not run on 1 host: web1"
