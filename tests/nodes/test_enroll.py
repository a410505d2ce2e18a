# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One playbook makes nodes of plain hosts: settings, token, schedule and first report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import MakeFleet
from .fleet import Fleet, download_wheels, wait_for

ROLES = {"compute1": "compute", "compute2": "compute", "cache-7": "redis"}
TOKEN = "5ec2e700-0000-4000-8000-00000000beef"


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """A host with systemd, one without, and one whose name does not have its role."""
    fleet = make_fleet(ROLES, plain=["compute2"])
    fleet.consul.put("current_version", "v1")
    fleet.write_inventory(upgrade_roles={role: {"plane": "dataplane"} for role in ROLES.values()})
    return fleet


def changed(shown: str, host: str) -> int:
    line = next(line for line in shown.splitlines() if line.startswith(f"{host} ") and "changed=" in line)
    return int(line.partition("changed=")[2].split()[0])


@pytest.mark.thorough
def test_check_mode_enrolls_no_host(fleet: Fleet) -> None:
    fleet.enroll("--check", "--limit", "compute1,compute2")
    for node in (fleet.lab.nodes["compute1"], fleet.lab.nodes["compute2"]):
        assert node.run("ls", "/etc/convoy", "/usr/local/sbin/convoy-node", check=False).returncode
    assert fleet.consul.tree("running/") == {}


@pytest.mark.thorough
def test_enrolling_gives_the_node_all_it_needs_and_its_token_to_no_one_else(fleet: Fleet) -> None:
    token = {"puppet_gate_token": TOKEN, "puppet_gate_version": "v1", "puppet_gate_value": False}
    settings = {"puppet_gate_interval": 60, "puppet_gate_delay": 0, **token}
    shown = fleet.enroll("-vvv", "--diff", **settings)
    assert TOKEN not in shown
    assert fleet.reported("v1") == set(ROLES)
    for name, role in ROLES.items():
        node = fleet.lab.nodes[name]
        assert fleet.consul.get(f"config_state/enable_puppet/host/{name}") == b"False"
        assert node.run("stat", "-c", "%a %U", "/etc/convoy/token").stdout == "600 root\n"
        assert node.read("/etc/convoy/token") == f"{TOKEN}\n"
        text = node.read("/etc/convoy/node.json") or ""
        assert TOKEN not in text
        own = json.loads(text)
        assert own["puppet_gate_role"] == role
        assert own["puppet_gate_repositories"][0] == {
            "src": "/etc/convoy/repositories/fleet.list.j2",
            "dest": "/etc/apt/sources.list.d/fleet.list",
        }
        # The template is brought as it is, for whatever version comes.
        assert "{{ version }}" in (node.read("/etc/convoy/repositories/fleet.list.j2") or "")
        assert fleet.version_of(name) == "v1"
        assert node.read("/etc/facter/facts.d/convoy.txt") == "convoy_version=v1\n"
        release = node.run("readlink", "/opt/convoy/current").stdout.strip().rpartition("/")[2]
        assert fleet.record(name)["release"] == release
        assert node.read("/etc/apt/sources.list.d/fleet.list") == "deb [trusted=yes] file:/srv/lab/v1 ./\n"
    # The token stays if it is not given again.
    again = fleet.enroll(**{**settings, "puppet_gate_token": ""})
    assert [changed(again, name) for name in ROLES] == [0, 0, 0]
    assert own["puppet_gate_token_file"] == "/etc/convoy/token"


