# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass writes, beside a Consul in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes import closed_gates, planner_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control, rollback
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from fleets import UNLIMITED
from job_fleet import FLEET, RULES, complete_fleet
from memory_consul import Answer, MemoryConsul


@pytest.mark.parametrize("how", ["rules", "pause"])
def test_the_open_gate_of_a_role_is_closed_when_it_no_longer_admits_every_host(how: str) -> None:
    fleet = {f"web{number}": "web" for number in range(1, 5)}
    with MemoryConsul().in_place() as consul:
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
        before = dict(consul.keys)
        foreseen = make_pass(store, PassRequest("2", given, fleet=joined), dry=True)
        assert consul.keys == before
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
        assert {host: view.state for host, view in foreseen.hosts().items()} == states
        # Nothing is written again.
        epoch = consul.data("upgrade/ledger")["epoch"]
        assert not make_pass(store, PassRequest(fleet=joined)).changes
        assert consul.data("upgrade/ledger")["epoch"] == epoch


def test_the_ledger_of_a_rollback_lists_those_first_that_no_record_shows_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = {f"web{number}": "web" for number in range(1, 5)}
    rules = {**UNLIMITED, "health": {"progress_deadline": "10m"}}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        for host in fleet:
            consul.write(f"running/versions/1/{host}", "1")
        make_pass(store, PassRequest("2", rules, fleet=fleet))
        for host in ("web1", "web2"):
            write_report(store, HostReport(host, "2", "started"))
            write_report(store, HostReport(host, "2", "failed", error="disk"))
        write_report(store, HostReport("web3", "2", "upgraded"))
        # The last one of the fleet is lost.
        consul.write("upgrade/hosts/web4", '{"version": "2", "state": "started", "times": {"started": 1}}')
        consul.flags["config_state/enable_puppet/role/web"] = 1
        whole = rollback.roll_back(store, control.Command(fleet=fleet), dry=True)
        assert whole.ledger is not None and whole.ledger.broken == ("web1", "web2", "web4")
        # Room for one name.
        monkeypatch.setattr(Ledger, "room_for_broken", 12)
        found = rollback.roll_back(store, control.Command(fleet=fleet))
        assert consul.data("upgrade/ledger")["broken"] == ["web4"]
        assert found.remarks[-1].startswith(
            "3 hosts are broken, and the ledger has room for the names of 1. Of the other 2, "
        )


def test_the_flags_of_the_version_follow_the_order_of_a_rollback() -> None:
    fleet, key = {"web1": "web", "web2": "web"}, "current_version"
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        for host in fleet:
            consul.write(f"running/versions/1/{host}", "1")
        make_pass(store, PassRequest("2", UNLIMITED, fleet=fleet))
        assert (consul.keys[key], consul.flags[key]) == (b"2", 0)
        write_report(store, HostReport("web1", "2", "upgraded"))
        rollback.roll_back(store, control.Command(fleet=fleet))
        index = consul.indexes[key]
        assert (consul.keys[key], consul.flags[key]) == (b"1", 1)
        make_pass(store, PassRequest("1", {**UNLIMITED, "failure_rules": {"global": 1}}, fleet=fleet))
        assert consul.indexes[key] == index
        # A node that begins meanwhile reads its target again.
        rules = {**UNLIMITED, "failure_rules": {"global": 1}}
        make_pass(store, PassRequest("1", {**rules, "rollback_order": "forward"}, fleet=fleet))
        assert (consul.keys[key], consul.flags[key]) == (b"1", 0)
        assert consul.indexes[key] > index
        make_pass(store, PassRequest("2", rules, fleet=fleet, replace="1"))
        assert (consul.keys[key], consul.flags[key]) == (b"2", 0)


def test_a_gate_that_an_operator_has_closed_meanwhile_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = {"web1": "web", "web2": "web"}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        make_pass(store, PassRequest("2", UNLIMITED, fleet=fleet))
        write_report(store, HostReport("web1", "2", "started"))
        original, is_first = closed_gates.own_gates, True

        def late(*given: Any) -> Any:
            nonlocal is_first
            found = original(*given)
            if is_first:
                is_first = False
                reset_gates(store)
            return found

        monkeypatch.setattr(closed_gates, "own_gates", late)
        control.pause(store, control.Command("logins fail", fleet=fleet))
        make_pass(store, PassRequest("2", fleet=fleet))
        gates = {key.rpartition("/")[2]: text for key, text in consul.keys.items() if key.startswith("config_state/")}
    assert not is_first
    assert gates == {"global": b"False"}


