# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrating what JioCloud's own code wrote: where each key goes, what blocks it, what is kept and for whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, end_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import SCHEMA
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.outcome import MigrationResult
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, seed
from integration.support.fleets.old_fleet import legacy_gates, legacy_reports, load, migrated, old_fleet
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

HOSTS = list(names(compute=30))
KEPT = {"state": "kept", "from": 0, "to": 1}
HELD = "{key} was {value} when the keys were migrated to layout 1"


def counts(outcome: MigrationResult) -> dict[str, int]:
    return {what: count for done in (*outcome.steps, *outcome.removed) for what, count in done.moves.items()}


def reports(consul: RawKV) -> dict[str, str]:
    return consul.texts("running/versions/")


def copies(hosts: list[str], version: str) -> dict[str, str]:
    """Return what old reports are when they are copied."""
    return {f"running/versions/{key.partition('/')[2]}": value for key, value in legacy_reports(hosts, version).items()}


def test_every_key_goes_where_it_belongs_and_the_old_ones_stay(store: Store, consul: RawKV) -> None:
    before = old_fleet(HOSTS)
    load(consul, before)
    outcome = migrated(store)
    assert reports(consul) == {**copies(HOSTS[:10], "v674"), **copies(HOSTS[10:], "v673")}
    assert gates(consul) == {
        "global": "false",
        "role/controller": "true",
        **{f"host/{host}": "true" for host in HOSTS[10:29]},
    }
    assert consul.get("current_version") == b"v674"
    assert consul.get("upgrade/schema") == str(SCHEMA).encode()
    assert json.loads(consul.get("upgrade/migration") or b"") == KEPT
    after = consul.texts()
    assert {key: after.get(key) for key in before if key != "current_version"} == {
        key: value for key, value in before.items() if key != "current_version"
    }
    assert (outcome.origin, outcome.schema, outcome.kept, outcome.waiting) == (0, 1, 30 + 1 + 3, HOSTS)
    assert counts(outcome) == {
        "reports copied": 30,
        "pauses converted to holds": 2,
        "version without white space": 1,
    }


def test_operators_closed_gates_of_hosts_become_holds_that_say_where_they_came_from(
    store: Store, consul: RawKV
) -> None:
    load(consul, old_fleet(HOSTS[:9]))
    consul.put("config_state/enable_puppet/host/compute2", "FALSE\n")
    migrated(store)
    holds = {key.rpartition("/")[2]: json.loads(value) for key, value in consul.tree("upgrade/hold/host/").items()}
    assert {host: one["reason"] for host, one in holds.items()} == {
        "compute1": HELD.format(key="config_state/host/compute1/enable_puppet", value="False"),
        "compute2": HELD.format(key="config_state/enable_puppet/host/compute2", value="FALSE"),
        "compute9": HELD.format(key="config_state/host/compute9/enable_puppet", value="false"),
    }
    assert {one["by"] for one in holds.values()} == {"migrate_state.yml"}
    outcome = make_pass(store, PassRequest(version="v675", rules=UNLIMITED))
    states = {host: view.state for host, view in outcome.hosts().items()}
    assert {host for host, state in states.items() if state == "held"} == {"compute1", "compute2", "compute9"}
    assert gates(consul)["global"] == "false"
    assert "host/compute1" not in gates(consul)


def test_a_hold_that_is_there_already_stays_as_it_is(store: Store, consul: RawKV) -> None:
    load(consul, {**legacy_reports(HOSTS[:2]), **legacy_gates({"host/compute1": "False"})})
    consul.put("upgrade/hold/host/compute1", '{"reason": "its disk", "by": "ann"}')
    migrated(store, remove_legacy=True)
    assert consul.get("upgrade/hold/host/compute1") == b'{"reason": "its disk", "by": "ann"}'
    assert gates(consul) == {}


@pytest.mark.parametrize("written", ["true", "TRUE", "false", "False\n", " v674 ", "v600"])
def test_gates_stay_as_the_status_of_old_code_reads_them(store: Store, consul: RawKV, written: str) -> None:
    load(consul, {"current_version": "v674", **legacy_reports(HOSTS[:1])})
    consul.put("config_state/enable_puppet/global", written)
    migrated(store)
    assert gates(consul) == {"global": written}


