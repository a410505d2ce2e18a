# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet in a Consul in memory that runs jobs after a rollout."""

from __future__ import annotations

import json
import time
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from memory_consul import MemoryConsul

FLEET = {"db1": "db", "web1": "web", "web2": "web", "web3": "web"}
RULES = {"rolling_rules": {"global": 1}}


def complete_fleet() -> MemoryConsul:
    """Return a Consul with a fleet whose rollout to 2.0 is complete."""
    ledger = {
        "epoch": 3,
        "version": "2.0",
        "previous_version": "1.0",
        "state": "complete",
        "since": 1,
        "instructions": RULES,
    }
    record = {"version": "2.0", "state": "upgraded", "times": {"upgraded": 5}}
    keys = {
        "current_version": b"2.0",
        "config_state/enable_puppet/global": b"True",
        "upgrade/schema": b"1",
        "upgrade/hold/": b"",
        "upgrade/ledger": json.dumps(ledger).encode(),
        **{f"running/versions/2.0/{host}": b"1700000000" for host in FLEET},
        **{f"upgrade/hosts/{host}": json.dumps(record).encode() for host in FLEET},
    }
    return MemoryConsul(keys)


def job(identifier: str = "j1", **facts: Any) -> Job:
    return Job(identifier, "restart", int(time.time()) + 600, {"grace": 30}, by="ann", **facts)


def begin(store: Store, one: Job | None = None, **request: Any) -> PassResult:
    one = one or job()
    return make_pass(store, PassRequest(version=one.target, job=one, fleet=FLEET, **request))


def go_on(store: Store) -> PassResult:
    return make_pass(store, PassRequest(fleet=FLEET))


def admitted(consul: MemoryConsul) -> list[str]:
    prefix = "upgrade/job_gates/host/"
    return sorted(key[len(prefix) :] for key, text in consul.keys.items() if key.startswith(prefix) and text == b"True")


def reports(consul: MemoryConsul, host: str, state: str, identifier: str = "j1", **facts: Any) -> None:
    record = {"job": identifier, "state": state, "run": "r", "attempt": 1, "times": {state: int(time.time())}, **facts}
    consul.write(f"upgrade/job_records/{host}", record)
