# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stages``: which hosts belong to which, what the next stage waits for, and what the ledger stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.stage_progress import carried_over
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.stages import Stage, parse_stages
from fleets import NEW, OLD, Fleet, fleet

CANARY = {"name": "canary", "hosts": 1, "soak": 60, "approve": True}


def test_every_key_is_read_and_the_rest_goes_last() -> None:
    stages = parse_stages([CANARY, {"hosts": "25%", "roles": ["web"]}, {"hosts": ["db1"]}])
    assert stages == (
        Stage("canary", Cap(1), (), 60, True),
        Stage("stage 2", Cap(25, is_percent=True), ("web",)),
        Stage("stage 3", ("db1",)),
        Stage("rest"),
    )
    assert parse_stages([one.plain() for one in stages]) == stages
    assert parse_stages(None) == ()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "stages: {} is not a list."),
        ([CANARY, CANARY], "stages[1].name: 'canary' is the name of an earlier stage too."),
        (
            [{"name": "all"}, CANARY],
            "stages[0]: 'all' takes all remaining hosts, so the stages after it have none.",
        ),
        ([{"hosts": 0}], "stages[0].hosts: 0 is a stage without hosts; leave the stage out."),
        ([{"hosts": []}], "stages[0].hosts: [] is neither a text nor a list of texts."),
        ([{"aprove": True}], "stages[0].aprove: unknown key; did you mean 'approve'?"),
        ([{"approve": "yes"}], "stages[0].approve: 'yes' is neither true nor false."),
        ([{"name": "a/b"}], "stages[0].name: the stage 'a/b' has a '/'"),
        (
            [CANARY, {"name": "others", "soak": "1h", "approve": True}],
            "stages[1].soak: '1h' has no effect: 'others' is the last stage, and no host comes after it. Leave it out; "
            "health.soak says how long each host has to be healthy before it counts as upgraded.",
        ),
        (
            [CANARY, {"approve": True}],
            "stages[1].approve: True has no effect: 'stage 2' is the last stage, and nothing is left to be approved "
            "after it. Leave it out.",
        ),
        ([{"soak": 60}], "stages[0].soak: 60 has no effect: 'stage 1' is the last stage"),
    ],
)
def test_invalid_values_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_stages(raw)
    assert message in caught.value.message


def test_the_last_stage_that_is_named_may_be_waited_for_where_hosts_are_left() -> None:
    assert [one.approve for one in parse_stages([{"roles": ["web"], "soak": 5, "approve": True}])] == [True, False]
    assert parse_stages([CANARY, {"name": "others", "soak": 0, "approve": False}])[-1] == Stage("others")


def go(site: Fleet, stages: list[dict[str, Any]], **more: Any) -> Plan:
    """Make a pass, and store its stage in the ledger."""
    plan = site.plan({"stages": stages, **more})
    site.ledger = replace(site.ledger or Ledger(1, NEW), stage=plan.stage_mark)
    return plan


def opened(plan: Plan) -> list[str]:
    return [one.host for one in plan.admissions]


def test_the_first_hosts_of_each_role_go_and_the_others_wait_for_them() -> None:
    site = fleet(compute=3, web=2)
    plan = go(site, [{"name": "canary", "hosts": 1}])
    assert opened(plan) == ["compute1", "web1"]
    assert plan.hosts["compute2"].reason == "waits for stage canary (2 hosts to go: compute1, web1)"
    assert plan.waves == (("compute1", "web1"), ("compute2", "compute3", "web2"))
    assert plan.role_gates == ()
    site.upgraded("compute1")
    assert opened(go(site, [{"name": "canary", "hosts": 1}])) == ["web1"]
    site.upgraded("web1")
    plan = go(site, [{"name": "canary", "hosts": 1}])
    assert (opened(plan), plan.stage) == (["compute2", "compute3", "web2"], "rest")


def test_a_stage_that_names_a_group_and_a_role_of_it_takes_the_hosts_of_that_role_once() -> None:
    groups = {"group_mappings": {"ceph": ["ceph"]}}
    plan = go(fleet(ceph=2, cephmon=3), [{"name": "canary", "hosts": 1, "roles": ["ceph", "cephmon"]}], **groups)
    assert opened(plan) == ["ceph1", "cephmon1"]


def test_a_stage_soaks_and_then_waits_for_an_approval() -> None:
    site = fleet(compute=2).upgraded("compute1")
    plan = go(site, [CANARY])
    assert opened(plan) == []
    assert (plan.can_move, plan.needs_approval, plan.wake_at) == (True, False, 10_060)
    assert plan.stage_mark == {"number": 0, "done_at": 10_000}
    assert plan.hosts["compute2"].reason.startswith("stage canary soaks until ")
    site.now = 10_060
    plan = go(site, [CANARY])
    assert opened(plan) == []
    assert (plan.can_move, plan.needs_approval, plan.wake_at) == (True, True, None)
    assert plan.hosts["compute2"].reason == (
        "waits for an approval after stage canary: ansible-playbook convoy.upgrade.approve -e stage=canary"
    )
    site.approvals["canary"] = Approval("ann", 10_061)
    plan = go(site, [CANARY])
    assert (opened(plan), plan.stage_mark) == (["compute2"], {"number": 1})


