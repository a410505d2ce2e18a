# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host writes of itself, however much it is, keeps no planner from the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._ops import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.hold import Whom, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.kv import RawKV
from integration.support.fleet import history, names, record, seed

pytestmark = pytest.mark.one_release

# Consul takes half a megabyte in one value, and in one transaction.
LARGE = "x" * 400_000


@pytest.mark.parametrize(
    "more",
    [
        {"version": LARGE[:300_000]},
        {"version": LARGE[:300_000], "state": "upgraded"},
        {"error": LARGE},
        {"service": LARGE},
        {"reported": LARGE},
        {"times": {LARGE: 1}},
        {"done": [LARGE]},
    ],
)
def test_the_others_go_on_and_the_host_can_be_retried(store: Store, consul: RawKV, more: dict[str, Any]) -> None:
    seed(consul, names(compute=3))
    make_pass(store, Request("2", {"rolling_rules": {"global": 2}}))
    consul.put("upgrade/hosts/compute1", json.dumps({"version": "2", "state": "failed", **more}))
    consul.put("upgrade/hosts/compute2", json.dumps({"version": "2", "state": "upgraded", "times": {"upgraded": 9}}))
    outcome = make_pass(store, Request())
    assert [one.host for one in outcome.openings] == ["compute3"]
    states = {host: view.state for host, view in outcome.plan.hosts.items()}
    assert states == {"compute1": "failed", "compute2": "upgraded", "compute3": "pending"}
    done = operator.retry(store, operator.Word(), ["compute1"])
    assert done.hosts == ["compute1"]
    assert record(consul, "compute1")["state"] == "retried"
    assert all(len(json.dumps(event)) < 10_000 for event in history(consul))


def test_a_reason_without_end_holds_and_pauses_and_is_cut(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=60))
    make_pass(store, Request("2", {"rolling_rules": {"global": 1}}))
    held = set_holds(store, Whom(hosts=[f"compute{at}" for at in range(2, 50)]), LARGE, by=LARGE)
    assert len(held.holds) == 48
    assert len(json.loads(consul.get("upgrade/hold/host/compute2") or b"")["reason"]) == 500
    again = set_holds(store, Whom(hosts=["compute2"]), LARGE, by=LARGE)
    assert again.changes == []
    operator.pause(store, operator.Word(LARGE, LARGE))
    assert all(len(json.dumps(event)) < 40_000 for event in history(consul))
    operator.resume(store, operator.Word(LARGE, LARGE))
    operator.abort(store, operator.Word(LARGE, LARGE))
    assert len(consul.get("upgrade/ledger") or b"") < 2000
