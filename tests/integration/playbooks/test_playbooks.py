# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks that the collection ships, as an operator runs them."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, seed
from integration.support.processes.nodes import living_nodes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.shipped import Shipped, inventory
from thorough import quick

ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
RULES = {"rolling_rules": {"global": 1, "roles": {"compute": 2}}}


def test_an_upgrade_runs_to_its_end_controllers_first_and_a_second_one_changes_nothing(
    play: Shipped, agent: Agent, consul: RawKV
) -> None:
    hosts = names(controller=2, compute=3)
    seed(consul, hosts)
    with living_nodes(Settings(port=agent.http_port), hosts, "2"):
        done = play("upgrade", inventory=inventory(hosts), version="2", upgrade_roles=ROLES, instructions=RULES)
    assert done.returncode == 0, done.stdout
    assert set(consul.texts("running/versions/")) == {f"running/versions/2/{host}" for host in hosts}
    assert gates(consul) == {"global": "True"}
    order = opened(history(consul))
    assert order == [*sorted(order[:2]), *sorted(order[2:])]
    assert set(order[:2]) == {"controller1", "controller2"}
    assert ledger(consul)["state"] == "complete"
    for shown in (
        "wave  hosts  ",
        "controller1 upgraded",
        "-- 2: compute 3/3, controller 2/2",
        "5 of 5 hosts upgraded",
    ):
        assert shown in done.stdout, done.stdout

    before = consul.tree()
    again = play("upgrade", inventory=inventory(hosts), version="2", upgrade_roles=ROLES, instructions=RULES)
    assert again.returncode == 0, again.stdout
    assert "changed=0" in again.stdout
    assert consul.tree() == before


def test_check_mode_shows_the_whole_plan_and_writes_nothing(play: Shipped, consul: RawKV) -> None:
    hosts = names(controller=2, compute=3)
    seed(consul, hosts)
    before = consul.tree()
    done = play(
        "upgrade", "--check", "--diff", inventory=inventory(hosts), version="2", upgrade_roles=ROLES, instructions=RULES
    )
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["now", "1", "controller1"] in lines
    assert ["3", "2", "compute1,", "compute2"] in lines
    assert ["4", "1", "compute3"] in lines
    assert "+config_state/enable_puppet/host/controller1 = True" in done.stdout
    assert consul.tree() == before


@pytest.mark.thorough
@pytest.mark.one_release
def test_hosts_of_the_inventory_that_never_reported_are_part_of_the_fleet(play: Shipped, consul: RawKV) -> None:
    done = play(
        "status", inventory={"controller": ["controller1"], "compute": ["web-a"]}, version="2", upgrade_roles=ROLES
    )
    assert done.returncode == 0, done.stdout
    assert "never reported (1)" in done.stdout
    assert consul.tree() == {}


