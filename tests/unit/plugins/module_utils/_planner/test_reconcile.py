# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner by example: small fleets, and which hosts the rules admit."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    RETRIED,
    STARTED,
    UPGRADED,
    HostRecord,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.explain import explain
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import (
    Admission,
    HostView,
    Plan,
    blocked_hosts,
)
from fleets import NEW, OLD, Fleet, fleet, opened

CEPH = {"ceph": "ceph_"}


def caps(**rolling: Any) -> dict[str, Any]:
    """Return rules with only caps; the caps of roles are given by their names."""
    known = {name: rolling.pop(name) for name in ("fleet", "complete_sets") if name in rolling}
    everyone = {"global": rolling.pop("everyone")} if "everyone" in rolling else {}
    return {"rolling_rules": {**everyone, **known, **({"roles": rolling} if rolling else {})}}


def upgrading(site: Fleet) -> list[str]:
    return [host for host, one in site.states().items() if one.state == "upgrading"]


# Caps


def test_the_gate_of_a_role_that_waits_for_another_role_admits_no_host_that_joins() -> None:
    rules = caps(everyone=1, compute="unlimited") | {"role_order": {"compute": "controller"}}
    site = fleet(controller=2, compute=2).with_roles().upgraded("controller1", "controller2")
    plan = site.plan(rules)
    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "compute2"))
    # An earlier release, or a rollout without the order, has opened it.
    site.gated_at = int(site.now)
    site.ledger = Ledger(1, NEW, OLD)
    assert site.gated("True", "role/compute").plan(caps(everyone=1, compute="unlimited")).role_gates_to_close == ()
    assert site.plan(rules).role_gates_to_close == ("compute",)
    # In a rollback, the order is reversed.
    site.ledger = Ledger(1, NEW, OLD, rollback=True)
    assert site.plan(rules).role_gates_to_close == ()
    assert site.plan(rules | {"rollback_order": "forward"}).role_gates_to_close == ("compute",)


def test_without_rules_all_hosts_are_admitted_at_once_by_the_gates_of_the_roles() -> None:
    plan = fleet(compute=2, controller=1).with_roles().plan()

    assert opened(plan) == ["compute1", "compute2", "controller1"]
    assert (plan.role_gates, plan.host_gates) == (("compute", "controller"), ())
    assert plan.waves == (("compute1", "compute2", "controller1"),)


def test_the_global_cap_holds_for_each_role_by_itself() -> None:
    plan = fleet(compute=3, controller=3).plan(caps(everyone=1))

    assert plan.waves == (("compute1", "controller1"), ("compute2", "controller2"), ("compute3", "controller3"))
    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "controller1"))


def test_hosts_go_in_natural_order() -> None:
    assert fleet(compute=11).upgraded("compute1").plan(caps(compute=2)).waves[0] == ("compute2", "compute3")


def test_a_host_that_is_upgrading_leaves_one_slot_less() -> None:
    assert opened(fleet(compute=5).opened("compute4").plan(caps(compute=3))) == ["compute1", "compute2"]


def test_no_slot_is_left_while_failed_hosts_fill_the_cap() -> None:
    plan = fleet(compute=3).failed("compute1").plan(caps(compute=1))

    assert plan.admissions == ()
    assert plan.waves == ()
    assert not plan.can_move


def test_with_more_hosts_under_way_than_the_cap_allows_no_host_is_admitted_and_nothing_fails() -> None:
    plan = fleet(compute=4).opened("compute1", "compute2", "compute3").plan(caps(compute=1))

    assert plan.admissions == ()
    assert plan.waves == ((), ("compute4",))


@pytest.mark.parametrize(("cap", "count"), [("10%", 1), ("25%", 1), ("50%", 3), ("99%", 5), ("100%", 6), ("6", 6)])
def test_a_percent_is_one_of_all_hosts_of_the_role_and_not_of_those_left(cap: str, count: int) -> None:
    plan = fleet(compute=6).plan(caps(compute=cap))
    assert len(plan.admissions) == count

    late = fleet(compute=6).upgraded("compute1", "compute2").plan(caps(compute=cap))
    assert len(late.admissions) == min(count, 4)


@pytest.mark.parametrize("cap", [0, "0", "0%"])
def test_a_cap_of_0_holds_its_role_and_no_other(cap: int | str) -> None:
    plan = fleet(compute=2, controller=1).plan(caps(compute=cap))

    assert opened(plan) == ["controller1"]
    assert plan.waves == (("controller1",),)


def test_a_global_cap_of_0_holds_everything() -> None:
    plan = fleet(compute=2, controller=1).plan(caps(everyone=0))

    assert plan.admissions == ()
    assert not plan.can_move


def test_a_role_may_go_on_where_its_own_cap_lifts_the_global_0() -> None:
    assert opened(fleet(compute=2, controller=1).plan(caps(everyone=0, controller=1))) == ["controller1"]


