# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slots: which caps limit which roles, how many slots each cap has, and which hosts get one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.slots import (
    AppliedCap,
    Slots,
    caps_by_role,
    fleet_slots,
    refuse_uncapped,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from fleets import fleet

MEMBERS = {"ceph_mon": 3, "ceph_osd": 9, "compute": 20}
CEPH = {"ceph": "ceph_"}


def caps(groups: dict[str, str] | None = None, **rolling: Any) -> dict[str, tuple[AppliedCap, ...]]:
    rules = parse({"rolling_rules": rolling, "group_mappings": groups or {}})
    return caps_by_role(rules, resolve(rules, MEMBERS), MEMBERS)


def test_a_role_without_any_cap_is_held() -> None:
    assert caps(roles={"compute": 3}, **{"global": None})["ceph_mon"] == (
        AppliedCap("role ceph_mon", "rolling_rules.roles.ceph_mon", 0, is_missing=True),
    )


def test_who_asks_for_no_cap_has_none() -> None:
    assert caps(**{"global": "unlimited"}) == {"ceph_mon": (), "ceph_osd": (), "compute": ()}
    assert caps(**{"global": 1}, roles={"compute": "Unlimited"})["compute"] == ()
    assert caps(CEPH, roles={"ceph": "unlimited"})["ceph_mon"] == ()
    assert caps(CEPH, roles={"ceph_mon": "unlimited"})["ceph_osd"][0].is_missing


@pytest.mark.parametrize(
    ("rolling", "roles"),
    [
        ({}, ["ceph_mon", "ceph_osd", "compute"]),
        ({"complete_sets": True}, ["ceph_mon", "ceph_osd", "compute"]),
        ({"roles": {"compute": 3, "ceph_mon": "unlimited"}}, ["ceph_osd"]),
    ],
)
def test_rules_that_leave_a_role_without_a_cap_are_refused(rolling: dict[str, Any], roles: list[str]) -> None:
    rules = parse({"rolling_rules": rolling})

    with pytest.raises(UpgradeError) as caught:
        refuse_uncapped(rules, resolve(rules, MEMBERS))

    assert (caught.value.code, caught.value.details["roles"]) == ("no_cap", roles)
    assert "unlimited}" in caught.value.message


def test_the_advice_for_a_role_without_a_cap_keeps_its_name() -> None:
    rules = parse({"rolling_rules": {"roles": {"web": 2}}})

    with pytest.raises(UpgradeError) as caught:
        refuse_uncapped(rules, resolve(rules, {"web": 3, "ceph1": 3}))

    assert "rolling_rules: {roles: {ceph1: 1}}, or" in caught.value.message
    assert caught.value.message.endswith("rolling_rules: {roles: {ceph1: unlimited}}.")


@pytest.mark.parametrize(
    "rolling", [{"global": "unlimited"}, {"global": 0}, {"fleet": 5}, {"roles": dict.fromkeys(MEMBERS, "unlimited")}]
)
def test_a_cap_for_every_role_or_the_value_for_unlimited_is_enough(rolling: dict[str, Any]) -> None:
    rules = parse({"rolling_rules": rolling})
    refuse_uncapped(rules, resolve(rules, MEMBERS))


def test_a_fleet_without_known_hosts_needs_a_cap_too() -> None:
    with pytest.raises(UpgradeError, match="no cap limits any role"):
        refuse_uncapped(parse({}), resolve(parse({}), ()))


def test_the_global_cap_binds_each_role_by_itself() -> None:
    found = caps(**{"global": "50%"})

    assert found == {
        "ceph_mon": (AppliedCap("role ceph_mon", "rolling_rules.global", 1),),
        "ceph_osd": (AppliedCap("role ceph_osd", "rolling_rules.global", 4),),
        "compute": (AppliedCap("role compute", "rolling_rules.global", 10),),
    }


def test_a_cap_of_its_own_takes_the_place_of_the_global_one() -> None:
    assert caps(**{"global": 1}, roles={"compute": 5})["compute"] == (
        AppliedCap("role compute", "rolling_rules.roles.compute", 5),
    )


def test_the_roles_of_a_group_share_one_limit() -> None:
    found = caps(CEPH, roles={"ceph": "50%"})

    assert found["ceph_mon"] == (AppliedCap("group ceph", "rolling_rules.roles.ceph", 6),)
    assert found["ceph_mon"][0] is found["ceph_osd"][0]
    assert found["compute"][0].is_missing


def test_the_global_cap_binds_a_group_as_one() -> None:
    found = caps(CEPH, **{"global": 2})

    assert found["ceph_mon"] == (AppliedCap("group ceph", "rolling_rules.global", 2),)
    assert found["ceph_mon"][0] is found["ceph_osd"][0]


def test_a_role_of_a_group_keeps_a_cap_of_its_own_beside_the_groups() -> None:
    assert caps(CEPH, roles={"ceph": 4, "ceph_mon": 1})["ceph_mon"] == (
        AppliedCap("group ceph", "rolling_rules.roles.ceph", 4),
        AppliedCap("role ceph_mon", "rolling_rules.roles.ceph_mon", 1),
    )


