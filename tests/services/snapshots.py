# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The "repository snapshots" of real software: v2 is what Debian has, with a later version number and a mark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lab.lab import Lab
from lab.node import ROOT, Node
from lab.packages import download, remade, repository

# What the sources have is the version, even if it is older than what is installed.
PINS = 'Package: *\nPin: origin ""\nPin-Priority: 1001\n'
_KEPT = ROOT / ".cache/lab/debs"


def publish(
    lab: Lab, names: Iterable[str], version: str = "v2", scripts: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Make the snapshot of a version of real packages, which the lab's nodes see below ``/srv/lab``.

    :param names: the packages; those of one source have to come together.
    :param version: ``v1`` for what Debian has; others are later ones, such as ``v2``.
    :param scripts: package -> name of a maintainer script -> what to have instead of it.
    """
    folder = lab.shared / version
    files = download(_KEPT, names)
    if version != "v1":
        files = [
            remade(file, folder / "made", f"+{version}", (scripts or {}).get(name))
            for name, file in zip(names, files, strict=True)
        ]
    repository(folder, files)


def use_version(node: Node, version: str, pins: str = "") -> None:
    """Let a node's package sources be those of a version."""
    node.write("/etc/apt/sources.list.d/lab.list", f"deb [trusted=yes] file:/srv/lab/{version} ./\n")
    node.write("/etc/apt/preferences.d/lab", pins)
    node.run("apt-get", "-q", "update")


def installed(node: Node, package: str) -> str:
    """Return the version of a package on a node."""
    return node.run("dpkg-query", "-W", "-f", "${Version}", package).stdout
