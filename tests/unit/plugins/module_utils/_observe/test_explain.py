# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The explanation of one host: its state and since when, the reason, the rule, what an operator can change, what comes next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    REPORTED_LOST,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED, PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.explain import explain, time_ago
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from fleets import NEW, OLD, Fleet, fleet

BEGUN = 9_000
GIVEN = [{"what": "begin", "who": "ann@ops", "at": BEGUN}]
BEGAN = "since 1970-01-01 02:30:00 (16 minutes ago), when the rollout to 2.0 began."
FROM_OLD = "{} runs 1.0, as it reported at 1970-01-01 00:00:01 (2 hours ago). The target version is 2.0."


@pytest.fixture(autouse=True)
def _in_utc(live_in: Callable[[str], None]) -> None:
    live_in("UTC")


def under(one: Fleet, rules: Mapping[str, Any], **more: Any) -> Fleet:
    """Return a fleet with a rollout under these rules."""
    one.ledger = Ledger(1, NEW, OLD, instructions=parse(rules).plain(), who="ann@ops", since=BEGUN, **more)
    return one


def explained(one: Fleet, host: str) -> list[str]:
    rules = one.ledger.instructions if one.ledger is not None else {}
    return list(explain(host, one.plan(rules), one.snapshot(), GIVEN))


def test_the_explanation_of_a_host_that_waits_for_a_slot_has_its_rule_who_gave_it_and_its_wave() -> None:
    one = under(fleet(compute=4).opened("compute1"), {"rolling_rules": {"roles": {"compute": 1}}})
    assert explained(one, "compute4") == [
        FROM_OLD.format("compute4"),
        f"It has been pending {BEGAN}",
        "Why: waits for a slot: rolling_rules.roles.compute admits 1 of role compute at once; slots are taken by compute1.",
        "The rule is rolling_rules.roles.compute: 1, given by ann@ops at 1970-01-01 02:30:00 (16 minutes ago).",
        "To change this: run ansible-playbook convoy.upgrade.upgrade again, with all rules and a higher rolling_rules.roles.compute.",
        "If all upgrades succeed, it is admitted in wave 4 of 4, after 2 hosts of role compute and the hosts being upgraded.",
    ]


def test_an_admissible_host_is_admitted_by_the_next_pass() -> None:
    one = under(fleet(compute=1), {})
    assert explained(one, "compute1") == [
        FROM_OLD.format("compute1"),
        f"It has been pending {BEGAN}",
        "Why: can be admitted now.",
        "The next pass of ansible-playbook convoy.upgrade.upgrade admits it. If no run is active, start one.",
    ]


@pytest.mark.parametrize(
    ("rules", "rule", "change"),
    [
        (
            {"role_order": {"compute": "controller"}},
            'role_order.compute: ["controller"]',
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another role_order.compute",
        ),
        (
            {"group_mappings": {"nodes": "compute"}, "role_order": {"nodes": "controller"}},
            'role_order.nodes: ["controller"]',
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another role_order.nodes",
        ),
        (
            {"rolling_rules": {"roles": {"compute": 0}}},
            "rolling_rules.roles.compute: 0",
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and rolling_rules.roles.compute above 0",
        ),
        (
            {"rolling_rules": {"complete_sets": True}},
            "rolling_rules.complete_sets: true",
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another rolling_rules.complete_sets",
        ),
        (
            {"stages": [{"name": "canary", "roles": ["controller"]}]},
            "stages[0]: canary, all of controller",
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another stages[0]",
        ),
        (
            {"freezes": [{"from": "1970-01-01", "to": "1970-01-02", "reason": "new year"}]},
            None,
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another freezes[0]",
        ),
        (
            {"windows": [{"from": "22:00", "to": "23:00"}]},
            None,
            "run ansible-playbook convoy.upgrade.upgrade again, with all rules and another windows",
        ),
    ],
)
def test_each_rule_is_shown_as_it_was_given_with_what_would_change_it(
    rules: dict[str, Any], rule: str | None, change: str
) -> None:
    one = under(fleet(controller=1, compute=1).opened("controller1"), rules)
    sentences = explained(one, "compute1")
    assert f"To change this: {change}." in sentences
    [shown] = [sentence for sentence in sentences if sentence.startswith("The rule is ")]
    assert rule is None or shown.startswith(f"The rule is {rule}, given by ann@ops at ")