def test_the_fleets_cap_comes_on_top_of_the_others() -> None:
    plan = fleet(compute=3, controller=3).plan(caps(everyone=2, fleet=3))

    assert plan.waves == (("compute1", "compute2", "controller1"), ("compute3", "controller2", "controller3"))


def test_the_fleets_cap_counts_failed_hosts_of_every_role() -> None:
    assert opened(fleet(compute=3, controller=3).failed("controller1").plan(caps(fleet=2))) == ["compute1"]


def test_the_roles_of_a_group_share_its_cap() -> None:
    plan = fleet(ceph_mon=2, ceph_osd=2, web=1).with_roles().plan({**caps(ceph=3), "group_mappings": CEPH})

    assert opened(plan) == ["ceph_mon1", "ceph_mon2", "ceph_osd1", "web1"]
    assert (plan.role_gates, plan.host_gates) == (("web",), ("ceph_mon1", "ceph_mon2", "ceph_osd1"))
    assert plan.hosts["ceph_mon1"].group == "ceph"
    assert plan.hosts["web1"].group is None


def test_a_role_of_a_group_keeps_to_its_own_cap_too() -> None:
    plan = fleet(ceph_mon=3, ceph_osd=3).plan({**caps(ceph=4, ceph_mon=1), "group_mappings": CEPH})

    assert plan.waves == (
        ("ceph_mon1", "ceph_osd1", "ceph_osd2", "ceph_osd3"),
        ("ceph_mon2",),
        ("ceph_mon3",),
    )


def test_complete_sets_wait_until_no_host_is_upgrading() -> None:
    rules = caps(everyone=2, complete_sets=True)
    site = fleet(compute=4)
    assert site.plan(rules).waves == (("compute1", "compute2"), ("compute3", "compute4"))

    site.opened("compute1", "compute2").upgraded("compute1")
    assert site.plan(rules).admissions == ()

    site.upgraded("compute2")
    assert opened(site.plan(rules)) == ["compute3", "compute4"]


def test_a_host_that_failed_before_does_not_join_a_set_that_is_under_way() -> None:
    rules = caps(everyone=4, complete_sets=True)
    # web1 failed in an earlier rollout and was held, while web2 and web3 began.
    site = fleet(web=4).opened("web2", "web3").started("web2", "web3")
    site.records["web1"] = HostRecord("1.5", FAILED, error="disk full", index=50)
    plan = site.plan(rules)
    assert plan.admissions == ()
    assert "waits until the current set is done, as complete_sets says" in plan.hosts["web1"].reason
    assert opened(site.upgraded("web2").plan(rules)) == []
    assert opened(site.upgraded("web3").plan(rules)) == ["web1", "web4"]


# Order


def test_a_role_goes_only_after_the_last_host_of_those_before_it() -> None:
    rules = {"role_order": {"compute": "controller"}}
    site = fleet(compute=2, controller=2)
    assert site.plan(rules).waves == (("controller1", "controller2"), ("compute1", "compute2"))

    site.upgraded("controller1")
    assert opened(site.plan(rules)) == ["controller2"]

    site.upgraded("controller2")
    assert opened(site.plan(rules)) == ["compute1", "compute2"]


@pytest.mark.parametrize("stuck", [fleet(a=1, b=1).failed("b1"), fleet(a=1, b=1).held("host/b1")])
def test_a_role_does_not_go_while_one_before_it_has_failed_or_is_held(stuck: Fleet) -> None:
    plan = stuck.plan({"role_order": {"a": "b"}})

    assert plan.admissions == ()
    assert plan.waves == ()
    assert not plan.can_move


def test_a_role_waits_for_a_whole_group() -> None:
    rules = {"group_mappings": CEPH, "role_order": {"compute": "ceph"}}

    assert opened(fleet(compute=1, ceph_mon=1, ceph_osd=1).upgraded("ceph_mon1").plan(rules)) == ["ceph_osd1"]


def test_a_role_without_hosts_passes_its_own_order_on() -> None:
    plan = fleet(compute=1, controller=1).plan({"role_order": {"compute": "network", "network": "controller"}})

    assert plan.waves == (("controller1",), ("compute1",))
    assert plan.warnings == (
        "instructions: role_order.compute: no host of this fleet has the role or group 'network'.",
        "instructions: role_order.network: no host of this fleet has the role or group 'network'.",
    )


def test_a_host_that_never_reported_keeps_others_waiting() -> None:
    plan = fleet(compute=1, controller=1).silent("controller1").plan({"role_order": {"compute": "controller"}})

    assert plan.waves == (("controller1",), ("compute1",))


# Hosts in unusual states


