# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Four nodes that Ansible never reached: the package makes nodes of them, and their agents upgrade themselves in rollouts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from lab.node import Node

from .agent_package import build, later
from .conftest import MakeFleet
from .fleet import Fleet, wait_for
from .snapshots import MANIFESTS, PACKAGES, PINS, SOURCES, publish

ROLES = {f"compute{number}": "compute" for number in range(1, 5)}
RULES = {"rolling_rules": {"global": 1}, "failure_rules": {"fleet": 1}}
RUN = "convoy-node-run.service"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def package() -> Path:
    return build()


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet, package: Path) -> Fleet:
    """Four hosts with Puppet, which run v1, in a fleet that should run v1."""
    fleet = make_fleet(ROLES)
    fleet.consul.put("current_version", "v1")
    fleet.consul.put("config_state/enable_puppet/global", "False")
    (fleet.lab.shared / "agent.deb").write_bytes(package.read_bytes())
    return fleet


def settings(name: str) -> str:
    """The settings that a provisioning tool writes."""
    facts = {
        "puppet_gate_host": name,
        "puppet_gate_role": "compute",
        "puppet_gate_manifest": f"{MANIFESTS}/site.pp",
        "puppet_gate_packages": PACKAGES,
        # The only agent runs are upgrades, so that their times can be compared.
        "puppet_gate_puppet_interval": 100_000,
        "puppet_gate_puppet_splay": 100_000,
        "puppet_gate_repositories": [
            {"src": "/etc/convoy/repositories/fleet.list.j2", "dest": "/etc/apt/sources.list.d/fleet.list"},
            {"src": "/etc/convoy/repositories/fleet.pref.j2", "dest": "/etc/apt/preferences.d/fleet"},
        ],
    }
    return json.dumps(facts)


def release(node: Node) -> str:
    return node.run("readlink", "/opt/convoy/current").stdout.strip().rpartition("/")[2]


def seconds_of_upgrade(node: Node, upgraded_at: float) -> float:
    """Return how long the agent run that reported the upgrade took until its report, which frees the slot.

    :param upgraded_at: when it reported it (unix seconds).
    """
    shown = node.run("journalctl", "--no-pager", "-u", RUN, "-o", "short-unix").stdout
    begun: float | None = None
    is_report = False
    for line in shown.splitlines():
        at = line.partition(" ")[0]
        if "Starting convoy-node-run" in line:
            begun = float(at)
        elif "TASK [" in line:
            is_report = "Report the version]" in line
        elif is_report and f": [{node.name}" in line and begun is not None and upgraded_at <= float(at):
            return float(at) - begun
    raise AssertionError(f"{node.name}: no agent run at {upgraded_at}:\n{shown}")


def test_the_package_makes_a_node_of_a_host(fleet: Fleet) -> None:
    for name, node in fleet.lab.nodes.items():
        done = node.run("dpkg", "-i", "/srv/lab/agent.deb", seconds=300)
        assert "is active" in done.stdout
        assert node.run("systemctl", "is-active", "convoy-node.service", check=False).stdout == "inactive\n"
        assert node.run("systemctl", "is-active", "convoy-node.path").stdout == "active\n"
        node.write("/etc/convoy/repositories/fleet.list.j2", SOURCES)
        node.write("/etc/convoy/repositories/fleet.pref.j2", PINS)
        node.write("/etc/convoy/node.json", settings(name))
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda name=name: fleet.consul.get(f"upgrade/wake/{name}"), f"{name} waits")
        assert node.run("systemctl", "is-active", "convoy-node.service").stdout == "active\n"
        assert "closed: config_state/enable_puppet/global is False" in node.run("convoy-node", "status").stdout
        verified = node.run("systemd-analyze", "verify", "/lib/systemd/system/convoy-node.service", check=False)
        assert verified.stdout + verified.stderr == ""


def test_a_rollout_takes_as_long_as_the_work_of_its_hosts(fleet: Fleet) -> None:
    began = time.monotonic()
    shown = fleet.play("upgrade", version="v1", instructions=RULES)
    whole = time.monotonic() - began
    assert "4 of 4 hosts upgraded" in shown
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda name=name: fleet.version_of(name) == "v1", f"{name} remembers its version")
        assert node.read("/etc/fleet-release") == "manifest v1 on v1\n"
    events = [json.loads(text) for key, text in fleet.consul.texts("upgrade/history/").items() if key]
    opened = min(event["at"] for event in events if event["what"] == "open")
    for name, node in fleet.lab.nodes.items():
        wait_for(
            lambda node=node: node.run("systemctl", "is-active", RUN, check=False).stdout != "activating\n",
            f"the agent run of {name} has ended",
        )
    ends = {name: fleet.record(name)["times"]["upgraded"] for name in ROLES}
    last = max(ends.values())
    work = sum(seconds_of_upgrade(node, ends[name]) for name, node in fleet.lab.nodes.items())
    print(f"{last - opened} s for {work:.1f} s of work, in a run of {whole:.1f} s")
    assert last - opened <= 1.10 * work, (last - opened, work, whole)


