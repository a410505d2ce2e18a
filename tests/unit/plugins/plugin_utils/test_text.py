# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout in plain text."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils import _text


def view(role: str, state: str, version: str | None = "v1", reason: str = "because") -> dict[str, Any]:
    return {"role": role, "group": None, "state": state, "version": version, "reason": reason}


def result(hosts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "v2", "previous_version": "v1", "hosts": hosts, "waves": [], "instructions": {}, **more}


def test_columns_are_aligned() -> None:
    assert _text.table([["role", "hosts", "what"], ["a", "10", "b"]], left=(0, 2)) == [
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
    assert _text.status(result(hosts))[:6] == [
        "Rollout to v2 from v1: 1 of 4 hosts upgraded",
        "",
        "role        hosts  upgraded  upgrading  pending  held  failed  lost  versions",
        "compute         3         -          1        2     -       -     -  v0 (1), v1 (1), never reported (1)",
        "controller      1         1          -        -     -       -     -  v2 (1)",
        "fleet           4         1          1        2     -       -     -  v0 (1), v1 (1), never reported (1), v2 (1)",
    ]


def test_what_needs_a_hand_comes_first_and_reasons_are_told_once() -> None:
    hosts = {
        "c10": view("compute", "pending", reason="waits for a slot"),
        "c9": view("compute", "pending", reason="waits for a slot"),
        "c1": view("compute", "failed", reason="failed: no space left"),
        "c2": view("compute", "held", reason="held by ann"),
    }
    lines = _text.status(result(hosts))
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


def test_a_fleet_without_a_version_says_so() -> None:
    assert _text.status(result({}, version=""))[0] == "No rollout has begun: current_version is not set."


def test_the_head_says_who_began_it_and_when() -> None:
    line = _text.headline(result({}, ledger={"since": 1789000000, "who": "ann@ops"}))
    assert line.startswith("Rollout to v2 from v1, begun 2026-09-")
    assert line.endswith("by ann@ops: 0 of 0 hosts upgraded")


def test_a_plan_shows_its_waves_and_what_is_not_expected_to_go() -> None:
    hosts = {
        "c1": view("compute", "upgrading", reason="open"),
        "c2": view("compute", "pending"),
        "c3": view("compute", "held", reason="held by ann"),
    }
    rules = {"rolling_rules": {"global": 1}}
    assert _text.plan(result(hosts, waves=[["c1"], ["c2"]], instructions=rules)) == [
        "Plan: to v2 from v1: 0 of 3 hosts upgraded",
        'Rules: {"rolling_rules": {"global": 1}}',
        "       now      1 host  c1",
        "    wave 2      1 host  c2",
        "",
        "Not expected to go without an operator:",
        "held:",
        "  c3: held by ann",
    ]


def test_a_long_plan_is_cut_and_says_what_is_left() -> None:
    waves = [[], *([f"c{number}"] for number in range(20))]
    hosts = {f"c{number}": view("compute", "pending") for number in range(20)}
    lines = _text.plan(result(hosts, waves=waves))
    assert lines[1] == "Rules: none, so all at once"
    assert lines[2] == "       now     0 hosts  nobody: every slot is taken"
    assert lines[-1].strip() == "and 9 waves more with 9 hosts"


def test_a_finished_plan_says_so() -> None:
    assert _text.plan(result({"c1": view("compute", "upgraded")}))[-1] == "Nothing is left to open."


@pytest.mark.parametrize(("group", "shown"), [(None, "(role compute)"), ("nodes", "(role compute, group nodes)")])
def test_a_story_is_in_the_order_of_time_and_of_cause_within_a_second(group: str | None, shown: str) -> None:
    host = {
        **view("compute", "upgraded", "v2", "runs v2"),
        "name": "c1",
        "group": group,
        "record": {"version": "v2", "times": {"upgraded": 30, "started": 20}},
        "events": [
            {"epoch": 3, "at": 30, "what": "converge", "version": "v2", "reason": "all done"},
            {"epoch": 2, "at": 20, "what": "open", "version": "v2", "hosts": {"c1": "a slot was free"}},
            {"epoch": 1, "at": 10, "what": "begin", "version": "v2", "reason": "ann asked for v2"},
        ],
    }
    lines = _text.story(host)
    assert lines[0] == f"c1 {shown}: upgraded, runs v2"
    assert [line.split("  ")[2] for line in lines[2:]] == [
        "begin v2: ann asked for v2 (epoch 1)",
        "open v2: a slot was free (epoch 2)",
        "the host said: started v2",
        "the host said: upgraded v2",
        "converge v2: all done (epoch 3)",
    ]


def test_a_host_opened_with_its_role_has_the_roles_reason() -> None:
    host = {
        **view("compute", "upgrading"),
        "name": "c1",
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
    assert _text.story(host)[-1].endswith("open v2: no cap (epoch 1)")


def test_a_composition_is_told_step_by_step() -> None:
    def unit(step: str, service: str, tasks: int, once: bool = False) -> dict[str, Any]:
        return {"step": step, "service": service, "tasks": tasks, "once": once}

    units = [unit("stop", "web", 2), unit("upgrade", "web", 1), unit("upgrade", "db", 1, once=True)]
    found = {
        "folder": "/composed",
        "roles": {
            "node": {"stage": "dataplane", "units": units, "dropped": ["x: left out."]},
            "empty": {"stage": None, "units": [], "dropped": []},
        },
        "reasons": {"node": {"core": "web requires db, which core has"}},
        "lockstep": [["a", "b"]],
        "remarks": ["Mind this."],
    }
    assert _text.composition(found) == [
        "Composed in /composed:",
        "node (dataplane):",
        "  stop     web (2 tasks)",
        "  upgrade  web (1 task), db (1 task, one host for all)",
        "  x: left out.",
        "  waits for core: web requires db, which core has",
        "empty:",
        "  no task at all",
        "a and b require each other, so they go together.",
        "Mind this.",
    ]
