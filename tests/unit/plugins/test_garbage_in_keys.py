# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever stands in Consul, all that reads it gives an answer or a named fault, and nothing in it acts on a terminal.

``CONVOY_TEST_GARBAGE=1000000`` tries so many fleets, each of which is drawn from its number.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._cache.cached_store import CachedStore
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import MOST_EPOCH
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host.leases import decode_holder
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import SentNotifications
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.post_upgrade_pass import make_post_upgrade_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import notifications
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.info_result import info_result
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.command import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import approve, pause
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_plan import as_result as plan_result
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe import plan_text, status_text
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.screen import drawing
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_updates import ViewUpdates
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_files import report_files
from memory_consul import MemoryConsul
from rich.console import Console

from .garbage_fleets import AT, LEDGER, garbage, sound

CASES = int(os.environ.get("CONVOY_TEST_GARBAGE", "2000"))
CHUNKS = 20


def _is_harmless(found: Any) -> bool:
    """Return whether no text in plain data could act on a terminal."""
    if isinstance(found, str):
        return found.isprintable()
    if isinstance(found, dict):
        return all(_is_harmless(name) and _is_harmless(value) for name, value in found.items())
    return all(map(_is_harmless, found)) if isinstance(found, (list, tuple)) else True


def _check(found: Any) -> None:
    """Refuse what Ansible could not pass on, or what could act on a terminal."""
    json.dumps(found)
    assert _is_harmless(found), found


def _check_file(text: str) -> None:
    text.encode()
    assert all(map(str.isprintable, text.split("\n"))), text


def _info(store: Store) -> None:
    """Look at all, and at one host that is always there, as its role is given."""
    view = read_fleet(store, fleet={"web1": "web"}, history=20, name="web1")
    result = info_result(view, "web1")
    lines = status_text.host_lines(result["host"])
    for job in result["host"]["jobs"]:
        # Its lines are kept.
        job["output"] = job["output"].split("\n")
    _check([result, status_text.status_lines(result), lines, view.warnings])


def _plan(store: Store) -> None:
    result = plan_result(make_pass(store, PassRequest(), dry=True))
    diff = result.pop("diff")
    _check([result, plan_text.plan_lines(result)])
    _check_file(diff["before"] + diff["after"])


def _report(store: Store) -> None:
    for name, text in report_files(read_rollout_report(store)).items():
        _check(name)
        _check_file(text)


