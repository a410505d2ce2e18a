# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys where the old code had them: they are read wherever they stand, and gates are written for both kinds of nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import InventoryOptions, survey_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command, abort, retry
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import reset_gates, set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, end_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._migrate.migrator import Migrator
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, names, seed
from integration.support.fleets.old_keys import legacy_gates, old_answer, original_answer, original_status, put_old
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner

pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}


@pytest.fixture
def kept(store: Store, consul: RawKV) -> Iterator[Store]:
    """A fleet of three hosts that was migrated, with its legacy keys kept: each key stands in both places."""
    put_old(consul, {"global": "true"}, {"1": names(compute=3)})
    seed(consul, names(compute=3), gates={"global": "true"})
    consul.load((f"running/versions/1/{host}", "1600000000") for host in names(compute=3))
    consul.put("upgrade/schema", "1")
    consul.put("upgrade/migration", json.dumps({"state": "kept", "from": 0, "to": 1}))
    yield store
    alike(consul)


def alike(consul: RawKV) -> None:
    """See that both kinds of nodes get the same answer, whatever the gates."""
    new = gates(consul)
    assert {place: value.lower() for place, value in legacy_gates(consul).items()} == new
    for host in names(compute=3):
        assert old_answer(legacy_gates(consul), host, "compute") == old_answer(new, host, "compute")


def answers(store: Store, **hosts: int) -> list[bool]:
    return [one.value for one in ask_gate(store, names(**hosts), default=False).values()]


def test_a_pause_closes_whatever_the_gates_say_before_and_after_the_migration(store: Store, consul: RawKV) -> None:
    put_old(consul, {"host/compute2": "False", "role/web": "False", "host/compute1": "True", "global": "True"})
    consul.put("config_state/host/compute2/enable_consul", "true")
    consul.load([(f"{GATES}/host/compute2", "true"), (f"{GATES}/role/web", "true"), (f"{GATES}/global", "false")])
    for _round in range(2):
        hosts = {**names(compute=3), **names(web=1)}
        found = ask_gate(store, hosts)
        assert [one.value for one in found.values()] == [False, False, False, False]
        assert [one.hold for one in found.values()] == [False, True, False, True]
        assert [one.scope for one in found.values()] == ["global", "host", "global", "role"]
        Migrator(store).run()
    consul.put(f"{GATES}/global", "true")
    assert [one.value for one in ask_gate(store, hosts).values()] == [True, False, True, False]
    consul.put("config_state/global/enable_puppet", "False")
    found = ask_gate(store, hosts)
    assert not any(one.value for one in found.values())
    assert found["compute1"].key == "config_state/global/enable_puppet"
    assert "False', an operator's pause (ends with ansible-playbook convoy.upgrade.unhold" in found["compute1"].reason


@pytest.mark.parametrize("count", [1, 5, 500])
def test_it_costs_no_request_to_read_both_places(store: Store, consul: RawKV, count: int) -> None:
    put_old(consul, {f"host/compute{number}": "false" for number in range(1, count + 1, 2)} | {"global": "true"})
    consul.put(f"{GATES}/global", "true")
    consul.put("upgrade/hold/", "")
    before = store.client.requests
    assert answers(store, compute=count) == [number % 2 == 0 for number in range(1, count + 1)]
    assert store.client.requests - before == 1
    before = store.client.requests
    assert len(store.snapshot().legacy_gates.hosts) == (count + 1) // 2
    assert store.client.requests - before == 1


def test_a_pause_that_can_not_be_read_is_a_pause(store: Store, consul: RawKV) -> None:
    put_old(consul, {"host/compute1": "maybe", "global": "true"})
    found = ask_gate(store, {"compute1": "compute"})["compute1"]
    assert (found.value, found.scope) == (False, "host")
    assert "config_state/host/compute1/enable_puppet is 'maybe', an operator's pause" in found.reason


