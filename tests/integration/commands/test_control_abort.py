# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator aborts: what has not begun is closed, whatever hosts do meanwhile."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import acquire, open_session
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, report_roles, seed
from integration.support.runs.commands import UNLIMITED, control, cut_short, fail, upgrade
from integration.support.runs.playbook import Runner

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release


def test_an_abort_closes_what_has_not_begun_and_keeps_every_record(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=4, web=2))
    report_roles(consul, names(compute=4, web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited", "roles": {"compute": 3}}}))
    assert gates(consul)["role/web"] == "True"
    upgrade(store, "compute1")
    write_report(store, HostReport("compute2", "2", "started"))
    write_report(store, HostReport("web1", "2", "started"))
    records = consul.texts("upgrade/hosts/")
    aborted, again = run([control("abort", reason="enough"), control("abort")])
    assert (aborted["changed"], again["changed"], aborted["state"]) == (True, False, "aborted")
    assert aborted["hosts"] == ["compute3"]
    assert aborted["remarks"] == []
    assert re.fullmatch(r"It was aborted before by \S+ at .*: enough, and nothing is changed\.", again["remarks"][0])
    assert gates(consul) == {
        "global": "False",
        "role/web": "False",
        "host/web1": "True",
        "host/compute1": "True",
        "host/compute2": "True",
        "host/compute3": "False",
    }
    assert consul.texts("upgrade/hosts/") == records
    status = make_pass(store, PassRequest()).plan.status()
    assert (status["upgrading"], status["pending"]) == (["compute2", "web1"], ["compute3", "compute4", "web2"])
    refused = run([control("resume")])[0]
    assert refused["failure"]["message"] == (
        "The rollout to 2 is aborted, so it can't be resumed. It is over. ansible-playbook convoy.upgrade.upgrade -e version=2 -e restart=true begins it "
        "again, and ansible-playbook convoy.upgrade.upgrade -e version=X begins another one."
    )
    # It is not begun again unawares, as by a command that runs every hour.
    before = consul.texts()
    plan = {"version": "2", "instructions": {"rolling_rules": {"global": 1}}}
    unaware = run([{"convoy.upgrade.consul_upgrade_plan": plan}])[0]
    assert unaware["failure"]["code"] == "aborted"
    assert re.fullmatch(
        r"The rollout to 2 was aborted by \S+ at .*: enough\. No host is admitted\. Begin it again with restart: true "
        r"\(-e restart=true\), or go back with ansible-playbook convoy\.upgrade\.rollback\.",
        unaware["failure"]["message"],
    )
    assert consul.texts() == before
    begun, again = run([{"convoy.upgrade.consul_upgrade_plan": {**plan, "restart": True}}] * 2)
    assert (begun["changed"], again["changed"]) == (True, False)
    assert ledger(consul)["state"] == "running"


def test_an_abort_closes_a_host_of_which_a_push_run_has_only_the_lease(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}))
    assert gates(consul)["role/web"] == "True"
    write_report(store, HostReport("web1", "2", "started"))
    assert acquire(store, open_session(store), "web2") is None
    operator.abort(store, operator.Command("enough"))
    assert gates(consul) == {"global": "False", "role/web": "False", "host/web1": "True"}


def test_an_abort_of_many_that_is_cut_short_reports_all_that_it_closed(store: Store, consul: RawKV) -> None:
    many = names(compute=100)
    seed(consul, many)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 99}}))
    cut_short(store, 3)
    done = operator.abort(store, operator.Command("enough"))
    assert done.hosts == [*many][:99]
    assert set(gates(consul).values()) == {"False"}
    assert [event["what"] for event in history(consul)][-6:] == ["abort", "close", "hold", *["close"] * 3]


