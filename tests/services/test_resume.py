# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of web servers, balancers, caches and databases that end in each step, and runs that go on from there."""

from __future__ import annotations

from typing import Any

import pytest

from .balancer import balance
from .conftest import MakeSteps
from .databases import create
from .resume import Fleet, Services
from .snapshots import publish
from .web import PACKAGES as NGINX
from .web import serve

POSTGRESQL = ["postgresql-15", "postgresql-client-15"]
MEMCACHED = {"package_service_packages": ["memcached"], "package_service_units": ["memcached"]}
ROLES = {
    "lb": Services(["lb1"], ["haproxy"], ["haproxy"], ["haproxy"]),
    "db": Services(["db1"], ["postgresql"], POSTGRESQL, ["postgresql@15-main"]),
    "mem": Services(
        ["mem1"],
        [{"service": "package_service", "name": "memcached", "vars": MEMCACHED}],
        ["memcached"],
        ["memcached"],
    ),
    "cache": Services(["cache1"], ["redis"], ["redis-server", "redis-tools"], ["redis-server"]),
    "web": Services(["web1"], ["nginx", "consul_service"], NGINX, ["nginx"]),
}
VARIABLES: dict[str, Any] = {
    "consul_service_names": ["shop"],
    "consul_service_others_passing": 0,
    "postgresql_major": 15,
}


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    hosts = {host: role for role, services in ROLES.items() for host in services.hosts}
    lab = make_steps(hosts, packages=["memcached", "nginx", "haproxy", "redis-server", "postgresql-15"]).lab
    for version in ("v2", "v3", "v4"):
        publish(lab, [name for services in ROLES.values() for name in services.packages], version)
    nodes = lab.nodes
    balance(nodes["lb1"], {"web1": nodes["web1"].address})
    serve(nodes["web1"])
    nodes["web1"].run(
        "curl", "-sfX", "PUT", "-d", '{"Name": "shop"}', "http://127.0.0.1:8500/v1/agent/service/register"
    )
    nodes["mem1"].run("systemctl", "start", "memcached")
    nodes["cache1"].run("systemctl", "start", "redis-server")
    create(nodes["db1"])
    return Fleet(lab, tmp_path_factory.mktemp("resume"), ROLES, VARIABLES)


@pytest.mark.thorough
def test_after_a_failure_in_each_step(fleet: Fleet) -> None:
    fleet.fail_in_each_step("v2")


@pytest.mark.thorough
def test_by_tags(fleet: Fleet) -> None:
    fleet.select_steps("v3")


@pytest.mark.thorough
def test_after_a_kill_in_each_step(fleet: Fleet) -> None:
    fleet.kill_in_each_step("v4")
