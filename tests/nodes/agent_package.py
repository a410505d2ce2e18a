# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real package of the agent, and later versions of it, one of which can't report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from lab.node import ROOT

RELEASE = "usr/share/convoy-node/release"


def build() -> Path:
    """Build the package as `make deb` does, in version 1.0; return the file."""
    subprocess.run([ROOT / "tools/deb/build.sh", "1.0", "3.11"], check=True, capture_output=True, text=True)
    (found,) = (ROOT / ".cache/deb").glob("convoy-node_1.0_*.deb")
    return found


def later(package: Path, folder: Path, version: str, *, broken: bool = False) -> Path:
    """Make a later version of the package; return the file.

    :param broken: whether its agent runs can't report, because a library is missing.
    """
    target = folder / package.name.replace("_1.0_", f"_{version}_")
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", control.read_text()))
    facts = json.loads((tree / RELEASE / "release.json").read_text())
    (tree / RELEASE / "release.json").write_text(json.dumps({**facts, "name": f"{version}-later"}))
    if broken:
        shutil.rmtree(tree / RELEASE / "venv/lib/python3.11/site-packages/consul")
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(tree)
    return target
