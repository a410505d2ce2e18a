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
ROLES = {"db": {"plane": "dataplane", "services": ["db"]}}


def reports(site: Site, **versions: str) -> None:
    """Let hosts have reported versions, as nodes do."""
    for host, version in versions.items():
        site.consul.put(f"running/versions/{version}/{host}", "1789000000")
        host_record = {"version": version, "state": "upgraded", "reported": version}
        site.consul.put(f"upgrade/hosts/{host}", json.dumps(host_record))


def at(*versions: str) -> list[str]:
    return [f"db@{version}/upgrade" for version in versions]


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["dataplane", "controlplane"])
def test_hosts_at_four_versions_each_have_their_own_upgrade_path(site: Site, plane: str) -> None:
    site.service("db", ["stop", "upgrade", "start"], path=PATH)
    hosts = {"db1": "2.2", "db2": "2.6", "db3": "2.8", "db4": "2.9.1"}
    site.inventory({"db": {"plane": plane, "services": ["db"]}}, {"db": [*hosts]})
    reports(site, **hosts)
    shown = site.play("upgrade", version="2.10")
    own = {"db1": ("2.4", "2.6", "2.8", "2.10"), "db2": ("2.8", "2.10"), "db3": ("2.10",), "db4": ("2.10",)}
    for host, checkpoints in own.items():
        assert site.done(host) == ["db/stop", *at(*checkpoints), "db/upgrade", "db/start"]
        assert {one.version for one in site.entries(host)} == {f"{hosts[host]}>2.10"}
    assert "db from 2.6 to 2.10 by db@2.8, db@2.10: db2" in shown
    assert site.reported("2.10") == set(hosts)
    # What is over is kept nowhere.
    assert "done" not in site.record("db1")
    assert "origin" not in site.record("db1")


@pytest.mark.thorough
def test_what_a_host_has_finished_is_not_done_again_after_a_failure_nor_on_the_path_to_another_version(
    site: Site,
) -> None:
    site.service("db", ["stop", "upgrade", "start"], path={**PATH, "2.8": ["upgrade", "verify"]})
    site.inventory(ROLES, {"db": ["db1"]})
    reports(site, db1="2.2")
    broken = site.fail("db1", "db@2.6/upgrade")
    shown = site.play("upgrade", version="2.8", code=2)
    assert "db@2.6-upgrade is broken here" in shown
    record = site.record("db1")
    assert (record["state"], record["version"], record["origin"]) == ("failed", "2.8", "2.2")
    assert record["done"] == ["stop/db", "upgrade/db@2.4"]

    broken.unlink()
    later = site.fail("db1", "db@2.8/verify")
    site.play("upgrade", version="2.8", retry_failed=True, code=2)
    # Something may have started the old version since.
    assert site.done("db1") == ["db/stop", *at("2.4"), "db/stop", *at("2.6", "2.8"), "db/upgrade", "db/start"]
    assert [one.task for one in site.entries("db1")].count("db@2.4/upgrade") == 2

    # Its next rollout goes elsewhere. The service's own steps are of that, and are done again.
    later.unlink()
    before = len(site.done("db1"))
    shown = site.play("upgrade", version="2.10", replace="2.8")
    assert "db from 2.2 to 2.10 by db@2.4, db@2.6, db@2.8, db@2.10: db1" in shown
    assert site.done("db1")[before:] == ["db/stop", *at("2.10"), "db/upgrade", "db/start", "db@2.8/verify"]
    assert site.reported("2.10") == {"db1"}
    assert not {"done", "origin"} & site.record("db1").keys()


@pytest.mark.thorough
def test_no_check_is_made_on_a_host_that_a_failed_upgrade_has_changed(site: Site) -> None:
    path = {version: ["validate", "upgrade"] for version in ("2.4", "2.6", "2.8")}
    site.service("db", ["upgrade"], path=path)
    site.inventory(ROLES, {"db": ["db1"]})
    reports(site, db1="2.2")
    broken = site.fail("db1", "db@2.6/upgrade")
    site.play("upgrade", version="2.6", code=2)
    broken.unlink()
    before = len(site.done("db1"))
    # What was there before the checkpoints is not there any more, and services may be stopped still.
    for version in ("2.4", "2.6"):
        site.fail("db1", f"db@{version}/validate")
    site.play("upgrade", version="2.8", replace="2.6")
    assert site.done("db1")[before:] == [*at("2.6", "2.8"), "db/upgrade"]
    assert site.reported("2.8") == {"db1"}