def test_a_canary_that_becomes_unhealthy_is_waited_for_again() -> None:
    site = fleet(compute=2).upgraded("compute1")
    go(site, [CANARY])
    site.reports["compute1"] = "1.0"
    plan = go(site, [CANARY])
    assert plan.stage_mark == {"number": 0, "again": 1}
    assert opened(plan) == ["compute1"]
    # So it stays until the stage is over.
    assert go(site, [CANARY]).stage_mark == {"number": 0, "again": 1}
    site.upgraded("compute1")
    assert go(site, [CANARY]).stage_mark == {"number": 0, "again": 1, "done_at": int(site.now)}


def test_order_between_roles_holds_within_a_stage() -> None:
    site = fleet(controller=2, web=2)
    rules = {"role_order": {"web": "controller"}}
    assert opened(go(site, [{"name": "canary", "hosts": 1}], **rules)) == ["controller1"]
    site.upgraded("controller1")
    assert opened(go(site, [{"name": "canary", "hosts": 1}], **rules)) == ["web1"]
    site.upgraded("web1")
    assert opened(go(site, [{"name": "canary", "hosts": 1}], **rules)) == ["controller2"]


def test_caps_hold_in_every_stage() -> None:
    site = fleet(compute=6)
    rules = {"rolling_rules": {"global": 2}}
    passes = []
    while not site.plan({"stages": [{"hosts": 3}], **rules}).complete:
        plan = go(site, [{"hosts": 3}], **rules)
        passes.append(opened(plan))
        site.open(plan)
        site.finish()
    assert passes == [["compute1", "compute2"], ["compute3"], ["compute4", "compute5"], ["compute6"]]


def test_the_forecast_is_what_happens() -> None:
    site = fleet(compute=5, web=3)
    rules = {"stages": [{"hosts": 1}, {"hosts": ["compute4"]}], "rolling_rules": {"global": 2}}
    waves = site.plan(rules).waves
    assert [tuple(one) for one in waves] == [one for one in site.run(rules) if one]


def test_a_stage_that_cannot_end_by_itself_ends_the_forecast() -> None:
    site = fleet(compute=3).failed("compute1")
    assert go(site, [{"hosts": 1}]).waves == ()


@pytest.mark.parametrize(
    ("stage", "key", "why"),
    [
        (
            {"roles": ["conpute"], "hosts": 1},
            "stages[0].roles",
            "conpute is not a role or group of it; did you mean 'compute'? Its roles are compute, web. Correct roles,",
        ),
        (
            {"roles": ["conpute", "wbe"]},
            "stages[0].roles",
            "conpute, wbe are not roles or groups of it; did you mean 'compute'? Its roles are compute, web. Correct roles,",
        ),
        (
            {"hosts": ["compute9"]},
            "stages[0].hosts",
            "compute9 is not a host of it; did you mean 'compute2'? Hosts that never reported are known only if fleet names them. "
            "Correct hosts,",
        ),
        (
            {"hosts": ["web1"], "roles": "compute"},
            "stages[0].hosts",
            "none of web1 has a role of compute. Correct hosts,",
        ),
    ],
)
def test_a_stage_with_only_unknown_names_is_refused(stage: dict[str, Any], key: str, why: str) -> None:
    site = fleet(compute=2, web=1)
    with pytest.raises(UpgradeError) as caught:
        go(site, [{"name": "canary", **stage}])
    assert caught.value.code == "bad_instructions"
    assert caught.value.message == (
        f"instructions: {key}: stage 'canary' has no host in this fleet, so the next one would begin at once: {why} "
        "or leave the stage out."
    )
    assert caught.value.details == {"key": key, "stage": "canary"}


def test_a_later_stage_with_only_unknown_names_is_refused_before_any_admission() -> None:
    with pytest.raises(UpgradeError, match=r"stages\[1\]\.roles: stage 'second' has no host"):
        go(fleet(compute=2), [CANARY, {"name": "second", "roles": ["wbe"]}])


def test_an_unknown_name_among_others_is_a_warning() -> None:
    site = fleet(compute=3)
    plan = go(site, [{"hosts": ["compute2", "compute9", "compute8"], "roles": ["compute", "computer"]}])
    assert opened(plan) == ["compute2"]
    assert plan.warnings == (
        "instructions: stages[0].roles: no host of this fleet has the role or group 'computer'; did you mean 'compute'?",
        "instructions: stages[0].hosts: compute9, compute8 are not hosts of this fleet; did you mean 'compute3'?",
    )


def test_a_stage_whose_hosts_are_in_an_earlier_one_does_not_block() -> None:
    site = fleet(compute=2)
    rules = [{"name": "canary", "hosts": 1}, {"name": "first", "hosts": ["compute1"]}]
    assert opened(go(site, rules)) == ["compute1"]
    assert opened(go(site.upgraded("compute1"), rules)) == ["compute2"]


