# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""More gates in the old place than one transaction removes, with settings of others among them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import Change
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, names, seed
from integration.support.fleets.old_fleet import forked
from integration.support.fleets.old_keys import legacy_gates, old_answer, put_old
from integration.support.processes.writes import Write, around_writes, die_at_write
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

FLEET = names(compute=60)
OTHERS = {"config_state/host/compute9/ntp": "1", "config_state/global/debug": "1", "config_state/role/compute/x": "?"}
CLOSED = list(FLEET)[::12]
PAUSED = {f"host/{host}": "false" for host in CLOSED}
FIRST = [host for host in FLEET if host not in CLOSED][:5]
FIVE = {"rolling_rules": {"global": 5}}


def kept(consul: RawKV, closed: Sequence[str] = CLOSED) -> None:
    """A fleet that was migrated and whose legacy keys are kept: its role is open, and so are its hosts but for some that are paused."""
    of_hosts = {f"host/{host}": "false" if host in closed else "true" for host in FLEET}
    put_old(consul, {"global": "true", "role/compute": "true", **of_hosts})
    new = {place: value.capitalize() for place, value in legacy_gates(consul).items()}
    seed(consul, FLEET, gates=new)
    consul.load([*OTHERS.items(), ("upgrade/schema", "1")])
    consul.put("upgrade/migration", json.dumps({"state": "kept", "from": 0, "to": 1}))


def are_open(store: Store, consul: RawKV) -> tuple[set[str], set[str]]:
    """Return the hosts that are open to the old code, and to the new one."""
    old = legacy_gates(consul)
    return (
        {host for host in FLEET if old_answer(old, host, "compute")},
        {host for host, answer in ask_gate(store, FLEET).items() if answer.value},
    )


def without_time(changes: Iterable[Change]) -> list[tuple[str, str, str]]:
    """Return changes without the second in which a rollout began."""
    texts = ((one.key, one.before or "", one.after or "") for one in changes)
    return [(key, before, re.sub(r'"since": \d+', "", after)) for key, before, after in texts]


def test_a_rollout_begins_and_admits_no_host_meanwhile(agent: Agent, store: Store, consul: RawKV) -> None:
    kept(consul)
    make_pass(store, PassRequest("1", rules=UNLIMITED))
    seen = Store(Settings(port=agent.http_port))
    at_first, before = are_open(seen, consul), consul.tree()
    assert [len(hosts) for hosts in at_first] == [55, 55]
    dry = make_pass(store, PassRequest("2", FIVE), dry=True)
    assert consul.tree() == before
    opened: list[tuple[set[str], set[str]]] = []

    def note_open_gates(write: Write, operations: Sequence[Any]) -> Any:
        answer = write(operations)
        opened.append(are_open(seen, consul))
        return answer

    around_writes(store, note_open_gates)
    requests = store.client.requests
    outcome = make_pass(store, PassRequest("2", FIVE))
    # It reads, removes the first 16, begins, reads again and opens. Pauses stay.
    assert store.client.requests - requests == 5
    five = set(FIRST)
    assert len(opened) == 3
    for old, new in opened[:2]:
        assert (old <= at_first[0], new <= at_first[1]) == (True, True)
    assert opened[1:] == [(set(), set()), (five, five)]
    assert without_time(dry.changes) == without_time(outcome.changes)
    assert legacy_gates(consul) == {"global": "false", **{f"host/{host}": "true" for host in five}, **PAUSED}
    assert OTHERS.items() <= consul.texts("config_state/").items()


def test_it_converges_and_leaves_what_others_set(store: Store, consul: RawKV) -> None:
    kept(consul, closed=[])
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 60}}))
    assert len(legacy_gates(consul)) == 61
    for host in FLEET:
        write_report(store, HostReport(host, "2", "upgraded"))
    make_pass(store, PassRequest())
    writes = 0

    def counted(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal writes
        writes += 1
        if writes == 1:
            # In the very moment between reading and writing.
            consul.put("config_state/host/compute5/late", "1")
        return write(operations)

    around_writes(store, counted)
    assert make_pass(store, PassRequest(converge=True)).plan.complete
    assert writes == 2
    assert (legacy_gates(consul), gates(consul)) == ({"global": "true"}, {"global": "true"})
    assert {*OTHERS, "config_state/host/compute5/late"} <= set(consul.tree("config_state/"))
    assert history(consul)[-1]["what"] == "converge"
    assert not make_pass(store, PassRequest(converge=True)).changes


@pytest.mark.parametrize("has_ledger", [False, True])
def test_killed_in_between_the_fleet_is_closed_and_the_same_command_goes_on(
    agent: Agent, store: Store, consul: RawKV, has_ledger: bool
) -> None:
    kept(consul)
    if has_ledger:
        make_pass(store, PassRequest("1", rules=UNLIMITED))

    def act() -> None:
        mine = Store(Settings(port=agent.http_port))
        die_at_write(mine, 1, after=True)
        make_pass(mine, PassRequest("2", FIVE))

    assert forked(act) == 9
    assert consul.get("current_version") == b"1"
    assert gates(consul)["global"] == gates(consul)["role/compute"] == "false"
    assert len(legacy_gates(consul)) == 1 + 40 + len(CLOSED)
    outcome = make_pass(store, PassRequest("2", FIVE))
    assert [host for host, one in outcome.hosts().items() if one.state == "held"] == CLOSED
    assert [one.host for one in outcome.admissions] == FIRST
    assert set(legacy_gates(consul)) == {"global", *PAUSED, *(f"host/{host}" for host in FIRST)}


def test_a_write_whose_reply_is_lost_is_followed_by_another_read(store: Store, consul: RawKV) -> None:
    kept(consul)
    make_pass(store, PassRequest("1", rules=UNLIMITED))
    writes = 0

    def loses_the_first_reply(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal writes
        writes += 1
        answer = write(operations)
        if writes == 1:
            raise Unreachable("unreachable", "The reply was lost.")
        return answer

    around_writes(store, loses_the_first_reply)
    assert len(make_pass(store, PassRequest("2", FIVE)).admissions) == 5
    # The first of a beginning, the beginning itself, and the admissions.
    assert writes == 3
    assert set(gates(consul)) == {"global", *(f"host/{host}" for host in FIRST)}


def test_the_hand_that_closes_all_removes_them_too(store: Store, consul: RawKV) -> None:
    kept(consul)
    dry = reset_gates(store, dry=True)
    assert reset_gates(store) == dry
    assert (legacy_gates(consul), gates(consul)) == ({"global": "false", **PAUSED}, {"global": "false"})
    assert OTHERS.items() <= consul.texts("config_state/").items()
    assert f"{GATES}/host/compute1" in {one.key for one in dry}


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_reset_reads_again_what_another_writes_meanwhile(store: Store, consul: RawKV, at: int) -> None:
    kept(consul)
    writes = 0

    def after_another(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal writes
        writes += 1
        if writes == at:
            # As by an old tool: a gate of the last transaction, and a new one.
            for text in ("1", "true"):
                put_old(consul, {f"host/{next(reversed(FLEET))}": text, "host/late": "true"})
        return write(operations)

    around_writes(store, after_another)
    changes = {one.key: (one.before, one.after) for one in reset_gates(store)}
    around_writes(store, lambda write, operations: write(operations))
    left = legacy_gates(consul)
    assert left == {"global": "false", **PAUSED, **({"host/late": "true"} if "host/late" in left else {})}
    assert gates(consul) == {"global": "false"}
    assert changes[f"{GATES}/host/compute2"][1] is None
    reset_gates(store)
    assert legacy_gates(consul) == {"global": "false", **PAUSED}
