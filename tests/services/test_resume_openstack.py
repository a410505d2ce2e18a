# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of OpenStack, Open vSwitch, Puppet, kernels and balanced servers that end in each step, and runs that go on from there."""

from __future__ import annotations

from typing import Any

import pytest

from .balancer import balance, status
from .conftest import MakeSteps
from .kernels import NEW, OLD, RUNNING, boot_with, install
from .keystones import ALL_PACKAGES as KEYSTONE_LAYER
from .keystones import PACKAGES as KEYSTONE
from .keystones import Keystones, login
from .novas import ALL_PACKAGES as NOVA_LAYER
from .novas import PACKAGES as NOVA
from .novas import PUBLISHED, Novas
from .resume import Fleet, Services
from .snapshots import publish
from .test_openvswitch import PACKAGES as OPENVSWITCH
from .web import LAYER as WEB_LAYER
from .web import PACKAGES as NGINX
from .web import serve

MANIFEST = "file { '/etc/fleet.conf': content => \"version=${facts['convoy_version']}\\n\" }\n"
ROLES = {
    "identity": Services(
        ["keystone1", "keystone2"], [{"service": "keystone", "plane": "dataplane"}], KEYSTONE, ["keystone"]
    ),
    "compute": Services(
        ["compute1", "compute2"],
        ["openvswitch", "nova_compute"],
        [*NOVA, *OPENVSWITCH],
        ["nova-compute", "openvswitch-switch"],
    ),
    "web": Services(["web1"], ["nginx", "puppet", "haproxy_backend"], NGINX, ["nginx"]),
    "boot": Services(["boot1"], ["kernel_reboot"]),
    "reboot": Services(
        ["boot2"], [{"service": "kernel_reboot", "name": "reboot", "vars": {"kernel_reboot_in_upgrade": True}}]
    ),
}
VARIABLES: dict[str, Any] = {
    "nova_compute_verify_seconds": 1,
    "puppet_manifest": "/srv/site.pp",
    "haproxy_backend_balancers": ["balancers"],
    "haproxy_backend_servers": [{"backend": "app"}],
    "haproxy_backend_others_up": 0,
    # Nodes of the lab have no logind, which Ansible's own command would ask.
    "kernel_reboot_command": "systemctl reboot",
    "kernel_reboot_timeout": 60,
}


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    hosts = {host: role for role, services in ROLES.items() for host in services.hosts}
    layer = dict.fromkeys([*KEYSTONE_LAYER, *NOVA_LAYER, *WEB_LAYER, "openvswitch-switch"])
    lab = make_steps({"controller1": "controller", **hosts}, packages=[*layer]).lab
    for version in ("v2", "v3", "v4"):
        packages = [name for services in ROLES.values() for name in services.packages]
        publish(lab, dict.fromkeys([*packages, *PUBLISHED]), version)
    nodes = lab.nodes
    Keystones(lab, ("keystone1", "keystone2"), "controller1")
    Novas(lab)
    for host in ("compute1", "compute2"):
        nodes[host].run("systemctl", "enable", "--now", "openvswitch-switch")
    serve(nodes["web1"])
    nodes["web1"].write("/srv/site.pp", MANIFEST)
    balance(nodes["controller1"], {"web1": nodes["web1"].address})
    for host in ("boot1", "boot2"):
        boot_with(nodes[host], OLD)
        install(nodes[host], NEW)
    return Fleet(lab, tmp_path_factory.mktemp("resume"), ROLES, VARIABLES, {"balancers": ["controller1"]})


def assert_well(fleet: Fleet, version: str) -> None:
    nodes = fleet.lab.nodes
    assert login(nodes["keystone1"]) and login(nodes["keystone2"])
    assert nodes["web1"].read("/etc/fleet.conf") == f"version={version}\n"
    assert status(nodes["controller1"], "web1") == "UP"
    assert [nodes[host].run("cat", RUNNING).stdout for host in ("boot1", "boot2")] == [f"{NEW}\n"] * 2


@pytest.mark.thorough
def test_after_a_failure_in_each_step(fleet: Fleet) -> None:
    fleet.fail_in_each_step("v2")
    assert_well(fleet, "v2")


@pytest.mark.thorough
def test_by_tags(fleet: Fleet) -> None:
    fleet.select_steps("v3")
    assert_well(fleet, "v3")


@pytest.mark.thorough
def test_after_a_kill_in_each_step(fleet: Fleet) -> None:
    fleet.kill_in_each_step("v4")
    assert_well(fleet, "v4")
