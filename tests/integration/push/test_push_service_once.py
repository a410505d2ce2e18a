# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services with a real Consul: task groups that one host runs for all hosts, after the run has lost its Consul session."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import FailHost
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.processes.push_services import (
    PushServices,
    admit_apart,
    end,
    entry,
    finish,
    push_services,
    step,
)

pytestmark = pytest.mark.one_release

FLEET = {"k1": "keystone", "k2": "keystone", "k3": "keystone"}
DB_SYNC, RESTART = "upgrade/keystone", "start/keystone"
GROUPS = {
    "keystone": (
        RunTaskGroup(DB_SYNC, "upgrade", "keystone", once=True),
        RunTaskGroup(RESTART, "start", "keystone", once=False),
    )
}
KEY = f"upgrade/once/2/{DB_SYNC}"
# A host that still waits after SHORT seconds counts as waiting. A host that does not wait is done within LONG seconds.
SHORT, LONG = 1.0, 30.0


@pytest.fixture(params=["noticed", "unnoticed"])
def service(
    request: pytest.FixtureRequest, store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PushService]:
    """A push service whose k1 runs a task group for all hosts, and which has lost its session with the key meanwhile."""
    if request.param == "unnoticed":
        monkeypatch.setattr(leases, "RENEW_EVERY", 600)
    with push_services(store, consul, FLEET) as running:
        found = running.begin(GROUPS, "2")
        admit_apart(found, *FLEET)
        assert step(found, "k1", DB_SYNC)
        assert not step(found, "k2", DB_SYNC)
        consul.call("PUT", f"session/destroy/{found.session.name}")
        assert consul.get(KEY) is None
        if request.param == "noticed":
            deadline = time.monotonic() + LONG
            while consul.get("upgrade/drivers/k1") is None and time.monotonic() < deadline:
                time.sleep(0.1)
        yield found


def test_no_other_host_runs_the_task_group_at_the_same_time(service: PushService, consul: RawKV) -> None:
    assert not step(service, "k3", DB_SYNC)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(step, service, host, RESTART) for host in ("k2", "k3")]
        try:
            assert not wait(waiting, timeout=SHORT).done
        finally:
            finish(service, "k1", DB_SYNC)
        assert [one.result(LONG) for one in waiting] == [True, True]
    assert (entry(consul, KEY)["state"], entry(consul, KEY)["host"]) == ("done", "k1")
    assert step(service, "k1", RESTART)
    assert [end(service, host) for host in FLEET] == ["upgraded"] * 3


def test_what_an_older_snapshot_of_consul_says_to_run_is_not_waited_for_if_no_host_of_the_run_does(
    store: Store, consul: RawKV
) -> None:
    with push_services(store, consul, FLEET) as running:
        service = running.begin(GROUPS, "2")
        admit_apart(service, *FLEET)
        assert step(service, "k1", DB_SYNC)
        before = consul.get(KEY) or b""
        assert not step(service, "k2", DB_SYNC)
        finish(service, "k1", DB_SYNC)
        # The session, which the snapshot has too, lives on.
        assert consul.call("PUT", f"kv/{KEY}?acquire={service.session.name}", before)[2] == b"true"
        with pytest.raises(UpgradeError, match="Consul says that k1 still runs it, but no host of this run does"):
            step(service, "k2", RESTART)
        # Another host runs it as a whole.
        assert step(service, "k3", DB_SYNC)
        assert (entry(consul, KEY)["state"], entry(consul, KEY)["host"]) == ("running", "k3")
        finish(service, "k3", DB_SYNC)
        assert (entry(consul, KEY)["state"], entry(consul, KEY)["host"]) == ("done", "k3")


def with_stop(running: PushServices) -> PushService:
    """Begin a rollout whose service is stopped before the task group for all hosts, and stop it on k1."""
    stop = RunTaskGroup("stop/keystone", "stop", "keystone", once=False)
    service = running.begin({"keystone": (stop, *GROUPS["keystone"])}, "2")
    admit_apart(service, *FLEET)
    assert step(service, "k1", "stop/keystone")
    return service


def test_no_services_are_stopped_for_a_task_group_of_which_the_failure_is_not_in_consul(
    store: Store, consul: RawKV
) -> None:
    with push_services(store, consul, FLEET) as running:
        service = with_stop(running)
        assert step(service, "k1", DB_SYNC)
        before = consul.get(KEY) or b""
        service.fail_host(FailHost("k1", "no disk"))
        assert consul.call("PUT", f"kv/{KEY}?acquire={service.session.name}", before)[2] == b"true"
        with pytest.raises(UpgradeError, match="Consul says that k1 still runs it, but no host of this run does"):
            step(service, "k2", "stop/keystone")


def test_what_failed_here_is_not_tried_again_if_its_failure_was_lost(store: Store, consul: RawKV) -> None:
    with push_services(store, consul, FLEET) as running:
        service = with_stop(running)
        assert step(service, "k2", "stop/keystone")
        assert step(service, "k1", DB_SYNC)
        service.fail_host(FailHost("k1", "no disk"))
        assert consul.delete(KEY)
        assert not step(service, "k2", DB_SYNC)
        with pytest.raises(UpgradeError) as caught:
            step(service, "k3", "stop/keystone")
        assert caught.value.code == "once_gone"


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_host_waits_for_it_before_its_services_are_stopped(store: Store, consul: RawKV, *, succeeds: bool) -> None:
    with push_services(store, consul, FLEET) as running:
        service = with_stop(running)
        # k1 does not run it yet.
        assert step(service, "k2", "stop/keystone")
        assert step(service, "k1", DB_SYNC)
        with ThreadPoolExecutor() as pool:
            stopping = pool.submit(step, service, "k3", "stop/keystone")
            try:
                assert not wait([stopping], timeout=SHORT).done
            finally:
                if succeeds:
                    finish(service, "k1", DB_SYNC)
                else:
                    service.fail_host(FailHost("k1", "no disk"))
            if succeeds:
                assert stopping.result(LONG)
                assert not step(service, "k3", DB_SYNC)
                assert step(service, "k3", RESTART)
                return
            with pytest.raises(
                UpgradeError, match="upgrade/keystone, which k1 runs for all hosts, failed there: no disk"
            ) as failed:
                stopping.result(LONG)
        assert failed.value.code == "once_failed"
        assert "step" not in entry(consul, "upgrade/hosts/k3")


@pytest.mark.thorough
def test_its_failure_is_recorded_and_ends_the_wait(service: PushService, consul: RawKV) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(step, service, "k2", RESTART)
        assert not wait([waiting], timeout=SHORT).done
        service.fail_host(FailHost("k1", "no disk"))
        with pytest.raises(UpgradeError) as failed:
            waiting.result(LONG)
    assert failed.value.code == "once_failed"
    assert (entry(consul, KEY)["state"], entry(consul, KEY)["error"]) == ("failed", "no disk")


@pytest.mark.thorough
def test_what_another_run_has_begun_meanwhile_is_not_overwritten(service: PushService, consul: RawKV) -> None:
    theirs = json.dumps({"state": "running", "host": "k9"}).encode()
    consul.put(KEY, theirs.decode())
    with pytest.raises(UpgradeError) as gone:
        finish(service, "k1", DB_SYNC)
    assert gone.value.code == "once_gone"
    assert consul.get(KEY) == theirs
