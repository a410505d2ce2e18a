# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass writes, beside a Consul in memory."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from fleets import UNLIMITED
from job_fleet import FlaggedConsul


@pytest.mark.parametrize("how", ["rules", "pause"])
def test_the_open_gate_of_a_role_is_closed_when_it_no_longer_admits_every_host(how: str) -> None:
    fleet = {f"web{number}": "web" for number in range(1, 5)}
    with FlaggedConsul().in_place() as consul:
        store = consul.store()
        for host in fleet:
            consul.write(f"running/versions/1/{host}", "1")
        make_pass(store, PassRequest("2", UNLIMITED, fleet=fleet))
        assert consul.keys["config_state/enable_puppet/role/web"] == b"True"
        for host, state in (("web1", "started"), ("web2", "upgraded"), ("web3", "failed")):
            write_report(store, HostReport(host, "2", state, error="disk" if state == "failed" else None))
        if how == "pause":
            control.pause(store, control.Command("logins fail", fleet=fleet))
        given = {"rolling_rules": {"global": 1}} if how == "rules" else None
        joined = {**fleet, "web5": "web"}
        found = make_pass(store, PassRequest("2", given, fleet=joined))
        gates = {key.rpartition("/")[2]: text for key, text in consul.keys.items() if key.startswith("config_state/")}
        assert gates == {"global": b"False", "web1": b"True", "web2": b"True", "web3": b"True"}
        assert found.admissions == []
        states = {host: view.state for host, view in found.hosts().items()}
        assert states == {
            "web1": "upgrading",
            "web2": "upgraded",
            "web3": "failed",
            "web4": "pending",
            "web5": "pending",
        }
        # Nothing is written again.
        epoch = consul.data("upgrade/ledger")["epoch"]
        assert not make_pass(store, PassRequest(fleet=joined)).changes
        assert consul.data("upgrade/ledger")["epoch"] == epoch