def test_a_second_run_changes_nothing_and_needs_one_request(store: Store, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS))
    migrated(store)
    before, requests = consul.tree(), store.client.requests
    outcome = migrated(store)
    assert (outcome.net_changes(), outcome.kept, outcome.waiting) == ([], 34, HOSTS)
    assert store.client.requests == requests + 1
    assert consul.tree() == before


def sessions(consul: RawKV) -> set[str]:
    return {one["ID"] for one in json.loads(consul.call("GET", "session/list")[2])}


@pytest.mark.parametrize("options", [{}, {"remove_legacy": True}])
def test_check_mode_reports_all_that_would_be_done_and_writes_nothing(
    store: Store, consul: RawKV, options: dict[str, Any]
) -> None:
    load(consul, old_fleet(HOSTS))
    # Of migrators that tests before this one have killed.
    left = sessions(consul)
    before = consul.texts()
    shown = migrated(store, dry=True, **options)
    assert consul.texts() == before
    assert sessions(consul) <= left
    done = migrated(store, **options)
    assert shown.net_changes() == done.net_changes()
    assert shown.plain(dry=True) | {"summary": ""} == done.plain(dry=False) | {"summary": ""}
    after = consul.texts()
    changed = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
    assert {one.key: one.after for one in done.net_changes()} == changed


def test_check_mode_shows_every_key_but_the_entry_of_the_history(store: Store, consul: RawKV) -> None:
    load(consul, legacy_gates({"global": "True"}))
    seed(consul, HOSTS[:3], gates={"global": "True"})
    consul.put("upgrade/ledger", json.dumps({"epoch": 4, "version": "1", "state": "complete", "commit": "abc"}))
    before = consul.texts()
    shown = migrated(store, dry=True)
    done = migrated(store)
    assert shown.net_changes() == done.net_changes()
    changes = {one.key: (one.before, one.after) for one in done.net_changes()}
    assert [json.loads(text or "")["epoch"] for text in changes["upgrade/ledger"]] == [4, 5]
    assert "commit" not in (changes["upgrade/ledger"][1] or "")
    after = consul.texts()
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert {*changes, "upgrade/history/5"} == changed
    # Once more, there is nothing to report.
    assert migrated(store).net_changes() == []
    assert [one.key for one in migrated(store, dry=True, remove_legacy=True).net_changes()] == [
        one.key for one in migrated(store, remove_legacy=True).net_changes()
    ]


def test_removal_leaves_nothing_but_others_keys_and_the_holds(store: Store, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS))
    consul.put("config_state/enable_puppet/host/compute2", "False")
    # A folder of a terminal's control characters, which the summary names.
    consul.put("running_version/%1B[2J/", "")
    outcome = migrated(store, remove_legacy=True)
    assert all(map(str.isprintable, outcome.summary(dry=False)))
    assert consul.tree("running_version/") == {}
    assert set(consul.tree("config_state/")) == {
        "config_state/role/compute/enable_update",
        *(f"config_state/enable_puppet/{place}" for place in ("global", "role/controller", "host/compute2")),
        *(f"config_state/enable_puppet/host/{host}" for host in HOSTS[10:29]),
    }
    assert set(consul.tree("upgrade/hold/host/")) == {f"upgrade/hold/host/compute{number}" for number in (1, 2, 30)}
    assert consul.get("upgrade/migration") is None
    assert (outcome.kept, outcome.waiting) == (0, [])


def test_gates_that_were_in_their_place_keep_nodes_with_old_code_as_they_were(store: Store, consul: RawKV) -> None:
    consul.put("config_state/enable_puppet/global", "true")
    consul.put("config_state/enable_puppet/host/compute2", "false")
    for options in ({}, {"remove_legacy": True}, {}):
        migrated(store, **options)
        assert gates(consul) == {"global": "true", "host/compute2": "false"}
        assert consul.get("upgrade/hold/host/compute2")
        assert consul.get("upgrade/migration") is None
    end_holds(store, HoldTargets(hosts=["compute2"]))
    assert gates(consul) == {"global": "true"}


