# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explanations: the reason of each host's state, as operators read it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, STARTED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.admission import admit, first_position
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.blockers import (
    Blockers,
    RolloutBlocker,
    find_blockers,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.explanations import (
    Reason,
    blocked_reason,
    role_reasons,
    state_reason,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.slots import fleet_slots
from fleets import NEW, OLD, Fleet, fleet, reasons

HOST = "compute1"
GATE = f"config_state/enable_puppet/host/{HOST}"
HELD = "held by ann since noon: RAM test (ends with ansible-playbook convoy.upgrade.unhold -e host=compute1)"
CLOSED: dict[str, Any] = {"rolling_rules": {"global": 0}}


def with_record(record: HostRecord) -> Fleet:
    site = fleet(compute=1)
    site.records[HOST] = record
    return site


def without_gates() -> Fleet:
    site = fleet(compute=1)
    site.gates.clear()
    return site


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (fleet(compute=1).upgraded(HOST), "runs 2.0"),
        (fleet(compute=1).failed(HOST), "failed: disk full"),
        (with_record(HostRecord(NEW, FAILED)), "failed: no error was given"),
        (
            with_record(HostRecord(NEW, FAILED, "nova", "stop", 3, "no quorum")),
            "failed, service nova, step stop (attempt 3): no quorum",
        ),
        (fleet(compute=1).held(f"host/{HOST}"), HELD),
        (fleet(compute=1).opened(HOST), f"admitted by gate {GATE} (True), not started yet"),
        (fleet(compute=1).gated(NEW, f"host/{HOST}"), f"admitted by gate {GATE} (2.0), not started yet"),
        (without_gates(), "no gate is set, so every host is admitted; not started yet"),
        (
            fleet(compute=1).opened(HOST).held(f"host/{HOST}"),
            f"admitted by gate {GATE} (True), not started yet: {HELD}",
        ),
        (fleet(compute=1).started(HOST).opened(HOST), "started"),
        (
            with_record(HostRecord(NEW, STARTED, "nova", "stop")).opened(HOST),
            "started, service nova, step stop",
        ),
        (
            fleet(compute=1).started(HOST, version="1.5").admitted(HOST),
            "started 1.5; its gate is closed: the cap of role compute is 0: raise rolling_rules.global",
        ),
        (
            fleet(compute=1).started(HOST, version="1.5"),
            "reported the start of its upgrade to 1.5 but was not admitted; it keeps a slot and its gate stays closed: make sure that no upgrade runs "
            "there, then run ansible-playbook convoy.upgrade.retry -e host=compute1",
        ),
    ],
)
def test_the_reason_for_each_state(site: Fleet, reason: str) -> None:
    assert site.plan(CLOSED).hosts[HOST].reason == reason


def test_the_steps_of_an_upgrade_that_has_ended_are_not_those_of_the_next_one_to_the_same_version() -> None:
    trail = (StepStart(4, "db", "stop"), StepStart(5), StepStart(5, "db", "prepare"), StepStart(6))
    record = HostRecord(NEW, FAILED, times={"upgraded": 5}, trail=trail)
    assert with_record(record).plan().hosts[HOST].steps == ("prepare",)


def test_a_host_that_goes_now_says_so() -> None:
    assert fleet(compute=1).plan().hosts[HOST].reason == "can be admitted now"


def test_a_host_that_never_reported_says_so_beside_its_reason() -> None:
    site = fleet(compute=2).silent("compute1", "compute2")
    plan = site.plan({"rolling_rules": {"global": 1}})

    assert plan.hosts["compute1"].reason == "never reported; can be admitted now"
    assert plan.hosts["compute2"].reason == (
        "never reported; waits for a slot: rolling_rules.global admits 1 of role compute at once; slots are taken by compute1"
    )


def test_without_a_current_version_there_is_nothing_to_upgrade_to() -> None:
    site = fleet(compute=1)
    site.current = None

    assert site.plan().hosts[HOST].reason == "there is no version to upgrade to: current_version is not set"


def test_outside_of_the_limit() -> None:
    plan = fleet(compute=1, controller=1).plan(limit=["controller"])

    assert plan.hosts[HOST].reason == "excluded by this run's limit"


def test_a_gate_that_can_not_be_read_is_reported_first() -> None:
    site = fleet(compute=1).gated("Flase", f"host/{HOST}")

    assert site.plan(CLOSED).hosts[HOST].reason == (
        f"The gate {GATE} holds 'Flase', which is neither True, False nor a version. Set it with consul_enable_puppet, "
        "or delete the key. the cap of role compute is 0: raise rolling_rules.global"
    )


