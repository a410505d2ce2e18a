# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds: which one covers a host, and its description."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import MIGRATION, Hold, Holds

EVERYWHERE, ROLE, HOST = Hold("global"), Hold("role"), Hold("host")
ALL = Holds(EVERYWHERE, {"compute": ROLE}, {"compute1": HOST})


def test_the_nearest_hold_covers() -> None:
    assert ALL.covering("compute1", "compute") is HOST
    assert ALL.covering("compute2", "compute") is ROLE
    assert ALL.covering("controller1", "controller") is EVERYWHERE
    assert ALL.covering("puzzle", None) is EVERYWHERE


def test_no_hold_covers_nothing() -> None:
    assert Holds().covering("compute1", "compute") is None
    assert Holds(roles={"compute": ROLE}).covering("puzzle", None) is None


def test_whether_any_host_of_a_role_is_held() -> None:
    hosts = ["compute1", "compute2"]

    assert Holds(everywhere=EVERYWHERE).cover_any([], "compute")
    assert Holds(roles={"compute": ROLE}).cover_any(hosts, "compute")
    assert Holds(hosts={"compute2": HOST}).cover_any(hosts, "compute")
    assert not Holds(roles={"controller": ROLE}, hosts={"controller1": HOST}).cover_any(hosts, "compute")
    assert not Holds().cover_any(hosts, "compute")


def test_a_hold_describes_who_when_why_and_how_it_ends() -> None:
    hold = Hold("upgrade/hold/host/compute1", "RAM test", "ann", "noon")

    assert hold.text() == (
        "held by ann since noon: RAM test (ends with ansible-playbook convoy.upgrade.unhold -e host=compute1)"
    )
    assert Hold("upgrade/hold/global").text() == (
        "held by unknown: no reason given (ends with ansible-playbook convoy.upgrade.unhold -e everything=true)"
    )
    assert (
        Hold("config_state/role/web/enable_puppet", by="python-jiocloud")
        .text()
        .endswith(
            "(ends with ansible-playbook convoy.upgrade.unhold -e role=web, which ends the pause at the key config_state/role/web/enable_puppet)"
        )
    )
    assert "-e everything=true, which" in Hold("config_state/global/enable_puppet", by="python-jiocloud").text()
    assert Hold("nova/upgrade/hold/role/global").text().endswith("convoy.upgrade.unhold -e role=global)")
    assert Hold("upgrade/hold/host/compute1", "its gate was False", MIGRATION).text() == (
        "held by migrate_state.yml: its gate was False (ends with ansible-playbook convoy.upgrade.unhold -e host=compute1, which also "
        "deletes the closed gate behind it)"
    )
