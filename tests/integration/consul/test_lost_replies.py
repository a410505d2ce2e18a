# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transactions whose reply, or which themselves, are lost: nothing is written twice, and nothing is recorded twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, record, seed
from integration.support.processes.proxy import LOSE_REPLY, LOSE_REQUEST, PASS, LossyProxy
from integration.support.runs.playbook import Runner, plan

pytestmark = pytest.mark.one_release

FLEET = names(compute=150)
RULES = {"rolling_rules": {"global": 150}}
REQUEST = PassRequest(version="2", rules=RULES)


@contextmanager
def lossy(agent: Agent, fates: Sequence[str]) -> Iterator[tuple[LossyProxy, Store]]:
    with LossyProxy(agent.http_port, fates) as proxy:
        yield proxy, Store(Settings(port=proxy.port, timeout=2))


@pytest.mark.parametrize(
    "fates",
    [
        [LOSE_REPLY],
        [PASS, LOSE_REPLY],
        [PASS, PASS, LOSE_REPLY],
        [LOSE_REPLY] * 4,
        [LOSE_REQUEST],
        [PASS, LOSE_REQUEST],
        [PASS, PASS, LOSE_REQUEST, LOSE_REPLY],
    ],
    ids=", ".join,
)
def test_nothing_is_written_or_recorded_twice(agent: Agent, consul: RawKV, fates: list[str]) -> None:
    seed(consul, FLEET)
    with lossy(agent, fates) as (proxy, store):
        outcome = make_pass(store, REQUEST)
        assert not proxy.fates
    assert sorted(one.host for one in outcome.admissions) == sorted(FLEET)
    assert [times for times in Counter(opened(history(consul))).values() if times != 1] == []
    assert [event["what"] for event in history(consul)] == ["begin", *["open"] * 5]
    assert len({event["commit"] for event in history(consul)}) == 6
    assert proxy.writes <= 6 + len(fates)
    assert gates(consul) == {"global": "False", **{f"host/{host}": "True" for host in FLEET}}
    assert outcome.ledger is not None and outcome.ledger.epoch == ledger(consul)["epoch"] == 6


@pytest.mark.parametrize("fates", [[LOSE_REPLY], [LOSE_REQUEST], [LOSE_REQUEST, LOSE_REPLY]], ids=", ".join)
def test_a_start_is_written_once(agent: Agent, consul: RawKV, fates: list[str]) -> None:
    seed(consul, names(compute=2))
    make_pass(Store(Settings(port=agent.http_port)), PassRequest("2", {"rolling_rules": {"global": 1}}))
    with lossy(agent, fates) as (proxy, store):
        found, _changes = write_report(store, HostReport("compute1", "2", "started", role="compute"))
        assert not proxy.fates
    assert (found.state, found.attempt) == ("started", 1)
    stored = record(consul, "compute1")
    assert (stored["state"], stored["attempt"], [*stored["times"]]) == ("started", 1, ["started"])