@pytest.mark.parametrize(
    ("rolling", "reason"),
    [
        ({"global": 0}, "the cap of role compute is 0: raise rolling_rules.global"),
        ({"roles": {"compute": 0}}, "the cap of role compute is 0: raise rolling_rules.roles.compute"),
        ({"roles": {"all": "0%"}}, "the cap of group all is 0: raise rolling_rules.roles.all"),
        ({"fleet": 0}, "the cap of the fleet is 0: raise rolling_rules.fleet"),
        ({"global": 1, "fleet": 0}, "the cap of the fleet is 0: raise rolling_rules.fleet"),
        (
            {"roles": {"compute": 1}},
            "waits for a slot: rolling_rules.roles.compute admits 1 of role compute at once; slots are taken by compute1",
        ),
        (
            {"roles": {"all": 3}},
            "waits for a slot: rolling_rules.roles.all admits 3 of group all at once; slots are "
            "taken by compute1, controller1, controller2",
        ),
        (
            {"fleet": 4},
            "waits for a slot: rolling_rules.fleet admits 4 of the fleet at once; slots are "
            "taken by compute1, compute2, controller1 and 1 more",
        ),
    ],
)
def test_a_cap_names_its_key_and_the_hosts_in_its_slots(rolling: dict[str, Any], reason: str) -> None:
    groups = {"group_mappings": {"all": "co"}} if "all" in rolling.get("roles", {}) else {}
    site = fleet(compute=9, controller=2).opened("controller1", "controller2")

    assert site.plan({"rolling_rules": rolling, **groups}).hosts["compute9"].reason == reason


def test_a_failed_host_is_among_those_that_take_a_slot() -> None:
    plan = fleet(compute=2).failed("compute2").plan({"rolling_rules": {"global": 1}})

    assert plan.hosts[HOST].reason == (
        "waits for a slot: rolling_rules.global admits 1 of role compute at once; slots are taken by compute2"
    )


def test_an_order_names_the_hosts_that_are_waited_for_and_their_states() -> None:
    site = fleet(compute=1, controller=3, network=1).upgraded("controller1").failed("controller2").held("host/network1")

    assert site.plan({"role_order": {"compute": ["network", "controller"]}}).hosts[HOST].reason == (
        "waits for role controller (2 hosts are not upgraded: controller2 failed, controller3 can be admitted now) and "
        "role network (1 host is not upgraded: network1 held), as role_order says"
    )


def test_an_order_counts_where_there_are_many() -> None:
    site = fleet(compute=1, controller=9).upgraded("controller1").failed("controller2").opened("controller3")

    rules = {"role_order": {"compute": "controller"}, "rolling_rules": {"roles": {"controller": 4}}}
    assert site.plan(rules).hosts[HOST].reason == (
        "waits for role controller (8 hosts are not upgraded: 1 failed, 1 upgrading, 2 can be admitted now, 4 pending), "
        "as role_order says"
    )


def test_the_order_is_reported_before_the_cap() -> None:
    site = fleet(compute=1, controller=1)
    rules = {"role_order": {"compute": "controller"}, "rolling_rules": {"roles": {"compute": 0}}}

    assert site.plan(rules).hosts[HOST].reason.startswith("waits for role controller")


def test_a_set_that_is_not_complete() -> None:
    site = fleet(compute=2, controller=5).opened("controller1", "controller2", "controller3", "controller4")

    assert reasons(site.plan({"rolling_rules": {"complete_sets": True}}), ["compute1", "compute2", "controller5"]) == {
        "waits until the current set is done, as complete_sets says: controller1, controller2, controller3 and 1 more"
    }


def test_a_host_that_runs_an_older_version_is_pending() -> None:
    view = fleet(compute=1).running(OLD, HOST).plan(CLOSED).hosts[HOST]

    assert (view.version, view.state) == (OLD, "pending")


def test_a_blocker_is_reported_before_the_order_and_the_scope_before_the_blocker() -> None:
    paused = Blockers(rollout=RolloutBlocker("paused", "the rollout is paused"))
    state = fleet(compute=2).read(limit=["compute1"])
    inside, outside = state.hosts["compute1"], state.hosts["compute2"]

    assert blocked_reason(inside, state, Blockers()) is None
    assert blocked_reason(inside, state, paused) == Reason("the rollout is paused", "paused")
    assert blocked_reason(outside, state, paused) == Reason("excluded by this run's limit", "limit")
    nothing = blocked_reason(outside, state, Blockers(has_version=False))
    assert nothing is not None
    assert nothing.cause == "no_version"


def test_only_roles_with_a_waiting_host_are_explained_and_each_once() -> None:
    rules = {"rolling_rules": {"roles": {"compute": 1}}, "role_order": {"web": "compute"}}
    state = fleet(compute=3, web=2, db=1).read(rules)
    blockers = find_blockers(state)
    wave, after = admit(first_position(state, blockers, fleet_slots(state)))

    found = role_reasons(state, blockers, wave, after)

    assert wave == {"compute": ("compute1",), "db": ("db1",)}
    assert {role: (one.cause, one.rule) for role, one in found.items()} == {
        "compute": ("cap", "rolling_rules.roles.compute"),
        "web": ("order", "role_order.web"),
    }
    assert found["compute"].text.endswith("at once; slots are taken by compute1")
    assert "compute1 can be admitted now" in found["web"].text


def test_a_hold_is_reported_beside_the_state_of_a_host() -> None:
    one = fleet(compute=1).upgraded(HOST).held(f"host/{HOST}").states()[HOST]

    assert state_reason(one, NEW) == f"runs 2.0; {HELD}"
