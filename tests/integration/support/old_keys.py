# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys as JioCloud's own code wrote them, and the gate that a node with that code goes by: without the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from devkit.kv import RawKV

OLD = "config_state"


def old_gates(consul: RawKV, prefix: str = "") -> dict[str, str]:
    """Return the gates in the old place: ``{"global": "false", "host/compute1": "true"}``."""
    found = {}
    for key, value in consul.texts(f"{prefix}{OLD}/").items():
        parts = key[len(f"{prefix}{OLD}/") :].split("/")
        if parts[-1] == "enable_puppet" and parts[0] != "enable_puppet":
            found["/".join(parts[:-1])] = value
    return found


def put_old(
    consul: RawKV,
    gates: Mapping[str, str] | None = None,
    reports: Mapping[str, Iterable[str]] | None = None,
    *,
    prefix: str = "",
    at: int = 1_600_000_000,
) -> None:
    """Set old gates (``host/compute1`` -> value) and reports (version -> hosts), made at a unix time."""
    keys = {f"{prefix}{OLD}/{place}/enable_puppet": value for place, value in (gates or {}).items()}
    keys |= {
        f"{prefix}running_version/{version}/{host}": str(at) for version, of in (reports or {}).items() for host in of
    }
    consul.load(keys.items())


def old_answer(gates: Mapping[str, str], host: str, role: str) -> bool:
    """Return what the old code makes of the gates in the old place: the host's, its role's, the global one, else yes."""
    for place in (f"host/{host}", f"role/{role}", "global"):
        if place in gates:
            return gates[place].lower() == "true"
    return True