@pytest.mark.parametrize("version", [OLD, "3.0", "2.0.1", "2.00"])
def test_a_host_that_runs_any_other_version_is_not_upgraded(version: str) -> None:
    plan = fleet(compute=1).running(version, "compute1").plan()

    assert opened(plan) == ["compute1"]
    assert plan.hosts["compute1"] == HostView(
        "compute", None, "pending", version, "can be admitted now", cause="admissible", blocks=True
    )


def test_a_host_started_for_another_version_keeps_its_slot_and_gets_its_gate_back() -> None:
    plan = fleet(compute=3).started("compute2", version="1.5").admitted("compute2").plan(caps(compute=1))

    assert plan.admissions == (
        Admission(
            "compute2",
            "compute",
            "upgrading",
            "its gate opens again: it was admitted, has started, and keeps its slot",
        ),
    )
    assert plan.host_gates == ("compute2",)
    assert plan.waves == (("compute2",), ("compute1",), ("compute3",))


def test_a_started_host_is_admitted_only_once() -> None:
    plan = fleet(compute=1).started("compute1", version="1.5").opened("compute1").plan(caps(compute=1))

    assert plan.admissions == ()


def test_a_started_host_gets_its_gate_back_even_above_the_cap_as_it_is_down_already() -> None:
    site = fleet(compute=3).started("compute1", "compute2").admitted("compute1", "compute2")

    assert opened(site.plan(caps(compute=1))) == ["compute1", "compute2"]


def test_a_host_that_failed_in_the_rollout_before_goes_first_in_its_own_slot() -> None:
    rules = {"rolling_rules": {"global": 1}}
    site = fleet(web=3)
    site.records["web3"] = HostRecord("1.5", FAILED, error="disk full", index=50)
    plan = site.plan(rules)
    assert opened(plan) == ["web3"]
    assert plan.waves == (("web3",), ("web1",), ("web2",))
    assert plan.hosts["web3"].reason == "failed in the upgrade to 1.5, and keeps its slot; can be admitted now"
    assert plan.hosts["web1"].reason.endswith("taken by web3")
    # Under a higher cap, others go with it.
    assert opened(site.plan({"rolling_rules": {"global": 2}})) == ["web3", "web1"]
    site.records["web3"] = HostRecord(NEW, UPGRADED, index=60)
    site.reported_at["web3"] = 60
    assert opened(site.upgraded("web3").plan(rules)) == ["web1"]


def test_more_failed_hosts_than_a_lower_cap_allows_do_not_go_at_once() -> None:
    rules = {"rolling_rules": {"global": 1, "fleet": 2}, "role_order": {"web": "db"}}
    # Under a high cap, all of them failed before anything stopped, so they still serve.
    site = fleet(web=4, db=3).failed("web1", "web2", "web3", "db1", "db2", version="1.5")
    assert opened(site.plan(rules)) == ["db1"]
    assert site.run(rules)[:4] == [("db1",), ("db2",), ("db3",), ("web1",)]
    both = fleet(web=3, db=2).failed("web1", "web2", "db1", "db2", version="1.5").plan({"rolling_rules": {"fleet": 2}})
    assert opened(both) == ["db1", "db2"]
    # A push run has the leases of hosts that wait.
    site = fleet(web=2).failed("web1", version="1.5")
    site.leases.update(("web1", "web2"))
    assert opened(site.plan({"rolling_rules": {"global": 1}})) == ["web1"]
    # One that failed at the new version may be down too.
    site = fleet(web=3).failed("web1", version="1.5").failed("web2")
    assert opened(site.plan({"rolling_rules": {"global": 1}})) == []
    assert opened(site.plan({"rolling_rules": {"global": 2}})) == ["web1"]


def test_a_host_that_is_lost_as_its_gate_was_closed_goes_on_when_its_role_may() -> None:
    rules = {
        "rolling_rules": {"global": 1},
        "role_order": {"compute": "controller"},
        "health": {"progress_deadline": 300},
    }
    site = (
        fleet(controller=1, compute=2).gated("False", "global").started("compute1", version="1.5").admitted("compute1")
    )
    site.records["compute1"] = replace(site.records["compute1"], times={"started": 9_000})
    plan = site.plan(rules)
    assert (opened(plan), plan.hosts["compute1"].state) == (["controller1"], "lost")
    assert plan.hosts["compute1"].reason == (
        "silent for 1000 s, and health.progress_deadline is 300 s; its gate was closed after its start; it continues "
        "when hosts of its role are admitted again"
    )
    assert opened(site.upgraded("controller1").plan(rules)) == ["compute1"]
    assert site.ledger is not None
    back = replace(site.ledger, rollback=True)
    # In a rollback, it has no slot that it could go on in.
    site.ledger, ledger = back, site.ledger
    assert opened(site.plan(rules)) == ["compute2"]
    site.ledger = ledger
    site.gated_at = int(site.now)
    assert site.opened("compute1").plan(rules).hosts["compute1"].state == "upgrading"


