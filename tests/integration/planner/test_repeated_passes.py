# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The passes of a process that waits: what wakes it, and what gathers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.repeated_passes import RepeatedPasses
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed

pytestmark = pytest.mark.one_release

LONG = 30.0


@pytest.fixture
def passes(store: Store, consul: RawKV) -> Iterator[RepeatedPasses]:
    """A rollout of 40 hosts, of which 20 are admitted; everything that has changed since is seen."""
    seed(consul, names(web=40))
    found = RepeatedPasses(store.settings)
    found.first(PassRequest(version="2", rules={"rolling_rules": {"global": 20}}))
    _rest(found)
    yield found
    found.close()


def _rest(passes: RepeatedPasses) -> int:
    """Make passes until nothing changes any more; return their number."""
    made = 0
    while passes.wait(1):
        passes.next()
        made += 1
    return made


def _admitted(passes: RepeatedPasses) -> list[str]:
    assert passes.latest is not None
    return [one.host for one in passes.latest.admissions]


def test_the_end_of_a_host_admits_the_next_one_in_the_very_next_pass(passes: RepeatedPasses, store: Store) -> None:
    write_report(store, HostReport("web1", "2", "started", role="web", default=False))
    write_report(store, HostReport("web1", "2", "upgraded"))
    assert passes.wait(LONG)
    passes.next()
    assert _admitted(passes) == ["web21"]


@pytest.mark.thorough
def test_many_starts_share_a_pass_or_two(passes: RepeatedPasses, store: Store) -> None:
    for number in range(1, 21):
        write_report(store, HostReport(f"web{number}", "2", "started", role="web", default=False))
    assert 1 <= _rest(passes) < 10
    assert _admitted(passes) == []


@pytest.mark.thorough
def test_a_planners_own_write_makes_one_further_pass_at_most(passes: RepeatedPasses, store: Store) -> None:
    write_report(store, HostReport("web1", "2", "started", role="web", default=False))
    write_report(store, HostReport("web1", "2", "upgraded"))
    assert passes.wait(LONG)
    passes.next()
    assert _rest(passes) <= 2


def test_a_command_of_an_operator_wakes_it(passes: RepeatedPasses, consul: RawKV) -> None:
    consul.put("upgrade/hold/role/web", '{"reason": "lunch", "by": "ann"}')
    assert passes.wait(LONG)
    assert passes.next().plan.hosts["web40"].state == "held"


@pytest.mark.thorough
def test_the_first_legacy_report_wakes_it_too(passes: RepeatedPasses, consul: RawKV) -> None:
    # While no other key is in a legacy place.
    consul.put("upgrade/schema", "1")
    _rest(passes)
    consul.put("running_version/2/web1", "2000000000")
    assert passes.wait(LONG)
    assert passes.next().plan.hosts["web1"].state == "upgraded"


@pytest.mark.thorough
def test_a_clock_that_is_set_back_delays_no_pass(passes: RepeatedPasses, store: Store) -> None:
    class Ahead(runtime.Runtime):
        def now(self) -> float:
            return super().now() + 3600

    before = runtime.use(Ahead())
    try:
        soaking = {"rolling_rules": {"global": 20}, "health": {"soak": 4}}
        passes.first(PassRequest(version="2", rules=soaking))
        write_report(store, HostReport("web1", "2", "started", role="web", default=False))
        write_report(store, HostReport("web1", "2", "upgraded"))
        while passes.wait(0.8):
            passes.next()
        assert passes.latest is not None
        assert passes.latest.plan.hosts["web1"].state == "upgrading"
    finally:
        runtime.use(before)
    # What the plan waits for is an hour away by the clock, and seconds by the time that passes.
    assert passes.wait(LONG)
    # By the clock as it is now, the soak has only begun.
    while passes.next().plan.hosts["web1"].state != "upgraded":
        assert passes.wait(LONG)


def test_a_pass_that_only_has_to_note_a_recovery_later_wakes_for_that(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    # No host is admitted, so nothing else has a time.
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    now = int(time.time())
    stopped = {**ledger(consul), "stopped": ["failure_rules.fleet"], "recoveries": 99, "recovered_at": now}
    consul.put("upgrade/ledger", json.dumps(stopped))
    assert make_pass(store, PassRequest()).plan.wake_at == now + 600