@pytest.mark.parametrize("when", ["before", "meanwhile", "never"])
def test_a_rollout_that_begins_names_an_operator_s_closing_of_all_gates(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two comes second says so: ``global_disable`` names the rollout."""
    with complete_fleet().in_place() as consul:
        store = consul.store()
        original, left = planner_pass.begin_rollout, 1 if when == "meanwhile" else 0

        def late(*given: Any) -> Any:
            nonlocal left
            found = original(*given)
            if left:
                left -= 1
                reset_gates(store)
            return found

        monkeypatch.setattr(planner_pass, "begin_rollout", late)
        if when == "before":
            reset_gates(store)
        begun = make_pass(store, PassRequest("3.0", RULES, fleet=FLEET))
        assert begun.begun
        assert consul.data("upgrade/ledger")["version"] == "3.0"
        said = [one for one in begun.warnings if "was closed by hand" in one]
        assert len(said) == (when != "never"), begun.warnings
        assert not any("by hand" in one for one in make_pass(store, PassRequest(fleet=FLEET)).warnings)


def test_a_fleet_that_has_become_smaller_is_recorded_once_so_that_commands_act_on_it() -> None:
    fleet = {"web1": "web", "web2": "web", "web3": "web"}
    rules = {"rolling_rules": {"global": 1}, "stages": [{"name": "canary", "hosts": ["web1"], "approve": True}]}
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        write_report(store, HostReport("web1", "1", "upgraded"))
        make_pass(store, PassRequest("2", rules, fleet=fleet))
        write_report(store, HostReport("web1", "2", "upgraded"))
        make_pass(store, PassRequest("2", fleet=fleet))
        del fleet["web3"]
        with pytest.raises(UpgradeError, match="Nothing is written"):
            control.approve(store, control.Command(fleet=fleet))
        assert consul.data("upgrade/ledger")["members"] == {"web": 3}
        epochs = [make_pass(store, PassRequest("2", fleet=fleet)).ledger for _pass in range(3)]
        assert [one.members for one in epochs if one is not None] == [{"web": 2}] * 3
        assert len({one.epoch for one in epochs if one is not None}) == 1
        control.approve(store, control.Command(fleet=fleet))
        make_pass(store, PassRequest("2", fleet=fleet, limit=[]))
        # A larger one alone is not.
        make_pass(store, PassRequest("2", fleet={**fleet, "web4": "web", "web5": "web"}, limit=[]))
        assert consul.data("upgrade/ledger")["members"] == {"web": 2}


def test_a_reason_with_several_lines_is_no_change_of_the_rules_in_each_pass() -> None:
    rules = {
        "rolling_rules": {"global": 1},
        "freezes": [{"from": "2030-12-20", "to": "2031-01-06", "reason": "holidays:\nask ann\n"}],
    }
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        epochs = [make_pass(store, PassRequest("2", rules, fleet={"web1": "web"})).ledger for _pass in range(3)]
        assert len({one.epoch for one in epochs if one is not None}) == 1


class Suspended(runtime.Runtime):
    """The time of a machine that is suspended for some seconds in all, in which only the clock since its boot goes on."""

    seconds = 0.0

    def monotonic(self) -> float:
        return 1000.0

    def since_boot(self) -> float:
        return 1000.0 + self.seconds


def test_no_host_is_admitted_by_what_was_read_before_the_machine_was_suspended() -> None:
    fleet, suspended = {"web1": "web", "web2": "web"}, Suspended()
    with MemoryConsul().in_place() as consul:
        store = consul.store()
        for host in fleet:
            consul.write(f"running/versions/1/{host}", "1")
        make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=fleet))
        write_report(store, HostReport("web1", "2", "upgraded"))

        def suspend(_method: str, _path: str, answer: Answer) -> Answer:
            suspended.seconds = 600.0
            return answer

        consul.spoil = suspend
        before = runtime.use(suspended)
        try:
            with pytest.raises(UpgradeError) as caught:
                make_pass(store, PassRequest(fleet=fleet), most_slow=1)
            assert (caught.value.code, caught.value.details["seconds"]) == ("too_slow", [600.0])
            assert "config_state/enable_puppet/host/web2" not in consul.keys
            make_pass(store, PassRequest(fleet=fleet), most_slow=1)
        finally:
            runtime.use(before)
        assert consul.keys["config_state/enable_puppet/host/web2"] == b"True"


def test_the_clock_since_the_boot_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.Runtime().since_boot() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)
    clock = runtime.Runtime()
    monkeypatch.delattr(runtime.time, "CLOCK_BOOTTIME")
    # As on machines without it.
    assert clock.since_boot() == pytest.approx(clock.monotonic(), abs=5)
