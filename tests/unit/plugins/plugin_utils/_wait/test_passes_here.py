# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes in this process, beside a Consul in memory that goes away in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes import repeated_passes
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import HandedOver
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes import PassFailed
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes_here import PassesHere
from memory_consul import Answer, MemoryConsul


@dataclass
class LeavingConsul(MemoryConsul):
    """A Consul that can't be reached.

    :param gone_at: the epoch of the ledger from which on it can't be; None for never.
    """

    gone_at: int | None = None

    def _answer(self, method: str, path: str, params: Mapping[str, str], data: str) -> Answer:
        if self.gone_at is not None and self.epoch >= self.gone_at:
            raise Unreachable("unreachable", "Consul can't be reached.")
        return super()._answer(method, path, params, data)

    @property
    def epoch(self) -> int:
        """The epoch of the ledger, 0 without one."""
        return int(self.data("upgrade/ledger")["epoch"]) if "upgrade/ledger" in self.keys else 0


class Changes:
    """Takes the place of the watches: each change that is seen ends one wait."""

    seen: list[str]

    def __init__(self, *_given: object) -> None:
        """Watch nothing."""

    def mark(self) -> int:
        return 0

    def wait(self, _mark: int, _seconds: float) -> bool:
        return bool(self.seen) and bool(self.seen.pop())


@pytest.fixture
def consul(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeavingConsul]:
    Changes.seen = []
    monkeypatch.setattr(repeated_passes, "Watch", Changes)
    with LeavingConsul().in_place() as found:
        yield found


def passes(consul: LeavingConsul, cap: int, count: int) -> PassesHere:
    """Return the passes of a rollout of some hosts."""
    fleet = {f"web{number}": "web" for number in range(1, count + 1)}
    for host in fleet:
        consul.write(f"running/versions/1/{host}", "1")
    request = PassRequest("2", {"rolling_rules": {"global": cap}}, fleet=fleet)

    def result(_outcome: object, _handover: object) -> dict[str, Any]:
        return {}

    return PassesHere(
        Settings(timeout=0.1),
        lambda _store: request,
        result,
        lambda _line: None,
        lambda *_: HandedOver(),
        with_diff=True,
    )


def admitted(made: PassesHere) -> list[str]:
    return [one["host"] for one in made.total.transitions]


def test_the_change_that_woke_a_pass_that_failed_is_left_for_the_next_one(consul: LeavingConsul) -> None:
    made = passes(consul, 1, 3)
    made.first()
    assert admitted(made) == ["web1"]
    write_report(consul.store(), HostReport("web1", "2", "upgraded"))
    Changes.seen = ["the report"]
    consul.gone_at = 0
    for _try in range(2):
        with pytest.raises(PassFailed, match="unreachable"):
            made.next(30)
    consul.gone_at = None
    # Nothing changes after that.
    assert made.next(30) is not None
    assert admitted(made) == ["web1", "web2"]
    assert made.next(30) is None


def test_what_a_pass_admitted_before_it_failed_counts(consul: LeavingConsul) -> None:
    made = passes(consul, 1, 90)
    made.first()
    store = consul.store()
    made._passes._request = PassRequest("2", {"rolling_rules": {"global": 60}})
    write_report(store, HostReport("web1", "2", "upgraded"))
    Changes.seen = ["the rules"]
    # The new rules are one write, and a write admits 30 hosts.
    consul.gone_at = consul.epoch + 2
    with pytest.raises(PassFailed) as caught:
        made.next(30)
    open_gates = [key for key, text in consul.keys.items() if key.startswith("config_state/") and text == b"True"]
    assert len(open_gates) == made.total.admitted == 1 + 30
    assert caught.value.result["admitted"] == 31
    assert caught.value.result["changed"]
    changes = [one["after_header"] for one in made.total.diffs]
    assert len(changes) == 2
    consul.gone_at = None
    made.next(30)
    assert made.total.admitted == 61
