# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Legacy keys that are kept after a migration: for whom, and what becomes of what is written there meanwhile."""

from __future__ import annotations

import json

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry import retry
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, names, record
from integration.support.fleets.old_fleet import legacy_gates, legacy_reports, load, migrated
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

SILENT = {**UNLIMITED, "health": {"progress_deadline": 60}}


def test_a_host_that_an_operator_put_back_has_not_reported_by_that(store: Store, consul: RawKV) -> None:
    fleet = names(web=2)
    load(consul, {"current_version": "v1", **legacy_gates({"global": "True", "host/web1": "True"})})
    migrated(store)
    make_pass(store, PassRequest("v2", SILENT, fleet=fleet))
    # A node with old code says nothing of its upgrade; its gate was set long ago.
    consul.call("PUT", "kv/config_state/enable_puppet/host/web1?flags=1600000000", b"True")
    done = retry(store, Command("its disk is new", fleet=fleet), ["web1"])
    assert (done.hosts, record(consul, "web1")["state"]) == (["web1"], "retried")
    write_report(store, HostReport("web2", "v2", "upgraded"))
    before = consul.tree("config_state/")
    assert migrated(store).waiting == ["web1"]
    assert consul.tree("config_state/") == before
    write_report(store, HostReport("web1", "v2", "started"))
    assert "web1" not in migrated(store).waiting
    assert json.loads(consul.get("upgrade/hosts/web1") or b"")["state"] == "started"


@pytest.mark.parametrize("state", ["kept", "running", "removing"])
def test_gates_that_an_old_tool_opened_during_a_rollout_admit_no_host_when_the_old_keys_are_removed(
    store: Store, consul: RawKV, state: str
) -> None:
    load(
        consul,
        {"current_version": "v1", **legacy_reports(list(names(web=4)), "v1"), **legacy_gates({"role/web": "True"})},
    )
    migrated(store)
    make_pass(store, PassRequest("v2", {"rolling_rules": {"global": 1}}))
    set_gate(store, "role", "web", value=False)
    closed = gates(consul)
    assert closed == {"global": "false", "role/web": "false", "host/web1": "true"}
    # By the old tool, and where the state is another one, after a migrator was killed.
    consul.put("config_state/role/web/enable_puppet", "True")
    consul.put("upgrade/migration", json.dumps({"state": state, "from": 0, "to": 1}))
    shown = migrated(store, dry=True, remove_legacy=True)
    done = migrated(store, remove_legacy=True)
    assert gates(consul) == closed
    assert {one.key for one in shown.net_changes()} == {one.key for one in done.net_changes()}
    assert not consul.tree("config_state/role/")
    assert [one.host for one in make_pass(store, PassRequest()).admissions] == []