@pytest.mark.parametrize(
    ("rules", "change"),
    [
        ({"failure_rules": {"fleet": 1}}, "fix those hosts, then run ansible-playbook convoy.upgrade.retry"),
        (
            {"failure_rules": {"roles": {"compute": 1}}},
            "fix those hosts, then run ansible-playbook convoy.upgrade.retry",
        ),
    ],
)
def test_an_exhausted_budget_is_an_operators_to_fix(rules: dict[str, Any], change: str) -> None:
    one = under(fleet(compute=3).failed("compute1"), rules)
    sentences = explained(one, "compute2")
    assert f"To change this: {change}." in sentences
    assert sentences[-1] == "Until that changes, it waits. It is in no wave of the forecast."


def test_a_pause_is_ended_by_resume_and_an_abort_by_an_operator_alone() -> None:
    paused = explained(under(fleet(compute=1), {}, state=PAUSED), "compute1")
    assert "To change this: run ansible-playbook convoy.upgrade.resume." in paused
    assert paused[-1].startswith("If all upgrades succeed, it is admitted in wave ")
    aborted = explained(under(fleet(compute=1), {}, state=ABORTED), "compute1")
    assert "Only an operator can change this." in aborted
    assert aborted[-1] == "Until that changes, it waits. It is in no wave of the forecast."


def test_a_stage_that_needs_approval_names_the_playbook() -> None:
    rules = {"stages": [{"name": "canary", "hosts": 1, "approve": True}]}
    one = under(fleet(compute=2).upgraded("compute1"), rules)
    sentences = explained(one, "compute2")
    assert any(sentence.startswith("The rule is stages[0].approve: true, given by") for sentence in sentences)
    assert "To change this: run ansible-playbook convoy.upgrade.approve." in sentences


@pytest.mark.parametrize(
    ("place", "argument"),
    [("host/compute1", "host=compute1"), ("role/compute", "role=compute"), ("global", "everything=true")],
)
def test_the_explanation_of_a_held_host_says_how_its_hold_ends(place: str, argument: str) -> None:
    one = under(fleet(compute=1).held(place), {})
    sentences = explained(one, "compute1")
    assert "It has been held since noon, when the hold was set." in sentences
    assert f"To change this: run ansible-playbook convoy.upgrade.unhold -e {argument}." in sentences
    assert sentences[-1] == "Until then it waits, and takes no slot."


def test_the_explanation_of_a_host_that_its_former_role_holds_names_that_role_and_ends_the_hold_for_it_alone() -> None:
    one = under(fleet(compute=2).held("role/spare"), {})
    one.records["compute1"] = HostRecord(OLD, UPGRADED, role="compute", former_role="spare")
    change = "To change this: run ansible-playbook convoy.upgrade.unhold -e host=compute1."
    assert explained(one, "compute1")[1:] == [
        "It has been held since noon, when the hold was set.",
        "Why: held by ann since noon: RAM test (a hold of its former role spare, which ends for it with ansible-playbook convoy.upgrade.unhold -e host=HOST).",
        change,
        "Until then it waits, and takes no slot.",
    ]
    assert explained(one.opened("compute1"), "compute1")[-2:] == [
        change,
        "Until then it keeps its slot, because it was admitted.",
    ]
    # A record of a job has no roles.
    versions = one.snapshot()
    assert replace(versions, records={}, is_job=True, versions=versions).hold_of("compute1", "compute") is not None
    one.records["compute1"] = replace(one.records["compute1"], former_role="")
    assert not one.plan().hosts["compute1"].held


def test_the_advice_for_a_host_that_holds_itself_does_not_end_the_holds_of_operators() -> None:
    one = under(fleet(compute=1), {})
    one.records["compute1"] = HostRecord(OLD, UPGRADED, held="its disk is being replaced")
    sentences = explained(one, "compute1")
    assert sentences[-2:] == [
        "To change this: run 'puppet agent --enable' on the host. Its next run ends the hold.",
        "Until then it waits, and takes no slot.",
    ]
    assert "unhold" in " ".join(explained(one.held("global"), "compute1"))
    # Without health checks, a host whose settings can't be used reports that this way.
    one = under(fleet(compute=1), {})
    one.records["compute1"] = HostRecord(OLD, UPGRADED, held="its settings can't be used: node.json is empty")
    assert explained(one, "compute1")[-3:-1] == [
        "Why: held by convoy-node: its settings can't be used: node.json is empty (ends by itself once 'convoy-node check' on the host finds no mistake).",
        "To change this: run 'convoy-node check' on the host, and correct what it names. Its agent then ends the hold.",
    ]
    view = one.plan().hosts["compute1"]
    assert (view.state, view.holds_itself) == ("held", True)


