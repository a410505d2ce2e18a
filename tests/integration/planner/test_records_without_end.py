# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host writes of itself, however much it is, keeps no planner from the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import OPEN
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, names, record, seed

pytestmark = pytest.mark.one_release

# Consul takes half a megabyte in one value, and in one transaction.
LARGE = "x" * 400_000


@pytest.mark.parametrize(
    "more",
    [
        {"version": LARGE[:300_000]},
        {"version": LARGE[:300_000], "state": "upgraded"},
        {"error": LARGE},
        {"service": LARGE},
        {"reported": LARGE},
        {"times": {LARGE: 1}},
        {"done": [LARGE]},
        {"done": [""] * 100_000},
        {"done": [""] * 5_000},
    ],
)
def test_the_others_go_on_and_the_host_can_be_retried(store: Store, consul: RawKV, more: dict[str, Any]) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    consul.put("upgrade/hosts/compute1", json.dumps({"version": "2", "state": "failed", **more}))
    consul.put("upgrade/hosts/compute2", json.dumps({"version": "2", "state": "upgraded", "times": {"upgraded": 9}}))
    outcome = make_pass(store, PassRequest())
    assert [one.host for one in outcome.admissions] == ["compute3"]
    states = {host: view.state for host, view in outcome.plan.hosts.items()}
    assert states == {"compute1": "failed", "compute2": "upgraded", "compute3": "pending"}
    done = operator.retry(store, operator.Command(), ["compute1"])
    assert done.hosts == ["compute1"]
    assert record(consul, "compute1")["state"] == "retried"
    assert all(len(json.dumps(event)) < 10_000 for event in history(consul))


def test_a_reason_without_end_holds_and_pauses_and_is_cut(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=60))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    held = set_holds(store, HoldTargets(hosts=[f"compute{at}" for at in range(2, 50)]), LARGE, by=LARGE)
    assert len(held.holds) == 48
    assert len(json.loads(consul.get("upgrade/hold/host/compute2") or b"")["reason"]) == 500
    again = set_holds(store, HoldTargets(hosts=["compute2"]), LARGE, by=LARGE)
    assert again.changes == []
    operator.pause(store, operator.Command(LARGE, LARGE))
    assert all(len(json.dumps(event)) < 40_000 for event in history(consul))
    operator.resume(store, operator.Command(LARGE, LARGE))
    operator.abort(store, operator.Command(LARGE, LARGE))
    assert len(consul.get("upgrade/ledger") or b"") < 2000


