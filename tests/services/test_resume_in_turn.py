# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that end between two services that are replaced one after another, on a host and in a wave, and runs that go on from there."""

from __future__ import annotations

import pytest

from .conftest import MakeSteps
from .resume import Fleet, Services
from .snapshots import installed, publish
from .web import PACKAGES as NGINX
from .web import serve

PACKAGES = [*NGINX, "memcached"]
SETTINGS = {"package_service_packages": ["memcached"], "package_service_units": ["memcached"]}
SERVICES = ["nginx", {"service": "package_service", "name": "memcached", "vars": SETTINGS}]
ROLES = {
    "api": Services(["api1", "api2"], SERVICES, PACKAGES, ["nginx", "memcached"], plane="controlplane"),
    "web": Services(["web1"], SERVICES, PACKAGES, ["nginx", "memcached"]),
}


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    hosts = {host: role for role, services in ROLES.items() for host in services.hosts}
    lab = make_steps(hosts, packages=["memcached", "nginx"]).lab
    for version in ("v2", "v3"):
        publish(lab, PACKAGES, version)
    for host in hosts:
        serve(lab.nodes[host])
        lab.nodes[host].run("systemctl", "start", "memcached")
    return Fleet(lab, tmp_path_factory.mktemp("resume"), ROLES, {}, stop_together=False, ends_after=1)


@pytest.mark.thorough
def test_a_service_is_replaced_before_the_next_one_stops(fleet: Fleet) -> None:
    for hosts in (["api1", "api2"], ["web1"]):
        fleet.fail_in("stop", hosts, "v2")
        for host in hosts:
            node = fleet.lab.nodes[host]
            assert [installed(node, name).endswith("+v2") for name in PACKAGES] == [True, True, False]
            assert node.run("systemctl", "is-active", "nginx", "memcached").stdout.split() == ["active", "active"]
        if hosts == ["api1", "api2"]:
            fleet.site.play("controlplane", version="v2", retry_failed=True)
    fleet.finish("v2", retry_failed=True)


@pytest.mark.thorough
def test_after_a_failure_in_each_step(fleet: Fleet) -> None:
    fleet.fail_in_each_step("v3")