def test_where_no_host_has_ever_reported_old_gates_are_kept_until_one_does(store: Store, consul: RawKV) -> None:
    old = legacy_gates({"global": "True", "role/compute": "False"})
    load(consul, old)
    for dry in (True, False, False):
        outcome = migrated(store, dry=dry)
        assert (outcome.kept, outcome.waiting, counts(outcome).get("legacy gates removed")) == (2, [], None)
        assert "because no host has reported through convoy.upgrade yet" in outcome.summary(dry=dry)[-1]
    assert old.items() <= consul.texts().items()
    assert json.loads(consul.get("upgrade/migration") or b"") == KEPT
    write_report(store, HostReport("compute1", "v674", "upgraded"))
    assert counts(migrated(store)) == {"legacy gates removed": 2}
    assert consul.get("upgrade/migration") is None


def test_old_keys_go_when_every_host_has_reported_through_convoy(store: Store, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS[:6]))
    migrated(store)
    for host in HOSTS[:5]:
        write_report(store, HostReport(host, "v674", "upgraded"))
    outcome = migrated(store)
    assert (outcome.waiting, outcome.net_changes()) == (["compute6"], [])
    # A report without anything new is ignored.
    assert "a report that changes nothing is not written" in outcome.summary(dry=False)[-1]
    write_report(store, HostReport("compute6", "v674", "upgraded"))
    # Somebody who still runs the old code is not done.
    consul.put("running_version/v674/compute2", "1528312345.67")
    assert migrated(store).waiting == ["compute2"]
    write_report(store, HostReport("compute2", "v674", "started"))
    outcome = migrated(store)
    assert outcome.kept == 0
    assert consul.tree("running_version/") == {}
    assert consul.get("upgrade/migration") is None


def test_what_old_nodes_reported_while_their_keys_were_kept_is_not_lost(store: Store, consul: RawKV) -> None:
    load(
        consul,
        {"current_version": "v674", **legacy_reports(HOSTS[:4], "v673"), **legacy_gates({"role/compute": "True"})},
    )
    migrated(store)
    consul.put("running_version/v674/compute2", "1528312345.67")
    consul.delete("running_version/v673/compute2")
    write_report(store, HostReport("compute3", "v674", "upgraded"))
    consul.put("config_state/role/compute/enable_puppet", "False")
    migrated(store, remove_legacy=True)
    assert {key for key in reports(consul) if "compute4" not in key} == {
        "running/versions/v673/compute1",
        "running/versions/v674/compute2",
        "running/versions/v674/compute3",
    }
    assert gates(consul) == {}
    assert (
        "config_state/role/compute/enable_puppet was False" in (consul.get("upgrade/hold/role/compute") or b"").decode()
    )


def test_nodes_that_never_stop_writing_old_keys_are_shown_and_do_not_keep_the_migration_from_ending(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(consul, legacy_reports(HOSTS[:3]))
    migrated(store)
    write, at = store.client.write, 1600000000

    def others_write_too(operations: Any) -> Any:
        nonlocal at
        at += 1
        consul.put("running_version/v673/compute2", f"{at}.5")
        return write(operations)

    monkeypatch.setattr(store.client, "write", others_write_too)
    outcome = migrated(store, remove_legacy=True)
    assert outcome.left == ["compute2"]
    assert outcome.summary(dry=False)[-1].startswith("compute2 still wrote legacy keys while these were removed.")
    assert consul.get("upgrade/migration") is None
    monkeypatch.undo()
    assert migrated(store).net_changes() == []
    migrated(store, remove_legacy=True)
    assert consul.tree("running_version/") == {}


def test_old_gates_that_are_set_again_and_again_stay_kept_and_are_reported(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(consul, legacy_gates({"role/compute": "True"}))
    migrated(store)
    write, at = store.client.write, 0

    def others_write_too(operations: Any) -> Any:
        nonlocal at
        at += 1
        consul.put("config_state/role/compute/enable_puppet", "True " + " " * at)
        return write(operations)

    monkeypatch.setattr(store.client, "write", others_write_too)
    outcome = migrated(store, remove_legacy=True)
    assert (outcome.left, outcome.kept) == ([], 1)
    assert "something kept writing them while they were removed" in outcome.summary(dry=False)[0]
    assert json.loads(consul.get("upgrade/migration") or b"") == KEPT
    monkeypatch.undo()
    assert migrated(store).kept == 1
    migrated(store, remove_legacy=True)
    assert consul.tree("config_state/role/") == {}
    assert consul.get("upgrade/migration") is None


def test_replies_that_are_lost_are_no_reason_to_give_up(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(consul, legacy_reports(list(names(compute=450))))
    migrated(store)
    write = store.client.write

    def loses_each_reply(operations: Any) -> Any:
        answer = write(operations)
        if any(one["KV"]["Verb"] == "delete" for one in operations if one["KV"]["Key"].startswith("running_version/")):
            raise Unreachable("unreachable", "The reply was lost.")
        return answer

    monkeypatch.setattr(store.client, "write", loses_each_reply)
    assert counts(migrated(store, remove_legacy=True)) == {"legacy reports removed": 450}
    assert consul.tree("running_version/") == {}


def test_a_fleet_of_today_only_gets_its_version(store: Store, consul: RawKV) -> None:
    seed(consul, HOSTS)
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 2}}))
    consul.put("config_state/enable_puppet/host/compute9", "False")
    before = consul.tree()
    outcome = migrated(store)
    after = consul.tree()
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert changed == {"upgrade/schema", "upgrade/ledger", "upgrade/history/3"}
    assert (outcome.kept, counts(outcome)) == (0, {})
    assert history(consul)[-1]["what"] == "migrate"
    assert make_pass(store, PassRequest()).plan.hosts["compute1"].state == "upgrading"


