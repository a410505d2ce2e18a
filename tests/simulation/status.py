# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reader of the status in a simulated night.

Each answer is compared with the keys from which it was made. These are interpreted without code of the collection, as the judge does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import operator_needs
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import FleetView, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from fire.actors import patience
from fire.facts import GATES, Facts, holds_over
from fire.fleet import FLEET
from fire.processes import Shared
from fire.replay import State
from fire.rules import Rules
from greenlet import getcurrent

from .network import Network

# State of a ledger -> the need that the status has to name then.
_NEEDS = {"paused": "paused", "aborted": "aborted"}


class StatusReader:
    """Reads the status again and again.

    :param say: takes a sentence on what the status shows and the keys do not.
    """

    def __init__(
        self, network: Network, rules_of: Callable[[Mapping[str, Any]], Rules | None], say: Callable[[str], None]
    ) -> None:
        """Begin without a read."""
        self._network, self._rules_of, self._say = network, rules_of, say
        self.reads = 0

    def work(self, _shared: Shared, settings: Settings, seed: int) -> None:
        """Read until killed."""
        chance, store = random.Random(f"status {seed}"), Store(settings)
        while True:
            with patience():
                view = read_fleet(store, fleet=FLEET)
                reading = self._network.lines[settings.port].readings.get(getcurrent())
                if reading is not None:
                    self.reads += 1
                    for sentence in self._mistakes(view, reading.state):
                        self._say(f"the status says {sentence}")
            runtime.sleep(chance.uniform(0.3, 2.0))

    def _mistakes(self, view: FleetView, state: State) -> Iterator[str]:
        facts = Facts(state, Rules({}, {}))
        ledger = facts.ledger
        rules = self._rules_of(ledger.get("instructions", {})) if ledger else None
        if rules is None:
            return
        facts = Facts(state, rules)
        hosts = view.plan.hosts
        if set(hosts) != set(FLEET):
            yield f"that the fleet is {sorted(hosts)}"
            return
        for host, one in hosts.items():
            yield from (f"that {host} {text}" for text in _of_host(facts, host, one.state))
        codes = [need.code for need in operator_needs(view.snapshot, view.plan)]
        for name, code in _NEEDS.items():
            if (ledger["state"] == name) != (code in codes):
                yield f"that an operator is needed for {codes}, and the rollout is {ledger['state']}"
        moves = view.plan.can_move or view.plan.admissions or any(one.state == "upgrading" for one in hosts.values())
        if ledger["state"] == "running" and not view.plan.complete and not moves and not codes:
            yield "neither that anything can move nor what is needed"


def _of_host(facts: Facts, host: str, shown: str) -> Iterator[str]:
    """Yield what is wrong with the state that is shown of a host."""
    has_come = facts.has_reported(host) and not facts.has_left(host)
    is_held = any(key in facts.state for key in holds_over(host))
    gate = facts.state.get(f"{GATES}host/{host}")
    if shown == "upgraded" and not has_come:
        yield "is upgraded, and it has not reported the version, or has left it"
    if shown != "upgraded" and has_come and not facts.rules.soak:
        yield f"is {shown}, and it has reported the version"
    if shown == "failed" and not facts.has_failed(host):
        yield "has failed, and it has not"
    if facts.has_failed(host) and shown in ("upgraded", "upgrading"):
        yield f"is {shown}, and it has failed"
    if shown == "held" and not is_held:
        yield "is held, and there is no hold"
    is_admitted = gate is not None and gate.value == "True" and not is_held
    if shown == "pending" and is_admitted and not has_come:
        yield "is pending, and its own gate is open"
    if shown == "pending" and facts.is_recorded_as(host, "started"):
        yield "is pending, and it has started"
