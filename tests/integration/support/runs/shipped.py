# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of the playbooks that the collection ships, as an operator runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devkit.agent import ROOT, Agent
from devkit.child import start
from integration.support.runs.coverage import Coverage
from terminal import Terminal


class Shipped:
    """Runs shipped playbooks on inventories."""

    def __init__(self, folder: Path, agent: Agent, seen: Coverage) -> None:
        self.folder = folder
        self.agent = agent
        self._seen = seen

    def __call__(
        self,
        name: str,
        *arguments: str,
        inventory: Mapping[str, list[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        **variables: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run one to its end; ``inventory`` maps groups to hosts."""
        process = self.start(name, *arguments, inventory=inventory, environ=environ, **variables)
        stdout, _none = process.communicate(timeout=90)
        return subprocess.CompletedProcess([], process.returncode, stdout)

    def start(
        self,
        name: str,
        *arguments: str,
        inventory: Mapping[str, list[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        **variables: Any,
    ) -> subprocess.Popen[str]:
        """Start one."""
        return start(
            self._command(name, arguments, inventory, variables),
            env={**self.environment(), "ANSIBLE_NOCOLOR": "1", **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def on_terminal(
        self,
        name: str,
        *arguments: str,
        inventory: Mapping[str, list[str]] | None = None,
        environ: Mapping[str, str] | None = None,
        rows: int = 24,
        **variables: Any,
    ) -> Terminal:
        """Start one on a terminal."""
        command = self._command(name, arguments, inventory, variables)
        base = self.environment()
        # The checks of this project are run without colours.
        base.pop("NO_COLOR", None)
        return Terminal(command, cwd=self.folder, env={**base, **(environ or {})}, rows=rows)

    def _command(
        self,
        name: str,
        arguments: Sequence[str],
        inventory: Mapping[str, list[str]] | None,
        variables: Mapping[str, Any],
    ) -> list[str | Path]:
        groups = {group: {"hosts": dict.fromkeys(hosts)} for group, hosts in (inventory or {}).items()}
        (self.folder / "inventory.yml").write_text(json.dumps({"all": {"children": groups}}))
        given = json.dumps({"ansible_python_interpreter": sys.executable, **variables})
        playbook = ROOT / "playbooks" / f"{name}.yml"
        in_words = [word.partition("=")[0] for word in arguments if "=" in word]
        self._seen.see_playbook(playbook, {*variables, *in_words})
        ansible = Path(sys.executable).parent / "ansible-playbook"
        return [ansible, playbook, "-i", self.folder / "inventory.yml", "-e", given, *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment of an operator."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("CONSUL_", "ANSIBLE_", "PYTHONUNBUFFERED"))
        }
        return {**kept, **self.agent.environ, "ANSIBLE_HOME": str(self.folder / "home"), "PWD": str(self.folder)}


def inventory(hosts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return an inventory as groups of hosts, from host -> role."""
    return {role: [host for host, its in hosts.items() if its == role] for role in set(hosts.values())}
