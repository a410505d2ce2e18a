# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An admission wakes the agents of its hosts, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.opened_gates import MOST_ADMISSIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from memory_consul import MemoryConsul

FLEET = {f"compute{number}": "compute" for number in range(1, 101)}
GATE, WAKE = "config_state/enable_puppet/host/", "upgrade/wake/"


@pytest.fixture
def consul() -> Iterator[MemoryConsul]:
    keys = {"current_version": b"1", **{f"running/versions/1/{host}": b"1700000000" for host in FLEET}}
    with MemoryConsul(keys).in_place() as found:
        yield found


@pytest.fixture
def writes(consul: MemoryConsul, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, list[list[str]]]:  # noqa: ARG001  the store talks to it
    """A store, and the keys of each transaction that it writes."""
    store = Store(Settings())
    write = store.client.write
    found: list[list[str]] = []

    def noted(operations: list[dict[str, Any]]) -> Any:
        found.append([one["KV"]["Key"] for one in operations])
        return write(operations)

    monkeypatch.setattr(store.client, "write", noted)
    return store, found


def woken(consul: MemoryConsul) -> set[str]:
    return {key[len(WAKE) :] for key in consul.keys if key.startswith(WAKE)}


def test_each_gate_is_written_with_what_wakes_its_host(
    consul: MemoryConsul, writes: tuple[Store, list[list[str]]]
) -> None:
    store, found = writes
    outcome = make_pass(store, PassRequest("2", {"rolling_rules": {"global": 70}}, fleet=FLEET))
    hosts = {one.host for one in outcome.admissions}
    assert len(hosts) == 70
    assert woken(consul) == hosts
    opened = [keys for keys in found if any(key.startswith(GATE) for key in keys)]
    assert [len([key for key in keys if key.startswith(GATE)]) for keys in opened] == [MOST_ADMISSIONS] * 2 + [10]
    for keys in opened:
        assert len(keys) <= 64
        names = [{key[len(folder) :] for key in keys if key.startswith(folder)} for folder in (GATE, WAKE)]
        assert names[0] == names[1]
    before = dict(consul.keys)
    assert make_pass(store, PassRequest(fleet=FLEET)).admissions == []
    assert consul.keys == before


def test_a_gate_of_a_role_wakes_all_its_hosts(consul: MemoryConsul, writes: tuple[Store, list[list[str]]]) -> None:
    store, found = writes
    rules = {"rolling_rules": {"global": "unlimited"}}
    make_pass(store, PassRequest("2", rules, fleet=FLEET), dry=True)
    assert woken(consul) == set()
    make_pass(store, PassRequest("2", rules, fleet=FLEET))
    assert consul.keys["config_state/enable_puppet/role/compute"] == b"True"
    assert woken(consul) == set(FLEET)
    assert [len(keys) for keys in found if all(key.startswith(WAKE) for key in keys)] == [64, 36]


def test_what_an_operator_does_with_the_gate_of_a_host_wakes_it(
    consul: MemoryConsul, writes: tuple[Store, list[list[str]]]
) -> None:
    store, _found = writes
    set_gate(store, "host", "compute7", True)
    set_gate(store, "role", "compute", True)
    set_gate(store, "global", None, True)
    assert woken(consul) == {"compute7"}
