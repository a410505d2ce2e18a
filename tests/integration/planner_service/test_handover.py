# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How runs hand a rollout over to planner services, and what they refuse to hand over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.planner_service import Nodes, Service, carried, running, until
from integration.support.runs.commands import control
from integration.support.runs.playbook import Runner, plan
from integration.support.runs.shipped import Shipped, inventory

pytestmark = pytest.mark.one_release

Start = Callable[..., Service]
ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
HOSTS = names(web=6)


@pytest.mark.thorough
def test_a_call_hands_over_only_if_a_planner_service_runs(run: Runner, service: Start, consul: RawKV) -> None:
    seed(consul, HOSTS)
    before = consul.tree()
    (refused,) = run([plan(version="2", instructions=ONE, hand_over=True)])
    assert refused["failure"]["code"] == "no_planner"
    assert consul.tree() == before
    service(fleet=dict(HOSTS))
    until(lambda: running(consul))
    (checked,) = run([plan(version="2", instructions=ONE, hand_over=True)], check=True)
    assert checked["changed"]
    assert "upgrade/handover = " in checked["diff"]["after"]
    assert consul.get("upgrade/handover") is None
    first, again, other = run(
        [
            plan(version="2", instructions=ONE, hand_over=True),
            plan(version="2", hand_over=True),
            plan(version="2", hand_over=True, limit=["web2"]),
        ]
    )
    assert (first["changed"], again["changed"], other["changed"]) == (True, False, True), other
    assert first["planners"] == ["one"]
    kept = json.loads(consul.get("upgrade/handover") or b"")
    assert (kept["version"], kept["since"], kept["limit"]) == ("2", ledger(consul)["since"], ["web2"])
    assert carried(consul)


@pytest.mark.thorough
def test_a_call_fails_if_no_planner_service_answers(run: Runner, consul: RawKV) -> None:
    seed(consul, HOSTS)
    # As that of a service that was killed some seconds ago.
    consul.put("upgrade/planners/one", "{}")
    (refused,) = run([plan(version="2", instructions=ONE, hand_over=True)])
    assert refused["failure"]["code"] == "no_planner"
    assert "The rollout has begun and was handed over, but no planner service carries it" in refused["msg"]
    assert "None has answered within 20 s" in refused["msg"]


def test_a_call_does_not_wait_for_what_it_hands_over(run: Runner, consul: RawKV) -> None:
    seed(consul, HOSTS)
    before = consul.tree()
    (both,) = run([plan(version="2", instructions=ONE, hand_over=True, wait=True)])
    assert both["failure"]["code"] == "bad_options"
    assert consul.tree() == before


@pytest.mark.thorough
def test_an_operator_hands_over_with_wait_false(play: Shipped, service: Start, store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    variables: dict[str, Any] = {"version": "2", "instructions": ONE, "wait": False}
    refused = play("upgrade", **variables)
    assert refused.returncode != 0
    assert "[no_planner] No planner service runs" in refused.stdout
    assert ledger(consul) == {}
    one = service()
    until(lambda: running(consul))
    with Nodes(store, consul, HOSTS):
        begun = play("upgrade", **variables)
        assert begun.returncode == 0, begun.stdout
        assert "Handed over: 1 planner service carries the rollout to its end (one)." in begun.stdout
        last = begun.stdout.strip().splitlines()[-1]
        assert last.startswith("Next: ")
        assert "status" in last
        assert "follow=true" in last
        until(lambda: ledger(consul)["state"] == "complete")
    assert one.admitted()


@pytest.mark.parametrize(
    ("playbook", "more", "how"),
    [
        ("upgrade", {"upgrade_limit": "web1"}, "without upgrade_limit"),
        ("role", {"role": "web"}, "with the playbook convoy.upgrade.upgrade"),
        pytest.param(
            "dataplane",
            {"upgrade_limit": "web1"},
            "without upgrade_limit and with the playbook convoy.upgrade.upgrade",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_handover_of_some_hosts_is_not_said_to_carry_the_rollout_to_its_end(
    play: Shipped, service: Start, consul: RawKV, playbook: str, more: dict[str, Any], how: str
) -> None:
    seed(consul, HOSTS)
    service()
    until(lambda: running(consul))
    roles = {"web": {"plane": "dataplane"}}
    given = {"version": "2", "instructions": ONE, "wait": False, "inventory": inventory(HOSTS), "upgrade_roles": roles}
    begun = play(playbook, **given, **more)
    assert begun.returncode == 0, begun.stdout
    assert (
        "Handed over: 1 planner service carries the rollout for the hosts of this run (one). They admit no other host. To hand over those too, "
        f"run the same command {how}."
    ) in " ".join(begun.stdout.split())


def test_a_complete_rollout_names_no_service_that_would_carry_it(run: Runner, consul: RawKV) -> None:
    seed(consul, HOSTS)
    consul.put("upgrade/planners/one", "{}")
    (found,) = run([plan(version="1", instructions=ONE, hand_over=True)])
    assert found["complete"]
    assert "planners" not in found


def test_a_rollback_without_a_planner_service_does_not_begin(run: Runner, consul: RawKV) -> None:
    seed(consul, HOSTS)
    run([plan(version="2", instructions=ONE)])
    before = consul.tree()
    refused, odd = run([control("rollback", hand_over=True), control("pause", hand_over=True)])
    assert refused["failure"]["code"] == "no_planner"
    assert odd["failure"]["code"] == "bad_options"
    assert consul.tree() == before
    # As that of a service that runs.
    consul.put("upgrade/planners/one", "{}")
    (begun,) = run([control("rollback", hand_over=True)])
    assert begun["version"] == ledger(consul)["version"] == "1"


@pytest.mark.thorough
def test_a_rollback_that_is_not_waited_for_needs_a_planner_service(play: Shipped, consul: RawKV) -> None:
    seed(consul, HOSTS)
    begun = play("upgrade", version="2", instructions=ONE, once=True)
    assert begun.returncode == 0, begun.stdout
    before = consul.tree()
    refused = play("rollback", wait=False)
    assert refused.returncode != 0
    assert "[no_planner] No planner service runs" in refused.stdout
    # With wait=false, it would be refused again.
    assert "wait" not in refused.stdout.rpartition("Next: ")[2]
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_fleet_that_ansible_upgrades_is_not_handed_over(play: Shipped, consul: RawKV) -> None:
    seed(consul, HOSTS)
    refused = play(
        "upgrade",
        inventory={"web": [*HOSTS]},
        version="2",
        wait=False,
        upgrade_roles={"web": {"services": ["nginx"]}},
    )
    assert refused.returncode != 0
    assert "[bad_options] wait: planner services run no Ansible tasks, but Ansible upgrades the roles" in refused.stdout
    assert consul.get("upgrade/handover") is None
    assert ledger(consul) == {}