def test_hosts_that_a_run_left_behind_the_order_do_not_keep_a_rollout_waiting_without_a_word() -> None:
    rules = {"rolling_rules": {"global": 2, "fleet": 2}, "role_order": {"compute": "controller"}}
    # The computes were midway to 1.5, and hold all slots. The rollout to 2.0 replaced that one.
    site = fleet(controller=1, compute=2).admitted("compute1", "compute2")
    for host in ("compute1", "compute2"):
        site.records[host] = HostRecord("1.5", STARTED, origin=OLD, done=("drain/nova",))
    plan = site.plan(rules)
    # They wait too: they could be new computes beside an old controller.
    assert (plan.admissions, plan.can_move) == ((), False)
    view = plan.hosts["compute1"]
    assert view.reason == (
        "started 1.5; its gate is closed: waits for role controller (1 host is not upgraded: controller1 pending), as role_order says"
    )
    assert (view.cause, view.rule) == ("order", "role_order.compute")
    (need,) = operator_needs(site.snapshot(), plan)
    assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "compute1,compute2"})
    # A run that works there ends.
    site.leases.update(("compute1", "compute2"))
    plan = site.plan(rules)
    assert (plan.can_move, operator_needs(site.snapshot(), plan)) == (True, ())
    # So does the agent of a pull host. Once it is silent, it is lost.
    site.leases.clear()
    site.records["compute2"] = HostRecord("1.5", STARTED)
    assert site.plan(rules).can_move
    for host in ("compute1", "compute2"):
        site.records[host] = HostRecord(NEW, RETRIED, index=60)
    assert opened(site.plan(rules)) == ["controller1"]


@pytest.mark.parametrize(
    ("state", "rules", "cause", "text"),
    [
        ("paused", {}, "paused", "the rollout is paused; continue with"),
        ("running", {"windows": [{"from": "22:00", "to": "23:00"}]}, "hours", "outside of all windows"),
        ("running", caps(web=0), "cap_zero", "the cap of role web is 0: raise rolling_rules.roles.web"),
    ],
)
def test_a_host_that_has_started_behind_a_closed_gate_names_what_keeps_it_closed(
    state: str, rules: dict[str, Any], cause: str, text: str
) -> None:
    site = fleet(web=1).started("web1", version="1.5").admitted("web1")
    assert site.ledger is not None
    site.ledger = replace(site.ledger, state=state)
    plan = site.plan(rules)
    view = plan.hosts["web1"]
    assert (plan.admissions, view.state, view.cause) == ((), "upgrading", cause)
    assert view.reason.startswith(f"started 1.5; its gate is closed: {text}")
    sentences = explain("web1", plan, site.snapshot())
    assert not any("No rule keeps it waiting" in one for one in sentences)
    assert sentences[-1] == "Until then it keeps its slot."
    assert any(one.startswith("To change this: run ansible-playbook convoy.upgrade.") for one in sentences)


def test_the_command_that_approves_a_stage_without_a_name_of_its_own_is_one_that_a_shell_reads() -> None:
    site = fleet(web=2).upgraded("web1")
    site.ledger = Ledger(1, NEW, OLD)
    reason = site.plan({"stages": [{"hosts": 1, "approve": True}]}).hosts["web2"].reason
    assert shlex.split(reason)[-3:] == ["convoy.upgrade.approve", "-e", "stage='stage 1'"]


def test_a_run_on_the_post_upgrade_tasks_of_another_version_frees_its_slot_by_itself() -> None:
    rules = {"rolling_rules": {"global": 1, "fleet": 1}, "role_order": {"web": "db"}}
    site = fleet(web=2, db=1).held("host/web2")
    site.ledger = Ledger(1, NEW, OLD)
    site.records["web2"] = HostRecord("1.5", UPGRADED, post="started", index=50)
    site.leases.add("web2")
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move) == ((), True)
    assert operator_needs(site.snapshot(), plan) == ()
    assert explain("web2", plan, site.snapshot())[-1] == ("It keeps its slot until the run that works on it ends.")
    # The run is gone, and may have left the host in the middle of them.
    site.leases.clear()
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move) == ((), False)
    assert explain("web2", plan, site.snapshot())[-1] == (
        "It keeps its slot until it is retried, because it stopped in the post-upgrade tasks of 1.5."
    )
    (need,) = operator_needs(site.snapshot(), plan)
    assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "web2"})
    # It has ended them.
    site.records["web2"] = HostRecord("1.5", UPGRADED, post="done", index=60)
    assert opened(site.plan(rules)) == ["db1"]


