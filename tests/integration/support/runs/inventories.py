# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory files of consul_fleet, and what Ansible's commands make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from devkit.child import start
from integration.support.runs.coverage import COLLECTION, INVENTORY, Coverage
from integration.support.runs.listing import unmarked

PLUGIN = f"{COLLECTION}.{INVENTORY}"


@dataclass
class Listed:
    """What ansible-inventory lists, and what it printed beside it."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    errors: str = ""
    code: int = 0

    def of(self, variable: str) -> dict[str, Any]:
        """Return host -> one of its variables."""
        return {host: variables.get(variable) for host, variables in self.hosts.items()}


@dataclass
class Inventories:
    """Writes inventory files, and gives them to Ansible's commands."""

    folder: Path
    environ: Mapping[str, str]
    seen: Coverage

    def write(self, name: str = "fleet.consul_fleet.yml", **options: Any) -> Path:
        self.seen.options[INVENTORY].update(["plugin", *options])
        path = self.folder / name
        path.write_text(yaml.safe_dump({"plugin": PLUGIN, **options}, sort_keys=False))
        return path

    def run(self, command: str, *arguments: Any, environ: Mapping[str, str] | None = None) -> tuple[str, str, int]:
        """Return what a command of Ansible printed on both channels, and its exit code."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        fixed = {"ANSIBLE_HOME": str(self.folder / "home"), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "9999"}
        process = start(
            [Path(sys.executable).parent / command, *map(str, arguments)],
            env={**kept, **fixed, **self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        stdout, stderr = process.communicate(timeout=90)
        return stdout, " ".join(stderr.split()), process.returncode

    def read(self, path: Path, *arguments: Any, environ: Mapping[str, str] | None = None) -> Listed:
        stdout, errors, code = self.run(
            "ansible-inventory", "-i", path, "--list", "--export", *arguments, environ=environ
        )
        # With -v, there is more on the same channel before it.
        printed, brace, listing = f"\n{stdout}".partition("\n{")
        if not brace:
            return Listed(errors=printed + errors, code=code)
        found = unmarked(json.loads(f"{{{listing}"))
        hosts = found.pop("_meta")["hostvars"]
        return Listed(
            groups={name: sorted(group["hosts"]) for name, group in found.items() if "hosts" in group},
            children={name: sorted(group["children"]) for name, group in found.items() if "children" in group},
            hosts=hosts,
            shared=found.get("all", {}).get("vars", {}),
            errors=printed + errors,
            code=code,
        )

    def __call__(self, *arguments: Any, environ: Mapping[str, str] | None = None, **options: Any) -> Listed:
        """Return what is listed for an inventory file with these options."""
        return self.read(self.write(**options), *arguments, environ=environ)

    def refusal(self, *arguments: Any, environ: Mapping[str, str] | None = None, **options: Any) -> str:
        """Return the error of an inventory file that can't be used."""
        strict = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true", **(environ or {})}
        listed = self(*arguments, environ=strict, **options)
        assert listed.code != 0, listed
        assert listed.hosts == {}
        return listed.errors
