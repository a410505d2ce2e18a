# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner of a service at moments that a process can't be stopped at: the handover changes between a read and a pass, or Consul is restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import (
    hand_over,
    take_back,
    wait_for_planner,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.planner_service import PlannerService
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.settings import ServiceSettings
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.planner_service import open_hosts
from integration.support.runs.commands import upgrade

pytestmark = pytest.mark.one_release

ONE: dict[str, Any] = {"rolling_rules": {"global": 1}}
HOSTS = names(web=6)


class _Answered(Exception):
    """The planner has answered a handover, so a test gets control back."""


class _Presence:
    def answer(self, handover: str, refusal: str = "") -> None:
        if handover and not refusal.startswith("upgrade/ledger"):
            raise _Answered(refusal)


class _Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def say(self, event: str, *_rest: object, **_fields: object) -> None:
        self.events.append(event)

    def say_once(self, _what: str, event: str, *_rest: object, **_fields: object) -> None:
        self.events.append(event)

    state = say


def _planner(store: Store, **fields: Any) -> PlannerService:
    """Return the planner of a service, whose steps a test takes."""
    settings = ServiceSettings("one", store.settings, fields.get("fleet", {}))
    systemd: Any = SimpleNamespace(every=0.1, alive=lambda: None, status=lambda _text: None)
    log: Any = fields.get("log") or _Log()
    presence: Any = _Presence()
    planner = PlannerService(settings, log, systemd, presence)
    # A step that has nothing to do ends at once.
    vars(planner).update(_wait=lambda *_given: None)
    return planner


def _begin(store: Store, consul: RawKV, **more: Any) -> Ledger:
    seed(consul, HOSTS)
    made = make_pass(store, PassRequest("2", ONE, **more))
    assert made.ledger is not None
    hand_over(store, made.ledger, None, dry=False)
    return made.ledger


def _carry(planner: PlannerService) -> str:
    """Let it make one pass, or refuse; return the refusal."""
    with pytest.raises(_Answered) as answered:
        for _step in range(5):
            planner._work_once()
    return str(answered.value)


def _before_the_pass(planner: PlannerService, act: Callable[[], object]) -> None:
    vars(planner).update(_wait_until_quiet=act)


@pytest.mark.parametrize("is_ended", [False, True], ids=["replaced", "ended"])
def test_a_pass_under_a_handover_that_changed_since_admits_no_host(
    store: Store, consul: RawKV, *, is_ended: bool
) -> None:
    begun = _begin(store, consul)
    upgrade(store, "web1")
    planner = _planner(store)

    def change() -> None:
        if is_ended:
            take_back(store)
        else:
            hand_over(store, begun, ["web6"], dry=False)

    _before_the_pass(planner, change)
    before = ledger(consul)["epoch"]
    # It returns without an answer: neither a pass nor a refusal.
    planner._work_once()
    assert ledger(consul)["epoch"] == before
    assert open_hosts(consul, HOSTS) == ["web1"]
    if is_ended:
        return
    _before_the_pass(planner, lambda: None)
    assert _carry(planner) == ""
    assert open_hosts(consul, HOSTS) == ["web1", "web6"]


@pytest.mark.parametrize("when", ["before the read", "after the read"])
def test_a_handover_after_a_restore_is_carried_also_by_a_service_that_did_not_end_the_one_before(
    store: Store, consul: RawKV, when: str
) -> None:
    _begin(store, consul)
    earlier = consul.texts()
    log = _Log()
    planner = _planner(store, log=log)
    upgrade(store, "web1")
    _before_the_pass(planner, lambda: None)
    assert _carry(planner) == ""
    assert open_hosts(consul, HOSTS) == ["web1", "web2"]
    assert consul.delete("upgrade/", tree=True)
    consul.load(earlier.items())
    # Another service notices the restore, and ends the handover of the snapshot.
    if when == "before the read":
        take_back(store)
    else:
        _before_the_pass(planner, lambda: take_back(store))
    planner._work_once()
    assert ("went_back" in log.events) == (when == "after the read")
    # The operator compares the hosts and continues. Each write raises the epoch.
    made = None
    for host in ("web1", "web2", "web3"):
        upgrade(store, host)
        made = make_pass(store, PassRequest(since=1))
    assert made is not None
    assert made.ledger is not None
    handed = hand_over(store, made.ledger, None, dry=False)
    _before_the_pass(planner, lambda: None)
    assert _carry(planner) == ""
    assert handed.id in (consul.get("upgrade/handover") or b"").decode()


def test_a_rollout_that_was_complete_before_its_handover_is_refused(store: Store, consul: RawKV) -> None:
    begun = _begin(store, consul)
    planner = _planner(store)
    for _host in HOSTS:
        for host in open_hosts(consul, HOSTS):
            upgrade(store, host)
        make_pass(store, PassRequest(since=1, converge=True))
    assert ledger(consul)["state"] == "complete"
    # Completed after it was handed over.
    assert _carry(planner) == ""
    hand_over(store, begun, None, dry=False)
    assert "was complete before it was handed over" in _carry(planner)


def test_only_services_that_have_answered_carry_a_rollout(store: Store, consul: RawKV) -> None:
    handed = hand_over(store, _begin(store, consul), None, dry=False)
    consul.put("upgrade/planners/one", json.dumps({"handover": handed.id, "refusal": ""}))
    consul.put("upgrade/planners/silent", "{}")
    consul.put("upgrade/planners/refuses", json.dumps({"handover": handed.id, "refusal": "Too few hosts."}))
    assert wait_for_planner(store, handed.id, 1) == ("one",)


def test_the_status_says_that_no_service_carries_a_rollout_that_was_handed_over(store: Store, consul: RawKV) -> None:
    begun = _begin(store, consul)
    handed = hand_over(store, begun, None, dry=False)

    def codes() -> list[str]:
        view = read_fleet(store)
        return [one.code for one in operator_needs(replace(view.snapshot, now=view.snapshot.now + later), view.plan)]

    store.snapshot()
    before, later = store.client.requests, 30
    assert codes() == ["no_planner"]
    assert store.client.requests - before == 1
    # Services answer within 20 s.
    later = 0
    assert codes() == []
    consul.put("upgrade/planners/one", json.dumps({"handover": handed.id, "refusal": "Too few hosts."}))
    view = read_fleet(store)
    assert "one refuses it: Too few hosts." in operator_needs(view.snapshot, view.plan)[0].text
    consul.put("upgrade/planners/two", json.dumps({"handover": handed.id, "refusal": ""}))
    assert codes() == []
