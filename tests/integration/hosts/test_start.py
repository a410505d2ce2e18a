# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's start: one transaction that succeeds only while its admission holds, also with the token that only a node has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import acl, control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates, set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.fleet import GATES, names, record, seed
from integration.support.processes.guarded import MASTER
from integration.support.runs import playbook
from integration.support.runs.playbook import Runner

pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}
UNLIMITED = {"rolling_rules": {"global": "unlimited"}}
STARTS = HostReport("web1", "2", "started", role="web")


@pytest.fixture
def kv(guarded: Agent) -> RawKV:
    """A fleet whose web1 is admitted to 2."""
    wipe(guarded.kv)
    seed(guarded.kv, names(web=3), gates={"global": "True"})
    # Where the layout is written down, no pause of python-jiocloud has to be looked for.
    guarded.kv.put("upgrade/schema", "1")
    make_pass(admin_of(guarded), PassRequest("2", ONE_BY_ONE))
    return guarded.kv


def admin_of(guarded: Agent) -> Store:
    return Store(Settings(port=guarded.http_port, token=MASTER))


@pytest.fixture
def admin(guarded: Agent, kv: RawKV) -> Store:  # noqa: ARG001  it seeds
    return admin_of(guarded)


@pytest.fixture
def node(guarded: Agent, admin: Store) -> Store:
    """Consul with the token that only web1 has."""
    granted = acl.grant(admin, acl.TokenKind(acl.NODE, "web1"))
    return Store(Settings(port=guarded.http_port, token=granted.secret))


def between(store: Store, act: Callable[[], Any]) -> None:
    """Do something between what a store reads and what it writes, once."""
    write = store.client.write

    def late(operations: Any) -> Any:
        store.client.write = write  # type: ignore[method-assign]
        act()
        return write(operations)

    store.client.write = late  # type: ignore[method-assign]


def refused(store: Store, report: HostReport = STARTS) -> str:
    with pytest.raises(UpgradeError) as caught:
        write_report(store, report)
    assert caught.value.code == "not_admitted", caught.value
    return caught.value.message


def test_an_admitted_host_starts_in_two_requests_with_its_own_token(kv: RawKV, node: Store) -> None:
    found, changes = write_report(node, STARTS)
    assert node.client.requests == 2
    assert (found.state, found.version) == ("started", "2")
    assert [one.key for one in changes] == ["upgrade/hosts/web1"]
    assert record(kv, "web1")["state"] == "started"
    # A run that was cut off starts again: nothing is changed, and all is compared again.
    assert write_report(node, STARTS)[1] == []
    assert node.client.requests == 4


def test_a_host_that_is_not_admitted_does_not_start(kv: RawKV, admin: Store, node: Store) -> None:
    assert "config_state/enable_puppet/global is False" in refused(
        admin, HostReport("web2", "2", "started", role="web")
    )
    assert "current_version is 2" in refused(node, HostReport("web1", "3", "started", role="web"))
    set_holds(admin, HoldTargets(roles=["web"]), "no disk")
    assert "no disk" in refused(node)
    assert kv.get("upgrade/hosts/web1") is None


LATE: dict[str, Callable[[Store, RawKV], Any]] = {
    "hold of the host": lambda store, _kv: set_holds(store, HoldTargets(hosts=["web1"]), "wait"),
    "hold of the role": lambda store, _kv: set_holds(store, HoldTargets(roles=["web"]), "wait"),
    "hold of everything": lambda store, _kv: set_holds(store, HoldTargets(everything=True), "wait"),
    "abort": lambda store, _kv: control.abort(store, control.Command("stop", fleet=names(web=3))),
    "another rollout": lambda store, _kv: make_pass(
        store, PassRequest("3", {"rolling_rules": {"global": 0}}, replace="2")
    ),
    "reset of the gates": lambda store, _kv: reset_gates(store),
    "gate of the host": lambda store, _kv: set_gate(store, "host", "web1", value=False),
    "raw hold": lambda _store, kv: kv.put("upgrade/hold/host/web1", "{}"),
    "raw hold of everything": lambda _store, kv: kv.put("upgrade/hold/global", "{}"),
    "raw version": lambda _store, kv: kv.put("current_version", "3"),
}


@pytest.mark.parametrize("command", LATE)
@pytest.mark.parametrize("was_there", [False, True], ids=["first start", "again"])
def test_what_comes_between_the_question_and_the_start_stops_it(
    kv: RawKV, admin: Store, node: Store, command: str, was_there: bool
) -> None:
    if was_there:
        write_report(node, HostReport("web1", "1", "failed", error="disk"))
    before = kv.get("upgrade/hosts/web1")
    between(node, lambda: LATE[command](admin, kv))
    refused(node)
    assert kv.get("upgrade/hosts/web1") == before


