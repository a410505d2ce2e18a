# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is no host and has a version all the same: it is upgraded once, by one host at a time, from where it is itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .site import Site, kill, wait_for

PATH = {"2.4": ["upgrade"], "2.6": ["upgrade"]}
ROLES = {
    "controller": {"plane": "controlplane", "services": ["api", "cloud"]},
    "web": {"plane": "dataplane", "services": ["cloud", "app"]},
}
HOSTS = {"controller": ["controller1", "controller2"], "web": ["web1", "web2"]}
EVERY = [host for hosts in HOSTS.values() for host in hosts]
WAY = ["cloud/prepare", "cloud@2.4/upgrade", "cloud@2.6/upgrade", "cloud/upgrade", "cloud/verify"]


@pytest.fixture
def fleet(site: Site) -> Site:
    """Two roles that have the same provider beside services of their own."""
    site.service("cloud", ["validate", "prepare", "upgrade", "verify"], path=PATH, provider=True, after=["after"])
    for name in ("api", "app"):
        site.service(name, ["stop", "upgrade", "start"])
    site.inventory(ROLES, HOSTS)
    site.consul.put("upgrade/providers/cloud", json.dumps({"version": "2.2"}))
    return site


def provider(site: Site, name: str = "cloud") -> dict[str, Any]:
    """Return what Consul has of a provider."""
    found: dict[str, Any] = json.loads(site.consul.get(f"upgrade/providers/{name}") or b"{}")
    return found


def of_provider(site: Site, what: str = "end") -> list[tuple[str, str]]:
    """Return host and task of what was done for the provider, by time, but for the checks."""
    return [
        (one.host, one.task)
        for one in site.entries()
        if one.what == what and one.task.startswith("cloud") and not one.task.endswith("/validate")
    ]


@pytest.mark.thorough
def test_it_is_upgraded_once_by_one_host_and_its_version_is_its_own(fleet: Site) -> None:
    # Where hosts come from is another matter.
    for host in EVERY:
        fleet.consul.put(f"running/versions/2.4/{host}", "1789000000")
    shown = fleet.play("upgrade", version="2.6")
    assert "provider cloud from 2.2 to 2.6 by cloud@2.4, cloud@2.6" in shown
    done = of_provider(fleet)
    assert [task for _host, task in done] == [*WAY, "cloud/after"]
    assert len({host for host, _task in done[: len(WAY)]}) == 1
    paths = {one.version for one in fleet.entries() if one.task.startswith("cloud") and one.task != "cloud/after"}
    assert paths == {"2.2>2.6"}
    assert {one.version for one in fleet.entries() if one.task.startswith(("api", "app"))} == {"2.4>2.6"}
    found = provider(fleet)
    assert found.keys() == {"version", "host", "at"}
    assert (found["version"], found["host"]) == ("2.6", done[0][0])
    assert "providers:\n  cloud: 2.6\n" in shown
    assert fleet.reported("2.6") == set(EVERY)

    # The next rollout goes on from there, and has nothing of the path to do.
    shown = fleet.play("upgrade", version="2.8")
    assert "provider cloud from 2.6 to 2.8 by no checkpoint" in shown
    assert [task for _host, task in of_provider(fleet)[len(WAY) + 1 :]] == [
        *("cloud/prepare", "cloud/upgrade", "cloud/verify", "cloud/after")
    ]
    assert provider(fleet)["version"] == "2.8"


@pytest.mark.thorough
def test_one_that_fails_stops_all_that_wait_and_goes_on_after_the_last_finished_checkpoint(site: Site) -> None:
    site.service("cloud", ["prepare", "upgrade"], path=PATH, provider=True)
    site.service("app", ["stop", "upgrade"])
    hosts = ["web1", "web2", "web3"]
    site.inventory({"web": {"plane": "dataplane", "services": ["app", "cloud"]}}, {"web": hosts})
    site.consul.put("upgrade/providers/cloud", json.dumps({"version": "2.2"}))
    broken = [site.fail(host, "cloud@2.6/upgrade") for host in hosts]
    shown = site.play("upgrade", version="2.6", code=2)
    tried = {host for host, _task in of_provider(site, "begin")}
    assert len(tried) == 1
    found, first = provider(site), tried.pop()
    assert (found["version"], found["target"], found["host"]) == ("2.2", "2.6", first)
    assert (found["task_group"], found["done"]) == ("upgrade/cloud@2.6", ["prepare/cloud", "upgrade/cloud@2.4"])
    assert "cloud@2.6-upgrade is broken here" in found["error"]
    assert f"cloud: 2.2, on the way to 2.6, {first} failed at upgrade/cloud@2.6: " in shown
    for host in hosts:
        assert site.record(host)["state"] == "failed"
        if host != first:
            assert (
                f"The provider cloud, which {first} upgrades for all hosts, failed there" in site.record(host)["error"]
            )

    for file in broken:
        file.unlink()
    site.play("upgrade", version="2.6", retry_failed=True)
    assert [task for _host, task in of_provider(site)] == [
        *("cloud/prepare", "cloud@2.4/upgrade", "cloud@2.6/upgrade", "cloud/upgrade")
    ]
    assert provider(site)["version"] == "2.6"
    assert site.reported("2.6") == set(hosts)