def test_paused_roles_and_fleets_are_held_after_the_migration_and_no_rollout_admits_them(
    store: Store, consul: RawKV
) -> None:
    fleet = {**names(compute=2), **names(web=2)}
    put_old(consul, {"role/compute": "False", "host/compute2": "True"}, {"1": fleet})
    consul.load([("current_version", "1"), (f"{GATES}/global", "false"), (f"{GATES}/role/web", "true")])
    Migrator(store).run()
    hold = json.loads(consul.get("upgrade/hold/role/compute") or b"")
    assert hold["reason"].startswith("config_state/role/compute/enable_puppet was False when the keys were migrated")
    assert hold["reason"].endswith("python-jiocloud exempted compute2, but a hold does not")
    outcome = make_pass(store, PassRequest("2", {"rolling_rules": {"global": 9}}))
    assert {host: one.state for host, one in outcome.hosts().items()} == {
        "compute1": "held", "compute2": "held", "web1": "upgrading", "web2": "upgrading",
    }  # fmt: skip
    # Nodes that have the old code are paused all the same, and its status counts them as closed.
    assert [original_answer(consul, host, role) for host, role in fleet.items()] == [False, False, True, True]
    assert original_status(consul, fleet) == {"compute1", "compute2"}
    # The global one is repeated for nodes that look there alone, and is no pause.
    assert legacy_gates(consul)["global"] == "False"
    assert ask_gate(store, {"web1": "web"})["web1"].value
    end_holds(store, HoldTargets(roles=["compute"]))
    assert "role/compute" not in legacy_gates(consul)
    make_pass(store, PassRequest())
    assert all(original_answer(consul, host, role) for host, role in fleet.items())
    # Where everything was paused, so is everything: that a rollout closed its gate does not end with the pause.
    consul.put("config_state/global/enable_puppet", "False")
    assert {one.key for one in ask_gate(store, fleet).values()} == {"config_state/global/enable_puppet"}
    assert not make_pass(store, PassRequest("3", {"rolling_rules": {"global": 9}}, replace="2")).admissions
    assert legacy_gates(consul)["global"] == "False"
    end_holds(store, HoldTargets(everything=True))
    assert legacy_gates(consul)["global"] == "false"
    assert len(make_pass(store, PassRequest()).admissions) == 4
    assert ask_gate(store, {"web1": "web"})["web1"].value


def test_normal_states_of_a_fleet_of_the_original_migrate(store: Store, consul: RawKV) -> None:
    put_old(consul, {"global": "True", "host/compute1": "False"}, {"1": names(compute=3)})
    gates_before = {"global": "false", "host/compute1": "true", "host/compute2": "true"}
    consul.load([("current_version", "2"), *((f"{GATES}/{place}", text) for place, text in gates_before.items())])
    Migrator(store).run()
    assert gates(consul) == gates_before
    assert set(consul.tree("upgrade/hold/host/")) == {"upgrade/hold/host/compute1"}
    assert answers(store, compute=3) == [False, True, False]


def test_reports_are_found_in_both_places_and_the_later_counts(store: Store, consul: RawKV) -> None:
    consul.put("current_version", "2\n")
    put_old(consul, reports={"1": ["compute1", "compute2"], "2": ["compute3"]}, at=1000)
    put_old(consul, reports={"2": ["compute4"]}, at=3000)
    for host, version, at in (("compute2", "2", "2000"), ("compute3", "2", "1000"), ("compute4", "1", "2000")):
        consul.put(f"running/versions/{version}/{host}", at)
    view = read_fleet(store)
    assert {host: one.version for host, one in view.plan.hosts.items()} == {
        "compute1": "1", "compute2": "2", "compute3": "2", "compute4": "2",
    }  # fmt: skip
    assert {host: one.state for host, one in view.plan.hosts.items()} == {
        "compute1": "upgrading", "compute2": "upgraded", "compute3": "upgraded", "compute4": "upgraded",
    }  # fmt: skip
    assert not [one for one in view.warnings if "several versions" in one]
    found = survey_fleet(store, InventoryOptions()).hosts
    assert {host: facts["version"] for host, facts in found.items()} == {
        "compute1": "1", "compute2": "2", "compute3": "2", "compute4": "2",
    }  # fmt: skip
    assert found["compute1"]["gate"] == "open"


def test_a_rollout_is_seen_alike_by_both_kinds_of_nodes(kept: Store, consul: RawKV) -> None:
    for number_done, host in enumerate(names(compute=3), 1):
        outcome = make_pass(kept, PassRequest("2", ONE_BY_ONE))
        assert [one.host for one in outcome.admissions] == [host]
        alike(consul)
        assert [one.value for one in ask_gate(kept, names(compute=3)).values()] == [
            number <= number_done for number in (1, 2, 3)
        ]
        # Alternately, a node that has the old code and one that has the new one.
        if number_done % 2:
            consul.put(f"running_version/2/{host}", "1700000000")
            consul.delete(f"running_version/1/{host}")
        else:
            write_report(kept, HostReport(host, "2", "upgraded"))
    assert make_pass(kept, PassRequest("2", rules=UNLIMITED, converge=True)).plan.complete
    assert legacy_gates(consul) == {"global": "true"}
    assert gates(consul) == {"global": "true"}
    assert {event["what"] for event in history(consul)} >= {"begin", "open", "converge"}


