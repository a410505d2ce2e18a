# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""openvswitch on a node with the real one, while two namespaces of the node ping each other through its bridge.

The datapath is the one in user space, as this machine may have no module: it forwards nothing while the daemon is away.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lab.node import ROOT, Node
from lab.packages import download, remade, repository

from .conftest import MakeSteps
from .snapshots import installed, use_version
from .steps import STEPS, Steps

PACKAGES = ["openvswitch-switch", "openvswitch-common"]
STATE = "/var/lib/convoy-upgrade/openvswitch.json"
INTERVAL = 0.02

NETWORK = """\
set -eu
ovs-vsctl add-br br-lab -- set bridge br-lab datapath_type=netdev fail_mode=secure
for n in 1 2; do
    ip netns add guest$n
    ip link add port$n type veth peer name eth0 netns guest$n
    ip link set port$n up
    ip -n guest$n address add 192.0.2.$n/24 dev eth0
    ip -n guest$n link set eth0 up
    ovs-vsctl add-port br-lab port$n -- set interface port$n ofport_request=$n
done
"""
FLOWS = ("in_port=1,actions=output:2", "in_port=2,actions=output:1")

# What a careless package does, as Red Hat's did: it restarts the daemons by itself.
RESTART = "systemctl try-restart ovsdb-server.service ovs-vswitchd.service openvswitch-switch.service || true\n"


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node with a bridge, and snapshots of two later versions; the package of the second restarts the daemons."""
    steps = make_steps({"compute1": "compute"}, packages=["openvswitch-switch", "iputils-ping"])
    real = download(ROOT / ".cache/lab/debs", PACKAGES)
    postinst = subprocess.run(["dpkg-deb", "--info", real[0], "postinst"], check=True, capture_output=True, text=True)
    for version, more in (("v2", ""), ("v3", RESTART), ("v4", "")):
        script = {"postinst": re.sub(r"(?m)^exit 0$", f"{more}exit 0", postinst.stdout)}
        folder = steps.lab.shared / version
        made = [
            remade(file, folder / "made", f"+{version}", script if name == PACKAGES[0] else None)
            for name, file in zip(PACKAGES, real, strict=True)
        ]
        repository(folder, made)
    node = steps.lab.nodes["compute1"]
    # Debian's scripts start what is enabled only.
    node.run("systemctl", "enable", "--now", "openvswitch-switch")
    node.run("sh", "-c", NETWORK)
    for flow in FLOWS:
        node.run("ovs-ofctl", "add-flow", "br-lab", flow)
    use_version(node, "v2")
    return steps


def run(steps: Steps, *which: str, code: int = 0, arguments: tuple[str, ...] = (), **more: object) -> str:
    shown = steps.run("openvswitch", which or STEPS, ["compute1"], more, *arguments, code=code)
    return " ".join(shown.split())


def daemons(node: Node) -> list[str]:
    """Return the numbers of the daemons' processes."""
    return [node.run("cat", f"/run/openvswitch/{name}.pid").stdout.strip() for name in ("ovsdb-server", "ovs-vswitchd")]


def flows(node: Node) -> list[str]:
    return sorted(node.run("ovs-ofctl", "--no-stats", "dump-flows", "br-lab").stdout.splitlines())


@contextmanager
def ping(node: Node) -> Iterator[list[float]]:
    """Let the namespaces ping each other; give a list, which gets the longest time without an answer, in seconds."""
    command = node.command(
        "ip", "netns", "exec", "guest1", "ping", "-D", "-n", "-i", str(INTERVAL), "-W", "1", "192.0.2.2"
    )
    gaps: list[float] = []
    # A pipe that no one reads from is full after some seconds, and stops what writes into it.
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield gaps
        finally:
            ended = time.time()
            node.run("pkill", "-INT", "--exact", "ping")
            process.wait(timeout=20)
            file.seek(0)
            shown = file.read()
    times = [float(one) for one in re.findall(r"(?m)^\[([0-9.]+)\] 64 bytes", shown)]
    assert len(times) > 50, shown
    gaps.append(max(after - before for before, after in itertools.pairwise([*times, max(ended, times[-1])])))


