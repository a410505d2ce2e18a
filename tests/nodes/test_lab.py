# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab itself: its nodes are hosts of their own, and nothing of it is left when it goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.guard import guarded
from lab.lab import Lab
from lab.node import HERE, Node

from .fleet import RUNTIME, wait_for

NAME = "test-lab"
COMMAND_LAB = f"test-lab-command-{os.getpid()}"
ROLES = {"controller1": "controller", "compute1": "compute", "compute2": "compute"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with guarded(NAME) as lab:
        lab.up(ROLES, plain=["compute2"])
        yield lab
    assert not lab.leftovers()


def members(lab: Lab) -> dict[str, str]:
    """Node -> what the serf of Consul thinks of it."""
    _code, _headers, body = lab.kv.call("GET", "health/state/any")
    return {one["Node"]: one["Status"] for one in json.loads(body) if one["CheckID"] == "serfHealth"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROLES)
def test_a_node_has_its_own_name_processes_network_and_files(lab: Lab, name: str) -> None:
    node = lab.nodes[name]
    node.write("/etc/only-here", name)
    assert node.run("hostname").stdout == f"{name}\n"
    assert node.run("cat", "/proc/1/comm").stdout.strip() == ("lab-init" if name == "compute2" else "systemd")
    assert f"inet {node.address}/24" in node.run("ip", "address", "show", "eth0").stdout
    assert not Path("/etc/only-here").exists()
    others = [other for other in lab.nodes.values() if other is not node]
    assert [other.read("/etc/only-here") in (None, other.name) for other in others] == [True, True]


@pytest.mark.thorough
def test_ansible_reaches_all_nodes_and_their_facts_are_their_own(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "inventory.json").write_text(json.dumps(lab.inventory()))
    words = ["-m", "setup", "-a", "gather_subset=!all,network,service_mgr,mounts"]
    done = subprocess.run(
        [RUNTIME / "bin/ansible", "-i", tmp_path / "inventory.json", "all", *words, "--tree", tmp_path / "facts"],
        capture_output=True,
        text=True,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for name, node in lab.nodes.items():
        facts = json.loads((tmp_path / "facts" / name).read_text())["ansible_facts"]
        assert facts["ansible_hostname"] == name
        assert facts["ansible_default_ipv4"]["address"] == node.address
        assert (facts["ansible_service_mgr"] == "systemd") == (name != "compute2")
        assert facts["ansible_mounts"]


@pytest.mark.thorough
def test_a_node_that_reboots_itself_comes_back_with_its_files(lab: Lab) -> None:
    node = lab.nodes["compute1"]
    boot_id = "/proc/sys/kernel/random/boot_id"
    before, first = node.run("cat", boot_id).stdout, node.first_process
    node.write("/etc/kept", "as it was")
    node.run("systemctl", "reboot", check=False)
    wait_for(lambda: node.is_up and node.first_process != first, "it starts again")
    node.wait(22)
    assert node.run("cat", boot_id).stdout != before
    assert node.read("/etc/kept") == "as it was"


@pytest.mark.thorough
def test_a_node_that_is_shut_down_stays_down_until_it_is_booted(lab: Lab) -> None:
    node = lab.nodes["controller1"]
    node.run("systemctl", "poweroff", check=False)
    wait_for(lambda: not node.is_up, "it goes down")
    time.sleep(1)
    assert not node.is_up
    node.boot()
    node.wait(22)


@pytest.mark.thorough
def test_a_node_that_is_cut_off_is_missed_and_found_again(lab: Lab) -> None:
    node = lab.nodes["compute1"]
    node.cut()
    assert lab.status()["compute1"]["cut"]
    wait_for(lambda: members(lab)["compute1"] == "critical", "Consul misses it")
    assert node.is_up
    node.reconnect()
    wait_for(lambda: members(lab)["compute1"] == "passing", "Consul finds it")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["compute1", "compute2"])
def test_a_node_that_was_killed_comes_back_with_its_files(lab: Lab, name: str) -> None:
    node = lab.nodes[name]
    node.write("/root/kept", "yes")
    node.write("/run/gone", "yes")
    node.kill()
    assert not node.is_up
    assert lab.status()[name]["up"] is False
    wait_for(lambda: members(lab)[name] == "critical", "Consul misses it")
    node.boot()
    node.wait(22)
    assert node.run("cat", "/root/kept").stdout == "yes"
    assert node.run("cat", "/run/gone", check=False).returncode
    wait_for(lambda: members(lab)[name] == "passing", "Consul finds it")


@pytest.mark.thorough
def test_units_and_scheduled_jobs_of_this_machine_are_not_those_of_a_node(lab: Lab) -> None:
    node = lab.nodes["controller1"]
    assert node.run("systemctl", "--failed", "--no-legend").stdout == ""
    timers = node.run("systemctl", "list-timers", "--no-legend").stdout.splitlines()
    assert [line for line in timers if "systemd-tmpfiles-clean" not in line] == []
    assert node.run("ls", "/etc/cron.d").stdout == ""


@pytest.mark.thorough
def test_a_lab_of_three_servers_elects_a_leader(tmp_path: Path) -> None:
    del tmp_path
    with guarded("test-lab-3") as three:
        three.up({"compute1": "compute"}, servers=3)
        _code, _headers, body = three.kv.call("GET", "status/peers")
        assert len(json.loads(body)) == 3
        assert set(members(three)) == {"consul1", "consul2", "consul3", "compute1"}
    assert not three.leftovers()


def test_a_lab_that_does_not_come_up_says_why_and_leaves_nothing() -> None:
    lab = Lab(f"test-lab-broken-{os.getpid()}")
    with pytest.raises(RuntimeError, match=r"consul1: port 8500 does not answer"):
        lab.up({"compute1": "compute"}, consul={"no_such_option": True})
    assert not lab.leftovers()


@pytest.mark.thorough
def test_the_command_shows_help_and_refuses_what_it_does_not_understand() -> None:
    command = [sys.executable, HERE, "--name", COMMAND_LAB]
    done = subprocess.run([*command, "up", "compute"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "lab: 'compute' is not of the form ROLE=COUNT, such as compute=4\n"
    done = subprocess.run([*command, "cut", "compute7"], capture_output=True, text=True, check=False)
    assert done.stderr == "lab: there is no node compute7; those that are: none\n"


@pytest.mark.thorough
def test_the_command_brings_a_lab_up_and_down() -> None:
    command = [sys.executable, HERE, "--name", COMMAND_LAB]
    done = subprocess.run([*command, "up", "compute=1"], capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["consul1", "compute1"]
        done = subprocess.run([*command, "run", "compute1", "hostname"], capture_output=True, text=True, check=False)
        assert done.stdout == "compute1\n"
        inventory = json.loads(
            subprocess.run([*command, "inventory"], capture_output=True, text=True, check=False).stdout
        )
        assert list(inventory["all"]["children"]["compute"]["hosts"]) == ["compute1"]
    finally:
        assert subprocess.run([*command, "down"], check=False).returncode == 0
    assert not Lab(COMMAND_LAB).leftovers()


def test_nothing_is_left_when_the_process_that_started_the_lab_is_killed() -> None:
    code = (
        "import sys, time; sys.path[:0] = sys.argv[1:]\n"
        "from lab.guard import guarded\n"
        "with guarded('test-lab-killed') as lab:\n"
        "    lab.up({'compute1': 'compute'})\n"
        "    print('up', flush=True)\n"
        "    time.sleep(100)\n"
    )
    paths = [str(HERE.parent), str(HERE.parents[1] / "tools")]
    process = subprocess.Popen([sys.executable, "-c", code, *paths], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    lab = Lab(f"test-lab-killed-{process.pid}")
    assert all(isinstance(node, Node) and node.is_up for node in lab.nodes.values())
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 10
    while lab.leftovers() and time.monotonic() < until:
        time.sleep(0.1)
    assert not lab.leftovers()
