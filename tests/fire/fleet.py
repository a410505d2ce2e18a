# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet and the rules that are under fire, and what has to hold at every moment, told from the keys alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

GATES = "config_state/enable_puppet"
OLD, NEW = "1", "2"

FLEET = {
    **{f"controller{number}": "controller" for number in range(1, 4)},
    **{f"compute{number}": "compute" for number in range(1, 13)},
    **{f"storage{number}": "storage" for number in range(1, 6)},
    **{f"web{number}": "web" for number in range(1, 6)},
}
RULES: dict[str, Any] = {
    "rolling_rules": {"global": 1, "roles": {"data": 4, "compute": 3, "web": "40%"}, "fleet": 5},
    "role_order": {"data": "controller"},
    "group_mappings": {"data": ["compute$", "storage$"]},
}
CAPS: dict[tuple[str, ...], int] = {
    ("controller",): 1,
    ("compute", "storage"): 4,
    ("compute",): 3,
    ("web",): 2,
    ("controller", "compute", "storage", "web"): 5,
}


def violations(view: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the keys of one moment."""
    if view.get("current_version") != NEW:
        return []
    found = []
    if view.get(f"{GATES}/global") != "False":
        found.append(f"the global gate is {view.get(f'{GATES}/global')!r} while a rollout runs")
    found += [f"{key} is there, though all roles are limited" for key in view if key.startswith(f"{GATES}/role/")]
    done = {host for host in FLEET if f"running/versions/{NEW}/{host}" in view}
    opened = {host for host in FLEET if view.get(f"{GATES}/host/{host}") == "True"}
    started = {host for host in FLEET if _has_started(view.get(f"upgrade/hosts/{host}"))}
    down = (opened | started) - done
    for roles, cap in CAPS.items():
        hosts = sorted(host for host in down if FLEET[host] in roles)
        if len(hosts) > cap:
            found.append(f"{len(hosts)} of {roles} are down, and {cap} may be: {hosts}")
    if not done >= {host for host, role in FLEET.items() if role == "controller"}:
        early = sorted(host for host in down if FLEET[host] in ("compute", "storage"))
        if early:
            found.append(f"down before the controllers are done: {early}")
    return found + _history(view) + _versions(view)


def _has_started(record: str | None) -> bool:
    if record is None:
        return False
    data = json.loads(record)
    return data["version"] == NEW and data["state"] in ("started", "failed")


def _history(view: Mapping[str, str]) -> list[str]:
    """Return gaps in the epochs, and gates that nothing in the history has opened."""
    if "upgrade/ledger" not in view:
        return []
    epoch = json.loads(view["upgrade/ledger"])["epoch"]
    numbers = {int(key.rpartition("/")[2]) for key in view if key.startswith("upgrade/history/")}
    found = [] if numbers == set(range(1, epoch + 1)) else [f"epoch {epoch}, and the history has {sorted(numbers)}"]
    events = [json.loads(view[f"upgrade/history/{number}"]) for number in sorted(numbers)]
    told = {host for event in events if event["what"] == "open" for host in event["hosts"]}
    opened = {host for host in FLEET if view.get(f"{GATES}/host/{host}") == "True"}
    return found + ([f"open, and not in the history: {sorted(opened - told)}"] if opened - told else [])


def _versions(view: Mapping[str, str]) -> list[str]:
    count = sum(1 for key in view if key == "current_version")
    return [] if count == 1 else [f"{count} keys are the current version"]


def openings_under_a_hold(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return hosts whose gate was opened between two moments, though a hold was there at both."""
    opened = [
        host
        for host in FLEET
        if after.get(f"{GATES}/host/{host}") == "True" and before.get(f"{GATES}/host/{host}") != "True"
    ]
    return [
        f"{host} was opened under {key}"
        for host in opened
        for key in holds_over(host)
        if key in before and before.get(key) == after.get(key)
    ]


def holds_over(host: str) -> Sequence[str]:
    """Return the keys that hold a host."""
    return ("upgrade/hold/global", f"upgrade/hold/role/{FLEET[host]}", f"upgrade/hold/host/{host}")