def test_where_nothing_of_a_fleet_is_found_it_says_which_keys_it_read(agent: Agent, consul: RawKV) -> None:
    for prefix, where in (("", "and no kv_prefix is given"), ("cloud/", "below cloud/")):
        store = Store(Settings(port=agent.http_port, kv_prefix=prefix))
        for dry in (True, False, False):
            line = migrated(store, dry=dry).summary(dry=dry)[-1]
            assert line.startswith(
                f"Nothing of a fleet was found: Consul at {store.settings.url}, {where}, has no report"
            )
    load(consul, legacy_gates({"global": "True"}))
    consul.delete("upgrade/schema")
    assert not any("Nothing of a fleet" in line for line in migrated(store_of(agent)).summary(dry=False))


def store_of(agent: Agent) -> Store:
    return Store(Settings(port=agent.http_port))


def test_an_empty_consul_gets_the_version_and_nothing_else(store: Store, consul: RawKV) -> None:
    migrated(store)
    assert consul.texts() == {"upgrade/schema": "1", "upgrade/hold/": "the keys leave layout 0"}
    assert make_pass(store, PassRequest(version="1", rules=UNLIMITED, fleet={"web1": "web"})).ledger is not None


def test_a_fleet_in_the_middle_of_a_rollout_goes_on_with_it(store: Store, consul: RawKV) -> None:
    load(consul, old_fleet(HOSTS))
    migrated(store)
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"compute": 22}}}
    outcome = make_pass(store, PassRequest(version="v674", rules=rules))
    states = {host: view.state for host, view in outcome.hosts().items()}
    # The two that are held are closed; the one that its operator closed had reported the new version before.
    assert [host for host in HOSTS if states[host] == "upgraded"] == HOSTS[:10]
    assert [host for host in HOSTS if states[host] == "upgrading"] == HOSTS[10:29]
    assert states["compute30"] == "held"
    assert opened(history(consul)) == []
    assert ledger(consul)["version"] == "v674"
    end_holds(store, HoldTargets(hosts=["compute30"]))
    for host in HOSTS[10:29]:
        write_report(store, HostReport(host, "v674", "upgraded"))
    migrated(store, remove_legacy=True)
    make_pass(store, PassRequest())
    write_report(store, HostReport("compute30", "v674", "upgraded"))
    assert make_pass(store, PassRequest()).plan.complete
    assert ledger(consul)["state"] == "complete"


def test_under_a_prefix_nothing_else_is_touched(agent: Agent, consul: RawKV) -> None:
    keys = old_fleet(HOSTS[:6])
    load(consul, {**keys, **{f"cloud/{key}": value for key, value in keys.items()}})
    Migrator(Store(Settings(port=agent.http_port, kv_prefix="cloud/")), remove_legacy=True).run()
    assert {key: value for key, value in consul.texts().items() if not key.startswith("cloud/")} == keys
    assert consul.get("cloud/upgrade/schema") == b"1"
    assert consul.tree("cloud/running_version/") == {}
