# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planner that reaches Consul slowly: it begins no rollout and admits no host, and reports how slow it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.command import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import roll_back
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.opened_gates import MOST_ADMISSIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, names, seed
from integration.support.processes.proxy import LossyProxy
from integration.support.processes.watcher import read
from integration.support.runs.shipped import Shipped
from thorough import quick

pytestmark = pytest.mark.one_release

FLEET = names(compute=3)
ONE_BY_ONE = {"rolling_rules": {"global": 1}}


@pytest.fixture
def proxy(agent: Agent) -> Iterator[LossyProxy]:
    with LossyProxy(agent.http_port) as running:
        yield running


def slow(proxy: LossyProxy) -> Store:
    """Return a store whose reads take longer than its limit."""
    proxy.delay = 0.4
    return Store(Settings(port=proxy.port, pass_limit=0.3))


def begin(store: Store, consul: RawKV) -> None:
    """Begin a rollout of the fleet, one host after the other."""
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", ONE_BY_ONE))


def upgrade_all(store: Store, consul: RawKV) -> None:
    """Begin a rollout, and let every host report that it is upgraded. No pass follows."""
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 3}}))
    for host in FLEET:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))


@pytest.mark.thorough
@pytest.mark.parametrize("dry", quick(1, [False, True]))
def test_requests_that_take_six_seconds_begin_nothing(consul: RawKV, proxy: LossyProxy, dry: bool) -> None:
    seed(consul, FLEET)
    before = read(consul)[1]
    proxy.delay = proxy.write_delay = 6
    with pytest.raises(UpgradeError) as caught:
        make_pass(Store(Settings(port=proxy.port)), PassRequest("2", ONE_BY_ONE), dry=dry, most_slow=1)
    assert caught.value.code == "too_slow"
    (seconds,) = caught.value.details["seconds"]
    assert 6 <= seconds < 9
    assert (
        f"planning took {seconds:.1f} s, and at most 5 s may pass before hosts are admitted (pass_limit)"
        in caught.value.message
    )
    assert (read(consul)[1], proxy.writes, proxy.reads) == (before, 0, 1)


def test_three_slow_tries_are_enough_and_say_what_limit_would_do(consul: RawKV, proxy: LossyProxy) -> None:
    seed(consul, FLEET)
    before = read(consul)[1]
    with pytest.raises(UpgradeError, match=r"took 0\.\d s, 0\.\d s, 0\.\d s, and") as caught:
        make_pass(slow(proxy), PassRequest("2", ONE_BY_ONE))
    assert caught.value.code == "too_slow"
    assert caught.value.details["variables"] == {"upgrade_consul_pass_limit": "1"}
    assert (read(consul)[1], proxy.writes, proxy.reads) == (before, 0, 3)
    allowed = Store(Settings(port=proxy.port, pass_limit=10))
    assert [one.host for one in make_pass(allowed, PassRequest("2", ONE_BY_ONE)).admissions] == ["compute1"]


def test_a_planner_that_becomes_slow_admits_no_further_host(store: Store, consul: RawKV, proxy: LossyProxy) -> None:
    begin(store, consul)
    before = gates(consul)
    with pytest.raises(UpgradeError) as caught:
        make_pass(slow(proxy), PassRequest(rules={"rolling_rules": {"global": 2}}))
    assert caught.value.code == "too_slow"
    assert gates(consul) == before == {"global": "False", "host/compute1": "True"}


def test_a_slow_planner_with_nothing_to_admit_is_not_refused(store: Store, consul: RawKV, proxy: LossyProxy) -> None:
    begin(store, consul)
    assert make_pass(slow(proxy), PassRequest()).admissions == []


def test_a_planner_that_becomes_slow_opens_no_global_gate(store: Store, consul: RawKV, proxy: LossyProxy) -> None:
    upgrade_all(store, consul)
    before = gates(consul)
    with pytest.raises(UpgradeError) as caught:
        make_pass(slow(proxy), PassRequest(converge=True))
    assert caught.value.code == "too_slow"
    assert gates(consul) == before
    make_pass(store, PassRequest(converge=True))
    assert gates(consul) == {"global": "True"}


@pytest.mark.thorough
def test_a_pass_that_gets_on_is_tried_for_as_long_as_it_does(consul: RawKV, proxy: LossyProxy) -> None:
    fleet = names(compute=4 * MOST_ADMISSIONS)
    seed(consul, fleet)
    proxy.write_delay = 1.2
    # Each try has time for one write: the first begins, and each of the others admits as many hosts as a write has room for.
    outcome = make_pass(
        Store(Settings(port=proxy.port, pass_limit=1)), PassRequest("2", {"rolling_rules": {"global": len(fleet)}})
    )
    assert len(outcome.admissions) == len(fleet)
    assert [event["what"] for event in history(consul)] == ["begin", *["open"] * 4]


@pytest.mark.thorough
def test_a_rollback_does_not_begin_either(store: Store, consul: RawKV, proxy: LossyProxy) -> None:
    begin(store, consul)
    before = read(consul)[1]
    with pytest.raises(UpgradeError) as caught:
        roll_back(slow(proxy), Command("ops", "too many errors"))
    assert caught.value.code == "too_slow"
    assert read(consul)[1] == before


@pytest.mark.thorough
def test_post_upgrade_tasks_are_refused_likewise(store: Store, consul: RawKV, proxy: LossyProxy) -> None:
    upgrade_all(store, consul)
    make_pass(store, PassRequest())
    before = read(consul)[1]
    with pytest.raises(UpgradeError, match="Reading the fleet and planning took") as caught:
        make_post_upgrade_pass(slow(proxy), PassRequest("2", fleet=FLEET), {"compute"})
    assert caught.value.code == "too_slow"
    assert read(consul)[1] == before


@pytest.mark.thorough
def test_the_playbook_reports_each_try_and_how_to_allow_it(play: Shipped, consul: RawKV, proxy: LossyProxy) -> None:
    seed(consul, FLEET)
    before = read(consul)[1]
    proxy.delay = 0.8
    given = {"version": "2", "instructions": ONE_BY_ONE, "upgrade_consul_port": proxy.port}
    done = play("upgrade", upgrade_consul_pass_limit=0.7, **given)
    assert done.returncode != 0
    assert done.stdout.count("at most 0.7 s are allowed. Trying again.") == 2
    assert "-e upgrade_consul_pass_limit=2" in done.stdout.rpartition("Next: ")[2]
    assert read(consul)[1] == before