@pytest.mark.parametrize("places", [("host/compute1",), ("global",)])
def test_a_pause_that_is_set_in_that_moment_is_not_overwritten(
    kept: Store, consul: RawKV, places: tuple[str, ...]
) -> None:
    paused, is_first = [f"config_state/{place}/enable_puppet" for place in places], True

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            for key in paused:
                consul.put(key, "false")
        return write(operations)

    around_writes(kept, late)
    outcome = make_pass(kept, PassRequest("2", ONE_BY_ONE))
    assert all(consul.get(key) == b"false" for key in paused)
    assert "compute1" not in [one.host for one in outcome.admissions]
    for key in paused:
        consul.delete(key)
    # As the fixture compares both places.
    legacy = legacy_gates(consul)
    for place, value in gates(consul).items():
        if place not in legacy:
            consul.put(f"config_state/{place}/enable_puppet", value)


def test_what_is_written_in_two_places_is_shown_and_check_mode_shows_it_too(kept: Store, consul: RawKV) -> None:
    before = consul.tree()
    dry = make_pass(kept, PassRequest("2", ONE_BY_ONE), dry=True)
    assert consul.tree() == before
    real = make_pass(kept, PassRequest("2", ONE_BY_ONE))
    shown = {one.key: (one.before, one.after) for one in real.changes if one.key.startswith("config_state/")}
    assert shown == {
        "config_state/global/enable_puppet": ("true", "false"),
        "config_state/host/compute1/enable_puppet": (None, "true"),
        f"{GATES}/global": ("true", "false"),
        f"{GATES}/host/compute1": (None, "true"),
    }
    changed_gates = {one.key: (one.before, one.after) for one in dry.changes if one.key.startswith("config_state/")}
    assert changed_gates == shown
    assert not make_pass(kept, PassRequest("2", ONE_BY_ONE)).changes


def test_many_gates_are_opened_in_both_places_and_no_write_is_too_long(kept: Store, consul: RawKV) -> None:
    consul.load((f"running_version/1/compute{number}", "1600000000") for number in range(4, 151))
    outcome = make_pass(kept, PassRequest("2", {"rolling_rules": {"global": 140}}))
    assert len(outcome.admissions) == 140
    assert len(gates(consul)) == 141
    assert [len(event["hosts"]) for event in history(consul) if event["what"] == "open"] == [20] * 7


def test_an_abort_and_a_retry_close_both(kept: Store, consul: RawKV) -> None:
    make_pass(kept, PassRequest("2", {"rolling_rules": {"global": 2}}))
    write_report(kept, HostReport("compute1", "2", "started"))
    write_report(kept, HostReport("compute1", "2", "failed", error="disk full"))
    retry(kept, Command("fixed"))
    assert gates(consul)["host/compute1"] == "false"
    alike(consul)
    make_pass(kept, PassRequest("2", {"rolling_rules": {"global": 2}}))
    alike(consul)
    abort(kept, Command("no"))
    assert gates(consul) == {"global": "false", "host/compute1": "false", "host/compute2": "false"}


def test_an_operators_hand_is_in_both(kept: Store, consul: RawKV) -> None:
    changes = set_gate(kept, "host", "compute2", value=False)
    assert [(one.key, one.before, one.after) for one in changes] == [
        (f"{GATES}/host/compute2", None, "false"),
        ("config_state/host/compute2/enable_puppet", None, "false"),
    ]
    assert set_gate(kept, "host", "compute2", value=False) == []
    alike(consul)
    assert len(set_gate(kept, "host", "compute2", value=None, dry=True)) == 2
    assert legacy_gates(consul)["host/compute2"] == "false"
    set_gate(kept, "host", "compute2", value=None)
    assert legacy_gates(consul) == {"global": "true"}
    set_gate(kept, "role", "compute", value=False)
    assert {one.key for one in reset_gates(kept, dry=True)} == {one.key for one in reset_gates(kept)}
    assert legacy_gates(consul) == {"global": "false"}
    assert reset_gates(kept) == []


def test_a_hand_that_sets_what_one_place_lacks_sets_that_alone(kept: Store, consul: RawKV) -> None:
    put_old(consul, {"host/compute3": "false"})
    assert not ask_gate(kept, {"compute3": "compute"})["compute3"].value
    changes = set_gate(kept, "host", "compute3", value=False)
    assert [(one.key, one.before, one.after) for one in changes] == [(f"{GATES}/host/compute3", None, "false")]
    # The pause is the operator's, and stays when the gate is opened.
    set_gate(kept, "host", "compute3", value=True)
    assert legacy_gates(consul)["host/compute3"] == "false"
    assert not ask_gate(kept, {"compute3": "compute"})["compute3"].value
    end_holds(kept, HoldTargets(hosts=["compute3"]))
    assert ask_gate(kept, {"compute3": "compute"})["compute3"].value


