# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services with a real Consul: several hosts, roles and runs upgrade the same providers."""

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
from integration.support.processes.push_services import (
    Begin,
    admit,
    admit_apart,
    end,
    entry,
    finish,
    push_services,
    step,
)

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web", "app1": "app"}
CLOUD = tuple(
    RunTaskGroup(f"{step}/cloud", step, "cloud", once=False, provider=True) for step in ("prepare", "upgrade")
)
DNS = tuple(RunTaskGroup(f"{step}/dns", step, "dns", once=False, provider=True) for step in ("stop", "upgrade"))
LOCK = "upgrade/once/2/provider/cloud"
# A host that still waits after SHORT seconds counts as waiting. A host that does not wait is done within LONG seconds.
SHORT, LONG = 1.0, 30.0


@pytest.fixture
def services(store: Store, consul: RawKV) -> Iterator[Begin]:
    """Begins a rollout to a version and starts a push service for it."""
    with push_services(store, consul, FLEET) as running:

        def begin(
            task_groups: Mapping[str, tuple[RunTaskGroup, ...]] | None = None, version: str = "2", **more: Any
        ) -> PushService:
            return running.begin(task_groups or {"web": CLOUD, "app": CLOUD}, version, **more)

        yield begin


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Runs a function in a thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def waits(future: Future[Any]) -> bool:
    return bool(wait([future], timeout=SHORT).not_done)


def taken_by(consul: RawKV, host: str, key: str = LOCK) -> None:
    """Make another host the holder of a lock."""
    assert consul.delete(key)
    consul.put(key, json.dumps({"state": "running", "host": host}))


def test_after_a_failure_that_can_not_be_recorded_no_host_waits(services: Begin, consul: RawKV) -> None:
    migrate = RunTaskGroup("upgrade/db", "upgrade", "db", once=True)
    service = services({"web": (CLOUD[0], migrate), "app": CLOUD})
    admit_apart(service, "web1", "web2")
    assert step(service, "web1", CLOUD[0].name)
    taken_by(consul, "app1")
    with pytest.raises(UpgradeError) as gone:
        service.fail_host(FailHost("web1", "no disk"))
    assert gone.value.code == "provider_gone"

    consul.put("upgrade/providers/cloud", json.dumps({"version": "2"}))
    assert not step(service, "web2", CLOUD[0].name)
    assert step(service, "web2", migrate.name)
    taken_by(consul, "app1", f"upgrade/once/2/{migrate.name}")
    with pytest.raises(UpgradeError) as gone:
        service.fail_host(FailHost("web2", "no disk"))
    assert gone.value.code == "once_gone"

    for host in ("web1", "web2"):
        found = entry(consul, f"upgrade/hosts/{host}")
        assert (found["state"], found["error"]) == ("failed", "no disk")
        assert consul.get(f"upgrade/drivers/{host}") is None
    assert service.settle(Settle(("web1", "web2"), SHORT)).can_move is False