RETRY = (
    "To change this: fix the host, then run ansible-playbook convoy.upgrade.upgrade -e version=2.0 -e retry_failed=true. To free its slot "
    "instead, run ansible-playbook convoy.upgrade.retry -e host=compute1."
)


def test_a_failed_host_with_an_agent_tries_again_by_itself() -> None:
    one = under(fleet(compute=1).failed("compute1").opened("compute1"), {})
    one.records["compute1"] = replace(one.records["compute1"], release="0.1.0")
    assert (
        "To change this: fix the host. Its agent tries again by itself. To free its slot, run ansible-playbook convoy.upgrade.retry -e host=compute1."
        in explained(one, "compute1")
    )
    # A rollout that began again has removed its gate.
    closed = one.gated(None, "host/compute1")
    assert (
        "To change this: fix the host, then run ansible-playbook convoy.upgrade.retry -e host=compute1. Its gate is closed, so its agent does not try again."
        in explained(closed, "compute1")
    )


def test_a_host_that_was_broken_before_a_rollback_takes_no_slot() -> None:
    one = under(fleet(compute=2).upgraded("compute2").failed("compute1").opened("compute1"), {})
    one.records["compute1"] = replace(one.records["compute1"], release="0.1.0")
    assert one.ledger is not None
    one.ledger = replace(one.ledger, rollback=True, broken=("compute1",))
    sentences = explained(one, "compute1")
    assert (
        "To let planners admit it again, run ansible-playbook convoy.upgrade.retry -e host=compute1." in sentences[-2]
    )
    assert sentences[-1] == (
        "It takes no slot, because it was broken before the rollback. That is complete once the host is upgraded, or forgotten."
    )
    (need,) = operator_needs(one.snapshot(), one.plan())
    assert (need.code, need.playbook, need.variables) == ("broken_hosts", "retry", {"host": "compute1"})


def test_a_failed_host_keeps_its_slot_until_it_is_fixed() -> None:
    one = under(fleet(compute=1).failed("compute1"), {})
    one.records["compute1"] = replace(one.records["compute1"], times={"failed": 9_940}, service="nova", step="stop")
    assert explained(one, "compute1")[1:] == [
        "It has been failed since 1970-01-01 02:45:40 (60 seconds ago), when it reported the failure.",
        "Why: failed, service nova, step stop: disk full.",
        RETRY,
        "Until then it keeps its slot, so that failures do not spread.",
    ]


_DRAIN, _STOP, _UNDRAIN = (
    StepStart(9_000, "convoy.upgrade.consul_service", step) for step in ("drain", "stop", "undrain")
)


@pytest.mark.parametrize(
    ("state", "trail", "error", "is_drained"),
    [
        (FAILED, (_DRAIN, _STOP), "no disk", True),
        # Its run was killed.
        (STARTED, (_DRAIN,), None, True),
        (REPORTED_LOST, (_DRAIN,), "no answer", True),
        # The step that puts it back failed.
        (FAILED, (_DRAIN, _STOP, _UNDRAIN), "no answer", True),
        # Nothing was stopped, so its run has put it back.
        (FAILED, (_DRAIN,), "no disk", False),
        (FAILED, (_DRAIN, _STOP, _UNDRAIN, StepStart(9_001, "app", "undrain")), "no disk", False),
        (FAILED, (_STOP,), "no disk", False),
        (UPGRADED, (_DRAIN, _STOP), None, False),
        # What was stopped is from an upgrade that has ended.
        (FAILED, (_DRAIN, _STOP, _UNDRAIN, StepStart(9_002), _DRAIN), "no disk", False),
    ],
)
def test_a_host_that_was_left_in_consuls_maintenance_says_so_and_how_to_end_it(
    state: str, trail: tuple[StepStart, ...], error: str | None, is_drained: bool
) -> None:
    one = fleet(compute=1)
    times = {UPGRADED: 9_002}
    one.records["compute1"] = HostRecord(NEW, state, error=error, origin=OLD, trail=trail, times=times)
    sentence = (
        "It is still drained (convoy.upgrade.consul_service) until an upgrade of it succeeds. To end that without one, undo the step drain as "
        "their README says, for Consul's maintenance with consul maint -disable -service=ID there."
    )
    assert (sentence in explained(one, "compute1")) == is_drained
    one.leases.add("compute1")
    assert "drained" not in " ".join(explained(one, "compute1"))


