# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every plugin can be imported, and Ansible finds the documentation of each; in `make test` also on the oldest and the newest release."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from devkit.agent import ROOT

KINDS = ("module", "lookup", "inventory", "filter", "callback")
_PLUGINS = ROOT / "plugins"


def test_every_plugin_is_imported() -> None:
    files = sorted(_PLUGINS.rglob("*.py"))
    names = [".".join(file.relative_to(_PLUGINS).with_suffix("").parts) for file in files if file.name != "__init__.py"]
    assert len(names) > 150
    for name in names:
        importlib.import_module(f"ansible_collections.convoy.upgrade.plugins.{name}")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_ansible_documents_every_plugin(kind: str) -> None:
    folder = "modules" if kind == "module" else kind
    # Several filters stand in one file, and each has a file of its own that documents it.
    ending = "*.yml" if kind == "filter" else "*.py"
    own = {file.stem for file in (_PLUGINS / folder).glob(ending)} - {"__init__"}
    command = [Path(sys.executable).parent / "ansible-doc", "-j", "--metadata-dump", "-t", kind, "convoy.upgrade"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["all"][kind]
    documented = {name.removeprefix("convoy.upgrade.") for name in found if name.startswith("convoy.upgrade.")}
    assert documented == own
    assert not [name for name, one in found.items() if "ERROR" in one]