def test_a_host_that_waits_for_a_provider_releases_the_others(
    services: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    service = services({"web": (CLOUD[0], *DNS, CLOUD[1]), "app": (CLOUD[0], DNS[0], CLOUD[1], DNS[1])})
    admit_apart(service, "web1", "app1")
    for host, task_group in (("web1", CLOUD[0]), ("app1", DNS[0])):
        assert step(service, host, task_group.name)
        finish(service, host, task_group.name)
    assert entry(consul, LOCK)["host"] == "web1"

    def go(host: str, *task_groups: RunTaskGroup) -> str:
        for task_group in task_groups:
            if step(service, host, task_group.name):
                finish(service, host, task_group.name)
        return end(service, host)

    results = aside(go, "web1", *DNS, CLOUD[1]), aside(go, "app1", CLOUD[0], CLOUD[1], DNS[1])
    try:
        assert [one.result(LONG) for one in results] == ["upgraded", "upgraded"]
    finally:
        for name in ("cloud", "dns"):
            consul.put(f"upgrade/providers/{name}", json.dumps({"version": "2"}))
    assert [entry(consul, f"upgrade/providers/{name}")["version"] for name in ("cloud", "dns")] == ["2", "2"]


@pytest.mark.thorough
def test_a_wave_waits_for_a_host_of_another_run(
    services: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    other, mine = services(), services()
    admit(other, "app1")
    admit(mine, "web1", "web2")
    assert step(other, "app1", CLOUD[0].name)
    asking = [aside(step, mine, host, CLOUD[0].name) for host in ("web1", "web2")]
    assert all(waits(one) for one in asking)
    finish(other, "app1", CLOUD[0].name)
    assert [one.result(LONG) for one in asking] == [False, False]
    asking = [aside(step, mine, host, CLOUD[1].name) for host in ("web1", "web2")]
    assert all(waits(one) for one in asking)
    # Once that run is gone, one host of the wave runs the task group for both.
    other.close()
    assert sorted(one.result(LONG) for one in asking) == [False, True]
    first = entry(consul, LOCK)["host"]
    finish(mine, first, CLOUD[1].name)
    assert [end(mine, host) for host in ("web1", "web2")] == ["upgraded", "upgraded"]
    assert entry(consul, "upgrade/providers/cloud")["version"] == "2"


def test_in_a_wave_of_two_roles_the_first_role_runs_the_next_task_group(services: Begin, consul: RawKV) -> None:
    service = services()
    admit(service, *FLEET)
    assert [step(service, host, CLOUD[0].name) for host in FLEET] == [True, False, False]
    finish(service, "web1", CLOUD[0].name)
    # In the next step, the tasks of the other role come first.
    assert step(service, "app1", CLOUD[1].name)
    finish(service, "app1", CLOUD[1].name)
    assert [step(service, host, CLOUD[1].name) for host in ("web1", "web2")] == [False, False]
    assert [end(service, host) for host in FLEET] == ["upgraded"] * 3
    found = entry(consul, "upgrade/providers/cloud")
    assert (found["version"], found["host"]) == ("2", "app1")


@pytest.mark.parametrize("in_wave", [True, False])
def test_one_host_runs_the_selected_part_of_a_task_group(services: Begin, consul: RawKV, *, in_wave: bool) -> None:
    service = services()
    (admit if in_wave else admit_apart)(service, "web1", "web2")
    task_group = CLOUD[0].name
    assert step(service, "web1", task_group, whole=False)
    if in_wave:
        assert not step(service, "web2", task_group, whole=False)
    finish(service, "web1", task_group)
    if not in_wave:
        assert end(service, "web1") == "partial"
        assert not step(service, "web2", task_group, whole=False)
    assert end(service, "web2") == "partial"
    if in_wave:
        assert end(service, "web1") == "partial"
    assert task_group not in entry(consul, "upgrade/hosts/web2").get("done", [])
    assert task_group not in entry(consul, "upgrade/providers/cloud").get("done", [])


def test_what_ends_just_after_the_session_is_recorded(services: Begin, consul: RawKV) -> None:
    service = services()
    admit_apart(service, "web1", "web2")
    assert step(service, "web1", CLOUD[0].name)
    consul.call("PUT", f"session/destroy/{service.session.name}")
    finish(service, "web1", CLOUD[0].name)
    assert entry(consul, "upgrade/providers/cloud")["done"] == [CLOUD[0].name]
    assert not step(service, "web2", CLOUD[0].name)


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_failed_here_is_not_tried_again_if_that_could_not_be_written(
    services: Begin, consul: RawKV, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    service = services()
    admit_apart(service, "web1", "web2")
    assert step(service, "web1", CLOUD[0].name)

    def unreachable(_upgrade: provider.ProviderUpgrade, _store: Store, _error: str) -> None:
        raise UpgradeError("unreachable", "Consul can't be reached.")

    with monkeypatch.context() as during:
        during.setattr(provider.ProviderUpgrade, "fail", unreachable)
        with pytest.raises(UpgradeError, match="Consul can't be reached"):
            service.fail_host(FailHost("web1", "no disk"))
    if is_lost:
        assert consul.delete(LOCK)
    with pytest.raises(UpgradeError, match="that could not be written to Consul") as caught:
        step(service, "web2", CLOUD[0].name)
    assert caught.value.code == "provider_failed"


@pytest.mark.thorough
def test_after_a_lost_session_no_other_host_runs_the_same_task_group(
    services: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    service = services()
    admit_apart(service, "web1", "web2")
    assert step(service, "web1", CLOUD[0].name)
    waiting = aside(step, service, "web2", CLOUD[0].name)
    consul.call("PUT", f"session/destroy/{service.session.name}")
    assert consul.get(LOCK) is None
    # Also after the run has a new session with its leases.
    deadline = time.monotonic() + LONG
    while consul.get("upgrade/drivers/web1") is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert waits(waiting)
    finish(service, "web1", CLOUD[0].name)
    assert not waiting.result(LONG)
    assert entry(consul, "upgrade/providers/cloud")["done"] == [CLOUD[0].name]


def test_another_rollout_waits_for_the_current_task_group(
    services: Begin, consul: RawKV, aside: Callable[..., Future[Any]]
) -> None:
    first = services()
    admit_apart(first, "web1")
    assert step(first, "web1", CLOUD[0].name)
    second = services(version="3")
    # A rollout that begins leaves the lock of one that a run works on. The lock of its own version is another one.
    assert entry(consul, LOCK)["host"] == "web1"
    assert consul.get(LOCK.replace("once/2/", "once/3/")) is None
    admit_apart(second, "web2")
    waiting = aside(step, second, "web2", CLOUD[0].name)
    assert waits(waiting)
    finish(first, "web1", CLOUD[0].name)
    assert waiting.result(LONG)
    found = entry(consul, "upgrade/providers/cloud")
    assert (found["target"], found["host"], found["task_group"]) == ("3", "web2", CLOUD[0].name)


def test_the_key_of_another_rollout_is_not_overwritten(services: Begin, consul: RawKV) -> None:
    service = services()
    admit_apart(service, "web1")
    assert step(service, "web1", CLOUD[0].name)
    # The other rollout has finished, after this run had lost its lock.
    assert consul.delete(LOCK)
    theirs = {"version": "1.9", "host": "web2", "at": 1}
    consul.put("upgrade/providers/cloud", json.dumps(theirs))
    with pytest.raises(UpgradeError) as gone:
        finish(service, "web1", CLOUD[0].name)
    assert gone.value.code == "provider_gone"
    assert entry(consul, "upgrade/providers/cloud") == theirs


def overtaken_at(services: Begin, consul: RawKV, **more: Any) -> PushService:
    """Return a push service that admitted web1 to 2, after which the fleet and its cloud went to 3."""
    service = services(**more)
    admit_apart(service, "web1")
    services(version="3")
    consul.put("upgrade/providers/cloud", json.dumps({"version": "3"}))
    return service


def test_an_overtaken_run_does_not_downgrade_a_provider(services: Begin, consul: RawKV) -> None:
    service = overtaken_at(services, consul, providers={"cloud": "1"})
    with pytest.raises(UpgradeError) as caught:
        step(service, "web1", CLOUD[0].name)
    assert caught.value.code == "overtaken"
    assert caught.value.message == (
        "The fleet should now run '3' instead of '2', so web1 does not continue with the provider cloud."
    )
    assert entry(consul, "upgrade/providers/cloud") == {"version": "3"}
    assert consul.get(LOCK) is None


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_host_without_task_groups_of_a_provider_records_its_version_unless_overtaken(
    services: Begin, consul: RawKV, *, is_overtaken: bool
) -> None:
    off_path = RunTaskGroup("upgrade/cloud@2", "upgrade", "cloud", once=False, checkpoint="cloud@2", provider=True)
    given: dict[str, Any] = {"task_groups": {"web": (off_path,), "app": ()}, "providers": {"cloud": "1"}}
    if is_overtaken:
        service = overtaken_at(services, consul, **given)
    else:
        service = services(**given)
        admit_apart(service, "web1")
        consul.put("upgrade/providers/cloud", json.dumps({"version": "1"}))
    assert end(service, "web1") == "upgraded"
    assert entry(consul, "upgrade/providers/cloud")["version"] == ("3" if is_overtaken else "2")


@pytest.mark.parametrize("has_task_groups", [True, False])
def test_a_provider_that_is_no_longer_at_the_start_of_its_path_is_not_upgraded(
    services: Begin, consul: RawKV, *, has_task_groups: bool
) -> None:
    task_groups = CLOUD if has_task_groups else tuple(replace(task_group, checkpoint="cloud@2") for task_group in CLOUD)
    service = services({"web": task_groups, "app": task_groups}, providers={"cloud": "1"})
    admit_apart(service, "web1")
    consul.put("upgrade/providers/cloud", json.dumps({"version": "1.5"}))
    with pytest.raises(UpgradeError) as caught:
        if has_task_groups:
            step(service, "web1", CLOUD[0].name)
        else:
            end(service, "web1")
    assert caught.value.code == "provider_changed"
    assert caught.value.message == (
        "The provider cloud is at 1.5 now, but the upgrade path of this run begins at 1. Run the same command again with "
        "-e retry_failed=true; its upgrade path begins at the new version."
    )
    assert entry(consul, "upgrade/providers/cloud") == {"version": "1.5"}
    assert consul.get(LOCK) is None


def test_a_rollout_that_begins_between_a_read_and_a_write_is_noticed(
    services: Begin, consul: RawKV, store: Store
) -> None:
    service = services()
    found = provider.read_provider(store, "2", "cloud", "web1", service.session.name)
    services(version="3")
    task_group = CLOUD[0].name
    assert not provider.ProviderUpgrade("cloud", "2", "web1", service.session.name, [task_group], "1").begin(
        store, task_group, found
    )
    assert consul.get("upgrade/providers/cloud") is None