def test_a_closed_gate_of_its_own_stops_a_host_that_its_role_admits(kv: RawKV, admin: Store, node: Store) -> None:
    kv.delete(f"{GATES}/host/web1")
    kv.put(f"{GATES}/role/web", "True")
    between(node, lambda: set_gate(admin, "host", "web1", value=False))
    refused(node)
    assert kv.get("upgrade/hosts/web1") is None


def test_a_hold_that_ends_or_is_over_another_host_only_has_it_ask_again(kv: RawKV, admin: Store, node: Store) -> None:
    set_holds(admin, HoldTargets(hosts=["web10"], allow_unknown=True), "wait")
    between(node, lambda: end_holds(admin, HoldTargets(hosts=["web10"])))
    write_report(node, STARTS)
    assert record(kv, "web1")["state"] == "started"


def test_steps_of_a_start_are_reported_under_a_hold_and_a_first_one_is_not(admin: Store, node: Store) -> None:
    write_report(node, HostReport("web1", "2", "started", service="nginx", step="stop", role="web"))
    set_holds(admin, HoldTargets(hosts=["web1"]), "wait")
    write_report(node, HostReport("web1", "2", "started", service="nginx", step="upgrade", role="web"))
    write_report(node, HostReport("web1", "2", "failed", error="disk"))
    refused(node, HostReport("web1", "2", "started", service="nginx", step="upgrade", role="web"))


def test_check_mode_says_the_same_and_writes_nothing(kv: RawKV, admin: Store, node: Store) -> None:
    before = kv.tree("upgrade/hosts/")
    assert [one.key for one in write_report(node, STARTS, dry=True)[1]] == ["upgrade/hosts/web1"]
    set_holds(admin, HoldTargets(hosts=["web1"]), "wait")
    with pytest.raises(UpgradeError, match="not admitted"):
        write_report(node, STARTS, dry=True)
    assert kv.tree("upgrade/hosts/") == before


