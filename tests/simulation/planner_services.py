# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner services in a simulated night, and the operator who begins the rollout and hands it over to them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TextIO

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.handover import decode_handover
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import hand_over
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.log import Log
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.planner_service import PlannerService
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.presence import Presence
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.settings import ServiceSettings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.systemd import Systemd
from fire.actors import patience
from fire.fleet import FLEET, NEW
from fire.rules import Rules

# After these times, an operator looks whether the rollout is still in the hands of services (seconds).
_LOOKS_AFTER = (0.3, 4.0)
# As with a command that comes too late, or during which Consul was restored.
_TOO_LATE = ("went_back", "needs_tasks", "no_rollout")


class _WatchedService(PlannerService):
    """A planner service that shares the epoch of its last pass.

    :param shared: as of an actor.
    """

    def __init__(self, shared: Any, *given: Any) -> None:
        super().__init__(*given)
        self._shared = shared

    def _make_pass(self, *given: Any) -> PassResult:
        made = super()._make_pass(*given)
        self._shared.epoch.value = made.ledger.epoch if made.ledger is not None else 0
        return made


def be_planner_service(
    shared: Any, settings: Settings, name: str, out: TextIO | None = None, fleet: Mapping[str, str] = FLEET
) -> None:
    """Carry what was handed over, until killed.

    :param out: what its log is written to; None for nothing.
    """
    systemd = Systemd({})
    log = Log(systemd, io.StringIO() if out is None else out, is_json=True)
    mine = ServiceSettings(name, settings, fleet)
    _WatchedService(shared, mine, log, systemd, Presence(settings, name, log)).run()


def be_beginner(_shared: Any, settings: Settings, rules: Rules) -> None:
    """Begin the rollout, and hand over each one that is not handed over, until killed; admit no host."""
    store = Store(settings)
    while True:
        with patience(*_TOO_LATE):
            _begin_and_hand_over(store, rules)
        runtime.sleep(runtime.uniform(*_LOOKS_AFTER))


def _begin_and_hand_over(store: Store, rules: Rules) -> None:
    ledger = store.snapshot().ledger
    if ledger is None:
        ledger = make_pass(store, PassRequest(NEW, rules.given, fleet=FLEET, limit=[])).ledger
    if ledger is None or ledger.state not in ("running", "paused"):
        return
    entry = store.client.get(store.keys.handover)
    try:
        is_handed_over = entry is not None and decode_handover(entry.value).is_of(ledger)
    except ValueError:
        is_handed_over = False
    if not is_handed_over:
        hand_over(store, ledger, None, dry=False)