@pytest.mark.thorough
def test_after_a_rollback_that_failed_the_upgrade_path_begins_at_its_version(site: Site) -> None:
    site.service("db", ["upgrade", "start"], path=PATH)
    site.inventory(
        {"db": {"plane": "dataplane", "services": [{"service": "db", "allow_downgrade": True}]}}, {"db": ["db1"]}
    )
    reports(site, db1="2.10")
    broken = site.fail("db1", "db/start")
    site.play("upgrade", version="2.4", code=2)
    assert site.done("db1") == ["db/upgrade"]

    broken.unlink()
    later = site.fail("db1", "db@2.8/upgrade")
    shown = site.play("upgrade", version="2.10", replace="2.4", code=2)
    assert "db from 2.4 to 2.10 by db@2.6, db@2.8, db@2.10: db1" in shown
    # It is on its way to what it reported once, which says nothing of where it is.
    later.unlink()
    site.play("upgrade", version="2.10", retry_failed=True)
    assert site.done("db1")[1:] == [*at("2.6", "2.8", "2.10"), "db/upgrade", "db/start"]
    assert site.reported("2.10") == {"db1"}


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["dataplane", "controlplane"])
def test_a_controller_that_is_killed_on_the_upgrade_path_goes_on_after_the_last_finished_checkpoint(
    site: Site, plane: str
) -> None:
    site.service("db", ["upgrade"], path=PATH)
    site.inventory({"db": {"plane": plane, "services": ["db"]}}, {"db": ["db1", "db2"]})
    reports(site, db1="2.2", db2="2.6")
    site.sleep(1.5)
    for version in ("2.4", "2.8"):
        process = site.start("upgrade", version="2.10")
        task = f"db@{version}/upgrade"
        wait_for(lambda task=task: [one for one in site.entries("db1") if one.task == task], f"{task} has begun", 120)
        kill(process)
    site.sleep(0.05)
    site.play("upgrade", version="2.10")
    assert site.done("db1") == [*at("2.4", "2.6", "2.8", "2.10"), "db/upgrade"]
    # What was cut off in its middle is begun once more, and nothing else is.
    begun = [one.task for one in site.entries("db1") if one.what == "begin"]
    assert begun == [*at("2.4", "2.4", "2.6", "2.8", "2.8", "2.10"), "db/upgrade"]
    # The other host was on its own way, which began later.
    assert site.done("db2") == [*at("2.8", "2.10"), "db/upgrade"]
    assert site.reported("2.10") == {"db1", "db2"}


@pytest.mark.thorough
def test_hosts_of_unknown_version_are_refused_until_it_is_declared(site: Site) -> None:
    site.service("db", ["upgrade"], path={"2.4": ["validate", "upgrade"], "2.6": ["validate", "upgrade"]})
    site.service("app", ["upgrade"])
    roles: dict[str, Any] = {**ROLES, "web": {"plane": "dataplane", "services": ["app"]}}
    fleet = {"db": ["db1", "db2", "db3"], "web": ["web1"]}
    site.inventory(roles, fleet)
    reports(site, db1="2.4")
    before = site.consul.tree()
    for arguments in ([], ["--check"]):
        shown = site.play("upgrade", *arguments, version="2.6", code=2)
        assert "Nothing was touched: 2 hosts never reported a version" in shown
        assert "the upgrade path of db depends on it: db2, db3. Declare which one each runs" in shown
    assert site.consul.tree() == before
    assert not site.entries()

    site.inventory(roles, fleet, db2={"upgrade_version_from": "2.2"}, db3={"upgrade_version_from": 2.4})
    shown = site.play("upgrade", version="2.6", code=2)
    assert "upgrade_version_from of db3: 2.4 is not text but a number or the like" in shown
    assert site.consul.tree() == before

    # What a host reported counts, whatever is declared; and what was declared is remembered as long as it is needed.
    hosts = {"db1": "2.2", "db2": "2.2", "db3": "2.4"}
    site.inventory(roles, fleet, **{host: {"upgrade_version_from": version} for host, version in hosts.items()})
    broken = site.fail("db2", "db@2.6/upgrade")
    site.play("upgrade", version="2.6", code=2)
    assert (site.record("db2")["origin"], site.record("db2")["done"]) == ("2.2", ["upgrade/db@2.4"])
    broken.unlink()
    site.inventory(roles, fleet)
    site.play("upgrade", version="2.6", retry_failed=True)
    assert site.reported("2.6") == {"db1", "db2", "db3", "web1"}
    version_rules = {host: [task for task in site.done(host) if "@" in task] for host in (*hosts, "web1")}
    assert version_rules == {
        "db1": ["db@2.6/validate", *at("2.6")],
        "db2": ["db@2.4/validate", "db@2.6/validate", *at("2.4", "2.6")],
        "db3": ["db@2.6/validate", *at("2.6")],
        "web1": [],
    }
