# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that get their catalogs from a real Puppet server, with an environment for each version."""

from __future__ import annotations

import pytest
from lab.node import Node

from .conftest import MakeFleet
from .fleet import Fleet, wait_for
from .snapshots import publish

SERVER, HOSTS = "puppet1", {"compute1": "compute", "compute2": "compute"}
RULES = {"rolling_rules": {"global": 1}}
CODE = "/etc/puppet/code/environments"
RELEASE = "file { '/etc/fleet-release': content => \"${environment} from ${servername}\\n\" }\n"
# A server in Java needs a while to start, the more so beside other tests.
_SECONDS = 600

pytestmark = pytest.mark.thorough


def serve(server: Node, version: str, manifest: str = RELEASE) -> None:
    server.write(f"{CODE}/{version}/manifests/site.pp", manifest)


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """A Puppet server, and hosts that are enrolled as its agents."""
    fleet = make_fleet({SERVER: "puppet", **HOSTS}, packages=["puppetserver"])
    server = fleet.lab.nodes[SERVER]
    for node in fleet.lab.nodes.values():
        node.run("puppet", "config", "set", "--section", "main", "server", SERVER)
    server.run("puppet", "config", "set", "--section", "server", "autosign", "true")
    server.run("sed", "-i", "s/-Xms[0-9]*[gm] -Xmx[0-9]*[gm]/-Xms512m -Xmx512m/", "/etc/default/puppetserver")
    # The server creates the first of them if it is missing, and may not do so here.
    for version in ("production", "v1", "v2"):
        serve(server, version)
    server.run("systemctl", "start", "puppetserver", seconds=_SECONDS)
    server.wait(8140, _SECONDS)
    fleet.write_inventory(
        upgrade_roles={"compute": {"plane": "dataplane"}},
        puppet_gate_puppet="agent",
        puppet_gate_manifest="",
        puppet_gate_environment="{version}",
    )
    fleet.consul.put("current_version", "v1")
    fleet.enroll("--limit", ",".join(HOSTS))
    wait_for(lambda: fleet.reported("v1") == set(HOSTS), "all nodes run v1")
    return fleet


def release_of(fleet: Fleet, host: str) -> str | None:
    return fleet.lab.nodes[host].read("/etc/fleet-release")


def test_each_version_is_applied_from_its_environment_on_the_server(fleet: Fleet) -> None:
    assert {release_of(fleet, host) for host in HOSTS} == {f"v1 from {SERVER}\n"}
    shown = fleet.play("upgrade", version="v2", instructions=RULES)
    assert "2 of 2 hosts upgraded" in shown
    for host in HOSTS:
        assert release_of(fleet, host) == f"v2 from {SERVER}\n"
        record = fleet.record(host)
        assert (record["state"], record["version"], record["attempt"]) == ("upgraded", "v2", 1)


def test_a_catalog_that_the_server_refuses_fails_the_host_until_it_is_corrected(fleet: Fleet) -> None:
    server = fleet.lab.nodes[SERVER]
    publish(fleet.lab.shared, "v3")
    serve(server, "v3", "fail('not on this host')\n")
    upgrade = fleet.start("upgrade", version="v3", instructions=RULES)
    wait_for(lambda: fleet.record("compute1").get("state") == "failed", "compute1 fails")
    assert "puppet agent ended with 1, the run itself failed: Error:" in fleet.record("compute1")["error"]
    assert "not on this host" in fleet.record("compute1")["error"]
    # It keeps its slot, so the run ends.
    assert upgrade.end(600).code == 2
    assert fleet.record("compute2")["version"] == "v2"
    serve(server, "v3")
    wait_for(lambda: "compute1" in fleet.reported("v3"), "compute1 tries again")
    fleet.play("upgrade", version="v3", instructions=RULES)
    assert {release_of(fleet, host) for host in HOSTS} == {f"v3 from {SERVER}\n"}
    assert fleet.record("compute1")["attempt"] > 1


def test_without_its_server_a_node_warns_and_keeps_its_services(fleet: Fleet) -> None:
    server, node = fleet.lab.nodes[SERVER], fleet.lab.nodes["compute1"]
    server.run("systemctl", "stop", "puppetserver", seconds=_SECONDS)
    assert fleet.agent_run("compute1").returncode != 0
    assert fleet.checks("compute1")["puppet"][0] == "warning"
    assert "puppet agent ended with 1" in fleet.checks("compute1")["puppet"][1]
    # Its failure is reported as in an upgrade, so that no others go on while there is no server.
    assert (fleet.record("compute1")["state"], fleet.record("compute1")["step"]) == ("failed", "puppet")
    node.write("/etc/fleet-release", "changed by hand")
    server.run("systemctl", "start", "puppetserver", seconds=_SECONDS)
    server.wait(8140, _SECONDS)
    assert fleet.agent_run("compute1").returncode == 0
    assert release_of(fleet, "compute1") == f"v3 from {SERVER}\n"
    assert fleet.checks("compute1")["puppet"][0] == "passing"
    assert fleet.record("compute1")["state"] == "upgraded"
