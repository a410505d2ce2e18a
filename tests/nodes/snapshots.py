# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's "repository snapshots": what each version consists of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lab.packages import Package, repository

MANIFESTS = "/usr/share/fleet/manifests"
PACKAGES = ["fleet-manifests", "fleet-service"]

# Where a node finds the snapshots; the folder is the lab's.
SOURCES = "deb [trusted=yes] file:/srv/lab/{{ version }} ./\n"

# What they have is the version, even if it is older than what is installed.
PINS = 'Package: *\nPin: origin ""\nPin-Priority: 1001\n'

_MANIFEST = """\
file { '/etc/fleet-release':
  content => "manifest %(version)s on ${facts['convoy_version']}\\n",
}
if $facts['networking']['hostname'] == '%(broken)s' {
  fail('the manifest of this host is broken')
}
"""

_SERVICE = """\
#!/bin/sh
echo %(version)s
"""


def publish(
    folder: Path, version: str, *, broken: str = "", service: str = "", more: Sequence[Package | Path] = ()
) -> None:
    """Make the snapshot of a version.

    :param folder: where the snapshots are.
    :param version: such as ``v2``; the packages have the number in it.
    :param broken: a host whose manifest fails.
    :param service: the version that the service takes itself for; the right one, unless it is given.
    :param more: further packages.
    """
    number = version.lstrip("v")
    repository(
        folder / version,
        [
            *more,
            Package(
                "fleet-manifests",
                f"{number}.0",
                {f"{MANIFESTS}/site.pp": _MANIFEST % {"version": version, "broken": broken or "nobody"}},
            ),
            Package(
                "fleet-service",
                f"{number}.0",
                {
                    "/usr/bin/fleet-service": _SERVICE % {"version": service or version},
                    "/etc/fleet-service.conf": f"# as shipped with {version}\n",
                },
            ),
        ],
    )


if __name__ == "__main__":
    for each in sys.argv[2:]:
        publish(Path(sys.argv[1]), each)
