# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One more step is one more file: a layout 2 that only these tests know, which keeps hosts' records in another folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates, set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate import step_finder
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import names
from integration.support.fleets.old_fleet import killed_at, legacy_reports, load, migrate, refusal, whole, writes_of
from integration.support.processes.writes import Write, around_writes

pytestmark = pytest.mark.one_release

HOSTS = list(names(compute=70))
REMOVAL = {"remove_legacy": True}

TO_2 = """
from ....module_utils._consul.operations import Change, compare, compare_and_put, remove
from ..step import KeyMove, KeyProblem, KeysFound, MigrationStep


class ToTwo(MigrationStep):
    number = 2
    release = "9.8.7"
    title = "records have a folder of their own"

    def folders(self, prefix):
        return (f"{prefix}upgrade/hosts/", f"{prefix}records/", f"{prefix}running/versions/")

    def problems(self, found):
        bad = [one for one in found.below("running/versions/") if b"{" in one.value]
        return [KeyProblem(one.key, "has braces", "Delete it.") for one in bad]

    def moves(self, found):
        # What step 1 copied is what this one goes by.
        made = []
        for one in found.below("running/versions/"):
            target = "records/" + one.key.rpartition("/")[2]
            if target not in found.entries:
                text = one.value.decode()
                made.append(KeyMove("records made", target, (compare_and_put(target, text, 0),), (Change(target, None, text),)))
        return made

    def removals(self, found):
        return [
            KeyMove("records removed", one.key, (compare(one.key, one.modify_index), remove(one.key)), (Change(one.key, one.value.decode(), None),))
            for one in found.below("upgrade/hosts/")
        ]

    def waiting(self, found):
        return []


STEP = ToTwo()
"""


@pytest.fixture(autouse=True)
def second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put one more file among the steps, where no one else sees it."""
    steps = import_module(f"{step_finder.__package__}.steps")
    (own,) = list(steps.__path__)
    for path in Path(own).glob("to_*.py"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "to_2.py").write_text(TO_2)
    monkeypatch.setattr(steps, "__path__", [str(tmp_path)])
    monkeypatch.setattr(step_finder, "_FOLDER", tmp_path)


@pytest.fixture
def settings(agent: Agent, consul: RawKV) -> Settings:  # noqa: ARG001  it wipes
    return Settings(port=agent.http_port)


def test_all_steps_between_are_made_in_order_by_one_command(settings: Settings, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS))
    shown = Migrator(Store(settings)).run(dry=True)
    done = Migrator(Store(settings)).run()
    assert [one.step.number for one in done.steps] == [1, 2]
    assert shown.plain(dry=False) == done.plain(dry=False)
    assert shown.net_changes() == done.net_changes()
    assert done.steps[1].moves == {"records made": 70}
    assert consul.get("upgrade/schema") == b"2"
    assert json.loads(consul.get("upgrade/migration") or b"") == {"state": "kept", "from": 0, "to": 2}
    assert set(consul.tree("records/")) == {f"records/{host}" for host in HOSTS}


def test_a_layout_may_be_named_and_the_next_run_goes_on_from_there(settings: Settings, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS))
    migrate(settings, target=1)
    assert consul.get("upgrade/schema") == b"1"
    assert consul.tree("records/") == {}
    for dry in (True, False):
        lines = Migrator(Store(settings), target=1).run(dry=dry).summary(dry=dry)
        assert lines[0].startswith("The keys have layout 1, as asked for. 70 legacy keys are kept")
    outcome = Migrator(Store(settings)).run()
    assert (outcome.origin, [one.step.number for one in outcome.steps]) == (1, [2])
    assert (
        Migrator(Store(settings)).run().summary(dry=False)[0].startswith("The keys have layout 2, which is the newest.")
    )
    with pytest.raises(UpgradeError) as caught:
        migrate(settings, target=1)
    assert caught.value.code == "no_older_layout"


@pytest.mark.thorough
def test_killed_at_every_boundary_between_and_within_steps_the_next_run_finishes(
    settings: Settings, consul: RawKV
) -> None:
    load(consul, legacy_reports(HOSTS))
    writes = writes_of(settings, **REMOVAL)
    expected = whole(consul)
    for at in range(1, writes + 1):
        for after in (False, True):
            assert consul.delete("", tree=True)
            load(consul, legacy_reports(HOSTS))
            assert killed_at(settings, at, after=after, **REMOVAL)
            migrate(settings, **REMOVAL)
            assert whole(consul) == expected, f"killed {'after' if after else 'before'} {at}"


def test_what_blocks_a_later_step_is_found_when_it_is_reached(settings: Settings, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS[:2]) | {"running/versions/v1/web1": "{"})
    for dry in (True, False):
        with pytest.raises(UpgradeError) as caught:
            Migrator(Store(settings)).run(dry=dry)
        assert caught.value.details["problems"] == [
            {"key": "running/versions/v1/web1", "why": "has braces", "fix": "Delete it."}
        ]
        assert "can't be migrated to layout 2" in caught.value.message
        assert "Nothing is changed. Fix these" in caught.value.message
    # The first step is made, and safe, and its legacy keys are kept; the next run goes on with the second.
    for _again in range(2):
        assert consul.get("upgrade/schema") == b"1"
        assert json.loads(consul.get("upgrade/migration") or b"") == {"state": "kept", "from": 0, "to": 1}
        with pytest.raises(UpgradeError):
            migrate(settings)
    consul.delete("running/versions/v1/web1")
    migrate(settings)
    assert consul.get("upgrade/schema") == b"2"
    assert json.loads(consul.get("upgrade/migration") or b"") == {"state": "kept", "from": 0, "to": 2}


def test_a_write_between_reading_and_locking_leaves_the_kept_old_keys(settings: Settings, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS[:2]))
    migrate(settings, target=1)
    before = consul.get("upgrade/migration")
    store, writes = Store(settings), 0

    def write_meanwhile(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal writes
        writes += 1
        answer = write(operations)
        if writes == 1:
            consul.put("running/versions/v1/web1", "{")
        return answer

    around_writes(store, write_meanwhile)
    assert refusal(store).code == "in_the_way"
    assert consul.get("upgrade/migration") == before
    consul.delete("running/versions/v1/web1")
    migrate(settings)
    assert consul.get("upgrade/schema") == b"2"


def test_planners_that_do_not_support_layout_2_say_which_release_does(settings: Settings, consul: RawKV) -> None:
    load(consul, legacy_reports(HOSTS[:2]))
    migrate(settings)
    with pytest.raises(UpgradeError) as caught:
        Store(settings).snapshot()
    assert "Install convoy.upgrade 9.8.7 or later." in caught.value.message
    before = consul.tree()
    acts: list[Callable[[Store], object]] = [
        lambda store: write_report(store, HostReport("compute1", "v673", "upgraded")),
        lambda store: set_gate(store, "host", "compute1", value=True),
        reset_gates,
        lambda store: ask_gate(store, {"compute1": "compute"}),
        lambda store: ask_gate(store, names(compute=70)),
    ]
    for act in acts:
        with pytest.raises(UpgradeError) as caught:
            act(Store(settings))
        assert (caught.value.code, caught.value.details["release"]) == ("newer_schema", "9.8.7")
    assert consul.tree() == before
