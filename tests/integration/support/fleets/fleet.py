# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets as they stand in Consul, written without the collection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from devkit.kv import RawKV

GATES = "config_state/enable_puppet"


def names(**counts: int) -> dict[str, str]:
    """Return host -> role: ``names(compute=2)`` is compute1 and compute2."""
    return {f"{role}{number}": role for role, count in counts.items() for number in range(1, count + 1)}


def seed(
    consul: RawKV,
    hosts: Iterable[str],
    version: str = "1",
    *,
    current: str | None = None,
    prefix: str = "",
    gates: Mapping[str, str] | None = None,
) -> None:
    """Let hosts run a version, on a fleet that should run ``current`` (the same, unless it is given)."""
    keys = {f"{prefix}running/versions/{version}/{host}": "1700000000" for host in hosts}
    keys[f"{prefix}current_version"] = version if current is None else current
    consul.load([*keys.items(), *((f"{prefix}{GATES}/{name}", value) for name, value in (gates or {}).items())])


def report_roles(consul: RawKV, hosts: Iterable[str], version: str = "1") -> None:
    """Let hosts have reported the role in their settings, without which planners open no gate of a role."""
    records = {host: {"version": version, "state": "upgraded", "role": host.rstrip("0123456789")} for host in hosts}
    consul.load((f"upgrade/hosts/{host}", json.dumps(record)) for host, record in records.items())


def gates(consul: RawKV, prefix: str = "") -> dict[str, str]:
    """Return the gates: ``{"global": "False", "host/compute1": "True"}``."""
    folder = f"{prefix}{GATES}/"
    return {key[len(folder) :]: value for key, value in consul.texts(folder).items()}


def ledger(consul: RawKV, prefix: str = "") -> dict[str, Any]:
    """Return the ledger, empty where there is none."""
    found: dict[str, Any] = json.loads(consul.get(f"{prefix}upgrade/ledger") or b"{}")
    return found


def history(consul: RawKV, prefix: str = "") -> list[dict[str, Any]]:
    """Return the entries of the history by epoch, made sure to have no gap up to the ledger's epoch."""
    folder = f"{prefix}upgrade/history/"
    entries = {int(key[len(folder) :]): json.loads(value) for key, value in consul.tree(folder).items()}
    epochs = sorted(entries)
    assert epochs == list(range(1, ledger(consul, prefix).get("epoch", 0) + 1))
    assert [entries[epoch]["epoch"] for epoch in epochs] == epochs
    return [entries[epoch] for epoch in epochs]


def opened(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the hosts that a history has admitted by keys of their own, in its order."""
    return [host for event in events if event["what"] == "open" for host in event["hosts"]]


def record(consul: RawKV, host: str) -> dict[str, Any]:
    """Return a host's record."""
    found: dict[str, Any] = json.loads(consul.get(f"upgrade/hosts/{host}") or b"{}")
    return found


def long_ago(consul: RawKV, host: str) -> None:
    """Let a host have been admitted and have started long ago, and have reported nothing since."""
    consul.put(f"upgrade/hosts/{host}", json.dumps({**record(consul, host), "times": {"started": 1_600_000_000}}))
    gate = f"config_state/enable_puppet/host/{host}"
    consul.call("PUT", f"kv/{gate}?flags=1600000000", consul.get(gate))
