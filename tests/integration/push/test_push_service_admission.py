# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services with a real Consul: what remains of a host whose admission fails, and of leases that belong to another run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import ConsulClient
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Conflict, Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import lock
from ansible_collections.convoy.upgrade.plugins.module_utils._host import leases
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import watched_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import reasons, rollout_summary
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout import opened_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.abort import abort
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates, set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store, current_user
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.decision import PassView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    AdmitWave,
    BeginFailure,
    CloseHosts,
    FailHost,
    GetNextHosts,
    HostAdmission,
    NextHosts,
    NoteTimeout,
    RefuseStop,
    Settle,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    UPGRADE,
    PushRun,
    RunTaskGroup,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import HostService, PushService
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.session import RunSession
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.next_step import after_failure
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import seed
from integration.support.processes.planner_service import until
from integration.support.processes.proxy import LossyProxy
from integration.support.processes.push_services import (
    PushServices,
    admit_apart,
    end,
    entry,
    finish,
    push_services,
    step,
)
from thorough import quick

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web"}
GROUPS = {"web": (RunTaskGroup("upgrade/app", "upgrade", "app", once=False),)}


@pytest.fixture
def services(store: Store, consul: RawKV) -> Iterator[PushServices]:
    """Starts push services."""
    with push_services(store, consul, FLEET) as running:
        yield running


