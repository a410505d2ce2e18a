# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a migration refuses, and what is refused while it runs or before it: all at once, with nothing changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.abort import abort
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry import retry
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import roll_back
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import SCHEMA
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, names, opened, seed
from integration.support.fleets.old_fleet import legacy_reports, load, migrated, refusal
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED
from thorough import quick

pytestmark = pytest.mark.one_release

HOSTS = list(names(compute=30))

BAD = {
    "running_version/v673/compute2": ("yesterday", "is not a unix time"),
    "running_version/v674/compute3": ("1428312400.00", "says that compute3 runs"),
    "running_version/stray": ("1", "is not running_version/<version>/<host>"),
    "running_version/v673/rack2/compute9": ("1", "is not running_version/<version>/<host>"),
    "running_version/true/compute4": ("1", "has a name that is no longer allowed"),
    "config_state/host/compute5/enable_puppet": ("Flase", "can't be read"),
    "config_state/enable_puppet/role/compute": ("\x00", "can't be read"),
    "config_state/host/enable_puppet": ("True", "is none of config_state/host/<host>/enable_puppet"),
    "config_state/enable_puppet/globall": ("True", "is none of config_state/enable_puppet/host/<host>"),
    "current_version": ("a/b", "is not a version"),
}


@pytest.mark.parametrize("dry", [False, True])
def test_all_blockers_are_reported_at_once_and_nothing_is_changed(store: Store, consul: RawKV, dry: bool) -> None:
    load(consul, {**legacy_reports(HOSTS), **{key: value for key, (value, _why) in BAD.items()}})
    consul.put("config_state/enable_puppet/role/storage", "True")
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        migrated(store, dry=dry)
    assert caught.value.code == "in_the_way"
    found = {one["key"]: one for one in caught.value.details["problems"]}
    expected = {key: why for key, (_value, why) in BAD.items()}
    # Of two reports the older one is named, as that is likely the one to delete.
    expected["running_version/v673/compute3"] = expected.pop("running_version/v674/compute3")
    expected["running_version/v673/compute4"] = "says that compute4 runs"
    del expected["running_version/true/compute4"], expected["running_version/v673/compute4"]
    assert set(found) >= set(expected)
    for key, why in expected.items():
        assert why in found[key]["why"], key
        assert found[key]["fix"]
        assert f"{key} {found[key]['why']}" in caught.value.message
    assert consul.tree() == before


def test_bytes_that_are_no_text_block_the_migration(store: Store, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS[:2]))
    # A name that is none either: Consul's transactions could not contain it.
    assert consul.call("PUT", "kv/config_state/role/st%FFrage/enable_puppet", b"True")[0] == 200
    bad = ["current_version", "running_version/v673/compute1", "config_state/role/compute/enable_puppet"]
    for key in bad:
        consul.put(key, b"\xff")
    problems = refusal(store).details["problems"]
    assert {one["key"] for one in problems} == {*bad, "config_state/role/st\ufffdrage/enable_puppet"}
    assert all("not UTF-8" in one["why"] for one in problems)


def test_fixed_as_reported_it_goes_on(store: Store, consul: RawKV) -> None:
    load(
        consul, legacy_reports(HOSTS[:3]) | {"running_version/v674/compute3": "1528312400.00", "running_version/x": "1"}
    )
    for one in refusal(store).details["problems"]:
        assert consul.delete(one["key"])
    migrated(store)
    assert consul.texts("running/versions/")["running/versions/v674/compute3"] == "1528312400.00"


