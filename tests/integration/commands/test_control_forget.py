# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator forgets hosts: all that is known of them goes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.forget import forget
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets, set_holds
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, long_ago, names, seed
from integration.support.fleets.old_keys import legacy_gates, put_old
from integration.support.processes.writes import Write, around_writes
from integration.support.runs.commands import UNLIMITED, control, fail, upgrade
from integration.support.runs.playbook import Runner

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release

FLEET = names(controller=1, compute=12)
CAPPED = {"rolling_rules": {"global": 2}}
# Where all stands that is of one host alone. Another host's name begins like this one's.
OF_COMPUTE1 = (
    *("running/versions/0/compute1", "running/versions/2/compute1", "running_version/1/compute1"),
    *("upgrade/hosts/compute1", "upgrade/hold/host/compute1", "upgrade/health/compute1"),
    *("config_state/enable_puppet/host/compute1", "config_state/host/compute1/enable_puppet", "upgrade/wake/compute1"),
)


@pytest.fixture
def known(store: Store, consul: RawKV) -> Store:
    """A rollout in which compute1 is known in all places, also in those of the older layout."""
    consul.put("upgrade/schema", "1")
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", CAPPED, fleet=FLEET))
    upgrade(store, "compute1", "controller1")
    set_holds(store, HoldTargets(hosts=["compute1", "compute10"]), "audit", "ann")
    for host in ("compute1", "compute10"):
        consul.put(f"running/versions/0/{host}", "1600000000")
        consul.put(f"running_version/1/{host}", "1600000000")
        consul.put(f"upgrade/health/{host}", json.dumps({"version": "2"}))
        consul.put(f"config_state/enable_puppet/host/{host}", "False")
        consul.put(f"config_state/host/{host}/enable_puppet", "False")
    return store


@pytest.mark.usefixtures("known")
def test_all_that_is_of_a_host_goes_in_one_write_and_nothing_else(run: Runner, consul: RawKV) -> None:
    rest = {host: role for host, role in FLEET.items() if host != "compute1"}
    before = consul.tree()
    assert set(OF_COMPUTE1) <= set(before)
    task = control("forget", hosts=["compute1"], reason="scrapped", by="ann", fleet=rest)
    dry = run([task], check=True, diff=True)[0]
    assert consul.tree() == before
    done, again = run([task, task], diff=True)
    assert not dry["failed"], dry
    same = [line for line in OF_COMPUTE1 if f"{line} = " in dry["diff"]["before"]]
    assert same == [line for line in OF_COMPUTE1 if f"{line} = " in done["diff"]["before"]] == list(OF_COMPUTE1)
    assert not [line for line in OF_COMPUTE1 if f"{line} = " in done["diff"]["after"]]
    assert (dry["changed"], done["changed"], again["changed"]) == (True, True, False)
    assert (done["hosts"], again["hosts"]) == (["compute1"], [])
    after = consul.tree()
    gone = set(before) - set(after)
    assert gone == set(OF_COMPUTE1)
    epoch = ledger(consul)["epoch"]
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {"upgrade/ledger", f"upgrade/history/{epoch}", "upgrade/hold/"}
    assert ledger(consul)["members"] == {"compute": 11, "controller": 1}
    event = history(consul)[-1]
    assert (event["what"], event["hosts"], event["by"]) == ("forget", {"compute1": "scrapped"}, "ann")
    assert done["remarks"][0].startswith("compute1 is forgotten. If it still runs, stop its agent")
    assert "compute1 was held by ann" in done["remarks"][1]
    assert again["remarks"][0].startswith("Nothing is stored about compute1; did you mean 'compute1")


def test_a_rollout_ends_without_a_host_that_is_forgotten(store: Store, consul: RawKV) -> None:
    fleet = names(compute=2)
    seed(consul, fleet, "1")
    make_pass(store, PassRequest("2", UNLIMITED, fleet=fleet))
    upgrade(store, "compute2")
    fail(store, "compute1")
    assert not make_pass(store, PassRequest(fleet=fleet)).plan.complete
    done = operator.forget(store, operator.Command(fleet={"compute2": "compute"}), ["compute1"])
    assert done.hosts == ["compute1"]
    # Also for a planner that knows no fleet.
    assert make_pass(store, PassRequest()).plan.complete


