# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module and the playbook of a migration, as operators use them, also with a token that may do no more than this."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import put
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.acl import TokenKind, grant
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from devkit.agent import Agent
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.fleet import gates, names
from integration.support.fleets.old_fleet import legacy_gates, legacy_reports, load, old_fleet
from integration.support.processes.guarded import MASTER
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, Task, plan
from integration.support.runs.shipped import Shipped, inventory

HOSTS = list(names(compute=6))


def schema(**options: Any) -> Task:
    return {"convoy.upgrade.consul_upgrade_schema": options}


def test_check_mode_and_diff_show_what_is_done_then_and_a_second_run_changes_nothing(
    run: Runner, consul: RawKV
) -> None:
    load(consul, old_fleet(HOSTS))
    before = consul.tree()
    (shown,) = run([schema()], check=True, diff=True)
    assert consul.tree() == before
    first, second, removed, last = run([schema(), schema(), schema(remove_legacy=True), schema()], diff=True)
    assert shown["changed"] and first["changed"]
    assert shown["diff"] == first["diff"]
    assert "running/versions/v673/compute6 = 14283123" in first["diff"]["after"]
    assert (first["from"], first["schema"]) == (0, 1)
    for name in ("from", "schema", "steps", "removed", "kept", "waiting_for"):
        assert shown[name] == first[name]
    assert {one["what"]: one["count"] for one in first["steps"][0]["moves"]} == {
        "pauses converted to holds": 2,
        "reports copied": 6,
        "version without white space": 1,
    }
    assert first["steps"][0]["moves"][1]["examples"][0] == (
        "running_version/v674/compute1 to running/versions/v674/compute1"
    )
    assert shown["summary"][0].startswith("Would migrate from layout 0 to 1: ")
    assert first["summary"][0].startswith("Migrated from layout 0 to 1: ")
    assert first["waiting_for"] == HOSTS
    assert not second["changed"]
    assert second["kept"] == first["kept"]
    assert removed["changed"]
    assert (removed["kept"], removed["waiting_for"]) == (0, [])
    assert removed["removed"][0]["schema"] == 1
    assert not last["changed"]
    assert last["summary"] == ["The keys have layout 1, which is the newest."]


@pytest.mark.thorough
def test_wrong_options_and_blockers_are_reported_and_change_nothing(run: Runner, consul: RawKV) -> None:
    load(consul, {**legacy_reports(HOSTS), "running_version/stray": "1", **legacy_gates({"host/compute1": "maybe"})})
    before = consul.tree()
    beyond, wrong, refused = run([schema(to=99), schema(to="newest"), schema(to=1)])
    assert beyond["failure"]["code"] == "unknown_layout"
    assert "there is no layout 99" in beyond["msg"]
    assert "to" in wrong["msg"]
    assert refused["failure"]["code"] == "in_the_way"
    assert [one["key"] for one in refused["failure"]["details"]["problems"]] == [
        "config_state/host/compute1/enable_puppet",
        "running_version/stray",
    ]
    assert refused["msg"] == f"[in_the_way] {refused['failure']['message']}"
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_planner_says_which_command_to_run(run: Runner, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS))
    refused, _migrated, planned = run(
        [plan(version="v675", instructions=UNLIMITED), schema(), plan(version="v675", instructions=UNLIMITED)]
    )
    assert refused["failure"]["code"] == "older_schema"
    assert "convoy.upgrade.migrate_state" in refused["msg"]
    assert not planned["failed"]


@pytest.mark.thorough
def test_the_playbook_reports_what_it_did_and_what_is_kept(play: Shipped, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS))
    before = consul.tree()
    hosts = inventory(dict.fromkeys(HOSTS, "compute"))
    checked = play("migrate_state", "--check", "--diff", inventory=hosts)
    assert checked.returncode == 0, checked.stdout
    assert consul.tree() == before
    assert "6 reports copied: running_version/v674/compute1 to running/versions/v674/compute1" in checked.stdout
    assert "+running/versions/v674/compute1 = 1428312345.67" in checked.stdout
    done = play("migrate_state", inventory=hosts)
    assert done.returncode == 0, done.stdout
    assert "Migrated from layout 0 to 1" in done.stdout
    assert "legacy keys are kept until 6 hosts (compute1" in done.stdout
    removed = play("migrate_state", inventory=hosts, remove_legacy=True)
    assert "6 legacy reports removed" not in removed.stdout
    assert "7 legacy reports removed: running_version/; " in removed.stdout, removed.stdout
    again = play("migrate_state", inventory=hosts)
    assert "changed=0" in again.stdout
    consul.put("running_version/stray", "1")
    consul.delete("upgrade/schema")
    refused = play("migrate_state", inventory=hosts)
    assert refused.returncode == 2
    assert "running_version/stray is not running_version/" in refused.stdout


# With tokens


def store_with(guarded: Agent, token: str, prefix: str = "cloud/") -> Store:
    return Store(Settings(port=guarded.http_port, token=token, timeout=2, kv_prefix=prefix))


def token_of(guarded: Agent, *part: str) -> str:
    return grant(store_with(guarded, MASTER), TokenKind(*part)).secret


@pytest.mark.thorough
def test_a_migrator_may_do_that_and_nothing_else(guarded: Agent) -> None:
    kv = guarded.kv
    wipe(kv)
    load(kv, {f"cloud/{key}": value for key, value in old_fleet(HOSTS).items()})
    kv.put("cloud/config_version/host/compute1/version", "1")
    token = token_of(guarded, "migrator")
    Migrator(store_with(guarded, token), remove_legacy=True).run()
    assert kv.get("cloud/upgrade/schema") == b"1"
    assert kv.tree("cloud/running_version/") == {}
    assert gates(kv, "cloud/")["host/compute3"] == "true"
    store = store_with(guarded, token)
    for key in ("cloud/config_version/host/compute1/version", "current_version", "cloud/other"):
        with pytest.raises(UpgradeError) as caught:
            store.client.write([put(key, "2")])
        assert caught.value.code == "denied", key


@pytest.mark.parametrize(("who", "may_read"), [(("viewer",), True), (("node", "compute1"), False)])
def test_who_may_not_see_all_keys_or_not_write_them_is_refused_and_nothing_is_changed(
    guarded: Agent, who: tuple[str, ...], may_read: bool
) -> None:
    kv = guarded.kv
    wipe(kv)
    load(kv, {f"cloud/{key}": value for key, value in old_fleet(HOSTS).items()})
    store = store_with(guarded, token_of(guarded, *who))
    before = kv.tree()
    with pytest.raises(UpgradeError) as caught:
        Migrator(store).run()
    assert caught.value.code == "denied"
    if may_read:
        assert Migrator(store).run(dry=True).kept == 10
    else:
        with pytest.raises(UpgradeError) as caught:
            Migrator(store).run(dry=True)
        assert caught.value.code == "denied"
    assert kv.tree() == before
    assert not json.loads(kv.call("GET", "session/list")[2])