def test_a_stage_that_is_over_may_lose_its_hosts() -> None:
    site = fleet(compute=2)
    site.ledger = Ledger(1, NEW, stage={"number": 1})
    plan = go(site, [{"name": "canary", "hosts": ["compute9"]}])
    assert opened(plan) == ["compute1", "compute2"]
    assert plan.warnings == (
        "instructions: stages[0].hosts: compute9 is not a host of this fleet; did you mean 'compute2'?",
    )


def test_a_stage_without_hosts_does_not_block_a_rollback_or_a_complete_fleet() -> None:
    rules = [{"name": "canary", "hosts": ["compute9"]}]
    site = fleet(compute=2)
    site.ledger = Ledger(1, NEW, rollback=True)
    assert opened(go(site, rules)) == ["compute1", "compute2"]
    assert go(fleet(compute=2).upgraded("compute1", "compute2"), rules).complete


def test_soak_and_approve_of_a_stage_without_followers_are_a_warning() -> None:
    rules = [CANARY, {"name": "all", "hosts": "100%", "approve": True}]
    warning = "instructions: stages[1]: no host of this fleet comes after stage 'all', so its soak and approve have no effect."
    assert go(fleet(compute=2), rules).warnings == (warning,)
    assert go(fleet(compute=2), [CANARY]).warnings == ()
    assert len(go(fleet(compute=1), [CANARY, {"name": "all"}]).warnings) == 1
    assert go(Fleet({}), [CANARY]).warnings == ()


def stages(*names: str) -> tuple[Stage, ...]:
    """Stages of one host each, with the host in the name: ``a1`` is compute1. The last has all remaining hosts."""
    return parse_stages([{"name": name, "hosts": [f"compute{name[1:]}"]} for name in names])


@pytest.mark.parametrize(
    ("before", "after", "kept", "expected"),
    [
        # Later stages may change.
        ("a1 b2 c3", "a1 b2 d4", {"number": 1, "done_at": 7}, {"number": 1, "done_at": 7}),
        ("a1 b2", "a1 b2 c3", {"number": 1}, {"number": 1}),
        # A finished stage is removed, is replaced by another, or has other hosts.
        ("a1 b2 c3", "b2 c3", {"number": 1, "done_at": 7}, {}),
        ("a1 b2", "a1 x3 b2", {"number": 2}, {"number": 1}),
        ("a1 b2", "a3 b2", {"number": 1, "done_at": 7}, {}),
        # The current stage changes.
        ("a1 b2 c3", "a1 b4 c3", {"number": 1, "done_at": 7}, {"number": 1}),
        ("a1 b2", "", {"number": 1}, {}),
        ("", "a1 b2", {}, {}),
    ],
)
def test_after_a_change_of_stages_the_first_changed_one_is_current(
    before: str, after: str, kept: dict[str, int], expected: dict[str, int]
) -> None:
    assert carried_over(stages(*before.split()), stages(*after.split()), kept) == expected


def test_a_planner_whose_clock_is_behind_ends_no_soak_of_a_stage_early_for_the_others() -> None:
    site = fleet(compute=2).upgraded("compute1")
    site.approvals["canary"] = Approval("ann", 10_061)
    go(site, [CANARY])
    site.now = 9_100
    plan = go(site, [CANARY])
    assert (opened(plan), plan.wake_at) == ([], 9_160)
    assert plan.stage_mark == {"number": 0, "done_at": 10_000, "done_at_behind": 9_100}
    site.now = 10_059
    plan = go(site, [CANARY])
    assert (opened(plan), plan.wake_at) == ([], 10_060)
    site.now = 9_160
    assert opened(go(site, [CANARY])) == ["compute2"]


def test_a_stage_that_was_done_hours_in_the_future_soaks_no_longer() -> None:
    site = fleet(compute=2).upgraded("compute1")
    site.now = 17_200
    go(site, [CANARY])
    site.now = 10_000
    assert go(site, [CANARY]).stage_mark == {"number": 0, "done_at": 17_200, "done_at_behind": 10_000}
    site.now = 10_060
    plan = go(site, [CANARY])
    assert (plan.needs_approval, plan.stage_mark) == (True, {"number": 0, "done_at": 10_000})


def test_order_passes_through_a_role_without_a_host_in_the_stage() -> None:
    site = fleet(app=1, db=2, web=2)
    rules = {
        "rolling_rules": {"global": 2},
        "role_order": {"web": "app", "app": "db"},
        "stages": [{"name": "canary", "hosts": ["db1", "web1"]}],
    }
    plan = site.plan(rules)
    assert opened(plan) == ["db1"]
    assert plan.hosts["web1"].reason.startswith("waits for role db ")
    assert opened(site.upgraded("db1").plan(rules)) == ["web1"]
    assert opened(site.upgraded("web1").plan(rules)) == ["db2"]


def test_order_passes_through_a_role_that_is_upgraded_already() -> None:
    rules = {"rolling_rules": {"global": 2}, "role_order": {"web": "app", "app": "db"}}
    site = fleet(app=1, db=1, web=1).upgraded("app1")
    assert opened(site.plan(rules)) == ["db1"]
    # The order is reversed.
    site.ledger = Ledger(1, NEW, OLD, rollback=True)
    assert opened(site.plan(rules)) == ["web1"]
