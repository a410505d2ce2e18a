# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of the playbooks that the collection ships, as an operator runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devkit.agent import ROOT, Agent
from devkit.child import start


class Shipped:
    """Runs shipped playbooks on inventories."""

    def __init__(self, folder: Path, agent: Agent) -> None:
        self.folder = folder
        self.agent = agent

    def __call__(
        self, name: str, *arguments: str, inventory: Mapping[str, list[str]] | None = None, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run one to its end; ``inventory`` maps groups to hosts."""
        groups = {group: {"hosts": dict.fromkeys(hosts)} for group, hosts in (inventory or {}).items()}
        (self.folder / "inventory.yml").write_text(json.dumps({"all": {"children": groups}}))
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        process = start(
            [
                Path(sys.executable).parent / "ansible-playbook",
                ROOT / "playbooks" / f"{name}.yml",
                "-i",
                self.folder / "inventory.yml",
                "-e",
                json.dumps({"ansible_python_interpreter": sys.executable, **variables}),
                *arguments,
            ],
            env={**environ, **self.agent.environ, "ANSIBLE_HOME": str(self.folder / "home"), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        stdout, _none = process.communicate(timeout=90)
        return subprocess.CompletedProcess([], process.returncode, stdout)


def inventory(hosts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return an inventory as groups of hosts, from host -> role."""
    return {role: [host for host, its in hosts.items() if its == role] for role in set(hosts.values())}