def test_a_host_in_its_post_upgrade_tasks_keeps_its_slot_in_a_rollout_to_the_same_version() -> None:
    rules = {"rolling_rules": {"global": 1, "fleet": 1}}
    # The rollout goes on for web2, which joined later. A run may be rebooting web1.
    site = fleet(web=2).upgraded("web1")
    site.ledger = Ledger(1, NEW, OLD)
    site.records["web1"] = HostRecord(NEW, UPGRADED, post="started")
    site.leases.add("web1")
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move, plan.hosts["web1"].state) == ((), True, "upgraded")
    # The run was interrupted, and does not go on by itself.
    site.leases.clear()
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move) == ((), False)
    (need,) = operator_needs(site.snapshot(), plan)
    assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "web1"})


def test_a_host_whose_post_upgrade_tasks_failed_keeps_its_slot_and_counts_in_the_budgets() -> None:
    rules = {"rolling_rules": {"global": 1}}
    # web2 joined once all others were upgraded.
    site = fleet(web=2).upgraded("web1")
    site.ledger = Ledger(1, NEW, OLD, post_upgrade=("web",))
    site.records["web1"] = HostRecord(NEW, UPGRADED, post="failed", error="no kernel", index=1)
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move, plan.hosts["web1"].state) == ((), False, "upgraded")
    plan = site.plan(caps(web=2) | {"failure_rules": {"fleet": 1}})
    assert plan.blocker is not None
    assert (plan.admissions, plan.blocker.code) == ((), "failure_budget")
    assert opened(site.plan(caps(web=2) | {"failure_rules": {"fleet": 2}})) == ["web2"]
    # It is upgraded nevertheless, so its tasks may run again.
    assert site.upgraded("web2").plan(rules | {"failure_rules": {"fleet": 1}}).complete
    # In the next rollout, it keeps its slot too, and goes first.
    site.current, site.ledger = "1.5", Ledger(2, "1.5", NEW)
    assert opened(site.plan(rules)) == ["web1"]
    assert site.plan(rules).hosts["web1"].reason.startswith("failed in the post-upgrade tasks of 2.0, and keeps its ")
    assert opened(site.running("1.5", "web1").plan(rules)) == ["web2"]


@pytest.mark.parametrize("post", ["open", "started"])
@pytest.mark.parametrize("services", [None, "abc"])
def test_a_host_that_may_begin_its_post_upgrade_tasks_at_any_time_keeps_its_slot(
    post: str, services: str | None
) -> None:
    rules = {"rolling_rules": {"global": 1, "complete_sets": True}, "failure_rules": {"fleet": 1}}
    site = fleet(web=2).upgraded("web1")
    site.ledger = Ledger(1, NEW, OLD, post_upgrade=("web",))
    site.records["web1"] = HostRecord(NEW, UPGRADED, post=post, services=services)
    plan = site.plan(rules)
    # A pull host goes on by itself, a push host does not.
    assert (plan.admissions, plan.blocker, plan.can_move) == ((), None, services is not None)
    assert opened(site.plan(caps(web=2))) == ["web2"]
    site.records["web1"] = HostRecord(NEW, UPGRADED, post="done", services=services)
    assert opened(site.plan(rules)) == ["web2"]


def test_a_host_that_failed_in_the_rollout_before_keeps_its_slot_while_it_has_to_wait() -> None:
    rules = {"rolling_rules": {"global": 1, "fleet": 1}, "role_order": {"web": "db"}}
    site = fleet(web=2, db=1)
    site.ledger = Ledger(1, NEW, OLD)
    site.records["web2"] = HostRecord("1.5", FAILED, error="disk full", index=50)
    plan = site.plan(rules)
    assert (plan.admissions, plan.can_move) == ((), False)
    (need,) = operator_needs(site.snapshot(), plan)
    assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "web2"})
    assert (
        need.text
        == "No host can be admitted. web2 failed or stopped in an earlier upgrade and keeps its slot. Fix it, then retry."
    )
    site.records["web2"] = HostRecord(NEW, RETRIED, index=60)
    assert opened(site.plan(rules)) == ["db1"]


@pytest.mark.parametrize("version", [OLD, NEW, "1.5"])
@pytest.mark.parametrize("rules", [{}, caps(compute=1), caps(compute=2), {"stages": [{"name": "canary", "hosts": 1}]}])
def test_a_host_that_reports_a_start_is_not_admitted_by_that_and_takes_a_slot(
    version: str, rules: dict[str, Any]
) -> None:
    site = fleet(compute=3).started("compute3", version=version)

    plan = site.plan(rules)
    site.open(plan)

    assert "compute3" not in opened(plan)
    assert not site.states()["compute3"].gate.is_open
    assert plan.hosts["compute3"].state == "upgrading"
    assert plan.hosts["compute3"].unadmitted
    assert "was not admitted" in plan.hosts["compute3"].reason
    assert len(opened(plan)) == {"{}": 2, str(caps(compute=2)): 1}.get(str(rules), 0 if "stages" not in rules else 1)