@pytest.mark.parametrize("at", [1, 2])
def test_a_blocker_that_appears_later_is_reported_with_what_was_done_before(
    store: Store, consul: RawKV, at: int
) -> None:
    load(consul, legacy_reports(list(names(compute=100))))
    writes = 0

    def write_meanwhile(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal writes
        writes += 1
        answer = write(operations)
        if writes == at:
            consul.put("running_version/stray", "1")
            # So that it is not over before it reads again.
            consul.put("running_version/v673/compute100", "1700000000")
        return answer

    around_writes(store, write_meanwhile)
    error = refusal(store)
    assert [one["key"] for one in error.details["problems"]] == ["running_version/stray"]
    copied = consul.tree("running/versions/")
    # Between looking and locking nothing was done yet.
    assert ("Nothing is changed. Fix these" in error.message) is (at == 1) is (not copied)
    assert ("What was copied stays, and planners are refused" in error.message) is (at == 2)
    assert (consul.get("upgrade/migration") is not None) is (at == 2)
    if at == 2:
        with pytest.raises(UpgradeError) as caught:
            make_pass(store, PassRequest("v674", rules=UNLIMITED))
        assert caught.value.code == "migrating"
        assert "What was copied stays" in refusal(store).message
        assert "What was copied stays" in refusal(store, dry=True).message
    consul.delete("running_version/stray")
    assert migrated(store).schema == 1
    assert len(consul.tree("running/versions/")) == 100


def test_of_very_many_the_first_are_in_the_sentence_and_all_in_the_details(store: Store, consul: RawKV) -> None:
    load(consul, {f"running_version/v1/compute{number}": "?" for number in range(70)})
    error = refusal(store)
    assert len(error.details["problems"]) == 70
    assert error.message.endswith(" | And 20 more, in failure.details.")


COMMANDS = [
    ("upgrade", lambda store: make_pass(store, PassRequest(version="v675", rules=UNLIMITED))),
    (
        "look at what an upgrade would do",
        lambda store: make_pass(store, PassRequest(version="v675", rules=UNLIMITED), dry=True),
    ),
    ("pause", lambda store: control.pause(store, control.Command())),
    ("resume", lambda store: control.resume(store, control.Command())),
    ("abort", lambda store: abort(store, control.Command())),
    ("retry", lambda store: retry(store, control.Command(), None)),
    ("roll back", lambda store: roll_back(store, control.Command())),
]


@pytest.mark.parametrize("state", ["running", "removing", "nonsense"])
@pytest.mark.parametrize(("what", "act"), COMMANDS)
def test_planners_and_operators_commands_are_refused_while_it_runs(
    store: Store, consul: RawKV, what: str, act: Any, state: str
) -> None:
    seed(consul, HOSTS[:3])
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
    consul.put("upgrade/migration", json.dumps({"state": state, "from": 0, "to": 1, "phase": "copying", "of": 3}))
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        act(store)
    assert (caught.value.code, what) == ("migrating", what)
    assert "convoy.upgrade.migrate_state" in caught.value.message
    assert consul.tree() == before
    # Holds and reports go on.
    set_holds(store, HoldTargets(hosts=["compute3"]), "its disk")
    write_report(store, HostReport("compute1", "2", "upgraded"))
    assert consul.get("upgrade/hold/host/compute3")
    assert consul.get("running/versions/2/compute1")


def test_a_planner_that_has_read_before_does_not_write_after(agent: Agent, store: Store, consul: RawKV) -> None:
    for begun in (False, True):
        assert consul.delete("", tree=True)
        seed(consul, HOSTS[:3])
        if begun:
            make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
        slow = Store(Settings(port=agent.http_port))
        slept = False

        def sleepy(write: Write, operations: Sequence[Any]) -> Any:
            nonlocal slept
            if not slept:
                slept = True
                migrated(store)
            return write(operations)

        around_writes(slow, sleepy)
        rules = {"rolling_rules": {"global": 3}}
        make_pass(slow, PassRequest(version="2", rules=rules))
        assert slept
        assert consul.get("upgrade/schema") == b"1"
        events = [event["what"] for event in history(consul)]
        assert events.count("migrate") == begun
        assert opened(history(consul)) == ["compute1", "compute2", "compute3"]


def test_each_removal_stops_a_planner_that_has_read_before(store: Store, consul: RawKV) -> None:
    seen = set()
    for _removal in range(3):
        load(consul, legacy_reports(HOSTS[:1]))
        migrated(store, remove_legacy=True)
        (folder,) = [one for one in consul.entries("upgrade/hold/") if one["Key"] == "upgrade/hold/"]
        seen.add(folder["ModifyIndex"])
    assert len(seen) == 3
    assert (consul.get("upgrade/hold/") or b"").startswith(b"the legacy keys are removed, after ")


@pytest.mark.parametrize("writes", quick(1, [40, None]))
def test_a_migration_that_can_not_begin_asks_to_pause_the_rollout(
    store: Store, consul: RawKV, writes: int | None
) -> None:
    seed(consul, HOSTS[:1])
    make_pass(store, PassRequest(version="2", rules=UNLIMITED))
    at = 0

    def planner_writes_too(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal at
        at += 1
        if writes is None or at <= writes:
            consul.put("upgrade/ledger", json.dumps({**ledger(consul), "epoch": 100 + at}))
        return write(operations)

    around_writes(store, planner_writes_too)
    if writes is not None:
        assert migrated(store).schema == 1
        return
    error = refusal(store)
    assert error.code == "busy"
    assert "upgrade/migration or upgrade/ledger changed during each of 200 tries" in error.message
    assert "pause it (ansible-playbook convoy.upgrade.pause)" in error.message
    assert consul.get("upgrade/schema") is None


def test_an_older_layout_is_refused_with_the_command_to_run(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS[:3])
    consul.put("upgrade/schema", "0")
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest(version="2", rules=UNLIMITED))
    assert caught.value.code == "older_schema"
    assert "convoy.upgrade.migrate_state" in caught.value.message
    assert consul.tree() == before
    migrated(store)
    assert consul.get("upgrade/schema") == b"1"


def test_a_newer_layout_is_refused_with_the_release_to_install(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS[:3])
    # As a migrator of a later release leaves it.
    code, _headers, _body = consul.call("PUT", f"kv/upgrade/schema?flags={2_014_003}", b"7")
    assert code == 200
    for act in (lambda: make_pass(store, PassRequest(version="2", rules=UNLIMITED)), lambda: migrated(store)):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "newer_schema"
        assert "Install convoy.upgrade 2.14.3 or later." in caught.value.message
    consul.put("upgrade/schema", "7")
    assert "Install the release that the other planners use." in refusal(store).message


def test_deletion_of_a_ledger_of_a_newer_layout_is_not_advised_and_nothing_is_held(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS[:3])
    consul.put("upgrade/ledger", '{"schema": 2, "rollouts": []}')
    assert consul.call("PUT", f"kv/upgrade/schema?flags={2_014_003}", b"2")[0] == 200
    before = consul.tree()
    acts: list[Any] = [
        store.snapshot,
        lambda: make_pass(store, PassRequest(version="2", rules=UNLIMITED)),
        lambda: set_holds(store, HoldTargets(hosts=["compute1"]), "its disk"),
        lambda: end_holds(store, HoldTargets(hosts=["compute1"])),
    ]
    for act in acts:
        with pytest.raises(UpgradeError) as caught:
            act()
        assert caught.value.code == "newer_schema"
        assert "Install convoy.upgrade 2.14.3 or later." in caught.value.message
    assert consul.tree() == before


def test_a_layout_that_gets_newer_while_a_hold_reads_is_refused_too(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(consul, HOSTS[:3])
    consul.put("upgrade/ledger", "{")
    read, reads = store.client.read, 0

    def others_migrate(*asked: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 2:
            consul.put("upgrade/schema", "2")
        return read(*asked)

    monkeypatch.setattr(store.client, "read", others_migrate)
    with pytest.raises(UpgradeError) as caught:
        set_holds(store, HoldTargets(hosts=["compute1"]), "its disk")
    assert (caught.value.code, reads) == ("newer_schema", 2)
    assert not consul.tree("upgrade/hold/")


def test_there_is_no_older_layout_and_none_beyond_the_newest(store: Store, consul: RawKV) -> None:
    for layout in (0, SCHEMA + 1):
        assert refusal(store, target=layout).code == "unknown_layout"
    consul.put("upgrade/schema", "x")
    assert refusal(store).code == "unreadable_schema"