def test_a_start_whose_reply_was_lost_is_undone_if_a_gate_was_created_meanwhile(agent: Agent, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    make_pass(Store(Settings(port=agent.http_port)), PassRequest("2", {"rolling_rules": {"global": 1}}))
    with lossy(agent, [LOSE_REPLY]) as (proxy, store):

        def close() -> None:
            if proxy.writes == 1:
                # A key that the start depends on. Whether it came before or after the start can't be seen any more.
                consul.put("upgrade/hold/host/compute1", json.dumps({"reason": "disk", "by": "ann", "at": 1}))

        proxy.after_write = close
        with pytest.raises(UpgradeError, match="held by ann"):
            write_report(store, HostReport("compute1", "2", "started", role="compute"))
    assert consul.get("upgrade/hosts/compute1") is None


def test_a_start_whose_undo_is_lost_keeps_its_slot_and_begins_only_when_the_host_may(
    agent: Agent, consul: RawKV
) -> None:
    seed(consul, names(compute=2))
    direct = Store(Settings(port=agent.http_port))
    rules = {"rolling_rules": {"global": 1}}
    make_pass(direct, PassRequest("2", rules))
    report = HostReport("compute1", "2", "started", role="compute")
    hold = "upgrade/hold/host/compute1"
    with lossy(agent, [LOSE_REPLY, LOSE_REQUEST]) as (proxy, store):

        def close() -> None:
            if proxy.writes == 1:
                consul.put(hold, json.dumps({"reason": "disk", "by": "ann", "at": 1}))

        proxy.after_write = close
        # The agent run fails here, before anything is done on the host.
        with pytest.raises(Unreachable):
            write_report(store, report)
        assert not proxy.fates
    assert record(consul, "compute1")["state"] == "started"
    assert not make_pass(direct, PassRequest()).admissions
    with pytest.raises(UpgradeError, match="held by ann"):
        write_report(direct, report)
    consul.delete(hold)
    found, _changes = write_report(direct, report)
    assert (found.state, found.attempt) == ("started", 1)


def test_the_module_reports_each_admission_once(run: Runner, agent: Agent, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    with LossyProxy(agent.http_port, [PASS, LOSE_REPLY]) as proxy:
        (result,) = run([plan(version="2", instructions={"rolling_rules": {"global": 2}}, port=proxy.port)])
    assert [one["host"] for one in result["transitions"]] == ["compute1", "compute2"]
    assert result["epoch"] == ledger(consul)["epoch"] == 2
    assert "config_state/enable_puppet/host/compute2 = True" in result["diff"]["after"]


def test_others_may_write_on_top_before_the_loss_is_noticed(agent: Agent, consul: RawKV) -> None:
    seed(consul, FLEET)
    with lossy(agent, [PASS, LOSE_REPLY]) as (proxy, store):
        others: list[str] = []

        def other() -> None:
            if proxy.writes == 2:
                found = make_pass(Store(Settings(port=agent.http_port)), PassRequest())
                others.extend(one.host for one in found.admissions)

        proxy.after_write = other
        outcome = make_pass(store, REQUEST)
    mine = [one.host for one in outcome.admissions]
    assert (len(mine), len(others)) == (30, 120)
    assert sorted(mine + others) == sorted(FLEET)
    assert sorted(opened(history(consul))) == sorted(FLEET)


def test_a_consul_that_stays_away_is_reported_and_the_next_pass_goes_on(agent: Agent, consul: RawKV) -> None:
    seed(consul, FLEET)
    proxy = LossyProxy(agent.http_port, [PASS, LOSE_REPLY])
    with proxy:
        store = Store(Settings(port=proxy.port, timeout=0.3))

        def go_away() -> None:
            proxy.loses_all = proxy.writes == 2

        proxy.after_write = go_away
        with pytest.raises(Unreachable, match="can't be reached"):
            make_pass(store, REQUEST)
    assert len(opened(history(consul))) == 30
    outcome = make_pass(Store(Settings(port=agent.http_port)), REQUEST)
    assert len(outcome.admissions) == 120
    assert len(history(consul)) == ledger(consul)["epoch"] == 6


def test_a_report_whose_reply_was_lost_is_found_done(agent: Agent, consul: RawKV) -> None:
    seed(consul, ["compute1"])
    with lossy(agent, [PASS, LOSE_REPLY]) as (_proxy, store):
        write_report(store, HostReport("compute1", "2", "started"))
        _record, changes = write_report(store, HostReport("compute1", "2", "upgraded"))
        assert changes
        _record, changes = write_report(store, HostReport("compute1", "2", "upgraded"))
    assert changes == []
    assert record(consul, "compute1")["attempt"] == 1
    assert set(consul.tree("running/")) == {"running/versions/2/compute1"}


def test_a_gate_whose_reply_was_lost_is_found_set(agent: Agent, consul: RawKV) -> None:
    with lossy(agent, [LOSE_REPLY]) as (_proxy, store):
        assert len(set_gate(store, "role", "compute", value=True)) == 1
        assert set_gate(store, "role", "compute", value=True) == []
    assert gates(consul) == {"role/compute": "True"}
