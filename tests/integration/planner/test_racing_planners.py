# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Four planners race while nodes start, fail and report: no cap is exceeded at any index, and the order holds."""

from __future__ import annotations

import json
import os
import random

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, history, ledger, names, seed
from integration.support.processes.nodes import be_nodes, be_planner, end_of, spawn
from integration.support.processes.watcher import Timeline, View, Watcher, read

pytestmark = pytest.mark.one_release

FLEET = names(controller=4, compute=20, storage=8, web=8)
GROUP = ("compute", "storage")
RULES = {
    "rolling_rules": {"global": 2, "roles": {"data": 5, "compute": 4, "web": "40%"}, "fleet": 7},
    "role_order": {"data": "controller"},
    "group_mappings": {"data": ["compute$", "storage$"]},
}
CAPS = {("controller",): 2, GROUP: 5, ("compute",): 4, ("web",): 3, ("controller", "compute", "storage", "web"): 7}


def check(view: View) -> None:
    """Count hosts that are down: those with an open gate, or one that has started, until its report of version 2."""
    if view.get("current_version") != "2":
        return
    assert view[f"{GATES}/global"] == "False"
    assert not [key for key in view if key.startswith(f"{GATES}/role/")]
    done = {host for host in FLEET if f"running/versions/2/{host}" in view}
    down = {host for host in FLEET if view.get(f"{GATES}/host/{host}") == "True"} - done
    down |= {host for host in FLEET if f"upgrade/hosts/{host}" in view} - done
    for roles, cap in CAPS.items():
        found = sorted(host for host in down if FLEET[host] in roles)
        assert len(found) <= cap, f"{len(found)} of {roles} are down, {cap} may be: {found}"
    if not done >= {host for host, role in FLEET.items() if role == "controller"}:
        early = [host for host in down | done if FLEET[host] in GROUP]
        assert not early, f"down or done before the controllers: {early}"
    if "upgrade/ledger" in view:
        epoch = json.loads(view["upgrade/ledger"])["epoch"]
        assert all(f"upgrade/history/{number}" in view for number in range(1, epoch + 1)), f"a gap below epoch {epoch}"
        assert f"upgrade/history/{epoch + 1}" not in view


def races() -> list[int]:
    """Return the seeds: one again each time, or the one that CONVOY_TEST_SEED repeats."""
    given = os.environ.get("CONVOY_TEST_SEED")
    # Processes that share the tests have to find the same ones, so they draw from what is again for all of them together.
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    chance = random.Random(shared) if shared else random.SystemRandom()
    return [int(given)] if given else [chance.randrange(10**6)]


@pytest.mark.parametrize("number", races(), ids=lambda number: f"CONVOY_TEST_SEED={number}")
def test_four_planners_race_and_no_cap_is_exceeded(store: Store, consul: RawKV, number: int) -> None:
    seed(consul, FLEET)
    hosts = list(FLEET)
    random.Random(number).shuffle(hosts)
    with Watcher(consul, check) as watcher:
        nodes = [
            spawn(be_nodes, store.settings, {host: FLEET[host] for host in part}, "2", number + at)
            for at, part in enumerate((hosts[::2], hosts[1::2]))
        ]
        planners = [spawn(be_planner, store.settings, "2", RULES, None) for _each in range(4)]
        codes = end_of([*planners, *nodes], 60)
        assert codes == [0] * 6, f"exit codes {codes}, seed {number}, {sorted(read(consul)[1])}"
    assert watcher.views > 20
    _index, keys = read(consul)
    timeline = Timeline(keys, "2", FLEET)
    assert set(timeline.opened) == set(timeline.ended) == set(FLEET)
    for roles, cap in CAPS.items():
        assert timeline.most_at_once(roles) <= cap, f"{roles}, seed {number}"
    assert timeline.most_at_once(list(FLEET.values())) > 3
    timeline.check_order("compute", "controller")
    timeline.check_order("storage", "controller")
    events = history(consul)
    assert [event["what"] for event in events].count("begin") == 1
    assert [event["what"] for event in events].count("complete") == 1
    assert ledger(consul)["state"] == "complete"
