# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes by calls of the module: what each call is given, and what the results add up to."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import HandedOver
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes import PassFailed
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes_by_module import PassesByModule

RULES = {"rolling_rules": {"global": 1}}


def result(index: int, *opened: str, **more: Any) -> dict[str, Any]:
    """Return a result of the module that admitted some hosts."""
    hosts = {
        host: {"role": "web", "state": "upgrading", "reason": "admitted", "outside": False} for host in ("web1", "web2")
    }
    return {
        "version": "2", "changed": bool(opened), "transitions": [{"host": host} for host in opened], "diff": [{"after": str(index)}],
        "done": False, "can_move": True, "blocker": {}, "blockers": [], "wake_at": 0, "hosts": hosts, "status": {}, "epoch": index,
        "commit": f"c{index}", "began": 1700000000, "index": index, "forecast": {"of": index}, "waves": [["web1"]], "wave_seconds": [1.0], "replaces": "",
        "sources": {}, "warnings": [], "post_upgrade": [f"web{number}" for number in range(1, 151)], "more_post_upgrade": 0,
        "handover": {"id": "h1", "planners": ["one"], "warning": ""}, **more,
    }  # fmt: skip


class Module:
    """A module with prepared results."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self._results = iter(results)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, options: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(dict(options))
        return next(self._results)


def passes(module: Module, printed: list[str] | None = None, **options: Any) -> PassesByModule:
    return PassesByModule(module, options, (printed if printed is not None else []).append, with_diff=True)


def test_later_calls_wait_for_a_change_and_leave_the_rules_to_the_ledger() -> None:
    module = Module(result(5, "web1"), result(7))
    made = passes(module, instructions=RULES, restart=True, converge=True)
    made.first()
    made.next(12.9)
    assert module.calls == [
        # It hands the rollout over.
        {"instructions": RULES, "restart": True, "converge": True, "hosts": ["all"], "wait": True},
        {
            "converge": True,
            "hosts": ["all"],
            "version": "2",
            "epoch": 5,
            "commit": "c5",
            "began": 1700000000,
            "since": 5,
            "wait_timeout": 12,
        },
    ]


def test_each_pass_has_the_handover_that_it_found() -> None:
    none = {"id": "h1", "planners": [], "warning": "not for web1"}
    made = passes(Module(result(5, "web1", handover=none), result(7)))
    assert made.first().handover == HandedOver(id="h1", warning="not for web1")
    later = made.next(1)
    assert later is not None and later.handover == HandedOver(id="h1", planners=("one",))


def test_the_total_has_what_all_calls_did() -> None:
    made = passes(Module(result(5, "web1", warnings=["a"]), result(6), result(7, "web2", warnings=["a", "b"])))
    made.first()
    made.next(1)
    made.next(1)
    assert made.total.as_result() == {
        "changed": True,
        "admitted": 2,
        "transitions": [{"host": "web1"}, {"host": "web2"}],
        "diff": [[{"after": "5"}], [{"after": "7"}]],
        "warnings": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("asked", "hosts", "has_all"), [(None, [], False), ("web2", ["web2"], False), (["web1", "web9"], ["web1"], False), (["all"], ["web1", "web2"], True)]
)  # fmt: skip
def test_the_result_has_the_hosts_that_the_task_asks_for(asked: Any, hosts: list[str], has_all: bool) -> None:
    found = passes(Module(result(5)), **({} if asked is None else {"hosts": asked})).first().result()
    assert sorted(found["hosts"]) == hosts
    assert ("status" in found, "waves" in found) == (has_all, has_all)
    assert (len(found["post_upgrade"]), found["more_post_upgrade"]) == ((150, 0) if has_all else (100, 50))


def test_the_forecast_is_that_of_the_first_pass() -> None:
    made = passes(Module(result(5), result(6)), hosts=["all"])
    made.first()
    found = made.next(1)
    assert found is not None
    assert found.result()["forecast"] == {"of": 5}


def test_a_call_that_fails_fails_the_pass() -> None:
    refused = UpgradeError("no_cap", "Nothing limits role web.").as_result()
    with pytest.raises(PassFailed, match="Nothing limits role web") as failed:
        passes(Module(refused)).first()
    assert failed.value.code == "no_cap"


def test_a_slow_call_is_made_again_and_does_not_wait_for_the_change_that_it_has_seen() -> None:
    slow = UpgradeError("too_slow", "It took 9 s.", seconds=[9.0], limit=5.0).as_result()
    printed: list[str] = []
    module = Module(result(5), slow, result(6))
    made = passes(module, printed)
    made.first()
    made.next(30)
    assert [call.get("wait_timeout") for call in module.calls] == [None, 30, 1]
    assert printed == ["Reading the fleet and planning took 9.0 s, but at most 5 s are allowed. Trying again."]


def test_three_slow_calls_in_a_row_are_a_failure() -> None:
    slow = UpgradeError("too_slow", "It took 9 s.", seconds=[9.0], limit=5.0).as_result()
    with pytest.raises(PassFailed, match="9") as failed:
        passes(Module(slow, slow, slow)).first()
    assert failed.value.code == "too_slow"
