# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of one module on a host, and whether they used and saw all that ansible-doc says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.support.runs.coverage import COLLECTION, documentation, documented_paths

# What Ansible itself puts into results.
_ANSIBLES = {"ansible_facts", "changed", "failed", "msg", "invocation", "exception", "warnings", "deprecations"}


class ModuleCalls:
    """Calls a module on a host of an inventory, as a task of its own."""

    def __init__(self, module: str, inventory: Path, host: str, home: Path) -> None:
        """Remember where; nothing is called yet."""
        self.module = module
        self._where = ("-i", str(inventory), host)
        self._home = home
        self._used: set[str] = set()
        self._returned: set[str] = set()

    def __call__(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """Call it; return its result, whether it ``failed`` included.

        :param check: Ansible's check mode.
        """
        self._used.update(options)
        command = [Path(sys.executable).parent / "ansible", *self._where, "-m", f"{COLLECTION}.{self.module}"]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        done = subprocess.run(
            [*command, "-a", json.dumps(options), *["--check"] * check],
            capture_output=True,
            text=True,
            env={**environ, "ANSIBLE_HOME": str(self._home)},
            cwd=self._home.parent,
            check=False,
        )
        assert " => " in done.stdout, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(done.stdout.partition(" => ")[2])
        self._returned.update(_paths({key: value for key, value in result.items() if key not in _ANSIBLES}))
        return {**result, "failed": done.returncode != 0}

    def examples(self) -> list[dict[str, Any]]:
        """Return the options that each example of the documentation gives."""
        tasks = yaml.safe_load(documentation(self.module, "module")["examples"])
        return [task[f"{COLLECTION}.{self.module}"] for task in tasks]

    def assert_documented(self) -> None:
        """Make sure that every option was given once, and that the results had what is documented and nothing else."""
        if not self._used:
            pytest.skip("only says something after the other tests of this file")
        documented = documentation(self.module, "module")
        assert set(documented["doc"]["options"]) - self._used == set()
        assert set(documented_paths(documented["return"])) == self._returned


def _paths(found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys with those below them; the details of a failure are as they come."""
    for key, value in found.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping) and key != "details":
            yield from _paths(value, f"{prefix}{key}.")
