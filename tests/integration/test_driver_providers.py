# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers as their tasks ask them, on a real Consul: several hosts, roles and runs at the same providers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host import provider
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import FailHost, Settle
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.drivers import Begin, Drivers, admit, admit_apart, end, entry, finish, step
from integration.support.fleet import seed

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web", "app1": "app"}
CLOUD = tuple(
    RunTaskGroup(f"{step}/cloud", step, "cloud", once=False, provider=True) for step in ("prepare", "upgrade")
)
DNS = tuple(RunTaskGroup(f"{step}/dns", step, "dns", once=False, provider=True) for step in ("stop", "upgrade"))
LOCK = "upgrade/once/2/provider/cloud"
# So long, somebody who waits is given to do otherwise (seconds), and somebody who does not wait to be done.
SHORT, LONG = 1.0, 30.0


@pytest.fixture
def drivers(store: Store, consul: RawKV) -> Iterator[Begin]:
    """Begin a rollout to a version, and start drivers for it."""
    seed(consul, FLEET)
    running = Drivers(store, FLEET)

    def begin(
        units: Mapping[str, tuple[RunTaskGroup, ...]] | None = None, version: str = "2", **more: Any
    ) -> PushService:
        return running.begin(units or {"web": CLOUD, "app": CLOUD}, version, **more)

    yield begin
    running.close()


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Do something in a thread of its own."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def waits(future: Future[Any]) -> bool:
    return bool(wait([future], timeout=SHORT).not_done)


def taken_by(consul: RawKV, host: str, key: str = LOCK) -> None:
    """Let a key of what one host does for all be another host's."""
    assert consul.delete(key)
    consul.put(key, json.dumps({"state": "running", "host": host}))


def test_a_failure_that_can_not_be_recorded_keeps_nobody_waiting(drivers: Begin, consul: RawKV) -> None:
    migrate = RunTaskGroup("upgrade/db", "upgrade", "db", once=True)
    driver = drivers({"web": (CLOUD[0], migrate), "app": CLOUD})
    admit_apart(driver, "web1", "web2")
    assert step(driver, "web1", CLOUD[0].name)
    taken_by(consul, "app1")
    with pytest.raises(UpgradeError) as gone:
        driver.fail_host(FailHost("web1", "no disk"))
    assert gone.value.code == "provider_gone"

    consul.put("upgrade/providers/cloud", json.dumps({"version": "2"}))
    assert not step(driver, "web2", CLOUD[0].name)
    assert step(driver, "web2", migrate.name)
    taken_by(consul, "app1", f"upgrade/once/2/{migrate.name}")
    with pytest.raises(UpgradeError) as gone:
        driver.fail_host(FailHost("web2", "no disk"))
    assert gone.value.code == "once_gone"

    for host in ("web1", "web2"):
        found = entry(consul, f"upgrade/hosts/{host}")
        assert (found["state"], found["error"]) == ("failed", "no disk")
        assert consul.get(f"upgrade/drivers/{host}") is None
    assert driver.settle(Settle(("web1", "web2"), SHORT)).can_move is False