@pytest.mark.thorough
@pytest.mark.one_release
def test_without_roles_the_fleet_is_what_has_reported(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    done = play("upgrade", "--check", version="2", instructions=RULES)
    assert done.returncode == 0, done.stdout
    assert " now      2  compute1, compute2" in done.stdout


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("variables", "sentence"),
    quick(
        2,
        [
            ({}, "version is not given. Add -e version=X."),
            ({"version": 2.10}, "version: 2.1 is not text but a number"),
            ({"version": "3", "replace": 2.10}, "replace: 2.1 is not text but a number"),
            (
                {"version": "2", "instructions": {"rolling_rules": {"globl": 1}}},
                "rolling_rules.globl: unknown key; did you mean 'global'?",
            ),
            ({"version": "2", "instructions_file": "/nonexistent.yml"}, "/nonexistent.yml can't be used: No such file"),
            (
                {"version": "2", "upgrade_limit": ["computer"]},
                "'computer' fits no host, role or group of this fleet; did you mean 'compute'?",
            ),
            (
                {"version": "2", "upgrade_roles": {"compute": {"plane": "data"}}},
                "upgrade_roles.compute.plane: 'data' is not a plane",
            ),
            (
                {"version": "2", "upgrade_roles": {"computer": {}}},
                "no host of the inventory is in a group named computer",
            ),
            (
                {"version": "2", "upgrade_roles": {"compute": {}, "web": {}}},
                "the host 'compute1' is in the groups 'compute' and 'web'",
            ),
            ({"version": "2", "upgrade_consul_kv_prefix": "elsewhere"}, "There is no host to upgrade"),
            (
                {"version": "2", "upgrade_consul_port": 1, "upgrade_consul_timeout": 0.2},
                "http://127.0.0.1:1 can't be reached",
            ),
        ],
    ),
)
def test_what_is_wrong_is_reported_before_anything_is_written(
    play: Shipped, consul: RawKV, variables: dict[str, Any], sentence: str
) -> None:
    seed(consul, names(compute=2))
    before = consul.tree()
    done = play(
        "upgrade", inventory={"compute": ["compute1"], "web": ["compute1"]}, **{"instructions": UNLIMITED, **variables}
    )
    assert done.returncode != 0
    assert sentence in " ".join(done.stdout.split()), done.stdout
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_rollout_that_stops_shows_the_table_and_says_why(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    consul.put("upgrade/hold/role/compute", json.dumps({"reason": "disk swap", "by": "ann", "at": "today"}))
    done = play("upgrade", version="2", instructions=UNLIMITED)
    assert done.returncode != 0
    text = " ".join(done.stdout.split())
    assert "No host can continue without an operator. 2: compute 0/2; 0 upgrading, 2 waiting." in text
    assert "held by ann since today: disk swap" in text
    assert "held: compute1, compute2:" in text
    assert '"hosts":' not in text, "the whole result is no message"


@pytest.mark.thorough
def test_a_file_of_rules_is_named_from_where_the_command_is_given(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    (play.folder / "rules.yml").write_text(
        "rolling_rules: {global: 1}\nstages: [{name: canary, hosts: 1, soak: 600, approve: true}]\n"
    )
    before = consul.tree()
    done = play("upgrade", "--check", environ={"PWD": str(play.folder)}, version="2", instructions_file="rules.yml")
    assert done.returncode == 0, done.stdout
    assert f"  rolling_rules.global: 1 (from {play.folder}/rules.yml)\n" in done.stdout
    soaks = "  stages[0]: canary, 1 of each role, soaks 10m, needs an approval "
    assert f"{soaks}(from {play.folder}/rules.yml)\n" in done.stdout
    assert consul.tree() == before


@pytest.mark.thorough
def test_status_shows_the_details_of_a_host(play: Shipped, agent: Agent, consul: RawKV) -> None:
    hosts = names(compute=2)
    seed(consul, hosts)
    with living_nodes(Settings(port=agent.http_port), hosts, "2"):
        assert play("upgrade", version="2", instructions=RULES).returncode == 0
    done = play("status", host="compute2")
    assert done.returncode == 0, done.stdout
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert lines[0].startswith("compute2 runs 2, as it reported at ")
    assert lines[0].endswith(" ago). That is the target version.")
    assert lines[1].startswith("It has been upgraded since ")
    assert lines[2] == "It is done."
    events = [line.split("  ", 1)[1].split(":")[0] for line in lines[3:]]
    assert events == ["begin 2", "admitted to 2", "reported", "reported", "gates opened after 2"]

    unknown = play("status", host="compute3")
    assert unknown.returncode != 0
    assert "'compute3' is unknown" in unknown.stdout


@pytest.mark.thorough
def test_global_disable_closes_everything_at_once(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(compute=2), gates={"global": "True", "role/compute": "True", "host/compute1": "True"})
    before = consul.tree()
    assert play("global_disable", "--check").returncode == 0
    assert consul.tree() == before
    done = play("global_disable")
    assert done.returncode == 0, done.stdout
    assert gates(consul) == {"global": "False"}
    assert "changed=0" in play("global_disable").stdout
    assert "was begun by" not in done.stdout


@pytest.mark.thorough
def test_global_disable_names_what_goes_on(play: Shipped, store: Store, consul: RawKV) -> None:
    fleet = names(compute=2)
    seed(consul, fleet)
    rules = {"rolling_rules": {"global": 1}}
    make_pass(store, PassRequest("2", rules, fleet=fleet, by="ann@desk"))
    shown = " ".join(play("global_disable").stdout.split())
    assert "[WARNING]: The rollout to 2 was begun by ann@desk and is running. Its planners admit hosts again." in shown
    assert "convoy.upgrade.pause or ansible-playbook convoy.upgrade.abort" in shown
    control.pause(store, control.Command(reason="lunch", fleet=fleet))
    shown = " ".join(play("global_disable").stdout.split())
    assert (
        "[WARNING]: The rollout to 2 is paused. Once ansible-playbook convoy.upgrade.resume ends that, its planners"
        in shown
    )
    control.abort(store, control.Command(reason="enough", fleet=fleet))
    assert any("was closed by hand" in one for one in make_pass(store, PassRequest("3", rules, fleet=fleet)).warnings)
    control.abort(store, control.Command(reason="enough", fleet=fleet))
    job = requested_job(store, {"run": "restart", "id": "restart-1", "by": "bob"}, fleet, None, rules)
    make_pass(store, PassRequest("job/restart-1", rules, fleet=fleet, job=job))
    admitted = consul.tree("upgrade/job_gates/")
    shown = " ".join(play("global_disable").stdout.split())
    assert "[WARNING]: The job restart-1 was begun by bob and is running. It goes on" in shown
    assert consul.tree("upgrade/job_gates/") == admitted
    consul.put("upgrade/ledger", "not JSON")
    broken = play("global_disable")
    assert broken.returncode == 0 and "A rollout may be under way: " in " ".join(broken.stdout.split())


def test_an_inventory_that_could_not_be_read_is_not_taken_for_an_empty_one(
    play: Shipped, consul: RawKV, tmp_path: Path
) -> None:
    seed(consul, names(controller=1, compute=1))
    source = tmp_path / "fleet.consul_fleet.yml"
    source.write_text("plugin: convoy.upgrade.consul_fleet\nhost: 127.0.0.1\nport: 1\ntimeout: 0.1\n")
    before = consul.tree()
    done = play("upgrade", "-i", str(source), version="2")
    assert done.returncode == 2, done.stdout
    assert f"{source} gave no host: see the warning above." in " ".join(done.stdout.split())
    assert consul.tree() == before


@pytest.mark.thorough
def test_an_upgrade_takes_the_place_of_another_one_where_it_names_that(play: Shipped, consul: RawKV) -> None:
    hosts = names(compute=3)
    seed(consul, hosts)
    given: dict[str, Any] = {"inventory": inventory(hosts), "upgrade_roles": {"compute": {"plane": "dataplane"}}}
    begun = play("upgrade", version="2", instructions=RULES, upgrade_wait_timeout=1, **given)
    assert begun.returncode == 2, begun.stdout
    assert "[timeout] " in begun.stdout
    again = begun.stdout.rpartition("Next: ")[2]
    assert "/upgrade.yml" in again and '"version": "2"' in again and "Then: " not in again, "only time is missing"
    before = consul.tree()

    refused = play("upgrade", version="3", **given)
    assert refused.returncode == 2
    assert "The rollout under way goes to 2: it was begun by " in refused.stdout
    assert "-e replace=2" in refused.stdout
    assert "/status.yml" in refused.stdout.rpartition("Next: ")[2]
    shown = play("upgrade", "--check", version="3", replace="2", **given)
    assert shown.returncode == 0, shown.stdout
    assert "It replaces the rollout to 2, which " in shown.stdout
    assert "rolling_rules.roles.compute: 2" in shown.stdout, "the rules in force are carried over"
    assert consul.tree() == before

    play("upgrade", version="3", replace="2", upgrade_wait_timeout=1, **given)
    assert (ledger(consul)["version"], ledger(consul)["instructions"]) == ("3", RULES)


@pytest.mark.thorough
# A terminal that is closed sends several: the shell, and the kernel.
@pytest.mark.parametrize("numbers", [["SIGINT"], ["SIGTERM"], ["SIGHUP", "SIGHUP", "SIGTERM"]])
def test_a_run_that_a_signal_ends_says_what_comes_next(numbers: list[str], play: Shipped, consul: RawKV) -> None:
    hosts = names(compute=2)
    seed(consul, hosts)
    given: dict[str, Any] = {"inventory": inventory(hosts), "version": "2", "instructions": RULES}
    process = play.start("upgrade", **given)
    until = time.monotonic() + 60
    while "True" not in gates(consul).values():
        assert time.monotonic() < until
        time.sleep(0.1)
    # It waits for the hosts now.
    time.sleep(2)
    for number in numbers:
        process.send_signal(signal.Signals[number])
    shown, _nothing = process.communicate(timeout=60)
    assert process.returncode == 99, shown
    assert "/upgrade.yml" in shown.rpartition("Next: ")[2], shown


@pytest.mark.thorough
def test_a_single_pass_ends_well_where_the_rules_were_obeyed(play: Shipped, store: Store, consul: RawKV) -> None:
    hosts = names(controller=1, compute=1)
    seed(consul, hosts)
    isolated = {"rolling_rules": {"global": 0, "roles": {"compute": 1}}}
    given: dict[str, Any] = {"inventory": inventory(hosts), "version": "2", "once": True, "instructions": isolated}
    first = play("upgrade", **given)
    assert first.returncode == 0, first.stdout
    assert (
        "One pass was made, and the rules were obeyed: 1 admitted, 0 of 2 upgraded. Run the same command again"
        in first.stdout
    )
    again = first.stdout.rpartition("Next: ")[2]
    assert ("/upgrade.yml" in again, '"once": true' in again) == (True, True)
    assert gates(consul) == {"global": "False", "host/compute1": "True"}

    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "upgraded"))
    # Only what has no slot is left: a run that waits would say that nothing can move any more.
    second = play("upgrade", **given)
    assert second.returncode == 0, second.stdout
    assert "the rules were obeyed: 0 admitted, 1 of 2 upgraded. No other host can be admitted." in second.stdout
    assert "host=controller1" in second.stdout.rpartition("Next: ")[2]
    assert ledger(consul)["state"] == "running"

    assert play("pause", reason="lunch").returncode == 0
    third = play("upgrade", **given)
    assert re.search(r"1 of 2 upgraded\. No host is admitted: .*: lunch; continue with \S+ \S+resume\.\n", third.stdout)
    assert "/resume.yml" in third.stdout.rpartition("Next: ")[2]
    resumed = play("resume")
    assert "The rollout goes on" not in resumed.stdout
    assert "status.yml" in resumed.stdout.rpartition("Next: ")[2]

    before = consul.tree()
    pushed = {"compute": {"plane": "dataplane", "services": ["shop"]}}
    for name in ("upgrade", "rollback"):
        refused = play(name, **given, upgrade_roles=pushed)
        assert refused.returncode == 2
        assert "leave -e once=true out" in refused.stdout
    assert consul.tree() == before