def test_the_agents_upgrade_themselves_one_after_the_other(fleet: Fleet, package: Path, tmp_path: Path) -> None:
    before = {name: release(node) for name, node in fleet.lab.nodes.items()}
    assert len(set(before.values())) == 1
    publish(fleet.lab.shared, "v2", more=[later(package, tmp_path, "2.0")])
    shown = fleet.play("upgrade", version="v2", instructions=RULES)
    assert "4 of 4 hosts upgraded" in shown
    assert "agents: 2.0-later on 4 hosts" in fleet.play("status")
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda node=node: release(node) == "2.0-later", f"{name} has the release")
        record = fleet.record(name)
        assert (record["state"], record["attempt"], record["release"]) == ("upgraded", 1, "2.0-later")
        wait_for(
            lambda node=node: "convoy-node 2.0-later waits" in node.run("journalctl", "-u", "convoy-node").stdout,
            f"the agent of {name} is the new one",
        )
        assert node.run("readlink", "/opt/convoy/previous").stdout.strip() == f"releases/{before[name]}"
        assert node.read("/etc/fleet-release") == "manifest v2 on v2\n"


def test_an_agent_that_can_t_report_stops_the_rollout_at_the_first_host(
    fleet: Fleet, package: Path, tmp_path: Path
) -> None:
    publish(fleet.lab.shared, "v3", more=[later(package, tmp_path, "3.0", broken=True)])
    shown = fleet.play("upgrade", version="v3", instructions=RULES, code=2)
    assert "3.0-later of convoy-node can't report" in shown
    states = fleet.states()
    assert sorted(states.values()) == ["failed", "pending", "pending", "pending"]
    (name,) = (name for name, state in states.items() if state == "failed")
    node = fleet.lab.nodes[name]
    record = fleet.record(name)
    assert (record["step"], record["release"]) == ("release", "2.0-later")
    assert release(node) == "2.0-later"
    status = node.run("convoy-node", "status").stdout
    assert "next:     3.0-later, refused" in status
    assert "version:  an upgrade has not ended" in status
    assert node.run("systemctl", "is-active", "convoy-node.service").stdout == "active\n"


def test_the_next_version_brings_an_agent_that_works(fleet: Fleet, package: Path, tmp_path: Path) -> None:
    publish(fleet.lab.shared, "v4", more=[later(package, tmp_path, "4.0")])
    shown = fleet.play("upgrade", version="v4", instructions=RULES, replace="v3")
    assert "4 of 4 hosts upgraded" in shown
    for name, node in fleet.lab.nodes.items():
        wait_for(lambda node=node: release(node) == "4.0-later", f"{name} has the release")
        assert fleet.version_of(name) == "v4"


UNITS = ["convoy-node.service", "convoy-node.path"]


def unit_states(node: Node) -> tuple[set[str], set[str]]:
    """Return whether the units of the agent are enabled, and whether they run. Why one has failed is printed."""
    print(node.run("systemctl", "status", "--no-pager", "--full", *UNITS, check=False).stdout)
    enabled = node.run("systemctl", "is-enabled", *UNITS, check=False).stdout.split()
    return set(enabled), set(node.run("systemctl", "is-active", *UNITS, check=False).stdout.split())


def test_another_version_does_not_start_an_agent_that_an_operator_disabled(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute4"]
    node.run("systemctl", "disable", "--now", *UNITS)
    node.run("dpkg", "-i", "/srv/lab/agent.deb", seconds=300)
    assert unit_states(node) == ({"disabled"}, {"inactive"})


def test_an_image_gets_an_agent_that_starts_at_the_boot(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute4"]
    node.run("dpkg", "--force-remove-protected", "--remove", "convoy-node")
    # Without this directory, systemd does not run.
    script = "mount -t tmpfs tmpfs /run/systemd && exec dpkg -i /srv/lab/agent.deb"
    node.run("unshare", "--mount", "sh", "-c", script, seconds=300)
    assert unit_states(node) == ({"enabled"}, {"inactive"})


def test_the_package_can_be_removed(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute4"]
    # Nor does an upgrade remove it.
    refused = node.run("apt-get", "remove", "--yes", "convoy-node", check=False)
    assert refused.returncode
    assert node.run("dpkg-query", "--show", "--showformat=${Status}", "convoy-node").stdout == "install ok installed"
    node.run("dpkg", "--force-remove-protected", "--purge", "convoy-node")
    assert node.run("systemctl", "is-active", "convoy-node.service", check=False).stdout == "inactive\n"
    for path in ("/opt/convoy", "/etc/convoy", "/var/lib/convoy", "/usr/sbin/convoy-node"):
        assert node.run("ls", path, check=False).returncode
