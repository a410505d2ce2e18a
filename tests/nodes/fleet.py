# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of real nodes in the lab, and an operator who runs the collection's playbooks on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.child import start
from integration.support.runs.playbook import Live
from lab.lab import Lab
from lab.node import ROOT, Node

from .snapshots import MANIFESTS, PACKAGES, PINS, SOURCES, publish

# The environment of the tests has all that a node needs, and every node sees it at the same place.
RUNTIME = Path(sys.executable).parent.parent

VALIDATION = """\
#!/bin/sh
found=$(fleet-service)
wanted=$(sed -n 's/^convoy_version=//p' /etc/facter/facts.d/convoy.txt)
[ "$found" = "$wanted" ] || { echo "the service runs $found instead of $wanted"; exit 1; }
"""

SETTINGS: dict[str, Any] = {
    "puppet_gate_runtime": str(RUNTIME),
    "puppet_gate_manifest": f"{MANIFESTS}/site.pp",
    "puppet_gate_packages": PACKAGES,
    # A failed upgrade is tried again after this time.
    "puppet_gate_interval": 60,
    # Between upgrades, Puppet runs only in the test of that. Otherwise these runs would take half of the processor.
    "puppet_gate_puppet_interval": 100_000,
    "puppet_gate_delay": 1,
}


class Fleet:
    """The nodes of a lab as a fleet.

    :param folder: for the operator's files.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        """Write the inventory, and the snapshots of two versions."""
        self.lab = lab
        self.folder = folder
        self.consul = lab.kv
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fleet.list.j2").write_text(SOURCES)
        (folder / "fleet.pref.j2").write_text(PINS)
        self.settings = {
            **SETTINGS,
            "puppet_gate_repositories": [
                {"src": str(folder / "fleet.list.j2"), "dest": "/etc/apt/sources.list.d/fleet.list"},
                {"src": str(folder / "fleet.pref.j2"), "dest": "/etc/apt/preferences.d/fleet"},
            ],
        }
        self.inventory = folder / "inventory.json"
        self.write_inventory()
        for version in ("v1", "v2"):
            publish(lab.shared, version)

    @property
    def roles(self) -> dict[str, str]:
        """Node -> role."""
        return {name: node.plan.role for name, node in self.lab.nodes.items()}

    def write_inventory(self, **variables: Any) -> None:
        """Write the inventory; the variables are for all hosts."""
        inventory = self.lab.inventory()
        inventory["all"]["vars"].update(
            {
                "upgrade_roles": {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}},
                **self.settings,
                **variables,
            }
        )
        self.inventory.write_text(json.dumps(inventory))

    def start(self, playbook: str, *arguments: str, **variables: Any) -> Live:
        """Start one of the collection's playbooks, as an operator does."""
        command = [RUNTIME / "bin/ansible-playbook", ROOT / f"playbooks/{playbook}.yml", "-i", self.inventory]
        command += ["-e", json.dumps(variables), *arguments]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        environ |= {"ANSIBLE_HOME": str(self.folder / "home"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORKS": "10"}
        environ |= {"ANSIBLE_PIPELINING": "true", "ANSIBLE_DEPRECATION_WARNINGS": "false", **self.lab.environ}
        # As a shell would set it, for the folder of composed tasks.
        environ["PWD"] = str(self.folder)
        process = start(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        return Live(process, self.folder / "no-results")

    def play(self, playbook: str, *arguments: str, seconds: float = 1800, code: int = 0, **variables: Any) -> str:
        """Run a playbook to its end, and make sure of its exit code; return what it printed. It has half an hour, against hangs only."""
        played = self.start(playbook, *arguments, **variables).end(seconds)
        assert played.code == code, played.stdout
        return played.stdout

    def enroll(self, *arguments: str, **variables: Any) -> str:
        """Make nodes of the hosts."""
        return self.play("enroll", *arguments, **variables)

    def agent_run(self, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Let a node make an agent run now, as its agent would."""
        return self.lab.nodes[node].run("convoy-node", "run", *arguments, check=False, seconds=600)

    def version_of(self, node: str) -> str | None:
        """Return the version that a node remembers, None where it has none, as while an upgrade is not ended."""
        text = self.lab.nodes[node].read("/etc/convoy/version")
        return text.strip() or None if text else None

    def reported(self, version: str) -> set[str]:
        """Return the nodes that stand under a version in Consul."""
        folder = f"running/versions/{version}/"
        return {key[len(folder) :] for key in self.consul.tree(folder)}

    def record(self, node: str) -> dict[str, Any]:
        """Return a node's record in Consul."""
        found: dict[str, Any] = json.loads(self.consul.get(f"upgrade/hosts/{node}") or b"{}")
        return found

    def states(self) -> dict[str, str]:
        """Return node -> state, as the collection sees it; within this process, as it is asked again and again."""
        host, _colon, port = self.lab.environ["CONSUL_HTTP_ADDR"].partition(":")
        view = read_fleet(Store(Settings(host=host, port=int(port))), fleet=self.roles)
        return {name: one.state for name, one in view.plan.hosts.items()}

    def checks(self, node: str) -> dict[str, tuple[str, str]]:
        """Return the node's checks in Consul's catalog: name -> status and output."""
        _code, _headers, body = self.consul.call("GET", f"health/node/{node}")
        return {one["CheckID"]: (one["Status"], one["Output"]) for one in json.loads(body)}


def enrolled(make_fleet: Callable[..., Fleet], roles: Mapping[str, str], version: str = "v1") -> Fleet:
    """Return a fleet of enrolled hosts that all run a version.

    :param roles: host -> role.
    """
    fleet = make_fleet(roles)
    fleet.consul.put("current_version", version)
    fleet.enroll()
    wait_for(lambda: fleet.reported(version) == set(roles), f"all nodes run {version}")
    return fleet


def download_wheels(node: Node, kind: str = "runtime") -> Path:
    """Get what pip needs, as the nodes have no way out of the lab; kept for the next time.

    :param kind: the file in requirements/locked.
    """
    version = node.run("/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.strip()
    folder = ROOT / ".cache/lab/wheels" / (version if kind == "runtime" else f"{version}-{kind}")
    locked = ROOT / f"requirements/locked/{kind}.txt"
    # What is there already is not fetched again.
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", folder]
    command += ["--only-binary=:all:", f"--python-version={version}", "--find-links", folder, "--require-hashes"]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "-r", locked], check=True)
    return folder


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    """Return soon after the condition holds. Asking takes a third of the time at most, and leaves the nodes the rest."""
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < until, f"{what}: not within {seconds} s"
        time.sleep(max(0.1, 2 * (now - began)))


def write_validation(nodes: Mapping[str, Any]) -> None:
    """Give nodes the check that the service is of the version that Puppet was given."""
    for node in nodes.values():
        node.write("/etc/convoy/validation.d/10-service", VALIDATION, 0o755)