def test_a_host_that_waits_for_a_provider_lets_go_of_the_others(
    drivers: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    driver = drivers({"web": (CLOUD[0], *DNS, CLOUD[1]), "app": (CLOUD[0], DNS[0], CLOUD[1], DNS[1])})
    admit_apart(driver, "web1", "app1")
    for host, unit in (("web1", CLOUD[0]), ("app1", DNS[0])):
        assert step(driver, host, unit.name)
        finish(driver, host, unit.name)
    assert entry(consul, LOCK)["host"] == "web1"

    def go(host: str, *units: RunTaskGroup) -> str:
        for unit in units:
            if step(driver, host, unit.name):
                finish(driver, host, unit.name)
        return end(driver, host)

    ways = aside(go, "web1", *DNS, CLOUD[1]), aside(go, "app1", CLOUD[0], CLOUD[1], DNS[1])
    try:
        assert [way.result(LONG) for way in ways] == ["upgraded", "upgraded"]
    finally:
        for name in ("cloud", "dns"):
            consul.put(f"upgrade/providers/{name}", json.dumps({"version": "2"}))
    assert [entry(consul, f"upgrade/providers/{name}")["version"] for name in ("cloud", "dns")] == ["2", "2"]


def test_a_wave_waits_for_a_host_of_another_run(
    drivers: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    other, mine = drivers(), drivers()
    admit(other, "app1")
    admit(mine, "web1", "web2")
    assert step(other, "app1", CLOUD[0].name)
    asking = [aside(step, mine, host, CLOUD[0].name) for host in ("web1", "web2")]
    assert all(waits(one) for one in asking)
    finish(other, "app1", CLOUD[0].name)
    assert [one.result(LONG) for one in asking] == [False, False]
    asking = [aside(step, mine, host, CLOUD[1].name) for host in ("web1", "web2")]
    assert all(waits(one) for one in asking)
    # Its run is gone; one host of the wave goes on, and the other one passes.
    other.close()
    assert sorted(one.result(LONG) for one in asking) == [False, True]
    first = entry(consul, LOCK)["host"]
    finish(mine, first, CLOUD[1].name)
    assert [end(mine, host) for host in ("web1", "web2")] == ["upgraded", "upgraded"]
    assert entry(consul, "upgrade/providers/cloud")["version"] == "2"


def test_in_a_wave_of_two_roles_the_one_whose_files_come_first_goes_on(drivers: Begin, consul: RawKV) -> None:
    driver = drivers()
    admit(driver, *FLEET)
    assert [step(driver, host, CLOUD[0].name) for host in FLEET] == [True, False, False]
    finish(driver, "web1", CLOUD[0].name)
    # The next step, and the other role's file is before that of the role whose host was at it.
    assert step(driver, "app1", CLOUD[1].name)
    finish(driver, "app1", CLOUD[1].name)
    assert [step(driver, host, CLOUD[1].name) for host in ("web1", "web2")] == [False, False]
    assert [end(driver, host) for host in FLEET] == ["upgraded"] * 3
    found = entry(consul, "upgrade/providers/cloud")
    assert (found["version"], found["host"]) == ("2", "app1")


@pytest.mark.parametrize("together", [True, False])
def test_what_tags_choose_of_a_unit_is_done_by_one_host(drivers: Begin, consul: RawKV, *, together: bool) -> None:
    driver = drivers()
    (admit if together else admit_apart)(driver, "web1", "web2")
    unit = CLOUD[0].name
    assert step(driver, "web1", unit, whole=False)
    if together:
        assert not step(driver, "web2", unit, whole=False)
    finish(driver, "web1", unit)
    if not together:
        assert end(driver, "web1") == "partial"
        assert not step(driver, "web2", unit, whole=False)
    assert end(driver, "web2") == "partial"
    if together:
        assert end(driver, "web1") == "partial"
    assert unit not in entry(consul, "upgrade/hosts/web2").get("done", [])
    assert unit not in entry(consul, "upgrade/providers/cloud").get("done", [])


def test_a_lost_session_lets_no_other_host_into_a_unit(
    drivers: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    driver = drivers()
    admit_apart(driver, "web1", "web2")
    assert step(driver, "web1", CLOUD[0].name)
    waiting = aside(step, driver, "web2", CLOUD[0].name)
    consul.call("PUT", f"session/destroy/{driver.session.name}")
    assert consul.get(LOCK) is None
    # Also once the run has a session again, and with it its hosts.
    deadline = time.monotonic() + LONG
    while consul.get("upgrade/drivers/web1") is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert waits(waiting)
    finish(driver, "web1", CLOUD[0].name)
    assert not waiting.result(LONG)
    assert entry(consul, "upgrade/providers/cloud")["done"] == [CLOUD[0].name]


def test_another_rollout_waits_for_the_unit_that_is_under_way(
    drivers: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    first = drivers()
    admit_apart(first, "web1")
    assert step(first, "web1", CLOUD[0].name)
    second = drivers(version="3")
    # A rollout that begins forgets what one host does for all.
    assert consul.get(LOCK) is None
    admit_apart(second, "web2")
    waiting = aside(step, second, "web2", CLOUD[0].name)
    assert waits(waiting)
    finish(first, "web1", CLOUD[0].name)
    assert waiting.result(LONG)
    found = entry(consul, "upgrade/providers/cloud")
    assert (found["target"], found["host"], found["unit"]) == ("3", "web2", CLOUD[0].name)


def test_what_another_rollout_has_taken_on_is_not_written_over(drivers: Begin, consul: RawKV) -> None:
    driver = drivers()
    admit_apart(driver, "web1")
    assert step(driver, "web1", CLOUD[0].name)
    # It thought this run gone, and is through already.
    assert consul.delete(LOCK)
    theirs = {"version": "1.9", "host": "web2", "at": 1}
    consul.put("upgrade/providers/cloud", json.dumps(theirs))
    with pytest.raises(UpgradeError) as gone:
        finish(driver, "web1", CLOUD[0].name)
    assert gone.value.code == "provider_gone"
    assert entry(consul, "upgrade/providers/cloud") == theirs


def overtaken_at(drivers: Begin, consul: RawKV, **more: Any) -> PushService:
    """Return a driver on the way to 2 that has let web1 through, after which the fleet and its cloud got to 3."""
    driver = drivers(**more)
    admit_apart(driver, "web1")
    drivers(version="3")
    consul.put("upgrade/providers/cloud", json.dumps({"version": "3"}))
    return driver


def test_a_run_that_was_overtaken_takes_no_provider_back(drivers: Begin, consul: RawKV) -> None:
    driver = overtaken_at(drivers, consul, providers={"cloud": "1"})
    with pytest.raises(UpgradeError) as caught:
        step(driver, "web1", CLOUD[0].name)
    assert caught.value.code == "overtaken"
    assert caught.value.message == (
        "The fleet should now run '3' instead of '2', so web1 does not continue with the provider cloud."
    )
    assert entry(consul, "upgrade/providers/cloud") == {"version": "3"}
    assert consul.get(LOCK) is None


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_host_with_nothing_left_of_a_provider_brings_it_along_unless_it_was_overtaken(
    drivers: Begin, consul: RawKV, *, is_overtaken: bool
) -> None:
    off_its_way = RunTaskGroup("upgrade/cloud@2", "upgrade", "cloud", once=False, point="cloud@2", provider=True)
    given: dict[str, Any] = {"units": {"web": (off_its_way,), "app": ()}, "providers": {"cloud": "1"}}
    if is_overtaken:
        driver = overtaken_at(drivers, consul, **given)
    else:
        driver = drivers(**given)
        admit_apart(driver, "web1")
        consul.put("upgrade/providers/cloud", json.dumps({"version": "1"}))
    assert end(driver, "web1") == "upgraded"
    assert entry(consul, "upgrade/providers/cloud")["version"] == ("3" if is_overtaken else "2")


@pytest.mark.parametrize("has_units", [True, False])
def test_a_provider_that_is_not_any_more_where_its_way_begins_is_left_alone(
    drivers: Begin, consul: RawKV, *, has_units: bool
) -> None:
    units = CLOUD if has_units else tuple(replace(unit, point="cloud@2") for unit in CLOUD)
    driver = drivers({"web": units, "app": units}, providers={"cloud": "1"})
    admit_apart(driver, "web1")
    consul.put("upgrade/providers/cloud", json.dumps({"version": "1.5"}))
    with pytest.raises(UpgradeError) as caught:
        if has_units:
            step(driver, "web1", CLOUD[0].name)
        else:
            end(driver, "web1")
    assert caught.value.code == "provider_moved"
    assert caught.value.message == (
        "The provider cloud is at 1.5 now, but the upgrade path of this run begins at 1. Run the same command again with "
        "-e retry_failed=true; its upgrade path begins at the new version."
    )
    assert entry(consul, "upgrade/providers/cloud") == {"version": "1.5"}
    assert consul.get(LOCK) is None


def test_a_rollout_that_begins_between_a_look_and_a_write_is_not_passed_over(
    drivers: Begin, consul: RawKV, store: Store
) -> None:
    driver = drivers()
    found = provider.read_provider(store, "2", "cloud", "web1", driver.session.name)
    drivers(version="3")
    unit = CLOUD[0].name
    assert not provider.ProviderUpgrade("cloud", "2", "web1", driver.session.name, [unit], "1").begin(
        store, unit, found
    )
    assert consul.get("upgrade/providers/cloud") is None