def test_in_a_group_that_bears_the_name_of_its_role_the_name_means_the_group() -> None:
    assert caps({"compute": "comp|ceph"}, roles={"compute": 4})["compute"] == (
        AppliedCap("group compute", "rolling_rules.roles.compute", 4),
    )


def test_the_fleet_has_one_limit_on_top_of_all() -> None:
    found = caps(fleet="25%", roles={"compute": 5})

    assert found["compute"] == (
        AppliedCap("role compute", "rolling_rules.roles.compute", 5),
        AppliedCap("the fleet", "rolling_rules.fleet", 8),
    )
    assert found["compute"][1] is found["ceph_mon"][0] is found["ceph_osd"][0]


def test_free_slots_are_never_negative() -> None:
    cap = AppliedCap("role compute", "rolling_rules.global", 2)

    assert [Slots({"compute": (cap,)}, taken={cap.what: count}).free(cap) for count in (0, 2, 5)] == [2, 0, 0]


def test_a_slot_is_taken_under_every_limit_over_the_role_and_given_back() -> None:
    slots = Slots(caps(roles={"compute": 5}, fleet=8))
    taken = slots.take({"compute": 2, "ceph_mon": 1})

    assert (taken.taken, taken.busy) == ({"role compute": 2, "the fleet": 3}, 3)
    assert (slots.taken, slots.busy) == ({}, 0)
    assert taken.release({"ceph_mon": 1}) == slots.take({"compute": 2, "ceph_mon": 0})
    assert taken.release({"compute": 2, "ceph_mon": 1}).busy == 0


def test_slots_are_filled_in_the_order_of_the_roles_up_to_the_tightest_limit() -> None:
    slots = Slots(caps(roles={"ceph_mon": 2}, fleet=5))
    given, after = slots.fill({"ceph_mon": 3, "compute": 9, "ceph_osd": 1})

    assert given == {"ceph_mon": 2, "compute": 3}
    assert after == slots.take(given)
    assert after.fill({"ceph_osd": 1}) == ({}, after)


def test_hosts_that_have_slots_need_no_free_ones() -> None:
    slots = Slots({"web": (AppliedCap("role web", "rolling_rules.roles.web", 2),)})
    one = slots.take({"web": 1}).rest({"web": 1})
    given, after = one.fill({"web": 3}, {"web": 1})
    assert (given, after.taken, after.resting) == ({"web": 2}, {"role web": 2}, {"role web": 0})
    # Of more than the cap allows, so many begin again as may be at work at once. One that rests in another role or stage is none of them.
    full = slots.take({"web": 5}).rest({"web": 4})
    given, after = full.fill({"web": 4}, {"web": 3})
    assert (given, after.taken, after.resting) == ({"web": 1}, {"role web": 5}, {"role web": 3})
    assert after.fill({"web": 3}, {"web": 3})[0] == {}
    # A cap of 0 admits none of them. A set may have them and others.
    none = Slots({"web": (AppliedCap("role web", "rolling_rules.roles.web", 0),)}).take({"web": 1}).rest({"web": 1})
    assert none.fill({"web": 1}, {"web": 1}) == ({}, none)
    given, after = replace(one, complete_sets=True).fill({"web": 3}, {"web": 1})
    assert (given, after.busy) == ({"web": 2}, 2)
    assert after.fill({"web": 1})[0] == {}
    # None of them joins a set that is under way.
    busy = replace(slots.take({"web": 2}).rest({"web": 1}), complete_sets=True)
    assert busy.fill({"web": 3}, {"web": 1}) == ({}, busy)


def test_hosts_above_a_limit_leave_no_slot_to_fill() -> None:
    slots = Slots(caps(roles={"compute": 2})).take({"compute": 4})

    assert slots.fill({"compute": 1})[0] == {}
    assert [cap.what for cap in slots.full_caps("compute")] == ["role compute"]


def test_complete_sets_are_filled_while_no_host_has_a_slot() -> None:
    slots = Slots(caps(**{"global": 2}), complete_sets=True)
    given, after = slots.fill({"compute": 3})

    assert given == {"compute": 2}
    assert after.fill({"ceph_mon": 1})[0] == {}
    assert after.release({"compute": 1}).fill({"ceph_mon": 1})[0] == {}
    assert after.release({"compute": 2}).fill({"ceph_mon": 1})[0] == {"ceph_mon": 1}


def test_a_cap_of_0_holds_a_role() -> None:
    slots = Slots(caps(**{"global": 1}, roles={"compute": 0}))

    assert (slots.is_held("compute"), slots.is_held("ceph_mon")) == (True, False)


def test_upgrading_failed_and_lost_hosts_have_taken_their_slots_out_of_scope_too() -> None:
    site = fleet(compute=4, web=1).opened("compute1").failed("compute2").upgraded("compute3")
    slots = fleet_slots(site.read({"rolling_rules": {"roles": {"compute": 3, "web": "unlimited"}}}, ["web"]))

    assert (slots.taken, slots.busy, slots.complete_sets) == ({"role compute": 2}, 2, False)
    assert slots.fill({"compute": 2, "web": 1})[0] == {"compute": 1, "web": 1}