@pytest.mark.thorough
def test_a_host_that_fails_elsewhere_leaves_the_provider_to_the_next_one(site: Site) -> None:
    site.service("app", ["prepare", "stop", "upgrade"])
    site.service("cloud", ["prepare", "upgrade"], provider=True)
    hosts = ["web1", "web2"]
    site.inventory({"web": {"plane": "dataplane", "services": ["app", "cloud"]}}, {"web": hosts})
    # No one has to know where one without a path comes from.
    broken = site.fail("web1", "app/stop")
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 2}}}
    site.sleep(3.0, "web2")
    shown = site.play("upgrade", version="2.6", instructions=rules, code=2)
    assert of_provider(site) == [("web1", "cloud/prepare"), ("web2", "cloud/upgrade")], shown
    assert (provider(site)["version"], site.reported("2.6")) == ("2.6", {"web2"})
    broken.unlink()
    site.play("upgrade", version="2.6", retry_failed=True)
    assert len(of_provider(site)) == 2
    assert site.reported("2.6") == set(hosts)


@pytest.mark.thorough
def test_what_a_host_once_wrote_of_it_is_not_believed_where_it_has_gone_elsewhere_since(site: Site) -> None:
    site.service("app", ["start"])
    site.service("cloud", ["upgrade"], provider=True)
    site.inventory({"web": {"plane": "dataplane", "services": ["cloud", "app"]}}, {"web": ["web1"]})
    broken = site.fail("web1", "app/start")
    site.play("upgrade", version="2.6", code=2)
    assert (provider(site)["version"], site.record("web1")["state"]) == ("2.6", "failed")
    # Another host has taken it back since, and what that one did for all is over.
    site.consul.put("upgrade/providers/cloud", '{"version": "2.4"}')
    for key in site.consul.tree("upgrade/once/"):
        site.consul.delete(key)
    broken.unlink()
    site.play("upgrade", version="2.6", retry_failed=True)
    assert of_provider(site) == [("web1", "cloud/upgrade")] * 2
    assert provider(site)["version"] == "2.6"


@pytest.mark.thorough
def test_one_without_anything_to_do_on_its_path_has_the_new_version_all_the_same(site: Site) -> None:
    site.service("app", ["upgrade"])
    site.service("cloud", [], path={"2.4": ["upgrade"]}, provider=True)
    site.inventory({"web": {"plane": "dataplane", "services": ["cloud", "app"]}}, {"web": ["web1", "web2"]})
    site.consul.put("upgrade/providers/cloud", '{"version": "2.4"}')
    site.play("upgrade", version="2.6")
    assert not of_provider(site)
    found = provider(site)
    assert (found["version"], found.keys() - {"host", "at"}) == ("2.6", {"version"})
    assert site.reported("2.6") == {"web1", "web2"}


@pytest.mark.thorough
def test_a_controller_that_is_killed_at_it_goes_on_where_it_was(fleet: Site) -> None:
    fleet.sleep(1.5)
    for task in ("cloud@2.4/upgrade", "cloud/upgrade"):
        process = fleet.start("upgrade", version="2.6")
        wait_for(
            lambda task=task: [one for one in fleet.entries() if one.task == task], f"somebody has begun {task}", 120
        )
        kill(process)
    fleet.sleep(0.05)
    fleet.play("upgrade", version="2.6")
    assert [task for _host, task in of_provider(fleet)] == [*WAY, "cloud/after"]
    begun = [task for _host, task in of_provider(fleet, "begin")]
    assert [task for task in begun if begun.count(task) > 1] == ["cloud@2.4/upgrade"] * 2 + ["cloud/upgrade"] * 2
    assert provider(fleet)["version"] == "2.6"
    assert fleet.reported("2.6") == set(EVERY)


@pytest.mark.thorough
def test_one_of_unknown_version_is_refused_until_it_is_declared(fleet: Site) -> None:
    key = "upgrade/providers/cloud"
    assert fleet.consul.delete(key)
    shown = fleet.play("upgrade", version="2.6", code=2)
    assert (
        "Nothing was touched: Consul has no version of 1 provider, cloud, but the upgrade path depends on it" in shown
    )
    fleet.consul.put(key, "2.2")
    shown = fleet.play("upgrade", version="2.6", code=2)
    assert "Nothing was touched: the provider cloud: upgrade/providers/cloud can't be read" in shown
    assert set(fleet.consul.tree()) == {key}
    assert fleet.consul.delete(key)
    shown = fleet.play("upgrade", "--check", version="2.6", upgrade_provider_versions={"cloud": "2.4"})
    assert "provider cloud from 2.4 to 2.6 by cloud@2.6" in shown
    assert not fleet.consul.tree()
    fleet.play("upgrade", version="2.6", upgrade_provider_versions={"cloud": "2.4"})
    assert [task for _host, task in of_provider(fleet)] == [*WAY[:1], *WAY[2:], "cloud/after"]
    assert provider(fleet)["version"] == "2.6"
