# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole fleet of real services, upgraded by one command while its users go on asking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.child import start
from devkit.kv import RawKV
from lab.lab import Lab
from lab.node import ROOT
from lab.packages import Package, repository

from .balancer import balance
from .conftest import MakeSteps
from .keystones import PACKAGES as KEYSTONE
from .keystones import Keystones, publish_next
from .snapshots import download, installed, remade, use_version
from .traffic import Traffic
from .web import PACKAGES as NGINX
from .web import serve

CONTROLLERS = ("controller1", "controller2")
WEB = ("web1", "web2", "web3")
POSTGRESQL = ["postgresql-15", "postgresql-client-15"]
REDIS = ["redis-server", "redis-tools"]

# The operator's own service: a command that prints its version, and a log of what was done when.
SHOP = {
    "tasks/upgrade_tasks.yml": """\
---
- name: Look whether there is a log
  ansible.builtin.file: {path: /var/log/shop, state: touch, mode: "0644"}
  changed_when: false
  tags: validate

- name: Take the shop down
  ansible.builtin.shell: {cmd: "echo $(date +%s.%N) down >>/var/log/shop && rm -f /run/shop"}
  tags: stop

- name: Bring its schema to the version
  ansible.builtin.shell: {cmd: "echo {{ inventory_hostname }} {{ upgrade_version }} >>/srv/lab/shop-migrations"}
  tags: [upgrade, once]

- name: Upgrade it
  ansible.builtin.include_role: {name: convoy.upgrade.package_service, tasks_from: packages}
  vars: {package_service_packages: [shop]}
  tags: upgrade

- name: Open it
  ansible.builtin.shell: {cmd: "shop >/run/shop && echo $(date +%s.%N) up >>/var/log/shop"}
  tags: start

- name: See what it says
  ansible.builtin.command: {argv: [grep, -x, "{{ upgrade_version }}", /run/shop]}
  changed_when: false
  tags: verify
""",
    "tasks/post_upgrade_tasks.yml": """\
---
- name: Note that the fleet is done
  ansible.builtin.shell: {cmd: "echo $(date +%s.%N) after >>/var/log/shop"}
""",
    "meta/upgrade.yml": "---\nrequires: [repositories, nginx]\n",
}

ROLES: dict[str, Any] = {
    "database": {"plane": "controlplane", "services": ["repositories", "haproxy", "postgresql", "keystone"]},
    "controller": {"plane": "controlplane", "services": ["repositories", "haproxy", "keystone"]},
    "cache": {"plane": "dataplane", "services": ["repositories", "redis"]},
    "web": {"plane": "dataplane", "services": ["repositories", "nginx", "shop", "haproxy_backend"]},
}
HOSTS = {"controller1": "database", "controller2": "controller", "cache1": "cache", **dict.fromkeys(WEB, "web")}
VARIABLES = {
    "repositories_files": [{"src": "{{ inventory_dir }}/lab.list.j2", "dest": "/etc/apt/sources.list.d/lab.list"}],
    "haproxy_backend_balancers": list(CONTROLLERS),
    "haproxy_backend_servers": [{"backend": "app"}],
    "haproxy_backend_ready_timeout": 20,
    "postgresql_major": 15,
}
# The host with the database goes last: its own keystone can't change the schema while the database is stopped beside it.
RULES = {"rolling_rules": {"global": 1, "fleet": 2}, "role_order": {"database": "controller"}}


