# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of agent runs on one node share. Its resident agent is stopped, so that each run is seen."""

from __future__ import annotations

import subprocess

from lab.node import Node

from ..fleet import Fleet

NODE = "compute1"
GATE = f"config_state/enable_puppet/host/{NODE}"
FACTS = "/etc/facter/facts.d/convoy.txt"
SOURCES = "/etc/apt/sources.list.d/fleet.list"
RELEASE = "/etc/fleet-release"
# Where Puppet's lock may be, by its packages.
FOLDERS = ("/var/lib/puppet/state", "/var/cache/puppet/state", "/opt/puppetlabs/puppet/cache/state")
SLOW = "#!/bin/sh\ntouch /root/validating\nwhile [ -e /root/slow ]; do sleep 0.1; done\nrm -f /root/validating\n"
SETTINGS = "/etc/convoy/node.json"
HOOK = '#!/bin/sh\necho "%s $CONVOY_HOST $CONVOY_VERSION" >>/root/hooks\n'


def bring_to(fleet: Fleet, version: str) -> None:
    """Let the node be at a version, and at rest."""
    fleet.consul.put("current_version", version)
    if fleet.version_of(NODE) == version:
        fleet.consul.put(f"running/versions/{version}/{NODE}", "1700000000")
    else:
        agent_run(fleet)
    assert fleet.version_of(NODE) == version


def stop_agent(node: Node) -> None:
    node.run("systemctl", "stop", "convoy-node.path", "convoy-node.service", "convoy-node-run.service")


def forget(node: Node) -> None:
    """Make a host of the node that never was set up."""
    node.run("rm", "-f", "/etc/convoy/version", FACTS, SOURCES, RELEASE)


def agent_run(fleet: Fleet, *arguments: str, code: int = 0) -> str:
    done = fleet.agent_run(NODE, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def start_agent_run(node: Node) -> subprocess.Popen[str]:
    return subprocess.Popen(
        node.command("convoy-node", "run"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def changed(shown: str) -> int:
    return int(shown.rpartition("changed=")[2].split()[0])


def next_run_works(fleet: Fleet) -> bool:
    return fleet.agent_run(NODE).returncode == 0 and fleet.version_of(NODE) == "v2"