def writes_all_the_time(consul: RawKV, store: Store, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let hosts write their records again just before each write of the store."""
    write, clock = store.client.write, count(100)

    def again(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        for host in hosts:
            found = json.loads(consul.get(f"upgrade/hosts/{host}") or b"")
            consul.put(f"upgrade/hosts/{host}", json.dumps({**found, "times": {found["state"]: next(clock)}}))
        return write(operations)

    monkeypatch.setattr(store.client, "write", again)


def put_record(consul: RawKV, host: str, state: str, version: str = "2") -> None:
    consul.put(f"upgrade/hosts/{host}", json.dumps({"version": version, "state": state, "times": {state: 9}}))


def test_a_host_that_writes_all_the_time_is_left_out_of_a_pass_and_named(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=5))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    put_record(consul, "compute1", "upgraded")
    put_record(consul, "compute2", "upgraded")
    writes_all_the_time(consul, store, monkeypatch, "compute1")
    before = store.client.requests
    outcome = make_pass(store, PassRequest())
    assert [one.host for one in outcome.admissions] == ["compute3", "compute4"]
    assert consul.get("running/versions/2/compute2") == b"9"
    assert consul.get("running/versions/2/compute1") is None
    (warning,) = outcome.warnings
    assert "not published yet for compute1, because upgrade/hosts/<host> changed during each of 3 tries" in warning
    # One to read, four that publish, of which three are refused and two of these read again, and one that opens.
    assert store.client.requests - before == 8


@pytest.mark.thorough
def test_all_hosts_that_write_all_the_time_stop_no_other_host(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=40, web=1))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 40}, "role_order": {"web": "compute"}}))
    hosts = [f"compute{at}" for at in range(1, 41)]
    for host in hosts:
        put_record(consul, host, "upgraded")
    # What the hosts write meanwhile counts as time of the pass.
    store = Store(replace(store.settings, pass_limit=100))
    writes_all_the_time(consul, store, monkeypatch, *hosts)
    before = store.client.requests
    outcome = make_pass(store, PassRequest())
    assert [one.host for one in outcome.admissions] == ["web1"]
    assert store.client.requests - before < 20


def test_a_host_whose_record_changed_meanwhile_is_not_published(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=3))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}))
    put_record(consul, "compute1", "upgraded")
    write = store.client.write

    def fail_first(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        monkeypatch.setattr(store.client, "write", write)
        put_record(consul, "compute1", "failed")
        return write(operations)

    monkeypatch.setattr(store.client, "write", fail_first)
    outcome = make_pass(store, PassRequest())
    assert consul.get("running/versions/2/compute1") is None
    assert outcome.warnings == []
    assert not any(event["what"] == "publish" for event in history(consul))


def test_retry_for_all_leaves_out_and_names_a_host_that_writes_all_the_time(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=6))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 3}}))
    for host in ("compute1", "compute2", "compute3"):
        put_record(consul, host, "failed")
    writes_all_the_time(consul, store, monkeypatch, "compute2")
    done = operator.retry(store, operator.Command())
    assert done.hosts == ["compute1", "compute3"]
    assert [one for one in done.remarks if "The retry is not written for compute2" in one]
    assert record(consul, "compute2")["state"] == "failed"
    with pytest.raises(UpgradeError, match="The retry is not written for compute2") as caught:
        operator.retry(store, operator.Command(), ["compute2"])
    assert caught.value.code == "busy"


def test_post_upgrade_tasks_begin_on_all_but_a_host_that_writes_all_the_time(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = names(compute=3)
    seed(consul, fleet)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 3}}))
    for host in fleet:
        put_record(consul, host, "upgraded")
    make_pass(store, PassRequest())
    writes_all_the_time(consul, store, monkeypatch, "compute1")
    outcome = make_post_upgrade_pass(store, PassRequest("2", fleet=fleet), {"compute"})
    assert [one.host for one in outcome.admissions] == ["compute2", "compute3"]
    assert record(consul, "compute2")["post"] == record(consul, "compute3")["post"] == "open"
    assert [one for one in outcome.warnings if "can't begin for compute1, because upgrade/hosts/<host> changed" in one]
    # A record that is too long to be read is that of a failed host, which is named.
    consul.put("upgrade/hosts/compute3", json.dumps({"version": "2", "state": "upgraded", "done": [""] * 120_000}))
    with pytest.raises(UpgradeError, match="1 of 3 hosts are not upgraded to 2, such as compute3, so"):
        make_post_upgrade_pass(store, PassRequest("2", fleet=fleet), {"compute"})


def test_an_abort_closes_all_and_a_host_that_writes_all_the_time_too(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, names(compute=4))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 4}}))
    put_record(consul, "compute1", "upgraded", "1")
    writes_all_the_time(consul, store, monkeypatch, "compute1")
    before = store.client.requests
    done = operator.abort(store, operator.Command())
    assert done.hosts == ["compute1", "compute2", "compute3", "compute4"]
    assert OPEN not in gates(consul).values()
    assert store.client.requests - before < 15


def test_many_records_of_the_largest_size_are_put_back_in_writes_that_have_room(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=30))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 30}}))
    done = [f"upgrade/{'x' * 10}{at:04}" for at in range(850)]
    for at in range(1, 31):
        one = {"version": "2", "state": "failed", "error": "\N{SNOWMAN}" * 4000, "done": done}
        consul.put(f"upgrade/hosts/compute{at}", json.dumps(one))
    found = operator.retry(store, operator.Command())
    assert len(found.hosts) == 30
    assert found.remarks == []


@pytest.mark.parametrize("states", [("upgraded", "upgraded"), ("upgraded", "started")])
def test_the_history_does_not_grow_with_every_record(store: Store, consul: RawKV, states: tuple[str, str]) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}, "health": {"soak": 600}}))
    warnings: set[str] = set()
    for at in range(40):
        version = "2" if at % 2 else "1"
        state = states[at % 2] if version == "2" else states[0]
        consul.put(
            "upgrade/hosts/compute1", json.dumps({"version": version, "state": state, "times": {"upgraded": at}})
        )
        warnings |= {*make_pass(store, PassRequest()).warnings}
    entries = [event["what"] for event in history(consul)]
    assert entries.count("publish") <= 5
    assert entries.count("health") <= 20
    assert len(entries) < 30
    if states[1] == "upgraded":
        assert any("No further report is published for compute1 in this rollout: 5 were" in one for one in warnings)


@pytest.mark.parametrize(
    "more",
    [
        {"failure_rules": {"fleet": 1}},
        {"stages": [{"name": "canary", "hosts": ["compute1"], "soak": 600}, {"name": "rest"}]},
    ],
    ids=["budget", "stage"],
)
def test_the_history_does_not_grow_with_every_failure(store: Store, consul: RawKV, more: dict[str, Any]) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}, **more}))
    for at in range(100):
        put_record(consul, "compute1", "upgraded" if at % 2 else "failed", "2")
        make_pass(store, PassRequest())
    entries = [event["what"] for event in history(consul)]
    # The first stage begins, is done once, and is done again 20 times; each time but the last it is left again.
    assert 30 < entries.count("budget") + entries.count("stage") <= 43
    assert entries.count("open") <= 2


def test_the_next_rollout_publishes_again(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=1))
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    for at in range(20):
        put_record(consul, "compute1", "upgraded", "2" if at % 2 else "1")
        make_pass(store, PassRequest())
    make_pass(store, PassRequest("3", {"rolling_rules": {"global": 1}}, replace="2"))
    put_record(consul, "compute1", "upgraded", "3")
    make_pass(store, PassRequest())
    assert consul.get("running/versions/3/compute1") == b"9"