def _page(store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = LivePage(store, folder, dry=True)
        page.update(progress_update(read_fleet(store, fleet={"web1": "web"})))
        assert page.warning == ""
        for text in page.texts.values():
            _check_file(text)


def _metrics(store: Store) -> None:
    text = metrics_text(store, read_fleet(store))
    _check_file(text)
    assert text.endswith("# EOF\n")


def _notifications(store: Store) -> None:
    sight = notifications.read_rollout(store, None)
    kept = notifications.read_sent(store) or notifications.initial_state(store, sight, dry=True)
    found, after = notifications.new_notifications(store, sight, kept)
    _check([[sight.payload(one), asdict(one)] for one in found])
    _check(after.plain())


def _inventory(store: Store) -> None:
    found = survey_fleet(store, InventoryOptions())
    _check([found.hosts, found.left_out, found.warnings])


def _lookup(store: Store) -> None:
    _check([asdict(one) for one in ask_gate(store, {"web1": "web", "web3": "web", "db2": "db"}).values()])


def _live_view(store: Store) -> None:
    updates = progress_update(read_fleet(store))
    _check(asdict(ViewUpdates().update(updates)))
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(drawing(updates.progress, float(AT), 80, 24))
    _check_file(drawn.getvalue())


def _commands(store: Store) -> None:
    for act in (pause, approve):
        try:
            done = act(store, Command(), dry=True)
        except UpgradeError as error:
            if error.code in _ANSWERS:
                continue
            raise
        # Only the pattern is kept as it is stored, and the module does not return it.
        _check([{**asdict(done.ledger), "role_pattern": None}, done.hosts, done.remarks])


_ANSWERS = ("not_running", "no_rollout", "nothing_to_approve", "no_approval", "not_waiting")
READERS: tuple[Callable[[Store], None], ...] = (
    *(_info, _plan, _report, _page, _metrics, _notifications, _inventory, _lookup, _live_view, _commands),
)


def try_one(number: int) -> set[str]:
    """Let all readers read one fleet; return the codes of the faults that they named."""
    codes = set()
    with MemoryConsul(garbage(number), nodes=("web1", "db1")).in_place() as consul:
        for reader in READERS:
            try:
                reader(Store(Settings()))
            except UpgradeError as error:
                _check([error.message, error.code, error.details])
                codes.add(error.code)
            except Exception as error:
                raise AssertionError(f"{reader.__name__} of fleet {number}: {error!r}") from error
        assert consul.requests < 1500, number
    return codes


@pytest.mark.parametrize("has_job", [False, True])
def test_a_fleet_without_garbage_is_read_by_all(*, has_job: bool) -> None:
    with MemoryConsul(sound(has_job=has_job), nodes=("web1", "db1")).in_place():
        for reader in READERS:
            reader(Store(Settings()))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_garbage_is_read_or_named(chunk: int) -> None:
    for number in range(chunk, CASES, CHUNKS):
        try_one(number)


_FLEET = {"web1": "web", "web2": "web", "db1": "db"}
_OPERATOR = Command(fleet=_FLEET)
_HELD = HoldTargets(hosts=["web1"], roles=["db"], fleet=_FLEET)
# What writes, with what is read first.
WRITERS: Mapping[str, Callable[[Store], object]] = {
    "retry": lambda store: control.retry(store, _OPERATOR),
    "retry of a host": lambda store: control.retry(store, _OPERATOR, ["web1"]),
    "abort": lambda store: control.abort(store, _OPERATOR),
    "resume": lambda store: control.resume(store, _OPERATOR),
    "rollback": lambda store: control.roll_back(store, _OPERATOR),
    "forget": lambda store: control.forget(store, _OPERATOR, ["web1", "db1"], force=True),
    "hold": lambda store: set_holds(store, _HELD, "disk"),
    "unhold": lambda store: end_holds(store, HoldTargets(True, ["db"], ["web1"], fleet=_FLEET)),
    "reset of gates": reset_gates,
    "a new rollout": lambda store: make_pass(
        store, PassRequest("9", {"rolling_rules": {"global": 1}}, fleet=_FLEET, replace="2")
    ),
    "a pass": lambda store: make_pass(store, PassRequest(fleet=_FLEET, since=1)),
    "a pass after the upgrade": lambda store: make_post_upgrade_pass(store, PassRequest("2", fleet=_FLEET), {"web"}),
    "a start": lambda store: write_report(store, HostReport("web1", "2", "started", role="web")),
    "a report": lambda store: write_report(store, HostReport("web1", "2", "upgraded")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_garbage_is_written_over_or_named(name: str) -> None:
    """Each writer gets its share of the fleets, half of them from the memory of a process."""
    at = [*WRITERS].index(name)
    for number in range(at, CASES, len(WRITERS)):
        with MemoryConsul(garbage(number), nodes=("web1", "db1")).in_place() as consul:
            store = (CachedStore if number // len(WRITERS) % 2 else Store)(Settings())
            try:
                WRITERS[name](store)
            except UpgradeError as error:
                _check([error.message, error.code, error.details])
            except Exception as error:
                raise AssertionError(f"{name} in fleet {number}: {error!r}") from error
            assert consul.requests < 1500, number


@pytest.mark.parametrize("epoch", [10**15, MOST_EPOCH - 1, MOST_EPOCH])
def test_a_ledger_with_an_epoch_that_no_planner_counted_to_is_paused_and_reported(epoch: int) -> None:
    ledger = json.dumps({**LEDGER, "epoch": epoch}).encode()
    with MemoryConsul({**sound(has_job=False), "upgrade/ledger": ledger}).in_place() as consul:
        store = Store(Settings())
        done = pause(store, Command(reason="odd"))
        assert done.ledger.state == "paused"
        # Where no epoch can follow, the history goes on, and no entry of it is written over.
        assert done.ledger.epoch == (7 if epoch == MOST_EPOCH else epoch + 1)
        assert json.loads(consul.keys[f"upgrade/history/{done.ledger.epoch}"])["what"] == "pause"
        sight = notifications.read_rollout(store, None)
        _found, kept = notifications.new_notifications(store, sight, SentNotifications(2))
        assert kept.epoch == done.ledger.epoch
        assert consul.requests < 50


def test_who_holds_a_key_is_not_taken_from_garbage() -> None:
    holder = {"by": "a", "since": 5, "session": "s-1", "machine": "m", "pid": 1, "started": 2}
    assert decode_holder(json.dumps(holder).encode()) is not None
    for name, value in (("session", "../../kv/x"), ("since", 10**400), ("pid", "1/../2"), ("by", 5), ("started", -1)):
        assert decode_holder(json.dumps({**holder, name: value}).encode()) is None, name
