# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the push service of a run does with the handover of its rollout: only a rollout that needs Ansible takes it from planner services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import Settle, Settlement
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import POST_UPGRADE_PHASE, RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, ledger, names
from integration.support.processes.push_services import PushServices, push_services
from integration.support.runs.commands import upgrade

pytestmark = pytest.mark.one_release

HOSTS = names(web=2)
PULL: dict[str, Any] = {"pull_roles": frozenset({"web"})}
PUSHED = {"web": (RunTaskGroup("stop/nginx", "stop", "nginx", once=False),)}


@pytest.fixture
def services(store: Store, consul: RawKV) -> Iterator[PushServices]:
    # As that of a planner service that runs.
    consul.put("upgrade/planners/one", "{}")
    with push_services(store, consul, HOSTS) as found:
        yield found


def handover(consul: RawKV) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(consul.get("upgrade/handover") or b"{}")
    return found


def settle(service: PushService) -> Settlement:
    return service.settle(Settle(tuple(HOSTS), 0.1))


def handed_over(store: Store) -> str:
    begun = make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}, fleet=HOSTS, post_upgrade=["web"]))
    assert begun.ledger is not None
    return hand_over(store, begun.ledger, None, dry=False).id


def test_a_run_of_hosts_that_upgrade_themselves_leaves_the_handover_as_it_is(
    services: PushServices, store: Store, consul: RawKV
) -> None:
    given = handed_over(store)
    consul.put("upgrade/planners/one", json.dumps({"handover": given, "refusal": ""}))
    service = services.start({}, "2", **PULL)
    found = settle(service)
    assert (handover(consul)["id"], found.handover, found.planners) == (given, given, ("one",))
    # Another run with a limit ends nothing either.
    assert settle(services.start({}, "2", **PULL, limit=("web1",))).handover == given


def test_it_hands_over_with_its_limit_once_the_ledger_has_what_services_need(
    services: PushServices, consul: RawKV
) -> None:
    service = services.begin({}, "2", 1, **PULL, limit=("web1",), excluded=("!~web2$",))
    assert handover(consul) == {}
    found = settle(service)
    assert (handover(consul)["id"], handover(consul)["limit"]) == (found.handover, ["web1", "!~web2$"])
    assert (ledger(consul)["post_upgrade"], found.planners, found.warning) == (["web"], (), "")
    consul.put("upgrade/planners/one", json.dumps({"handover": found.handover, "refusal": ""}))
    assert settle(service).planners == ("one",)
    # It hands over once: what an operator has ended since stays ended.
    consul.delete("upgrade/handover")
    assert (settle(service).handover, handover(consul)) == ("", {})


def test_it_does_so_for_post_upgrade_tasks_that_are_left(services: PushServices, store: Store, consul: RawKV) -> None:
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 2}}, fleet=HOSTS, post_upgrade=["web"]))
    upgrade(store, *HOSTS)
    make_pass(store, PassRequest("2", since=1, limit=[]))
    assert (ledger(consul)["state"], gates(consul)["global"]) == ("complete", "False")
    found = settle(services.start({}, "2", phase=POST_UPGRADE_PHASE, **PULL))
    assert found.handover == handover(consul)["id"] != ""


@pytest.mark.parametrize("phase", ["upgrade", POST_UPGRADE_PHASE])
def test_a_run_of_hosts_that_ansible_upgrades_ends_the_handover(
    services: PushServices, store: Store, consul: RawKV, phase: str
) -> None:
    handed_over(store)
    service = services.start(PUSHED, "2", phase=phase)
    assert handover(consul) == {}
    if phase == "upgrade":
        assert (settle(service).handover, handover(consul)) == ("", {})


def test_a_run_that_may_not_hand_over_goes_on_with_a_warning(
    services: PushServices, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services.begin({}, "2", 1, **PULL)
    # Another run has begun another rollout after the pass of this one.
    real = service._admission._make_pass

    def overtaken(limit: Any) -> Any:
        made = real(limit)
        make_pass(store, PassRequest("3", fleet=HOSTS, replace="2"))
        return made

    monkeypatch.setattr(service._admission, "_make_pass", overtaken)
    found = settle(service)
    assert found.warning.startswith(
        "The rollout could not be handed over to planner services: The rollout to 2 was not handed over"
    )
    assert found.handover == ""
