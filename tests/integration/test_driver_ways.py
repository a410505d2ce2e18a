# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers as their tasks ask them, on a real Consul: hosts that are not any more where their ways begin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import Admit, AdmitWave, FailHost
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.drivers import Drivers, admit, admit_apart, end, entry, finish, step
from integration.support.fleet import gates, seed

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web"}
TO_3, TO_4 = (
    RunTaskGroup(f"upgrade/shop@{point}", "upgrade", "shop", once=False, point=f"shop@{point}") for point in "34"
)
OWN = RunTaskGroup("start/shop", "start", "shop", once=False)
UNITS = {"web": (TO_3, TO_4, OWN)}
FROM_1 = {"ways": {"web1": [TO_3.point, TO_4.point]}, "origins": {"web1": "1"}}
AT_3 = "it is at 3 by now, and this run worked out its way from 1; run the same command again"


@pytest.fixture
def drivers(store: Store, consul: RawKV) -> Iterator[Drivers]:
    seed(consul, FLEET)
    found = Drivers(store, FLEET)
    yield found
    found.close()


@pytest.fixture
def first(drivers: Drivers) -> PushService:
    """Let web1 be midway from 1 to 3, in a run that is at work."""
    driver = drivers.begin(UNITS, "3", ways={"web1": [TO_3.point]}, origins={"web1": "1"})
    admit_apart(driver, "web1")
    assert step(driver, "web1", TO_3.name)
    finish(driver, "web1", TO_3.name)
    return driver


def ends(driver: PushService) -> None:
    assert step(driver, "web1", OWN.name)
    assert end(driver, "web1") == "upgraded"


@pytest.mark.parametrize("together", [True, False])
def test_a_host_that_another_run_brought_elsewhere_does_not_go_its_old_way(
    drivers: Drivers, first: PushService, consul: RawKV, *, together: bool
) -> None:
    second = drivers.begin(UNITS, "4", **FROM_1)
    ends(first)
    record = consul.get("upgrade/hosts/web1")
    answer = second.admit_wave(AdmitWave(("web1",)))["web1"] if together else second.admit(Admit("web1"))
    assert not answer.go
    assert answer.reason == AT_3
    assert consul.get("upgrade/hosts/web1") == record
    assert consul.get("upgrade/drivers/web1") is None
    if together:
        # A wave is looked at before it is let through.
        assert gates(consul).get("host/web1") != "True"
    # The same command again works out its way from there.
    again = drivers.start(UNITS, "4", ways={"web1": [TO_4.point]}, origins={"web1": "3"})
    (admit if together else admit_apart)(again, "web1")
    assert [step(again, "web1", unit.name) for unit in UNITS["web"]] == [False, True, True]
    assert entry(consul, "upgrade/hosts/web1")["origin"] == "3"


def test_a_host_that_is_midway_still_goes_on_from_where_it_came(
    drivers: Drivers, first: PushService, consul: RawKV
) -> None:
    second = drivers.begin(UNITS, "4", **FROM_1)
    first.fail_host(FailHost("web1", "no disk"))
    admit(second, "web1")
    assert [step(second, "web1", unit.name) for unit in UNITS["web"]] == [False, True, True]
    assert entry(consul, "upgrade/hosts/web1")["origin"] == "1"