def test_an_abort_continues_after_a_gate_that_can_not_be_read(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    consul.put("config_state/enable_puppet/host/compute1", "Flase")
    consul.put("config_state/enable_puppet/role/web", "")
    aborted = run([control("abort")])[0]
    assert (aborted["failed"], aborted["state"], aborted["hosts"]) == (False, "aborted", ["compute2"])
    assert gates(consul) == {"global": "False", "host/compute1": "Flase", "host/compute2": "False", "role/web": ""}


def before_closing(monkeypatch: pytest.MonkeyPatch, store: Store, act: Any, times: int = 1) -> None:
    """Say something right before each of the first writes that close gates."""
    write, left = store.client.write, [act] * times

    def late(operations: Any) -> Any:
        if left and any("enable_puppet" in one["KV"]["Key"] for one in operations):
            left.pop()()
        return write(operations)

    monkeypatch.setattr(store.client, "write", late)


@pytest.mark.parametrize("state", ["started", "upgraded", "failed"])
def test_a_host_that_begins_while_an_abort_works_is_not_closed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 3}}))
    other = Store(store.settings)
    before_closing(monkeypatch, store, lambda: write_report(other, HostReport("compute1", "2", state)))
    done = operator.abort(store, operator.Command("enough"))
    assert done.hosts == ["compute2", "compute3"]
    assert gates(consul) == {
        "global": "False",
        "host/compute1": "True",
        "host/compute2": "False",
        "host/compute3": "False",
    }
    assert [event["what"] for event in history(consul)][-2:] == ["abort", "close"]


def test_a_host_that_begins_while_its_role_is_closed_keeps_an_open_gate(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", UNLIMITED))
    assert gates(consul)["role/compute"] == "True"
    other = Store(store.settings)
    before_closing(monkeypatch, store, lambda: write_report(other, HostReport("compute2", "2", "started")))
    operator.abort(store, operator.Command("enough"))
    assert gates(consul) == {"global": "False", "role/compute": "False", "host/compute2": "True"}
    closed = [event for event in history(consul) if event["what"] == "close"]
    assert [event["hosts"] for event in closed] == [{"compute2": "it has begun, so its gate stays open"}, {}]


@pytest.mark.parametrize("closed", [("host", "web1"), ("role", "web"), ("global", None)])
def test_a_gate_that_an_operator_closes_while_an_abort_works_stays_closed(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, closed: tuple[str, str | None]
) -> None:
    seed(consul, names(web=2, compute=2), current="2", gates={"global": "True", "role/compute": "True"})
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    if closed[0] == "role":
        set_gate(store, "role", "web", value=True)
    write_report(store, HostReport("web1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "started"))
    other = Store(store.settings)
    before_closing(monkeypatch, store, lambda: set_gate(other, *closed, value=False))
    operator.abort(store, operator.Command("enough"))
    found = gates(consul)
    assert Store(store.settings).snapshot().gates.answer("web1", "web", "2").is_open is False
    # Nothing has closed the other host that has begun.
    assert found.pop("host/compute1") == "True"
    assert set(found.values()) == {"False"}


@pytest.mark.parametrize("value", [None, "v7"])
def test_a_gate_that_an_operator_sets_while_an_abort_closes_it_keeps_its_value(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    other = Store(store.settings)
    before_closing(monkeypatch, store, lambda: set_gate(other, "host", "compute1", value))
    assert operator.abort(store, operator.Command("enough")).hosts == ["compute2"]
    assert gates(consul).get("host/compute1") == value


def test_a_host_that_writes_without_end_does_not_keep_other_gates_open(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    times_written = iter(range(1000))
    record = {"version": "0", "state": "upgraded"}
    before_closing(
        monkeypatch,
        store,
        lambda: consul.put(
            "upgrade/hosts/compute1", json.dumps({**record, "times": {"upgraded": next(times_written)}})
        ),
        times=1000,
    )
    assert operator.abort(store, operator.Command("enough")).hosts == ["compute1", "compute2"]


@pytest.mark.thorough
def test_a_fleet_that_is_open_at_large_is_closed_by_an_abort(run: Runner, store: Store, consul: RawKV) -> None:
    """As one that another tool has begun: its global gate is open, or there is none at all."""
    for wide in ({"global": "True"}, {}):
        assert consul.delete("", tree=True)
        seed(consul, names(compute=4), current="2", gates=wide)
        make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
        assert history(consul)[0]["what"] == "adopt"
        upgrade(store, "compute1")
        write_report(store, HostReport("compute2", "2", "started"))
        fail(store, "compute3")
        dry = run([control("abort")], check=True, diff=True)[0]
        assert "config_state/enable_puppet/global = False" in dry["diff"]["after"]
        assert gates(consul) == wide
        aborted, again = run([control("abort", reason="enough"), control("abort")])
        assert (aborted["changed"], aborted["hosts"], again["changed"]) == (True, [], False)
        assert gates(consul) == {"global": "False", **{f"host/compute{number}": "True" for number in (1, 2, 3)}}
        (entry,) = [event for event in history(consul) if event["what"] == "close" and "hosts" not in event]
        assert entry["reason"] == "the rollout was aborted, and the global gate was open"