def test_an_admission_is_used_up_by_the_next_report() -> None:
    site = fleet(compute=1).started("compute1").admitted("compute1")
    assert opened(site.plan()) == ["compute1"]
    site.reported_at["compute1"] = 7.0
    assert opened(site.plan()) == []


@pytest.mark.parametrize(
    ("site", "rules"),
    [
        (fleet(compute=2, controller=1).started("compute1").admitted("compute1"), caps(compute=0)),
        (
            fleet(compute=2, controller=1).started("compute1").admitted("compute1"),
            {"role_order": {"compute": "controller"}},
        ),
        (
            fleet(compute=2, controller=1).started("compute1").admitted("compute1").held("host/compute1"),
            caps(compute=1),
        ),
    ],
)
def test_a_started_host_stays_closed_under_a_cap_of_0_an_order_or_a_hold(site: Fleet, rules: dict[str, Any]) -> None:
    assert opened(site.plan(rules)) == ["controller1"]


def test_a_hold_on_a_host_that_started_does_not_free_its_slot() -> None:
    plan = fleet(compute=2).opened("compute1").started("compute1").held("host/compute1").plan(caps(compute=1))

    assert plan.admissions == ()
    assert plan.hosts["compute1"].state == "upgrading"
    assert plan.can_move


def test_a_hold_on_an_admitted_host_keeps_its_slot_but_nothing_moves() -> None:
    plan = fleet(compute=2).opened("compute1").held("host/compute1").plan(caps(compute=1))

    assert plan.admissions == ()
    assert plan.waves == ()
    assert not plan.can_move


def test_a_held_host_is_passed_over_and_takes_no_slot() -> None:
    plan = fleet(compute=3).held("host/compute1").plan(caps(compute=1))

    assert plan.waves == (("compute2",), ("compute3",))
    assert plan.status()["held"] == ["compute1"]


def test_a_hold_on_everything_admits_no_host() -> None:
    assert fleet(compute=3).held("global").plan().admissions == ()


def test_a_failed_host_of_an_earlier_rollout_is_admissible_again() -> None:
    assert opened(fleet(compute=1).failed("compute1", version=OLD).plan()) == ["compute1"]


def test_without_a_current_version_no_host_is_admitted() -> None:
    site = fleet(compute=1)
    site.current = None

    assert site.plan().admissions == ()
    assert site.plan().waves == ()
    assert not site.plan().complete


def test_hosts_that_were_admitted_by_hand_are_not_admitted_again() -> None:
    site = fleet(compute=2, controller=1).gated("True", "role/compute")

    assert upgrading(site) == ["compute1", "compute2"]
    assert opened(site.plan()) == ["controller1"]


def test_an_empty_fleet_is_never_complete_as_that_would_open_all_gates() -> None:
    assert Fleet({}).plan() == Plan(version=NEW, complete=False, scope_done=True)


# Keys


def test_the_key_of_a_role_is_used_only_where_no_cap_limits_it() -> None:
    plan = fleet(compute=2, controller=2).with_roles().plan(caps(compute=5))

    assert (plan.role_gates, plan.host_gates) == (("controller",), ("compute1", "compute2"))


@pytest.mark.parametrize("cap", [{"everyone": 5}, {"fleet": 5}])
def test_a_cap_over_all_means_keys_of_hosts_for_all(cap: dict[str, int]) -> None:
    plan = fleet(compute=1, controller=1).plan(caps(**cap))

    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "controller1"))


def test_a_hold_on_one_host_means_keys_of_hosts_for_its_role() -> None:
    plan = fleet(compute=3, controller=1).with_roles().held("host/compute2").plan()

    assert (plan.role_gates, plan.host_gates) == (("controller",), ("compute1", "compute3"))


def test_a_hold_on_a_host_that_is_upgraded_still_counts() -> None:
    plan = fleet(compute=3).upgraded("compute2").held("host/compute2").plan()

    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "compute3"))


def test_a_role_opens_by_its_key_only_if_the_call_may_open_all_of_it() -> None:
    part = fleet(compute=3).plan(limit=["compute1", "compute3"])
    assert (part.role_gates, part.host_gates) == ((), ("compute1", "compute3"))

    every_host = fleet(compute=2).plan(limit=["compute1", "compute2"])
    assert (every_host.role_gates, every_host.host_gates) == (("compute",), ())