class Fleet:
    """The lab, set up at v1, and runs of the playbook on it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """Set all hosts up."""
        self.lab = lab
        self.folder = folder
        self.consul: RawKV = lab.kv
        nodes = lab.nodes
        self.keystones = Keystones(lab, CONTROLLERS, "controller1")
        for name in CONTROLLERS:
            balance(nodes[name], {web: nodes[web].address for web in WEB})
        nodes["cache1"].run("systemctl", "start", "redis-server")
        nodes["cache1"].run("redis-cli", "set", "kept", "yes")
        for name in WEB:
            serve(nodes[name])
            use_version(nodes[name], "v1")
            nodes[name].run("apt-get", "-q", "-y", "install", "shop")
        for file, text in SHOP.items():
            path = folder / "roles/shop" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (folder / "lab.list.j2").write_text("deb [trusted=yes] file:/srv/lab/{{ version }} ./\n")
        inventory = lab.inventory()
        inventory["all"]["vars"].update({**VARIABLES, "upgrade_roles": ROLES})
        inventory["all"]["children"] = {
            role: {"hosts": {host: {"ansible_host": nodes[host].address} for host, one in HOSTS.items() if one == role}}
            for role in ROLES
        }
        (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))

    def upgrade(self, **given: Any) -> subprocess.Popen[str]:
        """Start the upgrade."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        command = [Path(sys.executable).parent / "ansible-playbook", "-i", "inventory.yml", "-f", "10"]
        return start(
            [*command, ROOT / "playbooks/upgrade.yml", "-e", json.dumps({"version": "v2", **given})],
            env={
                **kept,
                **self.lab.environ,
                "PWD": str(self.folder),
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PIPELINING": "true",
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def done_at(self, host: str, package: str) -> str:
        """Return when a package was installed last, as the host's own log of packages has it."""
        lines = [
            line for line in self.lab.nodes[host].read("/var/log/dpkg.log").splitlines() if "status installed" in line
        ]
        return max(" ".join(line.split()[:2]) for line in lines if f" {package}:" in line and "+v2" in line)

    def shop(self, host: str) -> list[tuple[float, str]]:
        """Return the shop's own log."""
        return [
            (float(at), what) for at, what in map(str.split, self.lab.nodes[host].read("/var/log/shop").splitlines())
        ]


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps) -> Fleet:
    """Two controllers, a cache and three web servers at v1, and what v2 is made of."""
    layer = ["haproxy", "keystone", "nginx", *POSTGRESQL, "python3-psycopg2", *REDIS]
    steps = make_steps(HOSTS, packages=layer)
    lab = steps.lab
    publish_next(lab)
    made = sorted((lab.shared / "v2/made").glob("*.deb"))
    more = [*NGINX, "haproxy", *POSTGRESQL, *REDIS]
    made += [remade(one, lab.shared / "v2/made", "+v2") for one in download(ROOT / ".cache/lab/debs", more)]
    for version in ("v1", "v2"):
        shop = Package("shop", f"{version[1:]}.0", {"/usr/bin/shop": f"#!/bin/sh\necho {version}\n"})
        repository(lab.shared / version, [shop, *(made if version == "v2" else ())])
    return Fleet(lab, steps.folder)


@pytest.mark.thorough
def test_no_request_fails_while_the_whole_fleet_is_upgraded(fleet: Fleet) -> None:
    nodes = fleet.lab.nodes
    with Traffic(nodes["controller1"].address) as one, Traffic(nodes["controller2"].address) as other:
        process = fleet.upgrade(instructions=RULES)
        shown, _nothing = process.communicate(timeout=1800)
    assert process.returncode == 0, shown
    assert one.failures == []
    assert other.failures == []
    assert set(one.answers) == set(other.answers) == set(WEB)

    packages = {
        **{host: ["haproxy", *KEYSTONE] for host in CONTROLLERS},
        "cache1": REDIS,
        **{host: [*NGINX, "shop"] for host in WEB},
    }
    packages["controller1"] = [*packages["controller1"], *POSTGRESQL]
    for host, names in packages.items():
        for name in names:
            assert "v2" in installed(nodes[host], name) or installed(nodes[host], name) == "2.0", (host, name)
    assert {host.rpartition("/")[2] for host in fleet.consul.tree("running/versions/v2/")} == set(HOSTS)
    assert nodes["cache1"].run("redis-cli", "get", "kept").stdout.strip() == "yes"
    # Its schema was expanded and contracted by one host each, the contraction after all else.
    assert sorted(fleet.keystones.runs()) in (
        [f"contract|{first}", f"expand|{second}"] for first in CONTROLLERS for second in CONTROLLERS
    )

    # In the hosts' own logs: the control plane first, one host of a role at a time, and what comes after comes after.
    control = max(fleet.done_at(host, "haproxy") for host in CONTROLLERS)
    assert control < min(fleet.done_at("cache1", "redis-server"), *(fleet.done_at(host, "nginx") for host in WEB))
    logs = {host: fleet.shop(host) for host in WEB}
    down = sorted((logs[host][0][0], logs[host][1][0]) for host in WEB)
    assert all(before[1] < after[0] for before, after in pairwise(down))
    assert [what for _at, what in logs["web1"]] == ["down", "up", "after"]
    assert min(log[-1][0] for log in logs.values()) > max(log[1][0] for log in logs.values())
    migrations = (fleet.lab.shared / "shop-migrations").read_text().split()
    assert migrations[1:] == ["v2"]
    assert migrations[0] in WEB

    # And again: nothing to do.
    process = fleet.upgrade()
    shown, _nothing = process.communicate(timeout=600)
    assert process.returncode == 0, shown
    assert {host: fleet.shop(host) for host in WEB} == logs
