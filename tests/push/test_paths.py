# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that skip versions: what has to be done at each on the way is done in order, by where each host comes from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .site import Site, kill, wait_for

PATH = {"2.4": ["upgrade"], "2.6": ["upgrade"], "2.8": ["upgrade"], "2.10": ["upgrade"]}
ROLES = {"db": {"stage": "dataplane", "services": ["db"]}}


def reports(site: Site, **versions: str) -> None:
    """Let hosts have reported versions, as nodes do."""
    for host, version in versions.items():
        site.consul.put(f"running/versions/{version}/{host}", "1789000000")
        told = {"version": version, "state": "upgraded", "reported": version}
        site.consul.put(f"upgrade/hosts/{host}", json.dumps(told))


def at(*versions: str) -> list[str]:
    return [f"db@{version}/upgrade" for version in versions]


@pytest.mark.parametrize("stage", ["dataplane", "controlplane"])
def test_hosts_at_four_versions_go_their_own_ways(site: Site, stage: str) -> None:
    site.service("db", ["stop", "upgrade", "start"], path=PATH)
    hosts = {"db1": "2.2", "db2": "2.6", "db3": "2.8", "db4": "2.9.1"}
    site.inventory({"db": {"stage": stage, "services": ["db"]}}, {"db": [*hosts]})
    reports(site, **hosts)
    shown = site.play("upgrade", version="2.10")
    own = {"db1": ("2.4", "2.6", "2.8", "2.10"), "db2": ("2.8", "2.10"), "db3": ("2.10",), "db4": ("2.10",)}
    for host, points in own.items():
        assert site.done(host) == ["db/stop", *at(*points), "db/upgrade", "db/start"]
        assert {one.version for one in site.entries(host)} == {f"{hosts[host]}>2.10"}
    assert "db from 2.6 to 2.10 by db@2.8, db@2.10: db2" in shown
    assert site.reported("2.10") == set(hosts)
    # What is over is kept nowhere.
    assert "done" not in site.record("db1")
    assert "origin" not in site.record("db1")
