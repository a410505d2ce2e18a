# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet from the inventory."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.inventory_roles import (
    fleet_of,
    plane_order,
    pushed_roles,
)

ROLES: dict[str, Any] = {
    "controller": {"plane": "controlplane", "services": ["haproxy"]},
    "database": {"plane": "controlplane"},
    "compute": {"plane": "dataplane"},
    "tools": None,
}


def test_groups_named_like_roles_make_the_fleet() -> None:
    groups = {"all": ["c1", "n1", "x"], "controller": ["c1"], "compute": ["n1"], "others": ["x"]}
    assert fleet_of(ROLES, groups) == {"c1": "controller", "n1": "compute"}


def test_without_roles_there_is_no_fleet_and_no_order() -> None:
    assert fleet_of({}, {"all": ["x"]}) == {}
    assert plane_order({}) == {}


def test_ansible_upgrades_the_hosts_of_roles_with_services_that_do_not_pull() -> None:
    assert pushed_roles({**ROLES, "cache": {"pull": True, "services": ["redis"]}}) == ["controller"]


def test_the_data_plane_waits_for_the_whole_control_plane() -> None:
    assert plane_order(ROLES) == {"compute": ["controller", "database"]}


def test_a_data_plane_alone_waits_for_no_role() -> None:
    assert plane_order({"compute": {"plane": "dataplane"}}) == {}


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (["compute"], "upgrade_roles: ['compute'] does not map roles to their plane and services."),
        ({"compute": "dataplane"}, "upgrade_roles.compute: 'dataplane' is not a mapping with a plane and services."),
        (
            {"compute": {"plne": 1}},
            "upgrade_roles.compute.plne: unknown key; did you mean 'plane'? Known are: plane, services, pull.",
        ),
        ({"compute": {"pull": "yes"}}, "upgrade_roles.compute.pull: 'yes' is neither true nor false."),
        (
            {"compute": {"plane": "dataplan"}},
            "upgrade_roles.compute.plane: 'dataplan' is not a plane; did you mean 'dataplane'? Planes are: controlplane, dataplane.",
        ),
    ],
)
def test_bad_roles_are_refused_by_both(roles: Any, sentence: str) -> None:
    for read in (plane_order, lambda found: fleet_of(found, {"compute": ["n1"]})):
        with pytest.raises(UpgradeError) as refused:
            read(roles)
        assert refused.value.message == sentence
        assert refused.value.code == "bad_upgrade_roles"


def test_a_host_has_one_role() -> None:
    with pytest.raises(UpgradeError, match="the host 'n1' is in the groups 'controller' and 'compute'"):
        fleet_of(ROLES, {"controller": ["n1"], "compute": ["n1"]})


def test_a_fleet_without_hosts_names_the_groups_that_there_are() -> None:
    with pytest.raises(
        UpgradeError, match=r"in a group named compute\. Its groups are computes\. Name one of them in upgrade_roles\."
    ):
        fleet_of({"compute": {}}, {"all": ["n1"], "ungrouped": [], "computes": ["n1"]})
    with pytest.raises(UpgradeError, match=r"It has no groups\. Give an inventory with -i\."):
        fleet_of({"compute": {}}, {"all": [], "ungrouped": []})


def test_a_role_that_is_a_misspelt_group_is_refused() -> None:
    groups = {"all": ["db1", "web1"], "db": ["db1"], "web": ["web1"]}
    with pytest.raises(UpgradeError, match=r"'wbe' is no group of the inventory; did you mean 'web'\?") as caught:
        fleet_of({"db": {}, "wbe": {}}, groups)
    assert caught.value.code == "bad_upgrade_roles"
    # Roles may be absent from an inventory, also beside a group of a similar name whose hosts have a role.
    assert fleet_of({"db": {}, "web": {}, "webs": {}, "cache": {}}, groups) == {"db1": "db", "web1": "web"}
