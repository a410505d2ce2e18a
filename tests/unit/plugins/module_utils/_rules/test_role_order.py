# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups and order, resolved to the roles of a fleet."""

from __future__ import annotations

from typing import Any

import pytest
import strategies
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import RoleOrder, resolve
from hypothesis import given
from hypothesis import strategies as st


def order(roles: str, **rules: Any) -> RoleOrder:
    return resolve(parse(rules), roles.split())


def test_without_rules_no_role_waits_and_roles_are_in_natural_order() -> None:
    found = order("web10 web9 db")

    assert found == RoleOrder(("db", "web9", "web10"), {}, {"db": (), "web9": (), "web10": ()}, ())


def test_each_role_comes_after_those_it_waits_for() -> None:
    found = order("a b c", role_order={"a": "b", "b": "c"})

    assert found.roles == ("c", "b", "a")
    assert found.waits == {"a": ("b",), "b": ("c",), "c": ()}


def test_expressions_of_groups_are_anchored_at_the_start_only() -> None:
    found = order("ceph_mon ceph_osd myceph", group_mappings={"ceph": "ceph"})

    assert found.group == {"ceph_mon": "ceph", "ceph_osd": "ceph"}
    assert found.roles_of("ceph") == ("ceph_mon", "ceph_osd")
    assert found.roles_of("myceph") == ("myceph",)
    assert found.roles_of("nobody") == ()


def test_any_of_several_expressions_will_do() -> None:
    assert order("mon osd web", group_mappings={"ceph": ["mon$", "osd"]}).group == {"mon": "ceph", "osd": "ceph"}


def test_a_group_in_the_order_stands_for_all_its_roles() -> None:
    found = order(
        "ceph_mon ceph_osd compute keystone",
        group_mappings={"ceph": "ceph_"},
        role_order={
            "compute": "ceph",
            "ceph": "keystone",
            "ceph_osd": "ceph_mon",
        },
    )

    assert found.waits == {
        "ceph_mon": ("keystone",),
        "ceph_osd": ("ceph_mon", "keystone"),
        "compute": ("ceph_mon", "ceph_osd"),
        "keystone": (),
    }


def test_a_group_may_have_the_name_of_one_of_its_roles() -> None:
    found = order("ceph ceph_osd", group_mappings={"ceph": "ceph"})

    assert found.roles_of("ceph") == ("ceph", "ceph_osd")


def test_what_a_role_without_hosts_waits_for_counts_for_the_roles_after_it() -> None:
    found = order("compute controller", role_order={"compute": "network", "network": "fabric", "fabric": "controller"})

    assert found.waits["compute"] == ("controller",)


def test_what_comes_before_those_that_a_role_waits_for_is_known_too() -> None:
    rules = {"web": "app", "app": "db", "db": "fabric", "other": ["app", "db"]}
    found = order("web app db fabric other", role_order=rules)

    assert found.further == {"web": ("db", "fabric"), "app": ("fabric",), "other": ("fabric",)}
    assert order("web app db", role_order={"web": "app", "db": "app"}).further == {}


def test_a_role_without_hosts_waits_for_what_its_group_waits_for() -> None:
    found = order(
        "compute controller", group_mappings={"net": "net"}, role_order={"compute": "network", "net": "controller"}
    )

    assert found.waits["compute"] == ("controller",)


def test_a_group_without_hosts_is_passed_through_too() -> None:
    found = order(
        "compute controller", group_mappings={"net": "net"}, role_order={"compute": "net", "net": "controller"}
    )

    assert found.waits["compute"] == ("controller",)


def test_unknown_names_are_warnings() -> None:
    found = order(
        "compute",
        rolling_rules={"roles": {"bastion": 1, "compute": 2}},
        role_order={"compute": ["network", "bastion"], "puzzle": "compute"},
        group_mappings={"ceph": "ceph_"},
    )

    assert found.warnings == (
        "instructions: rolling_rules.roles.bastion: no host of this fleet has the role or group 'bastion'.",
        "instructions: role_order.compute: no host of this fleet has the role or group 'network'.",
        "instructions: role_order.compute: no host of this fleet has the role or group 'bastion'.",
        "instructions: role_order.puzzle: no host of this fleet has the role or group 'puzzle'.",
        "instructions: group_mappings.ceph: matches no role of this fleet.",
    )


def test_the_closest_name_is_suggested_for_every_rule_of_roles() -> None:
    found = order(
        "compute controller",
        rolling_rules={"roles": {"conpute": 1}},
        failure_rules={"roles": {"controler": 1, "compute": 2}},
        stages=[{"roles": ["conputer", "compute"], "hosts": 1}],
    )

    assert found.warnings == (
        "instructions: rolling_rules.roles.conpute: no host of this fleet has the role or group 'conpute'; "
        "did you mean 'compute'?",
        "instructions: failure_rules.roles.controler: no host of this fleet has the role or group 'controler'; "
        "did you mean 'controller'?",
        "instructions: stages[0].roles: no host of this fleet has the role or group 'conputer'; did you mean 'compute'?",
    )


def test_a_role_in_two_groups_is_refused() -> None:
    with pytest.raises(UpgradeError) as caught:
        order("ceph_mon", group_mappings={"ceph": "ceph", "mons": ["x", ".*mon"]})

    assert caught.value.code == "bad_instructions"
    assert caught.value.message == (
        "instructions: group_mappings: the role 'ceph_mon' is matched by the group 'ceph' and by 'mons' (x, .*mon). "
        "A role can be in only one group; make the expressions narrower."
    )
    assert caught.value.details["key"] == "group_mappings.mons"


@pytest.mark.parametrize("groups", [{"web": "ceph"}, {"web": "nobody"}, {"web": "ceph", "all": "web"}])
def test_a_group_with_the_name_of_a_role_outside_of_it_is_refused(groups: dict[str, str]) -> None:
    with pytest.raises(UpgradeError) as caught:
        order("ceph web", group_mappings=groups)

    assert caught.value.message == (
        "instructions: group_mappings: 'web' is the name of a group and of a role outside of it, so a rule for that "
        "name could mean either. Give the group another name."
    )


@pytest.mark.parametrize(
    ("role_order", "shown"),
    [
        ({"ceph": "ceph_mon"}, "ceph_mon (of group ceph) waits for ceph_mon (of group ceph)"),
        (
            {"ceph": "compute", "compute": "ceph_mon"},
            "ceph_mon (of group ceph) waits for compute waits for ceph_mon (of group ceph)",
        ),
        (
            {"ceph_osd": "compute", "compute": "ceph"},
            "ceph_osd (of group ceph) waits for compute waits for ceph_osd (of group ceph)",
        ),
    ],
)
def test_a_cycle_through_a_group_is_printed(role_order: dict[str, str], shown: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        order("ceph_mon ceph_osd compute", group_mappings={"ceph": "ceph_"}, role_order=role_order)

    assert caught.value.code == "bad_instructions"
    assert caught.value.message == (
        f"instructions: role_order: with group_mappings it has a cycle, so none of these can begin: {shown}."
    )


@given(strategies.rules(), st.sets(st.sampled_from(strategies.ROLES)))
def test_the_roles_are_all_there_each_after_those_it_waits_for(raw: dict[str, Any], roles: set[str]) -> None:
    found = resolve(parse(raw), roles)

    assert sorted(found.roles) == sorted(roles)
    for at, role in enumerate(found.roles):
        assert set(found.waits[role]) <= set(found.roles[:at])
