# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets of holds, and what is refused before any request."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import Change
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import (
    reset_gates,
    set_gate,
    who_is_under_way,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store, current_user
from job_fleet import FLEET, complete_fleet

# Nothing listens at this address, so a request would fail.
NOWHERE = Store(Settings(port=1, timeout=0.01))


def test_the_widest_come_first_and_each_one_once() -> None:
    whom = HoldTargets(everything=True, roles=["web", "db", "web"], hosts=["web2", "web1", "web2"])
    assert whom.scopes() == [("global", None), ("role", "web"), ("role", "db"), ("host", "web2"), ("host", "web1")]


@pytest.mark.parametrize(
    ("whom", "scopes"),
    [
        (HoldTargets(everything=True), [("global", None)]),
        (HoldTargets(roles=["web"]), [("role", "web")]),
        (HoldTargets(hosts=["web1"]), [("host", "web1")]),
        # A host may have this name.
        (HoldTargets(hosts=["global"]), [("host", "global")]),
    ],
)
def test_any_of_them_will_do(whom: HoldTargets, scopes: list[tuple[str, str | None]]) -> None:
    assert whom.scopes() == scopes


@pytest.mark.parametrize(
    ("whom", "code", "message"),
    [
        (HoldTargets(), "no_target", "No target is given: give hosts, roles, or everything: true."),
        (HoldTargets(hosts=["a/b"]), "bad_name", "hosts: "),
        (HoldTargets(hosts=[""]), "bad_name", "hosts: "),
        (HoldTargets(roles=["web", "a/b"]), "bad_name", "roles: "),
        (HoldTargets(everything=True, hosts=["a\nb"]), "bad_name", "hosts: "),
    ],
)
def test_targets_that_can_not_exist_are_refused_before_a_request(whom: HoldTargets, code: str, message: str) -> None:
    for act in (whom.scopes, lambda: set_holds(NOWHERE, whom, "RAM test"), lambda: end_holds(NOWHERE, whom)):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == code
        assert caught.value.message.startswith(message)
    assert NOWHERE.client.requests == 0


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_a_hold_without_a_reason_is_refused_before_any_request(reason: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        set_holds(NOWHERE, HoldTargets(everything=True), reason)
    assert (caught.value.code, NOWHERE.client.requests) == ("no_reason", 0)


@pytest.mark.parametrize("dry", [False, True])
def test_without_consul_no_host_is_held(dry: bool) -> None:
    with pytest.raises(UpgradeError) as caught:
        set_holds(NOWHERE, HoldTargets(everything=True), "RAM test", dry=dry)
    assert caught.value.code == "unreachable"


def test_the_end_of_a_hold_names_the_others_over_the_same_hosts() -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        record = {"version": "2.0", "state": "upgraded", "held": "disk swap", "times": {"upgraded": 5}}
        consul.write("upgrade/hosts/web1", record)
        set_holds(store, HoldTargets(roles=["web"], hosts=["web1", "db1"], fleet=FLEET), "lunch")
        remarks = [end_holds(store, HoldTargets(hosts=[host], fleet=FLEET)).remarks for host in ("web1", "db1")]
        assert [[one.partition(" since ")[0] for one in found] for found in remarks] == [
            [f"web1 is still held by {current_user()}"],
            [],
        ]
        (own,) = end_holds(store, HoldTargets(roles=["web"], fleet=FLEET)).remarks
        assert own.startswith("web1 is still held by puppet agent --disable: disk swap")


def test_gates_that_an_operator_closes_are_no_longer_those_of_a_rollout() -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        rules = {"rolling_rules": {"global": 1}, "freezes": [{"from": "2020-01-01", "to": "2090-01-01"}]}
        make_pass(store, PassRequest("2.1", rules, fleet=FLEET))
        assert consul.flags["config_state/enable_puppet/global"]
        assert ask_gate(store, {"web1": "web"})["web1"].pending
        for act in (reset_gates, lambda one: set_gate(one, "global", None, value=False)):
            assert act(store) == (
                []
                if act is not reset_gates
                else [Change("config_state/enable_puppet/global", "False (of a rollout)", "False")]
            )
        assert not ask_gate(store, {"web1": "web"})["web1"].pending


def test_planners_open_gates_again_for_the_post_upgrade_tasks_that_are_left() -> None:
    with complete_fleet().in_place() as consul:
        ledger = consul.data("upgrade/ledger") | {"post_upgrade": ["web"]}
        consul.write("upgrade/ledger", ledger)
        reset_gates(consul.store())
        assert "has post-upgrade tasks left" in who_is_under_way(consul.store())
        consul.write("upgrade/ledger", ledger | {"post_upgrade": []})
        assert who_is_under_way(consul.store()) == ""
