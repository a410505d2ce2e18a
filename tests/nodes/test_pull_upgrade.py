# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of four real nodes upgrades itself while one playbook opens the gates, as an operator would have it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import yaml
from integration.support.processes.watcher import Timeline, View, Watcher, read
from integration.support.runs.listing import unmarked
from lab.node import ROOT

from .conftest import MakeFleet
from .fleet import RUNTIME, Fleet, wait_for, write_validation

ROLES = {"controller1": "controller", **{f"compute{n}": "compute" for n in range(1, 4)}}
CAPS = {"controller": 1, "compute": 2}
RULES = {"rolling_rules": {"roles": CAPS}}


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Hosts that are plain but for Puppet, enrolled into a fleet that should run v1."""
    fleet = make_fleet(ROLES)
    fleet.consul.put("current_version", "v1")
    fleet.enroll()
    yield fleet


def caps_hold(keys: View) -> None:
    """Make sure that no more hosts of a role are open and not upgraded than its cap says, and that the order holds."""
    if keys.get("current_version") != "v2":
        return
    open_now = {
        host
        for host in ROLES
        if keys.get(f"config_state/enable_puppet/host/{host}") == "True" and f"running/versions/v2/{host}" not in keys
    }
    for role, cap in CAPS.items():
        assert len([host for host in open_now if ROLES[host] == role]) <= cap, open_now
    controllers = {f"running/versions/v2/{host}" for host, role in ROLES.items() if role == "controller"}
    if not controllers <= set(keys):
        assert all(ROLES[host] == "controller" for host in open_now), open_now


def test_enrolled_hosts_set_themselves_up(fleet: Fleet) -> None:
    wait_for(lambda: fleet.reported("v1") == set(ROLES), "all nodes run v1")
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda name=name: fleet.version_of(name) == "v1", f"{name} remembers its version")
        assert node.read("/etc/fleet-release") == "manifest v1 on v1\n"
        assert fleet.checks(name)["puppet"][0] == "passing"
        assert fleet.checks(name)["validation"][0] == "passing"
    write_validation(fleet.lab.nodes)


def test_one_command_upgrades_them_all_in_order_and_within_the_caps(fleet: Fleet) -> None:
    for node in fleet.lab.nodes.values():
        node.write("/etc/fleet-service.conf", f"# changed by hand on {node.name}\n")
    with Watcher(fleet.consul, caps_hold) as watcher:
        shown = fleet.play("upgrade", version="v2", instructions=RULES)
        _index, keys = read(fleet.consul)
    # On a busy machine, it sees several changes at once.
    assert watcher.views >= len(fleet.lab.nodes)
    assert "4 of 4 hosts upgraded" in shown
    timeline = Timeline(keys, "v2", ROLES)
    assert timeline.most_at_once(["controller"]) == 1
    assert timeline.most_at_once(["compute"]) == 2
    timeline.check_order("compute", first="controller")
    assert fleet.reported("v2") == set(ROLES)
    assert fleet.reported("v1") == set()
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda name=name: fleet.version_of(name) == "v2", f"{name} remembers its version")
        assert node.run("dpkg-query", "-W", "-f", "${Version}", "fleet-service").stdout == "2.0"
        assert node.run("fleet-service").stdout == "v2\n"
        assert node.read("/etc/fleet-release") == "manifest v2 on v2\n"
        assert node.read("/etc/fleet-service.conf") == f"# changed by hand on {name}\n"
        record = fleet.record(name)
        assert (record["state"], record["version"], record["attempt"]) == ("upgraded", "v2", 1)
        assert record["times"]["started"] <= record["times"]["upgraded"]


@pytest.mark.thorough
def test_the_nodes_go_on_running_puppet_as_on_any_day(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute3"]
    before = fleet.record("compute3")
    own = json.loads(node.read("/etc/convoy/node.json") or "")
    node.write("/etc/convoy/node.json", json.dumps({**own, "puppet_gate_puppet_interval": 60}))
    node.write("/etc/fleet-release", "somebody was here")
    wait_for(lambda: node.read("/etc/fleet-release") == "manifest v2 on v2\n", "Puppet puts it right")
    assert fleet.record("compute3") == before


def test_a_second_upgrade_to_the_same_version_changes_nothing(fleet: Fleet) -> None:
    before = fleet.consul.tree()
    shown = fleet.play("upgrade", version="v2", instructions=RULES)
    assert "changed=0" in shown
    assert fleet.consul.tree() == before


def test_an_inventory_from_consul_is_all_that_ansible_and_the_playbooks_need(fleet: Fleet) -> None:
    source = fleet.folder / "fleet.consul_fleet.yml"
    facts = {
        "plugin": "convoy.upgrade.consul_fleet",
        "host": fleet.lab.environ["CONSUL_HTTP_ADDR"].partition(":")[0],
        "upgrade_roles": {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}},
    }
    source.write_text(yaml.safe_dump(facts))
    given = fleet.lab.inventory()["all"]["vars"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
    environ |= {"ANSIBLE_HOME": str(fleet.folder / "home"), "ANSIBLE_NOCOLOR": "1"}
    ping = [RUNTIME / "bin/ansible", "-i", source, "plane_dataplane", "-m", "ping", "-e", json.dumps(given)]
    done = subprocess.run(ping, capture_output=True, text=True, env=environ, cwd=fleet.folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"ping": "pong"') == 3
    upgrade = [RUNTIME / "bin/ansible-playbook", ROOT / "playbooks/upgrade.yml", "-i", source, "-e", "version=v2"]
    done = subprocess.run(upgrade, capture_output=True, text=True, env=environ, cwd=fleet.folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 hosts upgraded" in done.stdout
    listed = subprocess.run(
        [RUNTIME / "bin/ansible-inventory", "-i", source, "--list"],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    found = unmarked(json.loads(listed.stdout))
    assert sorted(found["state_upgraded"]["hosts"]) == sorted(ROLES)
    assert sorted(found["version_v2"]["hosts"]) == sorted(ROLES)
    assert found["_meta"]["hostvars"]["compute3"]["ansible_host"] == fleet.lab.nodes["compute3"].address