def test_a_host_whose_admission_failed_is_not_admitted_by_a_later_pass(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2")
    ledger = consul.get("upgrade/ledger")
    assert ledger is not None
    consul.put("upgrade/ledger", "not JSON")
    with pytest.raises(UpgradeError):
        service.admit(Admit("web1"))
    assert consul.get("upgrade/drivers/web1") is None
    consul.put("upgrade/ledger", ledger)
    admit_apart(service, "web2")
    assert consul.get("config_state/enable_puppet/host/web1") is None
    # Nor does the run wait for it.
    assert "web1" not in service.settle(Settle(("web2",), 0.1)).unfinished


def test_a_wave_of_which_one_host_can_not_begin_fails_as_a_whole(
    services: PushServices, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services.begin(GROUPS, "2")
    begin = service._host_runs.begin

    def lose_consul(host: str, **more: Any) -> Any:
        if host == "web2":
            raise Unreachable("unreachable", "Consul gives no answer.")
        return begin(host, **more)

    monkeypatch.setattr(service._host_runs, "begin", lose_consul)
    with pytest.raises(Unreachable):
        service.admit_wave(AdmitWave(("web1", "web2")))
    record = entry(consul, "upgrade/hosts/web1")
    assert (record["state"], record["error"]) == ("failed", "its wave could not begin: Consul gives no answer.")
    assert consul.get("upgrade/hosts/web2") is None
    assert [consul.get(f"upgrade/drivers/{host}") for host in FLEET] == [None, None]


@pytest.mark.parametrize("end_of_tasks", ["play", "settle", "wave"])
def test_a_host_whose_tasks_end_without_a_report_fails_and_others_take_its_slot(
    services: PushServices, consul: RawKV, end_of_tasks: str
) -> None:
    """As with ``meta: end_host`` in a role that a service includes."""
    service = services.begin(GROUPS, "2")
    service.admit_wave(AdmitWave(("web1",)))
    assert step(service, "web1", "upgrade/app")
    if end_of_tasks == "play":
        service.close_hosts(CloseHosts(("web1", "localhost")))
    elif end_of_tasks == "settle":
        # Hosts of another play are still at work.
        service.settle(Settle(("web2",), 0.1))
        assert entry(consul, "upgrade/hosts/web1")["state"] == "started"
        service.settle(Settle(("web1",), 0.1))
    else:
        assert service.admit_wave(AdmitWave(("web2",), others=("web1",)))["web2"].admitted
        assert consul.get("upgrade/drivers/web2")
    record = entry(consul, "upgrade/hosts/web1")
    assert (record["state"], record["step"]) == ("failed", "upgrade")
    assert record["error"].startswith("its tasks ended without a report, so it is unknown how far they are.")
    assert consul.get("upgrade/drivers/web1") is None
    with pytest.raises(UpgradeError, match=r"web1 is not admitted in this run"):
        end(service, "web1")


def test_hosts_whose_play_ends_while_they_wait_are_not_admitted(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2", cap=1, forks=9)
    assert service.next_hosts(GetNextHosts(tuple(FLEET))) == NextHosts(("web1",))
    service.close_hosts(CloseHosts(tuple(FLEET)))
    assert [consul.get(f"upgrade/drivers/{host}") for host in FLEET] == [None, None]
    assert consul.get("config_state/enable_puppet/host/web2") is None
    assert not service.settle(Settle(tuple(FLEET), 0.1)).can_move


def test_a_host_that_is_admitted_twice_goes_on_where_it_is(services: PushServices) -> None:
    once = (RunTaskGroup("upgrade/db", "upgrade", "db", once=True), *GROUPS["web"])
    service = services.begin({"web": once}, "2")
    service.admit_wave(AdmitWave(("web1", "web2")))
    assert step(service, "web1", "upgrade/db")
    service.admit_wave(AdmitWave(("web1", "web2")))
    finish(service, "web1", "upgrade/db")
    assert step(service, "web1", "upgrade/app")
    assert end(service, "web1") == "upgraded"


def test_post_upgrade_tasks_start_only_while_the_host_is_admitted_to_them(
    services: PushServices, store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = services.begin(GROUPS, "2")
    admit_apart(upgrade, *FLEET)
    for host in FLEET:
        step(upgrade, host, "upgrade/app")
        end(upgrade, host)
    make_pass(store, PassRequest("2", fleet=FLEET))
    # An operator stops Puppet everywhere: these tasks have no gate.
    reset_gates(store)
    service = services.start(
        {"web": (RunTaskGroup("post_upgrade/app", "post_upgrade", "app", once=False),)}, "2", phase=POST_UPGRADE_PHASE
    )
    admitted = service._admission.admit

    def hold_after_the_pass(host: str) -> Any:
        decision = admitted(host)
        set_holds(store, HoldTargets(hosts=[host]), "no disk")
        return decision

    with monkeypatch.context() as patched:
        patched.setattr(service._admission, "admit", hold_after_the_pass)
        refused = service.admit(Admit("web1"))
    assert (refused.admitted, "no disk" in refused.reason) == (False, True)
    assert entry(consul, "upgrade/hosts/web1")["post"] == "open"
    admit_apart(service, "web2")
    assert entry(consul, "upgrade/hosts/web2")["post"] == "started"
    step(service, "web2", "post_upgrade/app")
    end(service, "web2")
    assert entry(consul, "upgrade/hosts/web2")["post"] == "done"
    # Nor without an admission that planners have written.
    consul.put("upgrade/hosts/web2", json.dumps({**entry(consul, "upgrade/hosts/web2"), "post": None}))
    with pytest.raises(
        UpgradeError, match="the post-upgrade tasks of 2, as it is not admitted: no planner has"
    ) as raised:
        service._host_runs.begin("web2")
    assert raised.value.code == "not_admitted"


def test_a_host_is_lost_if_a_task_took_too_long_whatever_its_service_reports_after_that(
    services: PushServices, store: Store
) -> None:
    groups = {"web": (RunTaskGroup("may_stop/app", "may_stop", "app", once=False), *GROUPS["web"])}
    service = services.begin(groups, "2")
    admit_apart(service, *FLEET)
    for host in FLEET:
        step(service, host, "may_stop/app")
        service.note_timeout(NoteTimeout(host))
    # Its service has gone on.
    step(service, "web1", "upgrade/app")
    # A check that hangs only refuses.
    service.refuse_stop(RefuseStop("web2", "may_stop/app", "timed out", 60.0))
    for host in FLEET:
        service.fail_host(FailHost(host, "the mirror does not answer"))
    assert [read_fleet(store, fleet=FLEET).plan.hosts[host].state for host in FLEET] == ["failed", "failed"]
    service.close()
    again = services.start(groups, "2", retry_failed=True)
    admit_apart(again, *FLEET)
    step(again, "web1", "upgrade/app")
    again.note_timeout(NoteTimeout("web1"))
    again.fail_host(FailHost("web1", "the mirror does not answer"))
    assert read_fleet(store, fleet=FLEET).plan.hosts["web1"].state == "lost"


def _in_post_upgrade(services: PushServices, store: Store, upgrade: Any, groups: dict[str, Any]) -> Any:
    """Let a run upgrade all hosts; return the next one, which has admitted web1 to its post-upgrade tasks."""
    admit_apart(upgrade, *FLEET)
    for host in FLEET:
        step(upgrade, host, "upgrade/app")
        end(upgrade, host)
    make_pass(store, PassRequest("2", fleet=FLEET))
    first = services.start(groups, "2", phase=POST_UPGRADE_PHASE)
    admit_apart(first, "web1")
    return first


def test_a_host_whose_post_upgrade_tasks_tags_left_to_a_later_run_is_not_lost_meanwhile(
    services: PushServices, store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"web": (*GROUPS["web"], RunTaskGroup("post_upgrade/app", "post_upgrade", "app", once=False))}
    upgrade = services.begin(groups, "2")
    first = _in_post_upgrade(services, store, upgrade, groups)
    step(first, "web1", "post_upgrade/app", whole=False)
    assert end(first, "web1") == "partial"
    first.close()
    assert entry(consul, "upgrade/hosts/web1")["next_step"] == "post_upgrade"
    now = runtime.now
    monkeypatch.setattr(runtime, "now", lambda: now() + 3 * 3600)
    view = read_fleet(store, fleet=FLEET)
    assert watched_hosts(view.snapshot, view.plan)["web1"].state != "lost"
    second = services.start(groups, "2", phase=POST_UPGRADE_PHASE)
    admit_apart(second, "web1")
    step(second, "web1", "post_upgrade/app")
    assert "next_step" not in entry(consul, "upgrade/hosts/web1")
    # One that is interrupted in them is lost, also if that was in a later run.
    second.session.close()
    view = read_fleet(store, fleet=FLEET)
    assert watched_hosts(view.snapshot, view.plan)["web1"].state == "lost"


@pytest.mark.parametrize("is_lost", [False, True])
def test_post_upgrade_tasks_that_failed_run_again_with_retry_failed_also_if_they_exhausted_the_budget(
    services: PushServices, store: Store, consul: RawKV, *, is_lost: bool
) -> None:
    groups = {"web": (*GROUPS["web"], RunTaskGroup("post_upgrade/app", "post_upgrade", "app", once=False))}
    upgrade = services.begin(groups, "2")
    rules = {"rolling_rules": {"global": 9}, "failure_rules": {"fleet": 1}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET, limit=[]))
    first = _in_post_upgrade(services, store, upgrade, groups)
    step(first, "web1", "post_upgrade/app")
    if is_lost:
        first.note_timeout(NoteTimeout("web1"))
    first.fail_host(FailHost("web1", "no kernel"))
    # The failure counts until the tasks are done, or an operator lets the host begin them again.
    assert "post_failed" in entry(consul, "upgrade/hosts/web1")["times"]
    assert not first.admit(Admit("web1")).admitted
    first.close()
    view = read_fleet(store, fleet=FLEET)
    (need,) = operator_needs(view.snapshot, view.plan)
    assert watched_hosts(view.snapshot, view.plan)["web1"].state == ("lost" if is_lost else "failed")
    info = {
        **rollout_summary(view.snapshot, view.plan),
        "reasons": reasons(view.plan.hosts),
        "complete": view.plan.complete,
    }
    next_step = after_failure("upgrade", "stuck", info, pushes=True)
    # The same command retries it, and so does the one of the need.
    assert (next_step.playbook, next_step.variables) == ("", {"retry_failed": "true"})
    assert (need.playbook, need.variables) == ("post_upgrade", {"version": "2", "retry_failed": "true"})
    second = services.start(groups, "2", phase=POST_UPGRADE_PHASE, retry_failed=True)
    admit_apart(second, "web1")
    assert "post_failed" not in entry(consul, "upgrade/hosts/web1")["times"]
    step(second, "web1", "post_upgrade/app")
    end(second, "web1")
    assert entry(consul, "upgrade/hosts/web1")["post"] == "done"
    admit_apart(second, "web2")


@pytest.mark.parametrize("act", ["end", "step", "fail"])
@pytest.mark.parametrize("since", [("1", "upgraded"), ("2", "upgraded"), ("2", "retried"), ("2", "started"), None])
def test_a_run_that_lost_its_session_leaves_hosts_alone_on_which_another_one_has_worked(
    since: tuple[str, str] | None, act: str, services: PushServices, consul: RawKV
) -> None:
    service = services.begin({"web": (*GROUPS["web"], RunTaskGroup("start/app", "start", "app", once=False))}, "2")
    admit_apart(service, "web1")
    step(service, "web1", "upgrade/app")
    # It was suspended, and another run took over the host, ended with it, and released its lease.
    assert consul.call("PUT", f"session/destroy/{service.session.name}")[0] == 200
    before = None
    if since is not None:
        consul.put("upgrade/hosts/web1", json.dumps({"version": since[0], "state": since[1], "times": {since[1]: 9}}))
        before = consul.get("upgrade/hosts/web1")
    else:
        consul.delete("upgrade/hosts/web1")
    acts: dict[str, Callable[[], Any]] = {
        "end": lambda: end(service, "web1"),
        "step": lambda: step(service, "web1", "start/app"),
        "fail": lambda: service.fail_host(FailHost("web1", "no disk")),
    }
    if act == "fail":
        acts[act]()
    else:
        with pytest.raises(UpgradeError) as raised:
            acts[act]()
        assert raised.value.code == "leased"
        service.fail_host(FailHost("web1", str(raised.value)))
    assert consul.get("upgrade/hosts/web1") == before


def on_pull_host(store: Store, consul: RawKV) -> PushRun:
    """Return the run of a pull host that may run its post-upgrade tasks."""
    seed(consul, FLEET, "2")
    consul.put("config_state/enable_puppet/global", "True")
    consul.put("upgrade/hosts/web1", json.dumps({"version": "2", "state": "upgraded", "post": "open"}))
    groups = {"web": (RunTaskGroup("post_upgrade/app", "post_upgrade", "app", once=False),)}
    return PushRun(store.settings, "2", POST_UPGRADE_PHASE, {"web1": "web"}, groups, ("web1",), on_host=True)


def test_post_upgrade_tasks_of_a_pull_host_start_only_while_its_gate_is_open_and_no_hold_is_set(
    store: Store, consul: RawKV
) -> None:
    run = on_pull_host(store, consul)

    def begin() -> str:
        service = HostService(run)
        try:
            service.begin_on_host()
        except UpgradeError as error:
            return error.code
        finally:
            service.close()
        return ""

    set_holds(store, HoldTargets(hosts=["web1"]), "no disk")
    assert begin() == "not_admitted"
    end_holds(store, HoldTargets(hosts=["web1"]))
    set_gate(store, "host", "web1", value=False)
    assert begin() == "not_admitted"
    assert entry(consul, "upgrade/hosts/web1")["post"] == "open"
    set_gate(store, "host", "web1", value=True)
    assert begin() == ""
    assert entry(consul, "upgrade/hosts/web1")["post"] == "started"


@pytest.mark.parametrize("ends", [True, False])
def test_a_pull_host_waits_for_the_end_of_the_session_from_before_its_boot(
    ends: bool, store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_pull_host(store, consul)
    service, former = HostService(run), leases.open_session(store)
    # Consul keeps it for longer if nothing ends it here.
    monkeypatch.setattr(leases, "SESSION_SECONDS", 10 if ends else 0.5)

    def lease(by: str) -> None:
        holder = replace(leases.LeaseHolder.of_this_process(former), by=by, machine="the boot before", pid=4711)
        store.client.write([lock(store.keys.lease("web1"), json.dumps(asdict(holder)), former)])

    try:
        # That of an operator's run is refused at once.
        lease("ann@control1")
        began = time.monotonic()
        with pytest.raises(UpgradeError, match="which upgrades the host from outside") as raised:
            service.begin_on_host()
        assert (raised.value.code, time.monotonic() - began < 5) == ("leased", True)
        lease(current_user())
        if ends:
            threading.Timer(1, store.client.close_session, [former]).start()
            service.begin_on_host()
            assert entry(consul, "upgrade/hosts/web1")["post"] == "started"
        else:
            with pytest.raises(UpgradeError, match=r"belongs to .*, another run on this machine") as raised:
                service.begin_on_host()
            assert raised.value.code == "leased"
    finally:
        service.close()


def test_a_run_that_lost_its_session_goes_on_if_no_other_run_has_worked_there(
    services: PushServices, consul: RawKV
) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1")
    step(service, "web1", "upgrade/app")
    assert consul.call("PUT", f"session/destroy/{service.session.name}")[0] == 200
    assert end(service, "web1") == "upgraded"


def test_a_run_releases_only_its_own_leases(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1")
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    other = json.loads(body)["ID"]
    for host in FLEET:
        consul.delete(f"upgrade/drivers/{host}")
        consul.call("PUT", f"kv/upgrade/drivers/{host}?acquire={other}", b"{}")
        service.session.release(host)
        assert consul.get(f"upgrade/drivers/{host}") == b"{}"
    assert service.admit(Admit("web2")).state == "leased"
    assert consul.get("upgrade/drivers/web2") == b"{}"


def test_a_host_that_waited_does_not_begin_without_its_lease(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2", cap=1)
    admit_apart(service, "web1")
    assert step(service, "web1", "upgrade/app")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(service.admit, Admit("web2"))
        until(lambda: consul.get("upgrade/drivers/web2"))
        # The session of this run is lost, and another run acquires the lease of the host that waits.
        consul.call("PUT", f"session/destroy/{service.session.name}")
        _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
        other = json.loads(body)["ID"]
        assert consul.call("PUT", f"kv/upgrade/drivers/web2?acquire={other}", b"{}")[2] == b"true"
        until(lambda: consul.get("upgrade/drivers/web1"))
        assert end(service, "web1") == "upgraded"
        answer = waiting.result(60)
    assert (answer.admitted, answer.state) == (False, "leased")
    assert "another run" in answer.reason
    assert consul.get("upgrade/hosts/web2") is None
    assert consul.get("upgrade/drivers/web2") == b"{}"


def test_a_run_waits_for_hosts_that_another_run_is_to_upgrade(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2")
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    other = json.loads(body)["ID"]
    assert consul.call("PUT", f"kv/upgrade/drivers/web2?acquire={other}", b"{}")[2] == b"true"
    assert service.admit_wave(AdmitWave(("web2",)))["web2"].state == "leased"
    # Between the end of a host and the pass that admits the next one, no host is upgrading.
    assert service.settle(Settle(("web2",), 0.1)).can_move
    consul.delete("upgrade/drivers/web2")
    settled = service.settle(Settle(("web2",), 0.1))
    assert not settled.can_move
    assert "but no run holds its lease; run the same command again" in settled.reasons[0]


def test_a_host_that_another_run_has_leased_waits_for_it_while_others_take_its_slot(
    services: PushServices, consul: RawKV
) -> None:
    service = services.begin(GROUPS, "2", cap=1)
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    other = json.loads(body)["ID"]
    assert consul.call("PUT", f"kv/upgrade/drivers/web1?acquire={other}", b"{}")[2] == b"true"
    found = service.next_hosts(GetNextHosts(("web1", "web2")))
    assert found.hosts == ("web2",)
    (line,) = found.lines
    assert line.startswith("web1 is not admitted (leased): its lease belongs to another run")
    admit_apart(service, "web2")
    assert step(service, "web2", "upgrade/app")
    assert end(service, "web2") == "upgraded"
    with ThreadPoolExecutor() as pool:
        later = pool.submit(service.next_hosts, GetNextHosts(("web1",)))
        assert not wait([later], 1).done
        assert consul.get("config_state/enable_puppet/host/web1") is None
        consul.delete("upgrade/drivers/web1")
        assert later.result(60) == NextHosts(("web1",))
    admit_apart(service, "web1")


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_host_that_has_waited_too_long_is_not_admitted_and_says_for_what(
    services: PushServices, consul: RawKV, *, is_leased: bool
) -> None:
    service = services.begin(GROUPS, "2", cap=1, wait_timeout=1)
    if is_leased:
        _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
        key = f"kv/upgrade/drivers/web2?acquire={json.loads(body)['ID']}"
        assert consul.call("PUT", key, b"{}")[2] == b"true"
    else:
        assert service.next_hosts(GetNextHosts(("web1",))).hosts == ("web1",)
        admit_apart(service, "web1")
    found = NextHosts((), ())
    while not found.hosts:
        found = service.next_hosts(GetNextHosts(("web2",)))
    assert found.hosts == ("web2",)
    decision = service.admit(Admit("web2"))
    assert (decision.admitted, decision.state) == (False, "leased" if is_leased else "pending")
    assert decision.reason.endswith("it was not admitted within 1 s (upgrade_wait_timeout)")
    assert decision.reason.startswith("its lease belongs to another run") == is_leased
    assert consul.get("config_state/enable_puppet/host/web2") is None


def test_no_more_hosts_that_wait_are_admitted_than_there_are_free_forks(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2", forks=1)
    assert service.next_hosts(GetNextHosts(("planner", *FLEET))).hosts == ("planner",)
    assert service.next_hosts(GetNextHosts(tuple(FLEET))).hosts == ("web1",)
    admit_apart(service, "web1")
    with ThreadPoolExecutor() as pool:
        later = pool.submit(service.next_hosts, GetNextHosts(("web2",)))
        assert not wait([later], 1).done
        assert [consul.get(f"{key}/web2") for key in ("upgrade/drivers", "config_state/enable_puppet/host")] == [
            None
        ] * 2
        assert step(service, "web1", "upgrade/app")
        assert end(service, "web1") == "upgraded"
        assert later.result(60).hosts == ("web2",)
    admit_apart(service, "web2")


@pytest.mark.thorough
def test_hosts_that_wait_outlast_an_outage_of_consul(
    services: PushServices, store: Store, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.begin(GROUPS, "2").close()
    with LossyProxy(agent.http_port) as proxy:
        run = PushRun(replace(store.settings, port=proxy.port), "2", UPGRADE, FLEET, GROUPS, tuple(FLEET), forks=2)
        service = PushService(run)
        try:
            monkeypatch.setattr(service._pool, "_retry_timeout", 0.5)
            proxy.loses_all = True
            found = service.next_hosts(GetNextHosts(tuple(FLEET)))
            assert (found.hosts, len(found.lines)) == ((), 1)
            assert found.lines[0].startswith("No further host is admitted until Consul can be reached again. ")
            proxy.loses_all = False
            assert service.next_hosts(GetNextHosts(tuple(FLEET))) == NextHosts(tuple(FLEET))
            admit_apart(service, *FLEET)
        finally:
            service.close()


@pytest.mark.parametrize(
    "error",
    # What a pass raises after its last try, and what it raises where it has no other.
    quick(1, [UpgradeError("busy", "Others write all the time."), Conflict("conflict", "Others write all the time.")]),
)
def test_hosts_that_wait_outlast_writes_of_others(
    services: PushServices, monkeypatch: pytest.MonkeyPatch, error: UpgradeError
) -> None:
    service = services.begin(GROUPS, "2", forks=2)
    admission = service._admission
    make_next_pass, tries = admission._make_pass, iter(range(9))

    def lose_once(limit: Collection[str]) -> PassView:
        if next(tries) == 0:
            raise error
        return make_next_pass(limit)

    monkeypatch.setattr(admission, "_make_pass", lose_once)
    found = service.next_hosts(GetNextHosts(tuple(FLEET)))
    assert found == NextHosts(
        (), ("No further host is admitted until a later pass succeeds. Others write all the time.",)
    )
    assert service.next_hosts(GetNextHosts(tuple(FLEET))) == NextHosts(tuple(FLEET))
    admit_apart(service, *FLEET)


@pytest.mark.parametrize("is_first", [True, False])
def test_hosts_that_wait_outlast_passes_that_are_too_slow_once_a_host_was_admitted(
    services: PushServices, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    service = services.begin(GROUPS, "2", cap=1, forks=2)
    if not is_first:
        assert service.next_hosts(GetNextHosts(tuple(FLEET))) == NextHosts(("web1",))
        admit_apart(service, "web1")
        step(service, "web1", "upgrade/app")
    may_still_admit, slow = opened_gates.may_still_admit, [3.0] * 3

    def be_slow(store: Store, rules: Any, now: float, read_at: float) -> bool:
        return may_still_admit(store, rules, now, read_at - store.settings.pass_limit - slow.pop() if slow else read_at)

    monkeypatch.setattr(opened_gates, "may_still_admit", be_slow)
    if is_first:
        # The planner host is too slow whatever the hosts do, and an operator has to know that soon.
        assert service.next_hosts(GetNextHosts(tuple(FLEET))).hosts == tuple(FLEET)
        refused = service.admit(Admit("web1"))
        assert not refused.admitted and "Reading the fleet and planning took" in refused.reason
        return
    assert end(service, "web1") == "upgraded"
    (line,) = service.next_hosts(GetNextHosts(("web2",))).lines
    assert line.startswith(
        "No further host is admitted until a later pass succeeds. Reading the fleet and planning took"
    )
    assert "-e upgrade_consul_pass_limit=" in line
    assert not slow
    assert service.next_hosts(GetNextHosts(("web2",))) == NextHosts(("web2",))
    admit_apart(service, "web2")


@pytest.mark.parametrize("failures", quick(1, [0, 1]))
def test_hosts_that_go_on_waiting_are_left_to_other_runs(
    services: PushServices, consul: RawKV, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    service = services.begin(GROUPS, "2", cap=1, wait_timeout=60)
    admission = service._admission
    make_next_pass, release, left = (
        admission._make_pass,
        admission._release,
        [Unreachable("unreachable", "No route.")] * failures,
    )

    def release_later(hosts: Collection[str]) -> None:
        # The pass has succeeded all the same, and the next one releases the lease.
        if left:
            raise left.pop()
        release(hosts)

    admission._release = release_later

    def lose_the_slot(limit: Collection[str]) -> PassView:
        # Between the plan and the pass, another run admits a host.
        if "web2" in limit:
            other = services.start(GROUPS, "2")
            admit_apart(other, "web1")
            monkeypatch.undo()
        return make_next_pass(limit)

    monkeypatch.setattr(admission, "_make_pass", lose_the_slot)
    with ThreadPoolExecutor() as pool:
        later = pool.submit(service.next_hosts, GetNextHosts(("web2",)))
        until(lambda: consul.get("upgrade/drivers/web1"))
        until(lambda: consul.get("upgrade/drivers/web2") is None)
        assert not wait([later], 1).done
        assert consul.get("upgrade/drivers/web2") is None
        assert not left
        other = services._running[-1]
        assert step(other, "web1", "upgrade/app")
        assert end(other, "web1") == "upgraded"
        assert later.result(60).hosts == ("web2",)
    admit_apart(service, "web2")


@pytest.mark.parametrize("as_wave", [True, False])
def test_a_host_that_goes_last_waits_for_a_mate_that_another_run_upgrades(
    services: PushServices, consul: RawKV, *, as_wave: bool
) -> None:
    other = services.begin(GROUPS, "2")
    admit_apart(other, "web2")
    assert step(other, "web2", "upgrade/app")
    service = services.start(GROUPS, "2", last=frozenset({"web1"}))
    if as_wave:
        assert service.admit_wave(AdmitWave(("web2",)))["web2"].state == "leased"

    def ask() -> HostAdmission:
        return service.admit_wave(AdmitWave(("web1",)))["web1"] if as_wave else service.admit(Admit("web1"))

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask)
        try:
            assert not wait([waiting], 2).done
            assert consul.get("config_state/enable_puppet/host/web1") is None
        finally:
            assert end(other, "web2") == "upgraded"
        assert waiting.result(60).admitted


def test_a_host_that_goes_last_does_not_go_before_a_mate_that_its_run_has_refused(
    services: PushServices, store: Store, consul: RawKV
) -> None:
    service = services.begin(GROUPS, "2", cap=1, last=frozenset({"web1"}), wait_timeout=1)
    command = Command("looking at it", fleet=FLEET)
    control.pause(store, command)
    assert service.admit_wave(AdmitWave(("web2",)))["web2"].state == "pending"
    control.resume(store, command)
    found = service.admit_wave(AdmitWave(("web1",)))["web1"]
    assert (found.admitted, found.reason) == (False, "it goes after the other hosts of its role: web2 (pending)")
    assert consul.get("config_state/enable_puppet/host/web1") is None


@pytest.mark.parametrize("hosts", [tuple(FLEET), ("web1",)])
@pytest.mark.parametrize("as_wave", [True, False])
def test_a_host_that_goes_last_does_not_go_before_a_mate_that_waits_in_another_run(
    services: PushServices, consul: RawKV, hosts: tuple[str, ...], *, as_wave: bool
) -> None:
    service = services.begin(GROUPS, "2", last=frozenset({"web1"}), hosts=hosts, wait_timeout=2)
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    key = f"kv/upgrade/drivers/web2?acquire={json.loads(body)['ID']}"
    assert consul.call("PUT", key, b"{}")[2] == b"true"
    if as_wave:
        if "web2" in hosts:
            assert service.admit_wave(AdmitWave(("web2",)))["web2"].state == "leased"
        found = service.admit_wave(AdmitWave(("web1",)))["web1"]
        assert found.reason == "it goes after the other hosts of its role: web2 (pending)"
    else:
        # Outside of waves, it waits for the end of the other run.
        found = service.admit(Admit("web1"))
        assert found.reason == "it was not admitted within 2 s (upgrade_wait_timeout)"
    assert not found.admitted
    assert consul.get("config_state/enable_puppet/host/web1") is None


@pytest.mark.parametrize("as_wave", [True, False])
def test_a_host_that_goes_last_does_not_go_before_a_mate_that_new_rules_put_into_a_later_stage(
    services: PushServices, store: Store, consul: RawKV, *, as_wave: bool
) -> None:
    services.begin(GROUPS, "2").close()
    rules = {"rolling_rules": {"global": 9}, "stages": [{"name": "canary", "hosts": 1}]}
    make_pass(store, PassRequest("2", rules, fleet=FLEET, limit=[]))
    service = services.start(GROUPS, "2", last=frozenset({"web1"}))
    found = service.admit_wave(AdmitWave(("web1",)))["web1"] if as_wave else service.admit(Admit("web1"))
    assert (found.admitted, found.reason) == (False, "it goes after the other hosts of its role: web2 (pending)")
    assert consul.get("config_state/enable_puppet/host/web1") is None


def test_a_check_before_a_stop_that_an_interrupted_run_made_impossible_can_be_skipped(services: PushServices) -> None:
    groups = {"web": tuple(RunTaskGroup(f"{one}/app", one, "app", once=False) for one in ("may_stop", "stop"))}
    first = services.begin(groups, "2")
    admit_apart(first, *FLEET)
    assert [step(first, "web1", f"{one}/app") for one in ("may_stop", "stop")] == [True, True]
    assert step(first, "web2", "may_stop/app")
    first.close()
    service = services.start(groups, "2")
    admit_apart(service, *FLEET)
    hints = {}
    for host in FLEET:
        assert step(service, host, "may_stop/app")
        with pytest.raises(UpgradeError) as refused:
            service.refuse_stop(RefuseStop(host, "may_stop/app", "the cluster has no quorum.", 0))
        assert refused.value.code == "may_not_stop"
        hints[host] = refused.value.message.partition("-e retry_failed=true.")[2]
    assert hints == {
        "web1": " An earlier run was interrupted in the step stop. If the check fails only because a service of web1 is down since then, "
        "add -e upgrade_limit=web1 --skip-tags may_stop.",
        "web2": "",
    }


def test_drained_services_are_undrained_after_a_failure_unless_something_may_be_stopped(services: PushServices) -> None:
    names = ("drain/proxy", "drain/app", "stop/app")
    groups = {"web": tuple(RunTaskGroup(one, *one.split("/"), once=False) for one in names)}

    def undrained(service: PushService, host: str) -> tuple[str, ...]:
        found = service.begin_failure(BeginFailure(host, "it failed"))
        service.fail_host(FailHost(host, "it failed"))
        return found

    first = services.begin(groups, "2")
    admit_apart(first, *FLEET)
    assert step(first, "web1", "drain/proxy")
    assert [step(first, "web2", one) for one in names] == [True] * 3
    assert (undrained(first, "web1"), undrained(first, "web2")) == (("proxy",), ())
    first.close()
    # In a later run, the drain of a host may fail again, after a service of it was stopped in the first one.
    service = services.start(groups, "2", retry_failed=True)
    admit_apart(service, *FLEET)
    for host in FLEET:
        assert step(service, host, "drain/proxy")
    assert (undrained(service, "web1"), undrained(service, "web2")) == (("proxy",), ())


def test_nothing_is_undrained_while_it_is_unknown_whether_another_run_has_the_host(
    services: PushServices, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"web": (RunTaskGroup("drain/proxy", "drain", "proxy", once=False), *GROUPS["web"])}
    service = services.begin(groups, "2")
    admit_apart(service, "web1")
    assert step(service, "web1", "drain/proxy")

    def unreachable(_session: RunSession, _host: str) -> None:
        raise Unreachable("unreachable", "Consul can't be reached.")

    with monkeypatch.context() as during:
        during.setattr(RunSession, "confirm", unreachable)
        assert service.begin_failure(BeginFailure("web1", "it failed.")) == ()
    service.fail_host(FailHost("web1", "it failed."))
    assert entry(consul, "upgrade/hosts/web1")["error"] == (
        "it failed. Nothing was stopped, but the host is still drained, because Consul could not be reached when it failed."
    )


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the threads that renew sessions from noticing a lost session, as when a suspended process has just come back."""
    monkeypatch.setattr(leases, "RENEW_EVERY", 600)


@pytest.mark.parametrize("in_wave", [False, True])
def test_hosts_that_upgrade_themselves_are_admitted_while_ansible_upgrades_others(
    store: Store, consul: RawKV, *, in_wave: bool
) -> None:
    with push_services(store, consul, {"web1": "web", "cmp1": "compute", "cmp2": "compute"}) as running:
        service = running.begin(GROUPS, "2", cap=1)
        if in_wave:
            assert service.admit_wave(AdmitWave(("web1",)))["web1"].admitted
        else:
            admit_apart(service, "web1")
        assert step(service, "web1", "upgrade/app")
        until(lambda: consul.get("config_state/enable_puppet/host/cmp1"))
        consul.delete("running/versions/1/cmp1")
        consul.put("running/versions/2/cmp1", "1700000000")
        until(lambda: consul.get("config_state/enable_puppet/host/cmp2"))


def test_hosts_of_a_later_play_wait_for_those_that_tags_left_between_two_steps(store: Store, consul: RawKV) -> None:
    groups = {
        role: tuple(RunTaskGroup(f"{one}/app", one, "app", once=False) for one in ("prepare", "upgrade"))
        for role in ("ctl", "web")
    }
    with push_services(store, consul, {"ctl1": "ctl", "web1": "web"}) as running:
        service = running.begin(groups, "2", role_order={"web": "ctl"})
        assert not service.settle(Settle(("web1",), 0.1)).only_tags_wait
        admit_apart(service, "ctl1")
        assert step(service, "ctl1", "prepare/app")
        assert end(service, "ctl1") == "partial"
        assert service.settle(Settle(("ctl1",), 0.1)).only_tags_wait
        # The plays of the run are over. Without tags, this would be stuck.
        settled = service.settle(Settle(("web1",), 0.1))
        assert (settled.done, settled.can_move, settled.only_tags_wait) == (False, False, True)


@pytest.mark.usefixtures("sleeping")
def test_hosts_are_admitted_also_if_the_session_has_just_ended(services: PushServices, consul: RawKV) -> None:
    service = services.begin(GROUPS, "2", cap=1)
    admit_apart(service, "web1")
    assert step(service, "web1", "upgrade/app")
    assert consul.call("PUT", f"session/destroy/{service.session.name}")[0] == 200
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(service.admit, Admit("web2"))
        until(lambda: consul.get("upgrade/drivers/web2"))
        assert end(service, "web1") == "upgraded"
        assert waiting.result(60).admitted


def test_a_run_outlasts_a_session_that_can_not_be_renewed_for_a_moment(
    services: PushServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.1)
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1")
    failures = []

    def renew(_client: ConsulClient, _session: str) -> bool:
        failures.append(True)
        raise UpgradeError("tls", "The certificate can't be read.")

    with monkeypatch.context() as during:
        during.setattr(ConsulClient, "renew_session", renew)
        until(lambda: len(failures) > 1)
    assert step(service, "web1", "upgrade/app")
    assert end(service, "web1") == "upgraded"


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_run_does_not_end_while_its_rollout_is_paused_or_aborted(
    services: PushServices, store: Store, *, goes_on: bool
) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, *FLEET)
    control.pause(store, Command("look first"))
    for host in FLEET:
        assert step(service, host, "upgrade/app")
        assert end(service, host) == "upgraded"
    settled = service.settle(Settle(tuple(FLEET), 0.1))
    assert (settled.done, settled.can_move, settled.unfinished) == (False, True, ())
    assert [reason for reason in settled.reasons if "look first" in reason]
    if goes_on:
        control.resume(store, Command())
        assert service.settle(Settle(tuple(FLEET), 0.1)).done
        return
    abort(store, Command("2 is bad"))
    settled = service.settle(Settle(tuple(FLEET), 0.1))
    assert (settled.done, settled.can_move) == (False, False)
    assert [reason for reason in settled.reasons if "2 is bad" in reason]


@pytest.mark.usefixtures("sleeping")
@pytest.mark.parametrize("once", [False, True])
def test_a_run_that_comes_back_runs_nothing_on_a_host_that_another_run_has(
    services: PushServices, consul: RawKV, *, once: bool
) -> None:
    groups = {"web": (RunTaskGroup("prepare/app", "prepare", "app", once=False), replace(GROUPS["web"][0], once=once))}
    service = services.begin(groups, "2")
    admit_apart(service, "web1", "web2")
    for host in FLEET:
        assert step(service, host, "prepare/app")
    consul.call("PUT", f"session/destroy/{service.session.name}")
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    other = json.loads(body)["ID"]
    assert consul.call("PUT", f"kv/upgrade/drivers/web1?acquire={other}", b"{}")[2] == b"true"
    consul.put("upgrade/hosts/web1", json.dumps({"version": "2", "state": "started", "step": "upgrade"}))
    theirs = consul.get("upgrade/hosts/web1")
    with pytest.raises(UpgradeError) as caught:
        step(service, "web1", "upgrade/app")
    assert caught.value.code == "leased"
    assert "which belongs to another run" in caught.value.message
    # Nor is it undrained or its failure recorded, as the host goes on in the other run.
    assert service.begin_failure(BeginFailure("web1", "it is leased")) == ()
    service.fail_host(FailHost("web1", "it is leased"))
    assert consul.get("upgrade/hosts/web1") == theirs
    assert consul.get("upgrade/drivers/web1") == b"{}"
    assert consul.get("upgrade/once/2/upgrade/app") is None
    # A host that no other run has goes on.
    assert step(service, "web2", "upgrade/app")
    finish(service, "web2", "upgrade/app")
    assert end(service, "web2") == "upgraded"


@pytest.mark.usefixtures("sleeping")
def test_a_run_that_comes_back_does_not_report_a_host_that_another_run_has(
    services: PushServices, consul: RawKV
) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1")
    assert step(service, "web1", "upgrade/app")
    consul.call("PUT", f"session/destroy/{service.session.name}")
    _code, _headers, body = consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})
    other = json.loads(body)["ID"]
    assert consul.call("PUT", f"kv/upgrade/drivers/web1?acquire={other}", b"{}")[2] == b"true"
    with pytest.raises(UpgradeError) as caught:
        end(service, "web1")
    assert caught.value.code == "leased"
    assert entry(consul, "upgrade/hosts/web1")["state"] == "started"
    assert consul.get("running/versions/2/web1") is None


@pytest.mark.usefixtures("sleeping")
@pytest.mark.parametrize("act", ["end", "fail"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_run_does_not_report_a_host_that_another_run_takes_over_at_that_moment(
    services: PushServices, consul: RawKV, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool, act: str
) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1")
    assert step(service, "web1", "upgrade/app")
    theirs = json.dumps({"version": "2", "state": "started", "step": "verify", "times": {"started": 9}}).encode()
    confirm = service.session.confirm

    def confirm_and_lose(host: str) -> None:
        monkeypatch.setattr(service.session, "confirm", confirm)
        confirm(host)
        consul.call("PUT", f"session/destroy/{service.session.name}")
        if not has_ended:
            other = json.loads(consul.call("PUT", "session/create", {"Name": "another run", "TTL": "60s"})[2])["ID"]
            assert consul.call("PUT", f"kv/upgrade/drivers/{host}?acquire={other}", b"{}")[2] == b"true"
        consul.put(f"upgrade/hosts/{host}", theirs)

    monkeypatch.setattr(service.session, "confirm", confirm_and_lose)
    if act == "fail":
        service.fail_host(FailHost("web1", "no disk"))
    else:
        with pytest.raises(UpgradeError) as caught:
            end(service, "web1")
        assert caught.value.code == "leased"
        service.fail_host(FailHost("web1", str(caught.value)))
    assert consul.get("upgrade/hosts/web1") == theirs
    assert consul.get("running/versions/2/web1") is None
    assert (consul.get("upgrade/drivers/web1") is None) == has_ended


@pytest.mark.thorough
def test_leases_are_acquired_again_until_all_are(
    services: PushServices, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services.begin(GROUPS, "2")
    admit_apart(service, "web1", "web2")
    acquire, failures = leases.acquire, ["web2", "web2"]

    def lose_some(store: Store, session: str, host: str) -> str | None:
        if host in failures:
            failures.remove(host)
            raise Unreachable("unreachable", "Consul gives no answer.")
        return acquire(store, session, host)

    monkeypatch.setattr(leases, "acquire", lose_some)
    consul.call("PUT", f"session/destroy/{service.session.name}")
    until(lambda: all(consul.get(f"upgrade/drivers/{host}") for host in FLEET))
    assert not failures
    for host in FLEET:
        assert step(service, host, "upgrade/app")