@pytest.mark.thorough
def test_check_mode_changes_nothing(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    before, running = installed(node, "openvswitch-switch"), daemons(node)
    run(steps, arguments=("--check",))
    assert (installed(node, "openvswitch-switch"), daemons(node)) == (before, running)
    assert node.read(STATE) is None


@pytest.mark.thorough
def test_the_network_is_up_while_the_packages_are_upgraded(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    before = daemons(node)
    with ping(node) as gaps:
        run(steps, "validate", "prepare", "stop", "upgrade")
    assert [installed(node, name).endswith("+v2") for name in PACKAGES] == [True, True]
    assert daemons(node) == before
    assert gaps[0] < 0.5
    assert node.run("ls", "/run/systemd/system/ovs-vswitchd.service.d").stdout == ""


@pytest.mark.thorough
def test_the_restart_is_short_and_the_flows_are_there_again(
    steps: Steps, record_property: pytest.RecordProperty
) -> None:
    node = steps.lab.nodes["compute1"]
    # As if it had been saved days before: meanwhile, bridges come and go.
    node.run("sh", "-c", f"sed -i 's/br-lab/br-gone/' {STATE}")
    before, known = daemons(node), flows(node)
    shown = run(steps, "verify", code=2)
    assert (
        "compute1: ovsdb-server still runs from packages that were replaced. Restart it with 'systemctl reload" in shown
    )
    node.run("mv", "/run/openvswitch/ovs-vswitchd.pid", "/run/openvswitch/kept.pid")
    assert "compute1: ovs-vswitchd has no process that /run/openvswitch/ovs-vswitchd.pid names" in run(
        steps, "verify", code=2
    )
    node.run("mv", "/run/openvswitch/kept.pid", "/run/openvswitch/ovs-vswitchd.pid")
    with ping(node) as gaps:
        run(steps, "start", "verify")
    record_property("longest gap in seconds", gaps[0])
    print(f"longest gap: {gaps[0]:.2f} s")
    assert all(after != old for after, old in zip(daemons(node), before, strict=True))
    assert flows(node) == known
    assert gaps[0] < 10
    assert node.read(STATE) is None


@pytest.mark.thorough
def test_a_second_run_restarts_nothing(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    before = daemons(node)
    with ping(node) as gaps:
        run(steps)
    assert daemons(node) == before
    assert gaps[0] < 0.5


@pytest.mark.thorough
def test_not_even_a_package_that_restarts_the_daemons_can_do_it(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    before = daemons(node)
    use_version(node, "v3")
    with ping(node) as gaps:
        run(steps, "prepare", "upgrade")
    assert installed(node, "openvswitch-switch").endswith("+v3")
    assert daemons(node) == before
    assert gaps[0] < 0.5
    run(steps)
    assert not set(daemons(node)) & set(before)


@pytest.mark.thorough
def test_what_is_lost_is_reported_in_a_sentence(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    run(steps, "prepare", "upgrade")
    node.run("ovs-ofctl", "del-flows", "br-lab", "in_port=2")
    node.run("ovs-vsctl", "add-br", "br-more", "--", "set", "bridge", "br-more", "datapath_type=netdev")
    shown = run(steps, "verify", code=2)
    assert (
        "compute1: 1 of the 2 flows that the bridge br-lab had before the upgrade are gone, the first of them" in shown
    )
    run(steps, "verify", openvswitch_verify_flows=False)
    node.run("ovs-ofctl", "add-flow", "br-lab", "in_port=2,actions=output:1")
    run(steps, "prepare", "upgrade")
    node.run("ovs-vsctl", "del-br", "br-more")
    shown = run(steps, "verify", code=2)
    assert "compute1: the bridges br-more were there before the upgrade and are gone." in shown
    # What was saved for an earlier upgrade does not count.
    run(steps, "prepare", "upgrade")
    node.run("ovs-vsctl", "del-port", "br-lab", "port2")
    shown = run(steps, "verify", code=2)
    assert "compute1: the ports port2 of the bridge br-lab were there before the upgrade and are gone." in shown


@pytest.mark.thorough
def test_a_switch_that_does_not_answer_is_refused_before_anything_is_touched(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    node.run("systemctl", "stop", "openvswitch-switch")
    shown = run(steps, "validate", code=2, openvswitch_timeout=2)
    assert "compute1: Open vSwitch does not answer:" in shown


@pytest.mark.thorough
def test_without_the_role_the_packages_scripts_restart_the_daemons_and_the_flows_are_gone(steps: Steps) -> None:
    node = steps.lab.nodes["compute1"]
    node.run("systemctl", "start", "openvswitch-switch")
    for flow in FLOWS:
        node.run("ovs-ofctl", "add-flow", "br-lab", flow)
    before = daemons(node)
    assert len(flows(node)) == 2
    use_version(node, "v4")
    node.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "install", *PACKAGES)
    assert not set(daemons(node)) & set(before)
    assert flows(node) == []