def test_a_lost_host_is_to_be_fixed_too() -> None:
    one = under(fleet(compute=1).opened("compute1"), {"health": {"progress_deadline": 60}})
    one.gated_at = 9_100
    sentences = explained(one, "compute1")
    assert sentences[1:3] == ["It is lost.", "Why: silent for 900 s, and health.progress_deadline is 60 s."]
    assert (
        "To change this: fix the host. Its next report ends this. To free its slot, run ansible-playbook convoy.upgrade.retry -e host=compute1."
        in sentences
    )


def test_a_lost_host_is_not_reported_as_lost_since_its_start() -> None:
    one = under(fleet(compute=1).opened("compute1"), {"health": {"progress_deadline": 60}})
    one.gated_at = 9_100
    one.records["compute1"] = HostRecord(NEW, STARTED, times={STARTED: 9_200})
    assert explained(one, "compute1")[1:3] == [
        "It is lost.",
        "Why: silent for 800 s, and health.progress_deadline is 60 s.",
    ]


def test_a_host_that_lost_its_health_is_not_reported_as_failed_at_an_earlier_try() -> None:
    one = under(fleet(compute=1).upgraded("compute1"), {"health": {"consul_checks": ["web"]}})
    one.records["compute1"] = HostRecord(NEW, UPGRADED, times={"failed": 9_100, UPGRADED: 9_500})
    one.marks["compute1"] = HealthMark(NEW, 9_600, True, 9_500)
    one.checks = {"compute1": {"web": "critical"}}
    sentences = explained(one, "compute1")
    assert sentences[1:3] == ["It is failed.", "Why: was upgraded, and now its check web is critical."]


def test_a_held_host_that_was_admitted_does_not_begin() -> None:
    one = under(fleet(compute=1).opened("compute1").held("host/compute1"), {})
    sentences = explained(one, "compute1")
    assert "To change this: run ansible-playbook convoy.upgrade.unhold -e host=compute1." in sentences
    assert sentences[-1] == "Until then it keeps its slot, because it was admitted."


def test_a_host_whose_gate_is_open_is_on_its_own() -> None:
    one = under(fleet(compute=1).opened("compute1"), {})
    one.gated_at = 9_990
    assert explained(one, "compute1")[1:] == [
        "It has been upgrading since 1970-01-01 02:46:30 (10 seconds ago), when its gate was opened.",
        "Why: admitted by gate config_state/enable_puppet/host/compute1 (True), not started yet.",
        "No rule keeps it waiting: the host or the Ansible run that upgrades it has to finish.",
        "Next, it starts, upgrades and reports. Until then it keeps its slot.",
    ]
    one.records["compute1"] = HostRecord(NEW, STARTED, "nova", "stop", times={STARTED: 9_995})
    assert explained(one, "compute1")[1] == (
        "It has been upgrading since 1970-01-01 02:46:35 (5 seconds ago), when it reported its start."
    )
    assert explained(one, "compute1")[-1] == "Next, it reports the end of its upgrade. Until then it keeps its slot."


def test_a_host_that_was_not_admitted_needs_an_operator() -> None:
    sentences = explained(under(fleet(compute=2).gated("False", "global").started("compute1"), {}), "compute1")
    assert sentences[-2:] == [
        "To change this: make sure that nothing runs there, then run ansible-playbook convoy.upgrade.retry -e host=compute1.",
        "Until then it keeps its slot.",
    ]


def test_the_soak_of_a_host_goes_on_during_a_hold() -> None:
    one = under(fleet(compute=1).upgraded("compute1").held("host/compute1"), {"health": {"soak": 60}})
    sentences = explained(one, "compute1")
    assert not [text for text in sentences if text.startswith("To change this")]
    assert sentences[-1] == "Once the soak is over, it counts as upgraded, and its slot is free."


def test_a_host_that_soaks_and_one_that_is_done() -> None:
    one = under(fleet(compute=1).upgraded("compute1"), {"health": {"soak": 60}})
    one.records["compute1"] = HostRecord(NEW, UPGRADED, times={UPGRADED: 9_999})
    one.reported_at["compute1"] = 9_999
    sentences = explained(one, "compute1")
    assert (
        sentences[1] == "It has been upgrading since 1970-01-01 02:46:39 (1 second ago), when it reported the version."
    )
    assert sentences[-1] == "Once the soak is over, it counts as upgraded, and its slot is free."
    assert explained(under(one, {}), "compute1") == [
        "compute1 runs 2.0, as it reported at 1970-01-01 02:46:39 (1 second ago). That is the target version.",
        "It has been upgraded since 1970-01-01 02:46:39 (1 second ago), when it reported the version.",
        "It is done.",
    ]


