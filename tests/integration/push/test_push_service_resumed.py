# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services with a real Consul: hosts that failed or were interrupted before, and whose gates a later rollout has closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    AdmitWave,
    BeginFailure,
    FailHost,
    GetNextHosts,
    Settle,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import RunTaskGroup
from devkit.kv import RawKV
from integration.support.processes.push_services import (
    PushServices,
    admit,
    admit_apart,
    end,
    entry,
    push_services,
    step,
)

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web", "db1": "db"}
GROUPS = {
    role: tuple(RunTaskGroup(f"{one}/app", one, "app", once=False) for one in ("drain", "stop"))
    for role in ("web", "db")
}
ONE = {"rolling_rules": {"global": "unlimited", "fleet": 1}}


@pytest.fixture
def services(store: Store, consul: RawKV) -> Iterator[PushServices]:
    """Starts push services."""
    with push_services(store, consul, FLEET) as running:
        yield running


@pytest.mark.parametrize("as_wave", [True, False])
def test_after_an_abort_a_failed_host_that_is_retried_gets_a_slot_again(
    services: PushServices, store: Store, consul: RawKV, *, as_wave: bool
) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web2")
    assert step(first, "web2", "drain/app")
    first.fail_host(FailHost("web2", "the disk is full"))
    first.close()
    control.abort(store, Command(fleet=FLEET))
    make_pass(store, PassRequest("2", ONE, fleet=FLEET, limit=[], restart=True))
    refused = services.start(GROUPS, "2")
    assert not refused.admit(Admit("web2")).admitted
    refused.close()
    control.pause(store, Command(fleet=FLEET))
    failed = consul.get("upgrade/hosts/web2")
    paused = services.start(GROUPS, "2", retry_failed=True, wait_timeout=1)
    assert not paused.admit(Admit("web2")).admitted
    paused.close()
    assert consul.get("upgrade/hosts/web2") == failed
    control.resume(store, Command(fleet=FLEET))
    service = services.start(GROUPS, "2", retry_failed=True, forks=2, wait_timeout=60)
    # It may be down, so it gets the only slot, and not the host that comes first.
    with ThreadPoolExecutor() as pool:
        if as_wave:
            answers = service.admit_wave(AdmitWave(("web1", "web2")))
            assert {host: one.admitted for host, one in answers.items()} == {"web1": False, "web2": True}
            after = None
        else:
            after = pool.submit(service.admit, Admit("web1"))
            assert service.admit(Admit("web2")).admitted
            assert not wait([after], 1).done
        record = entry(consul, "upgrade/hosts/web2")
        assert (record["state"], record["attempt"], len(record["failures"])) == ("started", 2, 1)
        assert [step(service, "web2", f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, "web2") == "upgraded"
        assert after is None or after.result(60).admitted


def _all_failed_then_restarted(services: PushServices, store: Store, rules: dict[str, Any]) -> None:
    """Let all hosts of a role fail, and begin the rollout again after an abort."""
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1", "web2")
    for host in ("web1", "web2"):
        first.fail_host(FailHost(host, "the disk is full"))
    first.close()
    control.abort(store, Command(fleet=FLEET))
    make_pass(store, PassRequest("2", rules, fleet=FLEET, limit=[], restart=True))


@pytest.mark.parametrize("as_wave", [True, False])
def test_failed_hosts_are_retried_one_after_the_other_under_a_lower_cap(
    services: PushServices, store: Store, *, as_wave: bool
) -> None:
    _all_failed_then_restarted(services, store, ONE)
    service = services.start(GROUPS, "2", retry_failed=True, forks=2, wait_timeout=60)
    if as_wave:
        answers = service.admit_wave(AdmitWave(("web1", "web2")))
        assert sorted(one.admitted for one in answers.values()) == [False, True]
        return
    with ThreadPoolExecutor() as pool:
        asked = {host: pool.submit(service.admit, Admit(host)) for host in ("web1", "web2")}
        done, waiting = wait(asked.values(), 60, FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 1)
        (host,) = [name for name, one in asked.items() if one in done]
        assert [step(service, host, f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, host) == "upgraded"
        assert all(one.result(60).admitted for one in asked.values())


def test_failed_hosts_that_wait_for_a_host_without_a_slot_give_theirs_up(services: PushServices, store: Store) -> None:
    _all_failed_then_restarted(services, store, {**ONE, "role_order": {"web": ["db"]}})
    service = services.start(GROUPS, "2", retry_failed=True, forks=3, wait_timeout=60)
    with ThreadPoolExecutor() as pool:
        asked = {pool.submit(service.admit, Admit(host)): host for host in ("web1", "web2")}
        assert service.admit(Admit("db1")).admitted
        assert not any(one.done() for one in asked)
        assert [step(service, "db1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, "db1") == "upgraded"
        (first,), (other,) = wait(asked, 60, FIRST_COMPLETED)
        assert first.result().admitted
        assert [step(service, asked[first], f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, asked[first]) == "upgraded"
        assert other.result(60).admitted


def _failed_then_restarted(services: PushServices, store: Store, order: dict[str, list[str]]) -> None:
    """Let a host fail, and begin its rollout again after an abort, so that the host has no slot any more."""
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1", "web2")
    assert [step(first, "web1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
    assert end(first, "web1") == "upgraded"
    first.fail_host(FailHost("web2", "the disk is full"))
    first.close()
    control.abort(store, Command(fleet=FLEET))
    rules = {"rolling_rules": {"global": "unlimited"}, "role_order": order}
    make_pass(store, PassRequest("2", rules, fleet=FLEET, limit=[], restart=True))


def test_a_failed_host_that_is_not_yet_admitted_keeps_its_failure(
    services: PushServices, store: Store, consul: RawKV
) -> None:
    _failed_then_restarted(services, store, {"web": ["db"]})
    failed = consul.get("upgrade/hosts/web2")
    service = services.start(GROUPS, "2", retry_failed=True, forks=2, wait_timeout=60)
    with ThreadPoolExecutor() as pool:
        after = pool.submit(service.admit, Admit("web2"))
        assert service.admit(Admit("db1")).admitted
        assert not wait([after], 1).done
        assert consul.get("upgrade/hosts/web2") == failed
        assert [step(service, "db1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, "db1") == "upgraded"
        assert after.result(60).admitted
    assert entry(consul, "upgrade/hosts/web2")["state"] == "started"


def test_a_host_that_waits_leaves_the_only_fork_to_a_failed_one_that_is_retried(
    services: PushServices, store: Store
) -> None:
    _failed_then_restarted(services, store, {"db": ["web"]})
    service = services.start(GROUPS, "2", retry_failed=True, forks=1, wait_timeout=60)
    assert service.next_hosts(GetNextHosts(("db1", "web2"))).hosts == ("web2",)
    assert service.admit(Admit("web2")).admitted


def test_a_record_that_can_not_be_read_is_no_slot_to_give_back(
    services: PushServices, store: Store, consul: RawKV
) -> None:
    services.begin(GROUPS, "2").close()
    consul.put("upgrade/hosts/web1", "not JSON")
    service = services.start(GROUPS, "2", retry_failed=True)
    assert not service.admit(Admit("web1")).admitted
    assert consul.get("upgrade/hosts/web1") == b"not JSON"
    assert make_pass(store, PassRequest("2", fleet=FLEET, limit=[])).hosts()["web1"].state == "failed"


def test_a_host_that_was_broken_before_a_rollback_is_retried_under_its_caps(
    services: PushServices, store: Store
) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1", "web2")
    for host in ("web1", "web2"):
        first.fail_host(FailHost(host, "it does not start"))
    first.close()
    found = control.roll_back(store, Command(fleet=FLEET), version="1")
    assert found.ledger is not None
    make_pass(store, PassRequest("1", ONE, fleet=FLEET, limit=[]))
    second = services.start(GROUPS, "1")
    admit_apart(second, "web1")
    second.fail_host(FailHost("web1", "nor does the old one"))
    admit_apart(second, "web2")
    second.fail_host(FailHost("web2", "nor does the old one"))
    second.close()
    service = services.start(GROUPS, "1", retry_failed=True, forks=2)
    with ThreadPoolExecutor() as pool:
        asked = {host: pool.submit(service.admit, Admit(host)) for host in ("web1", "web2")}
        done, waiting = wait(asked.values(), 60, FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 1)
        assert not wait(waiting, 1).done
        (host,) = [name for name, one in asked.items() if one in done]
        assert [step(service, host, f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, host) == "upgraded"
        assert all(one.result(60).admitted for one in asked.values())


def test_a_host_in_the_middle_waits_until_a_new_rollout_may_open_its_gate_again(
    services: PushServices, store: Store
) -> None:
    _interrupted_in_drain(services)
    rules = {"rolling_rules": {"global": "unlimited"}, "role_order": {"web": ["db"]}}
    make_pass(store, PassRequest("3", rules, fleet=FLEET, limit=[], replace="2"))
    service = services.start(GROUPS, "3", forks=2)
    with ThreadPoolExecutor() as pool:
        db1, web1 = (pool.submit(service.admit, Admit(host)) for host in ("db1", "web1"))
        assert db1.result(60).admitted
        assert not wait([web1], 2).done
        assert [step(service, "db1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(service, "db1") == "upgraded"
        assert web1.result(60).admitted
    # What the run to version 2 stopped may still be stopped.
    assert step(service, "web1", "drain/app")
    assert service.begin_failure(BeginFailure("web1", "the disk is full")) == ()


@pytest.mark.parametrize("is_retried", [False, True])
def test_what_an_upgrade_to_another_version_stopped_counts_as_stopped(
    services: PushServices, store: Store, *, is_retried: bool
) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1")
    assert [step(first, "web1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
    first.fail_host(FailHost("web1", "the disk is full"))
    first.close()
    services.begin(GROUPS, "3").close()
    if is_retried:
        control.retry(store, Command(fleet=FLEET), ["web1"])
    second = services.start(GROUPS, "3", retry_failed=True)
    admit_apart(second, "web1")
    view = make_pass(store, PassRequest("3", fleet=FLEET)).hosts()["web1"]
    assert view.steps == ("drain", "stop")
    assert step(second, "web1", "drain/app")
    assert service_to_undrain(second) == ()
    # Nor is it forgotten by a later run, until the host is upgraded.
    second.close()
    third = services.start(GROUPS, "3")
    admit_apart(third, "web1")
    assert step(third, "web1", "drain/app")
    assert service_to_undrain(third) == ()


def service_to_undrain(service: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = service.begin_failure(BeginFailure("web1", "it failed"))
    return found


def test_a_host_that_could_not_be_reached_is_left_out_of_its_wave(services: PushServices, consul: RawKV) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1")
    first.close()
    service = services.start(GROUPS, "2")
    answers = service.admit_wave(AdmitWave(("web1", "web2"), unreachable=("web1",)))
    assert (answers["web1"].admitted, answers["web2"].admitted) == (False, True)
    assert answers["web1"].reason == "an earlier run has begun it, and it could not be reached when its wave began"
    assert consul.get("upgrade/drivers/web1") is None
    assert entry(consul, "upgrade/hosts/web1")["state"] == "started"


def test_a_host_that_goes_last_does_not_go_while_a_mate_is_left_in_the_middle(services: PushServices) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web2")
    assert step(first, "web2", "drain/app")
    first.close()
    service = services.start(GROUPS, "2", last=frozenset({"web1"}), hosts=("web1",))
    answer = service.admit(Admit("web1"))
    assert (answer.admitted, answer.reason) == (False, "it goes after the other hosts of its role: web2 (upgrading)")
    settled = service.settle(Settle(("web2",), 0.1))
    assert "no run works on it, so run the same command again, without a limit that leaves it out" in settled.reasons[0]


@pytest.mark.parametrize("as_wave", [True, False])
def test_a_host_that_has_begun_and_goes_last_continues_if_it_has_the_slot_that_its_mates_wait_for(
    services: PushServices, *, as_wave: bool
) -> None:
    """As after a failover to a host whose preparation was interrupted."""
    _interrupted_in_drain(services, cap=1)
    service = services.start(GROUPS, "2", last=frozenset({"web1"}), hosts=("web1", "web2"), forks=9)
    if as_wave:
        assert not service.admit_wave(AdmitWave(("web2",)))["web2"].admitted
        admit(service, "web1")
    else:
        assert service.next_hosts(GetNextHosts(("web1", "web2"))).hosts == ("web1",)
        admit_apart(service, "web1")
    assert _steps(service, "drain", "stop") == ["drain", "stop"]
    assert end(service, "web1") == "upgraded"
    if not as_wave:
        assert service.next_hosts(GetNextHosts(("web2",))).hosts == ("web2",)
        admit_apart(service, "web2")


def test_a_host_that_failed_and_goes_last_is_retried_if_it_has_the_slot_that_its_mates_wait_for(
    services: PushServices, store: Store
) -> None:
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=FLEET, limit=[]))
    first = services.start(GROUPS, "2", hosts=("web1",), origins={"web1": "1"})
    admit_apart(first, "web1")
    assert step(first, "web1", "drain/app")
    first.fail_host(FailHost("web1", "the disk is full"))
    first.close()
    service = services.start(GROUPS, "2", last=frozenset({"web1"}), hosts=("web1", "web2"), forks=9, retry_failed=True)
    assert service.next_hosts(GetNextHosts(("web1", "web2"))).hosts == ("web1",)
    admit_apart(service, "web1")
    assert _steps(service, "drain", "stop") == ["drain", "stop"]
    assert end(service, "web1") == "upgraded"
    assert service.next_hosts(GetNextHosts(("web2",))).hosts == ("web2",)


def test_a_host_that_has_begun_and_goes_last_lets_mates_have_the_slot_that_another_run_gives_back(
    services: PushServices, store: Store
) -> None:
    rules = {"rolling_rules": {"global": "unlimited", "fleet": 2}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET, limit=[]))
    first = services.start(GROUPS, "2", hosts=("web1",), origins={"web1": "1"})
    admit_apart(first, "web1")
    assert step(first, "web1", "drain/app")
    first.close()
    other = services.start(GROUPS, "2", hosts=("db1",), origins={"db1": "1"})
    admit_apart(other, "db1")
    service = services.start(GROUPS, "2", last=frozenset({"web1"}), hosts=("web1", "web2"), forks=9)
    with ThreadPoolExecutor() as pool:
        wave = pool.submit(service.admit_wave, AdmitWave(("web1",)))
        assert not wait([wave], 2).done
        assert [step(other, "db1", f"{one}/app") for one in ("drain", "stop")] == [True, True]
        assert end(other, "db1") == "upgraded"
        answer = wave.result(60)["web1"]
    assert (answer.admitted, answer.reason) == (False, "it goes after the other hosts of its role: web2 (pending)")
    assert service.admit_wave(AdmitWave(("web2",)))["web2"].admitted


def test_a_host_that_has_begun_and_goes_last_lets_mates_go_that_wait_for_an_operator(
    services: PushServices, store: Store
) -> None:
    _interrupted_in_drain(services)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}, fleet=FLEET, limit=[]))
    service = services.start(GROUPS, "2", last=frozenset({"web1"}), hosts=("web1", "web2"), forks=9)
    assert service.next_hosts(GetNextHosts(("web1", "web2"))).hosts == ("web1", "web2")
    answer = service.admit(Admit("web1"))
    assert (answer.admitted, answer.reason) == (False, "it goes after the other hosts of its role: web2 (pending)")


@pytest.mark.parametrize("kind", ["provider", "once"])
def test_what_failed_for_all_hosts_is_not_tried_on_the_next_host_of_the_same_run(
    kind: str, services: PushServices, consul: RawKV
) -> None:
    group = RunTaskGroup("upgrade/cloud", "upgrade", "cloud", once=kind == "once", provider=kind == "provider")
    last = RunTaskGroup("verify/app", "verify", "app", once=False)
    groups = {"web": (group, last), "db": (last,)}
    first = services.begin(groups, "2")
    admit_apart(first, "web1")
    assert step(first, "web1", "upgrade/cloud")
    first.fail_host(FailHost("web1", "no quota"))
    first.close()
    service = services.start(groups, "2", retry_failed=True)
    admit_apart(service, "web1", "web2")
    assert step(service, "web1", "upgrade/cloud")
    service.fail_host(FailHost("web1", "no quota yet"))
    with pytest.raises(UpgradeError, match=r"failed there: no quota yet"):
        # One for all hosts is left to the first host, and then waited for.
        if not step(service, "web2", "upgrade/cloud"):
            step(service, "web2", "verify/app")
    key = "upgrade/once/2/upgrade/cloud" if kind == "once" else "upgrade/once/2/provider/cloud"
    assert json.loads(consul.get(key) or b"{}")["host"] == "web1"


def test_a_run_does_not_send_an_operator_to_the_same_command_if_the_order_keeps_a_gate_closed(
    store: Store, consul: RawKV
) -> None:
    fleet = {"db1": "db", "web1": "web"}
    groups = {role: (RunTaskGroup("upgrade/app", "upgrade", "app", once=False),) for role in ("db", "web")}
    one = {"rolling_rules": {"global": 1, "fleet": 1}}
    with push_services(store, consul, fleet) as services:
        make_pass(store, PassRequest("2", one, fleet=fleet, limit=[]))
        first = services.start(groups, "2", hosts=("web1",), origins={"web1": "1"})
        admit_apart(first, "web1")
        assert step(first, "web1", "upgrade/app")
        # As after kill -9.
        first.close()
        rules = {**one, "role_order": {"web": "db"}}
        make_pass(store, PassRequest("3", rules, fleet=fleet, limit=[], replace="2"))
        settled = services.start(groups, "3").settle(Settle(("db1", "web1"), 0.1))
        assert (settled.done, settled.can_move) == (False, False)
        assert settled.reasons[0].startswith("db1 (pending): waits for a slot: ")
        assert settled.reasons[1] == (
            "web1 (upgrading): started 2, service app, step upgrade; its gate is closed: waits for role db (1 host is not upgraded: db1 pending), as "
            "role_order says"
        )
        view = read_fleet(store, fleet=fleet)
        (need,) = operator_needs(view.snapshot, view.plan)
        assert (need.code, need.playbook, need.variables) == ("stuck", "retry", {"host": "web1"})


MACHINE_GROUPS = {
    role: tuple(RunTaskGroup(f"{one}/app", one, "app", once=False) for one in ("prepare", "stop", "upgrade", "start"))
    for role in ("web", "db")
}


def _interrupted_in_drain(services: PushServices, cap: int = 9) -> None:
    """Begin a rollout whose run ends in the first step of web1."""
    first = services.begin(GROUPS, "2", cap=cap)
    admit_apart(first, "web1")
    assert step(first, "web1", "drain/app")
    first.close()


def _interrupted_in_upgrade(services: PushServices) -> None:
    first = services.begin(MACHINE_GROUPS, "2")
    admit_apart(first, "web1")
    assert [step(first, "web1", f"{one}/app", machine="a") for one in ("prepare", "stop", "upgrade")] == [True] * 3
    first.close()


def test_another_machine_under_the_name_of_an_interrupted_host_runs_nothing_until_it_is_retried(
    services: PushServices, consul: RawKV
) -> None:
    _interrupted_in_upgrade(services)
    second = services.start(MACHINE_GROUPS, "2")
    admit_apart(second, "web1")
    with pytest.raises(
        UpgradeError, match=r"another machine \(b\) than the one on which its upgrade began \(a\)"
    ) as no:
        step(second, "web1", "prepare/app", machine="b")
    assert no.value.code == "other_machine"
    second.fail_host(FailHost("web1", str(no.value)))
    record = entry(consul, "upgrade/hosts/web1")
    assert (record["state"], record["machine"], record["done"]) == ("failed", "a", ["prepare/app", "stop/app"])
    second.close()
    # It has run none of them, not even the one that the other machine finished.
    third = services.start(MACHINE_GROUPS, "2", retry_failed=True)
    admit_apart(third, "web1")
    steps = ("prepare", "stop", "upgrade", "start")
    assert [step(third, "web1", f"{one}/app", machine="b") for one in steps] == [True] * 4
    record = entry(consul, "upgrade/hosts/web1")
    assert (record["machine"], record["other_machine"]) == ("b", "a")
    assert end(third, "web1") == "upgraded"


@pytest.mark.parametrize(("machine", "first"), [("a", False), (None, True)])
def test_the_same_machine_goes_on_where_it_was_and_one_that_is_not_known_begins_at_the_first_step(
    services: PushServices, consul: RawKV, machine: str | None, *, first: bool
) -> None:
    _interrupted_in_upgrade(services)
    second = services.start(MACHINE_GROUPS, "2")
    admit_apart(second, "web1")
    steps = ("prepare", "stop", "upgrade", "start")
    assert [step(second, "web1", f"{one}/app", machine=machine) for one in steps] == [first, True, True, True]
    assert end(second, "web1") == "upgraded"
    assert entry(consul, "upgrade/hosts/web1")["machine"] == "a"


@pytest.mark.parametrize(("machine", "first"), [("a", False), ("b", True)])
def test_a_host_that_is_the_control_node_now_goes_on_where_it_was(
    services: PushServices, consul: RawKV, machine: str, *, first: bool
) -> None:
    """The tasks of any host may run on the control node, so its ID counts only for the host that it was before."""
    _interrupted_in_upgrade(services)
    second = services.start(MACHINE_GROUPS, "2")
    admit_apart(second, "web1")
    steps = ("prepare", "stop", "upgrade", "start")
    begun = [step(second, "web1", f"{one}/app", machine=machine, is_control_node=True) for one in steps]
    assert begun == [first, True, True, True]
    assert end(second, "web1") == "upgraded"
    assert entry(consul, "upgrade/hosts/web1")["machine"] == "a"


def test_another_machine_is_not_put_back_where_the_interrupted_one_was_drained(services: PushServices) -> None:
    first = services.begin(GROUPS, "2")
    admit_apart(first, "web1")
    assert step(first, "web1", "drain/app", machine="a")
    first.close()
    second = services.start(GROUPS, "2")
    admit_apart(second, "web1")
    with pytest.raises(UpgradeError, match="another machine") as no:
        step(second, "web1", "drain/app", machine="b")
    assert second.begin_failure(BeginFailure("web1", str(no.value))) == ()


STOPPING_GROUPS = {
    role: tuple(
        RunTaskGroup(f"{one}/app", one, "app", once=False)
        for one in ("may_stop", "drain", "stop", "upgrade", "start", "verify")
    )
    for role in ("web", "db")
}


def _steps(service: Any, *names: str) -> list[str]:
    """Return the steps of web1 that run."""
    return [one for one in names if step(service, "web1", f"{one}/app")]


def test_what_was_checked_before_a_stop_is_checked_again_also_if_the_next_run_failed_before_it_began(
    services: PushServices, consul: RawKV
) -> None:
    first = services.begin(STOPPING_GROUPS, "2")
    admit_apart(first, "web1")
    assert _steps(first, "may_stop", "drain", "stop") == ["may_stop", "drain", "stop"]
    first.close()
    second = services.start(STOPPING_GROUPS, "2")
    admit_apart(second, "web1")
    second.fail_host(FailHost("web1", "it can't be reached", is_lost=True))
    record = entry(consul, "upgrade/hosts/web1")
    assert (record["state"], record["service"], record["step"]) == ("failed", "app", "stop")
    second.close()
    third = services.start(STOPPING_GROUPS, "2", retry_failed=True)
    admit_apart(third, "web1")
    assert _steps(third, "may_stop", "drain", "stop") == ["may_stop", "drain", "stop"]


def test_a_service_that_may_run_again_after_a_failure_is_stopped_again(services: PushServices, consul: RawKV) -> None:
    steps = ("may_stop", "drain", "stop", "upgrade", "start", "verify")
    first = services.begin(STOPPING_GROUPS, "2")
    admit_apart(first, "web1")
    assert _steps(first, *steps[:4]) == ["may_stop", "drain", "stop", "upgrade"]
    first.fail_host(FailHost("web1", "the power failed"))
    first.close()
    second = services.start(STOPPING_GROUPS, "2", retry_failed=True)
    admit_apart(second, "web1")
    assert _steps(second, *steps[:3]) == ["stop"]
    # A check before the stop could not succeed any more, if this run ends here.
    second.close()
    third = services.start(STOPPING_GROUPS, "2")
    admit_apart(third, "web1")
    assert _steps(third, *steps[:5]) == ["stop", "upgrade", "start"]
    third.close()
    fourth = services.start(STOPPING_GROUPS, "2")
    admit_apart(fourth, "web1")
    assert _steps(fourth, *steps[:5]) == ["stop", "start"]
    assert step(fourth, "web1", "verify/app")
    fourth.close()
    last = services.start(STOPPING_GROUPS, "2")
    admit_apart(last, "web1")
    assert _steps(last, *steps) == ["verify"]
    assert end(last, "web1") == "upgraded"
    assert "done" not in entry(consul, "upgrade/hosts/web1")