def test_a_role_whose_gate_a_host_of_another_role_reads_opens_by_keys_of_hosts() -> None:
    site = fleet(compute=2, web=2).with_roles()
    assert site.plan(caps(web=1)).role_gates == ("compute",)
    site.gated_at, site.ledger = int(site.now), Ledger(1, NEW, OLD)
    assert site.gated("True", "role/compute").plan(caps(web=1)).role_gates_to_close == ()
    # web2 has another role in its settings, or has reported none. The gate of that role would admit it past the cap of its own.
    for role in ("compute", None):
        site.records["web2"] = HostRecord(OLD, UPGRADED, role=role)
        assert site.plan(caps(web=1)).role_gates_to_close == ("compute",)
        plan = fleet(compute=2, web=2).with_roles()
        plan.records["web2"] = site.records["web2"]
        assert plan.plan(caps(web=1)).role_gates == ()
        assert opened(plan.plan(caps(web=1))) == ["compute1", "compute2", "web1"]


def test_the_open_gate_of_a_role_without_hosts_is_closed() -> None:
    # Hosts that join would be admitted by it, whatever the rules are by then.
    site = fleet(web=1).with_roles()
    site.gated_at, site.ledger = int(site.now), Ledger(1, NEW, OLD)
    assert site.gated("True", "role/compute").plan(caps(everyone=1)).role_gates_to_close == ("compute",)
    # An operator has opened it.
    site.gated_at = 0
    assert site.gated("True", "role/compute").plan(caps(everyone=1)).role_gates_to_close == ()


def test_a_role_whose_host_had_another_role_before_opens_by_keys_of_hosts() -> None:
    # Otherwise it would wait for ever: such a host starts only by its own gate.
    site = fleet(compute=2).with_roles()
    assert site.plan().role_gates == ("compute",)
    site.records["compute2"] = replace(site.records["compute2"], former_role="web")
    plan = site.plan()
    assert (plan.role_gates, plan.host_gates) == ((), ("compute1", "compute2"))
    site.gated_at, site.ledger = int(site.now), Ledger(1, NEW, OLD)
    assert site.gated("True", "role/compute").plan().role_gates_to_close == ("compute",)


def test_a_host_with_another_role_in_its_settings_is_not_admitted() -> None:
    # A hold of its role in the fleet would not hold it.
    site = fleet(compute=2, web=1).with_roles()
    site.records["compute2"] = replace(site.records["compute2"], role="web")
    plan = site.plan(caps(everyone=5))
    assert opened(plan) == ["compute1", "web1"]
    assert plan.hosts["compute2"].reason.startswith(
        "its settings have the role web (puppet_gate_role), and the fleet has compute"
    )
    assert (plan.hosts["compute2"].cause, plan.waves) == ("other_role", (("compute1", "web1"),))
    # It would count as admitted for ever by the gate of a role that it does not read.
    assert site.plan().role_gates == ()


def test_a_hosts_own_closed_gate_is_opened_beside_the_key_of_its_role() -> None:
    plan = fleet(compute=3).gated("False", "host/compute2").plan()

    assert opened(plan) == ["compute1", "compute2", "compute3"]
    assert (plan.role_gates, plan.host_gates) == (("compute",), ("compute2",))


# Limit


def test_a_limit_of_a_role_admits_no_other_and_plans_no_other() -> None:
    plan = fleet(compute=1, controller=2).plan(caps(everyone=1), limit=["controller"])

    assert plan.waves == (("controller1",), ("controller2",))
    assert plan.unfinished == ("controller1", "controller2")


def test_a_limit_of_a_group_and_a_host() -> None:
    plan = fleet(ceph_mon=1, ceph_osd=1, web=2).plan({"group_mappings": CEPH}, limit=["ceph", "web2"])

    assert opened(plan) == ["ceph_mon1", "ceph_osd1", "web2"]


def test_hosts_outside_of_the_limit_still_count_under_the_caps() -> None:
    plan = fleet(compute=3).opened("compute3").plan(caps(compute=1), limit=["compute1"])

    assert plan.admissions == ()


def test_hosts_outside_of_the_limit_still_keep_others_waiting() -> None:
    plan = fleet(compute=1, controller=1).plan({"role_order": {"compute": "controller"}}, limit=["compute"])

    assert plan.admissions == ()
    assert plan.waves == ()


def test_a_started_host_outside_of_the_limit_is_left_alone() -> None:
    assert fleet(compute=2).started("compute2").upgraded("compute1").plan(limit=["compute1"]).admissions == ()


def test_the_scope_is_done_before_the_fleet_is() -> None:
    plan = fleet(compute=1, controller=1).upgraded("controller1").plan(limit=["controller"])

    assert (plan.scope_done, plan.complete, plan.unfinished) == (True, False, ())


def test_an_empty_limit_admits_no_host() -> None:
    assert fleet(compute=1).plan(limit=[]).admissions == ()


def test_a_limit_that_names_nothing_is_refused_and_the_nearest_offered() -> None:
    with pytest.raises(UpgradeError) as caught:
        fleet(compute=1, controller=1).plan(limit=["computes"])

    assert caught.value.code == "unknown_limit"
    assert caught.value.message == (
        "limit: 'computes' fits no host, role or group of this fleet; did you mean 'compute'? "
        "Its roles are compute, controller."
    )