def test_a_gate_that_is_closed_while_its_pause_ends_is_closed_for_both_kinds_of_nodes(
    kept: Store, consul: RawKV
) -> None:
    put_old(consul, {"host/compute3": "false"})
    set_gate(kept, "host", "compute3", value=True)
    other, is_first = Store(kept.settings), True

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            set_gate(other, "host", "compute3", value=False)
        return write(operations)

    around_writes(kept, late)
    end_holds(kept, HoldTargets(hosts=["compute3"]))
    assert (gates(consul)["host/compute3"], legacy_gates(consul)["host/compute3"]) == ("false", "false")


@pytest.mark.parametrize("gate", [None, True, False])
def test_the_end_of_a_pause_that_an_old_tool_has_set_since_says_whose_it_was(
    run: Runner, kept: Store, consul: RawKV, gate: bool | None
) -> None:
    make_pass(kept, PassRequest("2", {"rolling_rules": {"global": 0}}))
    put_old(consul, {"host/compute3": "false", "role/compute": "false"})
    if gate is not None:
        set_gate(kept, "host", "compute3", value=gate)
    options = {"hosts": ["compute3"], "roles": ["compute"], "state": "absent", "by": "bea"}
    end = {"convoy.upgrade.consul_upgrade_hold": options}
    dry = run([end], check=True)[0]
    ended, again = run([end, end])
    assert dry["messages"] == ["host compute3: would no longer be held", "role compute: would no longer be held"]
    assert ended["messages"] == ["host compute3: no longer held", "role compute: no longer held"]
    assert (dry["changed"], ended["changed"], again["changed"], again["messages"]) == (True, True, False, [])
    entry = history(consul)[-1]
    assert (entry["what"], entry["by"], [*entry["hosts"]], [*entry["roles"]]) == (
        "unhold",
        "bea",
        ["compute3"],
        ["compute"],
    )
    assert consul.get("upgrade/wake/compute3") is not None


def test_a_pause_that_ends_during_a_job_leaves_a_copy_of_the_gate_for_versions(kept: Store, consul: RawKV) -> None:
    put_old(consul, {"host/compute3": "false"})
    set_gate(kept, "host", "compute3", value=True)
    job = Job("work-1", "work", int(time.time()) + 600)
    make_pass(kept, PassRequest(job.target, UNLIMITED, fleet=names(compute=3), job=job))
    end_holds(kept, HoldTargets(hosts=["compute3"]))
    assert (gates(consul)["host/compute3"], legacy_gates(consul)["host/compute3"]) == ("true", "true")


def test_before_the_migration_a_hand_is_in_both_too_and_elsewhere_in_one(store: Store, consul: RawKV) -> None:
    set_gate(store, "host", "compute1", value=False)
    assert legacy_gates(consul) == {}
    put_old(consul, {"global": "True"})
    set_gate(store, "host", "compute2", value=False)
    # As the old code of this fleet spells it.
    assert legacy_gates(consul) == {"global": "True", "host/compute2": "False"}


def test_keys_of_others_among_the_old_gates_stay(kept: Store, consul: RawKV) -> None:
    others = {"config_state/host/compute1/enable_consul": "true", "config_state/global/debug": "1"}
    consul.load(others.items())
    set_gate(kept, "host", "compute2", value=False)
    make_pass(kept, PassRequest("2", ONE_BY_ONE))
    assert others.items() <= consul.texts("config_state/").items()
    assert legacy_gates(consul) == {"global": "false", "host/compute1": "true"}


def test_a_report_by_the_new_code_ends_an_old_one_with_a_later_time(kept: Store, consul: RawKV) -> None:
    make_pass(kept, PassRequest("2", ONE_BY_ONE))
    # Its clock was ahead when it had the old code, and it may write its own record alone now.
    consul.put("running_version/1/compute1", "9999999999")
    consul.put(
        "upgrade/hosts/compute1", json.dumps({"version": "2", "state": "upgraded", "times": {"upgraded": 1700000000}})
    )
    assert read_fleet(kept).plan.hosts["compute1"].state == "upgraded"
    make_pass(kept, PassRequest())
    assert consul.get("running_version/1/compute1") is None
    assert consul.get("running/versions/2/compute1") == b"1700000000"
    assert read_fleet(kept).plan.hosts["compute1"].state == "upgraded"
    assert not make_pass(kept, PassRequest()).changes