def test_the_module_needs_an_admission_and_is_given_the_role(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    make_pass(store, PassRequest("2", ONE_BY_ONE))
    options = {"role_pattern": "(web)", "default": False}
    results = run([
        playbook.report("web2", "2", "started", **options),
        playbook.report("web1", "2", "started", role="web"),
        playbook.report("web2", "2", "started", admitted=False),
    ])  # fmt: skip
    assert [one.get("failure", {}).get("code") for one in results] == ["not_admitted", None, None]
    assert "config_state/enable_puppet/global is False" in results[0]["msg"]
    assert (record(consul, "web1")["state"], record(consul, "web2")["state"]) == ("started", "started")


def test_default_decides_where_no_gate_is_set(store: Store, consul: RawKV) -> None:
    consul.put("current_version", "2")
    assert "no gate is set" in refused(store, HostReport("web1", "2", "started", role="web", default=False))
    assert write_report(store, STARTS)[0].state == "started"
    assert json.loads(consul.get("upgrade/hosts/web1") or b"")["attempt"] == 1


def test_a_node_does_not_open_its_own_gate(kv: RawKV, guarded: Agent, admin: Store) -> None:
    forger = Store(Settings(port=guarded.http_port, token=acl.grant(admin, acl.TokenKind(acl.NODE, "web3")).secret))
    for version in ("1", "2", "9"):
        write_report(forger, HostReport("web3", version, "started"))
        outcome = make_pass(admin, PassRequest(fleet=names(web=3)))
        assert outcome.admissions == []
        assert kv.get(f"{GATES}/host/web3") is None
        assert outcome.plan.hosts["web3"].state == "upgrading"
        assert "was not admitted" in outcome.plan.hosts["web3"].reason
    # It takes a slot, also where a rollout begins again, and does not go on without an operator.
    control.abort(admin, control.Command("stop", fleet=names(web=3)))
    outcome = make_pass(admin, PassRequest("3", ONE_BY_ONE, fleet=names(web=3)))
    assert outcome.admissions == []
    assert not outcome.plan.can_move
    control.retry(admin, control.Command("looked at", fleet=names(web=3)), ["web3"])
    assert [one.host for one in make_pass(admin, PassRequest(fleet=names(web=3))).admissions] == ["web1"]


def test_an_admission_to_the_rollout_before_ends_with_it_also_while_no_host_is_admitted(
    kv: RawKV, admin: Store, node: Store
) -> None:
    """The first pass of a rollout may admit none, such as that of a push run, or one before a window opens."""
    make_pass(admin, PassRequest("3", ONE_BY_ONE, fleet=names(web=3), replace="2", limit=[]))
    assert json.loads(kv.get("upgrade/ledger") or b"")["epoch"] == 4
    # Nothing more is written than that.
    make_pass(admin, PassRequest(fleet=names(web=3), limit=[]))
    assert json.loads(kv.get("upgrade/ledger") or b"")["epoch"] == 4
    assert json.loads(kv.get("upgrade/history/4") or b"")["reason"].startswith("web1 had not started")
    write_report(node, HostReport("web1", "3", "started"))
    outcome = make_pass(admin, PassRequest(fleet=names(web=3)))
    assert kv.get(f"{GATES}/host/web1") is None
    assert "was not admitted" in outcome.plan.hosts["web1"].reason


def test_a_host_that_was_admitted_and_has_reported_since_gets_no_gate_in_the_next_rollout(
    kv: RawKV, admin: Store, node: Store
) -> None:
    write_report(node, STARTS)
    write_report(node, HostReport("web1", "2", "upgraded"))
    make_pass(admin, PassRequest(fleet=names(web=3)))
    assert kv.get("running/versions/2/web1") is not None
    write_report(node, HostReport("web1", "2", "started"))
    control.abort(admin, control.Command("stop", fleet=names(web=3)))
    make_pass(admin, PassRequest("3", {"rolling_rules": {"global": 2}}, fleet=names(web=3)))
    assert kv.get(f"{GATES}/host/web1") is None


def test_a_host_that_a_role_admitted_gets_its_gate_back_after_an_abort(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    consul.put("config_state/enable_puppet/global", "True")
    make_pass(store, PassRequest("2", UNLIMITED, fleet=names(web=2)))
    write_report(store, STARTS)
    control.abort(store, control.Command("stop", fleet=names(web=2)))
    make_pass(store, PassRequest("3", ONE_BY_ONE, fleet=names(web=2)))
    assert consul.texts(f"{GATES}/") == {f"{GATES}/global": "False", f"{GATES}/host/web1": "True"}


def test_a_host_that_failed_before_an_abort_and_starts_after_it_was_admitted(store: Store, consul: RawKV) -> None:
    seed(consul, names(web=2))
    consul.put("config_state/enable_puppet/global", "True")
    make_pass(store, PassRequest("2", UNLIMITED, fleet=names(web=2)))
    write_report(store, HostReport("web1", "2", "failed", error="no disk"))
    control.abort(store, control.Command("stop", fleet=names(web=2)))
    assert consul.texts(f"{GATES}/")[f"{GATES}/host/web1"] == "True"
    write_report(store, STARTS)
    make_pass(store, PassRequest("3", ONE_BY_ONE, fleet=names(web=2)))
    assert consul.texts(f"{GATES}/") == {f"{GATES}/global": "False", f"{GATES}/host/web1": "True"}


def begun_by_none(guarded: Agent, fleet: Mapping[str, str]) -> Store:
    """Return a store for a fleet, host -> role, that runs version 1 and that no rollout has begun to move."""
    wipe(guarded.kv)
    seed(guarded.kv, fleet)
    guarded.kv.put("upgrade/schema", "1")
    return admin_of(guarded)


def test_hosts_with_another_role_in_their_settings_do_not_begin_by_the_gate_of_that_role(guarded: Agent) -> None:
    fleet = {"web1": "web", "web2": "web", "web3": "web", "db1": "db"}
    admin = begun_by_none(guarded, fleet)
    # They have not reported the role in their settings.
    make_pass(admin, PassRequest("2", {"rolling_rules": {"roles": {"web": 1, "db": "unlimited"}}}, fleet=fleet))
    for host in ("web2", "web3"):
        refused(admin, HostReport(host, "2", "started", role="db", default=False))
    write_report(admin, HostReport("web1", "2", "started", role="web", default=False))
    # As an agent reports it when it is enrolled.
    write_report(admin, HostReport("web2", "1", "upgraded", role="db"))
    write_report(admin, HostReport("web1", "2", "upgraded", role="web"))
    found = make_pass(admin, PassRequest(fleet=fleet))
    assert [one.host for one in found.admissions] == ["web3"]
    assert "its settings have the role db" in found.plan.hosts["web2"].reason


def test_a_role_that_is_edited_after_the_admission_passes_neither_a_cap_nor_a_hold(guarded: Agent) -> None:
    fleet = {"web1": "web", "web2": "web", "db1": "db"}
    admin = begun_by_none(guarded, fleet)
    for host, role in fleet.items():
        write_report(admin, HostReport(host, "1", "upgraded", role=role))
    make_pass(admin, PassRequest("2", {"rolling_rules": {"roles": {"web": 1, "db": "unlimited"}}}, fleet=fleet))
    assert guarded.kv.get("config_state/enable_puppet/role/db") == b"True"
    edited = HostReport("web2", "2", "started", role="db", default=False)
    why = refused(admin, edited)
    assert "its settings have the role db, and it reported web before" in why
    assert "ansible-playbook convoy.upgrade.enroll --limit web2" in why
    set_holds(admin, HoldTargets(roles=["web"], fleet=fleet), "disk")
    refused(admin, replace(edited, host="web1"))
    end_holds(admin, HoldTargets(roles=["web"], fleet=fleet))
    # Once it is enrolled with that role, planners know, and close the gate that it could use.
    write_report(admin, HostReport("web2", "2", "delivered", role="db"))
    found = make_pass(admin, PassRequest(fleet=fleet))
    assert "its settings have the role db" in found.plan.hosts["web2"].reason
    refused(admin, edited)
    refused(admin, edited)


def test_a_hold_of_the_role_that_a_host_reported_last_holds_it_though_its_settings_have_another(guarded: Agent) -> None:
    fleet = {"web2": "web", "db1": "db"}
    admin = begun_by_none(guarded, fleet)
    for host, role in fleet.items():
        write_report(admin, HostReport(host, "1", "upgraded", role=role))
    set_holds(admin, HoldTargets(roles=["web"], fleet=fleet), "disk")
    guarded.kv.put("config_state/enable_puppet/global", "True")
    for others in ({}, names(db=80)):
        asked = ask_gate(admin, {**others, "web2": "db"})
        assert (asked["web2"].value, asked["web2"].hold, asked["web2"].key) == (False, True, "upgrade/hold/role/web")
        assert "its role was web before, which is held" in asked["web2"].reason
        assert all(asked[host].value for host in others)
    end_holds(admin, HoldTargets(roles=["web"], fleet=fleet))
    assert ask_gate(admin, {"web2": "db"})["web2"].value


def test_former_roles_of_many_hosts_are_read_in_one_request_of_folders(guarded: Agent) -> None:
    hosts = names(db=13)
    admin = begun_by_none(guarded, hosts)
    for number, host in enumerate(hosts):
        write_report(admin, HostReport(host, "1", "upgraded", role=f"before{number}"))
        write_report(admin, HostReport(host, "1", "upgraded", role="db"))
    guarded.kv.put("config_state/enable_puppet/global", "True")
    guarded.kv.put("upgrade/hold/role/before12", json.dumps({"reason": "disk", "by": "ann", "at": 1}))
    assert [host for host, one in ask_gate(admin, hosts).items() if not one.value] == ["db13"]


def test_a_role_that_changes_on_a_pending_host_starts_nothing_by_a_gate_that_was_open_before(guarded: Agent) -> None:
    fleet = {"web1": "web", "web2": "web", "web3": "web", "db1": "db"}
    admin = begun_by_none(guarded, fleet)
    for host, role in fleet.items():
        write_report(admin, HostReport(host, "1", "upgraded", role=role))
    make_pass(admin, PassRequest("2", {"rolling_rules": {"roles": {"web": 1, "db": "unlimited"}}}, fleet=fleet))
    # It reports the other role when its services can't be upgraded, or when it is enrolled, and no planner has read that yet.
    edited = HostReport("web2", "2", "started", role="db", default=False)
    write_report(admin, HostReport("web2", "2", "failed", role="db", error="no disk"))
    assert "its role was web before" in refused(admin, edited)
    write_report(admin, HostReport("web3", "1", "upgraded", role="db"))
    refused(admin, replace(edited, host="web3"))
    # Planners admit it by its own gate once the fleet has that role too. What held its former role still holds it.
    fleet |= {"web2": "db"}
    make_pass(admin, PassRequest(fleet=fleet))
    assert guarded.kv.get("config_state/enable_puppet/role/db") is None
    write_report(admin, HostReport("db1", "2", "started", role="db", default=False))
    control.retry(admin, control.Command(fleet=fleet), ["web2"])
    make_pass(admin, PassRequest(fleet=fleet))
    assert guarded.kv.get("config_state/enable_puppet/host/web2") == b"True"
    set_holds(admin, HoldTargets(roles=["web"], fleet=fleet | {"web2": "web"}), "disk")
    assert "disk" in refused(admin, edited)
    # Single keys are read for one host, and whole folders for many.
    for others in ({}, names(web=80)):
        asked = ask_gate(admin, {**others, "web2": "db"})["web2"]
        assert (asked.value, asked.hold, asked.key) == (False, True, "upgrade/hold/role/web")
    held = make_pass(admin, PassRequest(fleet=fleet)).plan.hosts["web2"]
    assert held.held
    assert "disk" in held.reason
    end_holds(admin, HoldTargets(roles=["web"], fleet=fleet))
    started, _changes = write_report(admin, edited)
    assert (started.role, started.former_role) == ("db", None)