@pytest.mark.thorough
def test_the_agent_is_a_service_where_there_is_systemd_and_cron_starts_it_where_there_is_none(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    for unit in ("convoy-node.service", "convoy-node.path"):
        assert node.run("systemctl", "is-enabled", unit).stdout == "enabled\n"
        assert node.run("systemctl", "is-active", unit).stdout == "active\n"
    status = node.run("systemctl", "show", "--property=StatusText,Type,NRestarts", "convoy-node.service").stdout
    assert "Type=notify" in status
    assert "StatusText=closed: " in status
    assert "NRestarts=0" in status
    units = [f"/etc/systemd/system/convoy-node{kind}" for kind in (".service", "-run.service", ".path")]
    verified = node.run("systemd-analyze", "verify", *units)
    assert verified.stdout + verified.stderr == ""
    assert node.read("/etc/cron.d/convoy-node") is None
    plain = fleet.lab.nodes["compute2"]
    assert plain.read("/etc/systemd/system/convoy-node.service") is None
    line = (plain.read("/etc/cron.d/convoy-node") or "").splitlines()[-1]
    command = "/opt/convoy/current/bin/convoy-node --settings /etc/convoy/node.json once --delay 0"
    assert line.startswith(f"*/1 * * * * root {command} 2>&1 | if ")


@pytest.mark.thorough
def test_service_and_cron_run_the_node_and_its_role_and_token_are_used(fleet: Fleet) -> None:
    for name in ROLES:
        fleet.consul.delete(f"config_state/enable_puppet/host/{name}")
    # By its name, cache-7 would have no role, and the lookup would refuse to guess.
    fleet.consul.put("config_state/enable_puppet/role/redis", "False")
    shown = fleet.agent_run("cache-7").stdout
    assert "closed: config_state/enable_puppet/role/redis is False" in shown
    fleet.consul.put("current_version", "v2")
    wait_for(lambda: fleet.reported("v2") == {"compute1", "compute2"}, "both upgrade")
    assert fleet.version_of("cache-7") == "v1"


@pytest.mark.thorough
def test_the_version_of_a_node_takes_precedence_over_the_given_one(fleet: Fleet) -> None:
    fleet.enroll("--limit", "cache-7", puppet_gate_version="v0", puppet_gate_interval=3600)
    assert fleet.version_of("cache-7") == "v1"
    assert "cache-7" in fleet.reported("v1")


@pytest.mark.thorough
def test_a_plain_host_gets_ansible_the_library_and_this_collection(fleet: Fleet) -> None:
    node = fleet.lab.nodes["cache-7"]
    node.run("systemctl", "stop", "convoy-node.path", "convoy-node.service")
    wheels = download_wheels(node)
    changed_wheels = {
        "puppet_gate_runtime": "",
        "puppet_gate_pip_arguments": f"--no-index --find-links {with_another_file(wheels)}",
    }
    settings_before = node.read("/etc/convoy/node.json")
    refused = fleet.enroll("--limit", "cache-7", code=2, puppet_gate_interval=99, **changed_wheels)
    assert "DO NOT MATCH THE HASHES" in refused
    # The release before is still the active one, with its settings.
    assert node.read("/etc/convoy/node.json") == settings_before
    release = node.run("readlink", "/opt/convoy/current").stdout
    assert node.run("ls", "/opt/convoy/current/venv", check=False).returncode
    settings = {
        "puppet_gate_runtime": "",
        "puppet_gate_pip_arguments": f"--no-index --find-links {wheels}",
        "puppet_gate_interval": 100000,
    }
    fleet.consul.put("config_state/enable_puppet/role/redis", "False")
    fleet.enroll("--limit", "cache-7", **settings)
    assert node.run("readlink", "/opt/convoy/current").stdout != release
    assert node.run("readlink", "-f", "/opt/convoy/previous").stdout.strip().endswith(release.strip())
    again = fleet.enroll("--limit", "cache-7", **settings)
    assert changed(again, "cache-7") == 0
    node.run("systemctl", "stop", "convoy-node.path", "convoy-node.service")
    fleet.consul.put("config_state/enable_puppet/role/redis", "True")
    done = fleet.agent_run("cache-7")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(lambda: fleet.version_of("cache-7") == "v2", "cache-7 runs v2")
    assert node.run("ls", "/opt/convoy/current/collections/ansible_collections/convoy/upgrade").stdout.split() == [
        "meta",
        "playbooks",
        "plugins",
        "roles",
    ]


def with_another_file(wheels: Path) -> Path:
    """Return a folder with the same wheels, one of which is not what its name says."""
    folder = wheels.with_name(f"{wheels.name}-changed")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(wheels, folder)
    (wheel,) = folder.glob("py_consul*")
    wheel.write_bytes(wheel.read_bytes() + b"more")
    return folder