def test_what_a_hand_closed_before_the_first_rollout_is_held_by_it(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=3), gates={"global": "True", "host/compute2": "false", "host/compute3": "True"})
    before = consul.tree()
    dry = make_pass(store, PassRequest("2", rules=UNLIMITED), dry=True)
    assert consul.tree() == before
    outcome = make_pass(store, PassRequest("2", rules=UNLIMITED))
    assert {host: one.state for host, one in outcome.hosts().items()} == {
        "compute1": "upgrading", "compute2": "held", "compute3": "upgrading",
    }  # fmt: skip
    hold = json.loads(consul.get("upgrade/hold/host/compute2") or b"")
    assert hold["by"] == "the first rollout"
    assert hold["reason"] == f"{GATES}/host/compute2 was false when it began"
    assert any("compute2: closed by hand before the first rollout" in one for one in outcome.warnings)
    assert history(consul)[0]["held"] == ["compute2"]
    assert [one.key for one in dry.changes] == [one.key for one in outcome.changes]
    assert gates(consul) == {"global": "False", "host/compute1": "True", "host/compute3": "True"}
    end_holds(store, HoldTargets(hosts=["compute2"]))
    assert [one.host for one in make_pass(store, PassRequest()).admissions] == ["compute2"]
    # A second rollout makes no holds of what the first one left behind.
    consul.put(f"{GATES}/host/compute2", "False")
    make_pass(store, PassRequest("3", rules=UNLIMITED, replace="2"))
    assert consul.get("upgrade/hold/host/compute2") is None


def test_more_than_a_write_can_hold_are_refused_with_the_remedy(store: Store, consul: RawKV) -> None:
    hosts = names(compute=41)
    seed(consul, hosts, gates={f"host/{host}": "False" for host in hosts})
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("2", rules=UNLIMITED))
    assert caught.value.code == "closed_by_hand"
    assert "convoy.upgrade.migrate_state" in caught.value.message
    assert consul.tree() == before


def test_where_old_gates_are_removed_along_fewer_are_held_in_one_write(kept: Store, consul: RawKV) -> None:
    for number in range(4, 21):
        consul.put(f"{GATES}/host/compute{number}", "false")
        assert consul.call("PUT", f"kv/config_state/host/compute{number}/enable_puppet?flags=1", b"false")[0] == 200
    for number in range(21, 41):
        consul.put(f"config_state/host/compute{number}/enable_puppet", "true")
        consul.put(f"{GATES}/host/compute{number}", "true")
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        make_pass(kept, PassRequest("2", rules=UNLIMITED))
    assert caught.value.code == "closed_by_hand"
    # 11 of a beginning, 37 gates and the global one once more.
    assert "room for 15 holds." in caught.value.message
    assert "convoy.upgrade.hold" in caught.value.message
    assert consul.tree() == before


def test_the_legacy_gate_of_a_hold_is_removed_with_it(kept: Store, consul: RawKV) -> None:
    put_old(consul, {"host/compute2": "false"})
    consul.put("upgrade/hold/host/compute2", '{"by": "migrate_state.yml", "reason": "it was closed"}')
    assert not ask_gate(kept, {"compute2": "compute"})["compute2"].value
    held = end_holds(kept, HoldTargets(hosts=["compute2"]))
    assert {one.key for one in held.changes} == {
        "config_state/host/compute2/enable_puppet",
        "upgrade/hold/host/compute2",
    }
    assert ask_gate(kept, {"compute2": "compute"})["compute2"].value


@pytest.mark.parametrize("key", ["running_version/1/compute1", "config_state/global/enable_puppet"])
def test_planners_refuse_keys_of_the_old_layout_and_say_what_to_run(store: Store, consul: RawKV, key: str) -> None:
    consul.load([("current_version", "1"), ("running/versions/1/compute2", "1"), (key, "1")])
    before = consul.tree()
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest("2", rules=UNLIMITED))
    assert caught.value.code == "older_schema"
    assert "layout 0" in caught.value.message
    assert caught.value.message in read_fleet(store).warnings
    assert "convoy.upgrade.migrate_state" in caught.value.message
    assert consul.tree() == before


def test_the_first_rollout_of_a_new_fleet_writes_the_layout_down_and_that_of_others_does_not(
    store: Store, consul: RawKV
) -> None:
    make_pass(store, PassRequest("2", rules=UNLIMITED, fleet=names(compute=1)))
    assert consul.get("upgrade/schema") == b"1"
    consul.delete("", tree=True)
    seed(consul, names(compute=1))
    make_pass(store, PassRequest("2", rules=UNLIMITED))
    assert consul.get("upgrade/schema") is None