def test_a_retried_host_waits_since_then() -> None:
    one = under(fleet(compute=1), {})
    one.records["compute1"] = HostRecord(NEW, RETRIED, times={RETRIED: 9_970})
    assert explained(one, "compute1")[1] == (
        "It has been pending since 1970-01-01 02:46:10 (30 seconds ago), when an operator retried it."
    )


def test_a_host_that_never_reported_and_a_fleet_without_a_version() -> None:
    one = fleet(compute=1).silent("compute1")
    one.current = None
    assert explained(one, "compute1") == [
        "compute1 has never reported a version.",
        "It is pending.",
        "Why: never reported; there is no version to upgrade to: current_version is not set.",
        "To change this: begin a rollout with ansible-playbook convoy.upgrade.upgrade -e version=X.",
        "Until that changes, it waits. It is in no wave of the forecast.",
    ]


def test_a_fleet_that_is_not_given_whole_admits_no_host() -> None:
    one = under(fleet(compute=2), {}, members={"compute": 3})
    assert explained(one, "compute1")[-1].startswith(
        "It waits until the whole fleet is given: role compute: 2 of its 3"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 seconds ago"),
        (1, "1 second ago"),
        (119, "119 seconds ago"),
        (120, "2 minutes ago"),
        (7199, "119 minutes ago"),
        (7200, "2 hours ago"),
        (172_800, "2 days ago"),
    ],
)
def test_a_time_is_written_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert time_ago(seconds) == text


def test_every_sentence_ends_as_one() -> None:
    one = under(
        fleet(controller=2, compute=2).failed("compute1").held("host/controller2"), {"rolling_rules": {"global": 1}}
    )
    for host in one.members:
        for sentence in explained(one, host):
            assert re.fullmatch(r"[A-Zc].*[.?!]", sentence), sentence


def test_a_host_that_failed_after_the_rollout_recovers_with_its_next_run() -> None:
    one = under(fleet(compute=1).upgraded("compute1"), {})
    one.records["compute1"] = HostRecord(NEW, FAILED, error="disk full", index=99)
    assert one.ledger is not None
    one.ledger = replace(one.ledger, state="complete")
    assert explained(one, "compute1")[-2] == (
        "To change this: fix the host. The next run that succeeds there ends this."
    )


def test_an_upgraded_host_with_post_upgrade_tasks_is_not_done() -> None:
    one = under(fleet(compute=1).upgraded("compute1"), {})
    assert one.ledger is not None
    one.ledger = replace(one.ledger, post_upgrade=("compute",))
    assert explained(one, "compute1")[-1] == "Its post-upgrade tasks follow once every host is upgraded."


def test_a_host_whose_post_upgrade_tasks_failed_names_the_failure_and_what_retries_it() -> None:
    one = under(fleet(compute=1).upgraded("compute1"), {})
    assert one.ledger is not None
    one.ledger = replace(one.ledger, post_upgrade=("compute",))
    failed = HostRecord(NEW, UPGRADED, "nova", "post_upgrade", post="failed", error="no kernel")
    one.records["compute1"] = failed
    retry = "To free its slot before, run ansible-playbook convoy.upgrade.retry -e host=compute1."
    assert explained(one, "compute1")[2:] == [
        "Why: its post-upgrade tasks failed, service nova, step post_upgrade: no kernel.",
        "To change this: fix the host. Once all hosts are upgraded, run ansible-playbook convoy.upgrade.post_upgrade -e version=2.0 "
        f"-e retry_failed=true. {retry}",
        "Until then it keeps its slot, so that failures do not spread.",
    ]
    one.opened("compute1").records["compute1"] = replace(failed, services="abc")
    assert explained(one, "compute1")[3] == f"To change this: fix the host. Its agent tries again by itself. {retry}"
    one.records["compute1"] = replace(failed, post="open", error=None)
    assert explained(one, "compute1")[-1] == (
        "It is in its post-upgrade tasks, or was admitted to them, and keeps its slot until they are done or it is retried."
    )


def test_what_keeps_passes_from_admitting_hosts_comes_next() -> None:
    one = under(fleet(compute=1), {})
    reason = "config_state/enable_puppet/host/web9 is 'Flase'."
    found = explain("compute1", one.plan({}), one.snapshot(), GIVEN, [reason])
    assert found[-1] == f"It waits until this is corrected: {reason}"