def test_a_host_that_is_forgotten_during_a_job_is_not_missing_after_it(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": "unlimited"}}, fleet=FLEET))
    operator.abort(store, operator.Command(reason="enough", fleet=FLEET))
    job = requested_job(store, {"run": "restart", "id": "restart-1"}, FLEET, None, CAPPED)
    make_pass(store, PassRequest("job/restart-1", CAPPED, fleet=FLEET, job=job, limit=[]))
    rest = {host: role for host, role in FLEET.items() if host != "compute1"}
    forget(store, operator.Command(reason="scrapped", fleet=rest), ["compute1"])
    operator.abort(store, operator.Command(reason="enough", fleet=rest))
    found = store.snapshot(of_job=False).ledger
    assert found is not None
    assert (found.version, dict(found.members)) == ("2", {"compute": 11, "controller": 1})


@pytest.mark.parametrize("how", ["admitted", "started", "driven", "lost"])
def test_one_that_is_at_work_is_refused_unless_it_is_forced(run: Runner, store: Store, consul: RawKV, how: str) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", {**CAPPED, "health": {"progress_deadline": 60}}, fleet=FLEET))
    host = "compute3" if how == "driven" else "compute1"
    if how in ("started", "lost"):
        write_report(store, HostReport(host, "2", "started"))
    if how == "driven":
        consul.put(f"upgrade/drivers/{host}", "{}")
    if how == "lost":
        # Its upgrade may still run.
        long_ago(consul, host)
        assert make_pass(store, PassRequest(fleet=FLEET), dry=True).plan.hosts[host].state == "lost"
    before = consul.tree()
    refused = run([control("forget", hosts=[host], fleet=FLEET)])[0]
    assert refused["failure"]["code"] == "at_work"
    assert f"convoy.upgrade.forget -e host={host} -e force=true" in refused["msg"]
    assert consul.tree() == before
    done = run([control("forget", hosts=[host], fleet=FLEET, force=True)])[0]
    assert done["hosts"] == [host]
    assert not [key for key in consul.tree() if key.endswith(f"/{host}")]
    assert f"{host} is in the inventory" in done["remarks"][-1]


def test_a_host_that_starts_in_that_moment_is_not_forgotten(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", CAPPED, fleet=FLEET))
    other, is_first = Store(store.settings), True

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            write_report(other, HostReport("compute9", "2", "started"))
        return write(operations)

    around_writes(store, late)
    with pytest.raises(UpgradeError, match="compute9 is not forgotten, because it has begun its upgrade to 2"):
        operator.forget(store, operator.Command(fleet=FLEET), ["compute9"])
    assert consul.get("upgrade/hosts/compute9") is not None


def test_a_host_that_starts_a_job_in_that_moment_is_not_forgotten(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", CAPPED, fleet=FLEET))
    key, is_first = "upgrade/job_records/compute9", True

    def late(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            consul.put(key, json.dumps({"job": "j1", "state": "started", "run": "r", "times": {"started": 1}}))
        return write(operations)

    around_writes(store, late)
    with pytest.raises(UpgradeError, match="compute9 is not forgotten, because it has begun the job j1"):
        operator.forget(store, operator.Command(fleet=FLEET), ["compute9"])
    assert consul.get(key) is not None


def test_a_host_that_keeps_writing_its_record_keeps_no_other_from_being_forgotten(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", CAPPED, fleet=FLEET))
    count = 0

    def noisy(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        consul.put(
            "upgrade/hosts/compute8", json.dumps({"version": "1", "state": "failed", "times": {"failed": count}})
        )
        return write(operations)

    around_writes(store, noisy)
    with pytest.raises(
        UpgradeError, match=r"compute9, compute12: forgotten\. compute8: the ledger or a record changed"
    ) as caught:
        operator.forget(store, operator.Command(fleet=FLEET), ["compute8", "compute9", "compute12"])
    assert caught.value.code == "busy"
    assert {one for one in ("compute8", "compute9", "compute12") if f"running/versions/1/{one}" in consul.tree()} == {
        "compute8"
    }


def test_each_of_several_hosts_is_counted_down(store: Store, consul: RawKV) -> None:
    fleet = names(web=3)
    seed(consul, fleet, "1")
    make_pass(store, PassRequest("2", UNLIMITED, fleet=fleet))
    dry = forget(store, operator.Command(), ["web2", "web3"], force=True, dry=True)
    assert dry.ledger is not None and dry.ledger.members == {"web": 1}
    forget(store, operator.Command(), ["web2", "web3"], force=True)
    assert ledger(consul)["members"] == {"web": 1}
    # A planner service passes without the inventory, and keeps this count.
    assert make_pass(store, PassRequest(keeps_members=True)).plan.hosts.keys() == {"web1"}


@pytest.mark.parametrize("with_ledger", [True, False])
def test_more_held_hosts_than_there_are_tries_are_forgotten(store: Store, consul: RawKV, with_ledger: bool) -> None:
    fleet = names(compute=25)
    seed(consul, fleet, "1")
    if with_ledger:
        make_pass(store, PassRequest("2", CAPPED, fleet=fleet))
    set_holds(store, HoldTargets(hosts=[*fleet]), "scrapped")
    assert len(forget(store, operator.Command(), [*fleet], force=True).hosts) == 25
    assert not consul.texts("upgrade/hold/host/")


def test_a_hold_that_changes_in_that_moment_is_read_again(store: Store, consul: RawKV) -> None:
    fleet = names(compute=3)
    seed(consul, fleet, "1")
    set_holds(store, HoldTargets(hosts=["compute1", "compute2"]), "audit", "ann")
    count = 0

    def hold_again(write: Write, operations: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            consul.put("upgrade/hold/host/compute2", json.dumps({"reason": "its disk", "by": "bob"}))
        return write(operations)

    around_writes(store, hold_again)
    done = operator.forget(store, operator.Command(), ["compute1", "compute2"])
    assert any("compute2 was held by bob: its disk" in one for one in done.remarks)
    assert count == 3


def test_it_works_without_a_rollout_and_with_a_name_without_a_role(run: Runner, consul: RawKV) -> None:
    consul.put("running/versions/1/cache", "1700000000")
    consul.put("config_state/enable_puppet/host/cache", "False")
    dry = run([control("forget", hosts=["cache"])], check=True)[0]
    assert dry["remarks"][0].startswith("cache would be forgotten.")
    assert (dry["changed"], len(consul.tree())) == (True, 2)
    done, without_hosts = run([control("forget", hosts=["cache"]), control("forget", hosts=[])])
    assert (done["hosts"], done["version"], done["state"], done["epoch"]) == (["cache"], None, None, 0)
    assert consul.tree() == {}
    assert without_hosts["failure"]["code"] == "no_target"


def test_without_a_rollout_the_copy_of_a_gate_goes_too(store: Store, consul: RawKV) -> None:
    consul.put("upgrade/schema", "1")
    consul.put("upgrade/migration", json.dumps({"state": "kept", "from": 0, "to": 1}))
    consul.put("running/versions/1/web9", "1700000000")
    put_old(consul, {"global": "true", "host/web9": "true"})
    set_gate(store, "host", "web9", value=True)
    done = operator.forget(store, operator.Command(), ["web9"])
    assert "config_state/host/web9/enable_puppet" in {one.key for one in done.changes}
    assert legacy_gates(consul) == {"global": "true"}
    assert [key for key in consul.tree() if key.endswith("/web9")] == []


def test_options_that_do_not_go_with_it_are_refused(run: Runner, begun: Store, consul: RawKV) -> None:
    before = gates(consul)
    assert begun is not None
    wrong = run([control("retry", force=True)])[0]
    assert wrong["failure"]["message"] == "force goes with action: forget, not with retry. Leave force out."
    assert gates(consul) == before


def test_a_host_with_very_many_reports_goes_in_a_few_writes(store: Store, consul: RawKV) -> None:
    consul.load([(f"running/versions/{one}/compute1", "1700000000") for one in range(120)])
    seed(consul, ["compute2"], "1")
    make_pass(store, PassRequest("2", UNLIMITED))
    operator.forget(store, operator.Command(), ["compute1"], force=True)
    assert not [key for key in consul.tree() if key.endswith("/compute1")]