def test_a_limit_on_an_empty_fleet_is_refused() -> None:
    with pytest.raises(
        UpgradeError, match=r"limit: 'x' fits no host, role or group of this fleet\. Its roles are none\."
    ):
        Fleet({}).plan(limit=["x"])


# The plan as a whole


def test_the_plan_of_a_finished_fleet_is_empty() -> None:
    plan = fleet(compute=2).upgraded("compute1", "compute2").plan(caps(compute=1))

    assert (plan.admissions, plan.role_gates, plan.host_gates, plan.waves) == ((), (), (), ())
    assert (plan.complete, plan.scope_done, plan.can_move, plan.unfinished) == (True, True, False, ())


def test_the_first_wave_is_empty_while_only_hosts_under_way_can_bring_the_next() -> None:
    plan = fleet(compute=3).opened("compute1").plan(caps(compute=1))

    assert plan.waves == ((), ("compute2",), ("compute3",))
    assert plan.can_move


def test_the_forecast_leaves_out_what_a_stuck_host_keeps_from_going() -> None:
    plan = (
        fleet(compute=3, controller=2)
        .failed("controller1")
        .plan({**caps(controller=2), "role_order": {"compute": "controller"}})
    )

    assert plan.waves == (("controller2",),)


def test_each_admission_names_the_rules_that_allow_it() -> None:
    rules = {
        **caps(compute=2, fleet="50%"),
        "role_order": {"compute": ["controller", "network"]},
    }
    site = fleet(compute=3, controller=1, network=1, web=1).upgraded("controller1", "network1")

    assert site.plan(rules).admissions == (
        Admission(
            "compute1",
            "compute",
            "pending",
            "rolling_rules.roles.compute admits 2 of role compute at once; after roles controller, network",
            "slot 1 of 2",
        ),
        Admission(
            "compute2",
            "compute",
            "pending",
            "rolling_rules.roles.compute admits 2 of role compute at once; after roles controller, network",
            "slot 2 of 2",
        ),
        Admission("web1", "web", "pending", "rolling_rules.fleet admits 3 of the fleet at once", "slot 3 of 3"),
    )
    unlimited = fleet(web=1).plan().admissions[0]
    assert (unlimited.reason, unlimited.slot) == ("nothing limits role web", "")


def test_slots_are_counted_on_from_those_that_are_taken() -> None:
    site = fleet(compute=3).failed("compute2")
    assert [(one.host, one.slot) for one in site.plan(caps(compute=2)).admissions] == [("compute1", "slot 2 of 2")]


def test_the_status_has_all_six_states_in_natural_order() -> None:
    site = fleet(compute=11).upgraded("compute11", "compute9").failed("compute3").opened("compute4")

    assert site.held("host/compute5").plan(caps(compute=0)).status() == {
        "upgraded": ["compute9", "compute11"],
        "failed": ["compute3"],
        "lost": [],
        "upgrading": ["compute4"],
        "held": ["compute5"],
        "pending": ["compute1", "compute2", "compute6", "compute7", "compute8", "compute10"],
    }


def test_blockers_are_reported_once_for_each_reason() -> None:
    plan = fleet(compute=8).failed("compute8").plan(caps(compute=1))

    assert blocked_hosts(plan, plan.hosts) == [
        "compute1, compute2, compute3, compute4, compute5 and 2 more (pending): waits for a slot: "
        "rolling_rules.roles.compute admits 1 of role compute at once; slots are taken by compute8",
        "compute8 (failed): failed: disk full",
    ]


def ledger(**members: int) -> Ledger:
    return Ledger(3, NEW, members=members)


def test_a_planner_with_fewer_hosts_than_the_rollout_is_never_complete() -> None:
    site = fleet(compute=2).upgraded("compute1", "compute2")
    site.ledger = ledger(compute=3, network=1)
    plan = site.plan()

    assert (plan.complete, plan.scope_done) == (False, False)
    assert plan.missing == (
        "role compute: 2 of its 3 hosts have reported or are named in fleet; give the whole fleet, as the last run did",
        "role network: 0 of its 1 host have reported or are named in fleet; give the whole fleet, as the last run did",
    )


def test_a_planner_with_more_hosts_than_the_rollout_misses_none() -> None:
    site = fleet(compute=2, network=1).upgraded("compute1", "compute2", "network1")
    site.ledger = ledger(compute=1)

    assert (site.plan().complete, site.plan().missing) == (True, ())


def test_a_host_that_was_retried_gets_its_own_gate_where_that_of_its_role_is_open() -> None:
    site = fleet(web=2).gated("True", "role/web").gated("False", "host/web2")
    site.gated_at = 9_000
    plan = site.plan()
    assert (opened(plan), plan.role_gates, plan.host_gates) == (["web2"], (), ("web2",))
