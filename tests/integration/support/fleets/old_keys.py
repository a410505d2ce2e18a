# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys as JioCloud's own code wrote them, and the gate that a node with that code goes by: without the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from devkit.kv import RawKV

OLD = "config_state"


def legacy_gates(consul: RawKV, prefix: str = "") -> dict[str, str]:
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


def original_answer(consul: RawKV, host: str, role: str, prefix: str = "") -> bool:
    """Return what ``check_puppet`` of python-jiocloud returns: not paused in the old place, and not closed in the new one."""
    folder = f"{prefix}{OLD}/enable_puppet/"
    found = {key[len(folder) :]: value for key, value in consul.texts(folder).items()}
    return old_answer(legacy_gates(consul, prefix), host, role) and old_answer(found, host, role)


def original_status(consul: RawKV, hosts: Mapping[str, str]) -> set[str]:
    """Return which hosts ``upgrade_status`` of python-jiocloud takes for closed: it reads JSON, and tests ``is False``."""
    found = set()
    for host, role in hosts.items():
        for place in (f"host/{host}", f"role/{role}", "global"):
            text = consul.get(f"{OLD}/enable_puppet/{place}")
            if text is not None:
                found |= {host} if text.strip() == b"false" else set()
                break
    return found


def old_answer(gates: Mapping[str, str], host: str, role: str) -> bool:
    """Return what the old code makes of the gates in one place: the host's, its role's, the global one, else yes."""
    for place in (f"host/{host}", f"role/{role}", "global"):
        if place in gates:
            return gates[place].lower() == "true"
    return True
