# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet of a plan: the hosts in scope, missing hosts, and the order of roles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from fleets import NEW, OLD, fleet

CEPH = {"group_mappings": {"ceph": "ceph_"}}


def test_hosts_are_grouped_by_role_in_natural_order() -> None:
    state = fleet(compute=11, web=1).read()

    assert state.sizes == {"compute": 11, "web": 1}
    assert [one.host for one in state.by_role["compute"]][:3] == ["compute1", "compute2", "compute3"]
    assert [one.host for one in state.by_role["compute"]] == [host for host in state.hosts if host != "web1"]


def test_a_limit_names_hosts_roles_and_groups() -> None:
    site = fleet(ceph_mon=1, ceph_osd=1, compute=2, web=1)

    assert site.read(CEPH).scope is None
    assert site.read(CEPH, ["ceph", "compute2"]).scope == {"ceph_mon1", "ceph_osd1", "compute2"}
    assert not site.read(CEPH, []).in_scope("web1")
    with pytest.raises(
        UpgradeError, match="limit: 'wbe' fits no host, role or group of this fleet; did you mean 'web'"
    ):
        site.read(CEPH, ["ceph", "wbe"])


def test_what_is_unfinished_is_reported_of_hosts_in_scope_alone() -> None:
    site = fleet(compute=2, web=1).upgraded("compute1")

    assert site.read(limit=["compute"]).unfinished == ("compute2",)
    assert site.read().unfinished == ("compute2", "web1")
    assert (site.read().is_upgraded, site.upgraded("compute2", "web1").read().is_upgraded) == (False, True)


def test_hosts_that_can_finish_are_in_flight() -> None:
    site = fleet(compute=3, web=2).opened("compute1", "compute2").held("host/compute2").failed("web1")

    assert site.read().in_flight == {"compute": 1, "web": 0}
    assert site.read().broken == {"compute": [], "web": ["web1"]}


def test_a_role_with_fewer_hosts_than_the_rollout_began_with_is_missing_some() -> None:
    site = fleet(compute=2)
    site.ledger = Ledger(1, NEW, members={"compute": 2})
    assert site.read().missing == ()

    site.ledger = Ledger(1, NEW, members={"compute": 3})
    assert len(site.read().missing) == 1


def test_only_a_rollback_reverses_the_order_and_not_one_that_goes_forward() -> None:
    rules = {"role_order": {"compute": "web"}}
    site = fleet(compute=1, web=1)
    assert (site.read(rules).order.roles, site.read(rules).rollback_order) == (("web", "compute"), "")

    site.ledger, site.current = Ledger(2, OLD, previous_version=NEW, rollback=True), OLD
    assert (site.read(rules).order.roles, site.read(rules).rollback_order) == (("compute", "web"), "reversed")
    forward = site.read({**rules, "rollback_order": "forward"})
    assert (forward.order.roles, forward.rollback_order) == (("web", "compute"), "forward")

    site.ledger = replace(site.ledger, version=NEW)
    assert site.read(rules).rollback_order == ""
