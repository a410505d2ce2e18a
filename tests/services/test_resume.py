# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that end in each step of the shipped services, by a failure, by a kill or by tags, and runs that go on from there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from lab.lab import Lab
from push.site import Site, kill

from .balancer import balance
from .conftest import MakeSteps
from .snapshots import installed, publish
from .web import PACKAGES as NGINX
from .web import serve

POSTGRESQL = ["postgresql-15", "postgresql-client-15"]
REDIS = ["redis-server", "redis-tools"]
HOSTS = {"mem1": "mem", "web1": "web", "lb1": "lb", "cache1": "cache", "db1": "db"}
PACKAGES = {"mem": ["memcached"], "web": NGINX, "lb": ["haproxy"], "cache": REDIS, "db": POSTGRESQL}
UNITS = {"mem": "memcached", "web": "nginx", "lb": "haproxy", "cache": "redis-server", "db": "postgresql@15-main"}
STEPS = ("prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify", "undrain")
MEMCACHED = {"package_service_packages": ["memcached"], "package_service_units": ["memcached"]}
SERVICES: dict[str, list[Any]] = {
    "lb": ["haproxy"],
    "db": ["postgresql"],
    "mem": [{"service": "package_service", "name": "memcached", "vars": MEMCACHED}],
    "cache": ["redis"],
    "web": ["nginx", "consul_service"],
}
VARIABLES: dict[str, Any] = {
    "repositories_files": [{"src": "{{ inventory_dir }}/lab.list.j2", "dest": "/etc/apt/sources.list.d/lab.list"}],
    "consul_service_names": ["shop"],
    "consul_service_others_passing": 0,
    "postgresql_major": 15,
}
# Listed first, so that a run ends before the services begin the step.
BREAK = """\
- name: Break
  ansible.builtin.shell: {{cmd: "test ! -e /run/sleep-{step} || sleep 600; test ! -e /run/break-{step}"}}
  changed_when: false
  tags: {step}
"""


class Fleet:
    """A host of each service, and runs of the playbook."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """Set all hosts up."""
        self.lab = lab
        self.site = Site(folder, lab)
        nodes = lab.nodes
        balance(nodes["lb1"], {"web1": nodes["web1"].address})
        serve(nodes["web1"])
        nodes["web1"].run(
            "curl", "-sfX", "PUT", "-d", '{"Name": "shop"}', "http://127.0.0.1:8500/v1/agent/service/register"
        )
        nodes["mem1"].run("systemctl", "start", "memcached")
        nodes["cache1"].run("systemctl", "start", "redis-server")
        database = nodes["db1"]
        database.run("sh", "-c", "pg_dropcluster 15 main; rm -rf /var/lib/postgresql/15/main /etc/postgresql/15/main")
        database.run("pg_createcluster", "15", "main")
        database.run("systemctl", "start", UNITS["db"])
        breaker = folder / "roles/breaker"
        (breaker / "tasks").mkdir(parents=True)
        (breaker / "meta").mkdir()
        (breaker / "tasks/upgrade_tasks.yml").write_text("".join(BREAK.format(step=step) for step in STEPS))
        (breaker / "meta/upgrade.yml").write_text("stop_together: true\n")
        (folder / "lab.list.j2").write_text("deb [trusted=yes] file:/srv/lab/{{ version }} ./\n")
        members: dict[str, list[str]] = {}
        for host, role in HOSTS.items():
            members.setdefault(role, []).append(host)
        roles = {
            role: {"plane": "dataplane", "services": ["breaker", "repositories", *services]}
            for role, services in SERVICES.items()
        }
        self.site.inventory(roles, members, **dict.fromkeys(HOSTS, VARIABLES))

    def mark(self, name: str, *, present: bool) -> None:
        """Make a file on all hosts, or remove it."""
        for node in self.lab.nodes.values():
            node.run("sh", "-c", f"touch /run/{name}" if present else f"rm -f /run/{name}")

    def assert_upgraded(self, version: str) -> None:
        """Check that all packages are new, and that all services serve."""
        for host, role in HOSTS.items():
            node = self.lab.nodes[host]
            assert {installed(node, name).rpartition("+")[2] for name in PACKAGES[role]} == {version}
            assert node.run("systemctl", "is-active", UNITS[role]).stdout == "active\n"
        assert self.site.reported(version) == set(HOSTS)


@pytest.fixture(scope="module")
def fleet(make_steps: MakeSteps, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    every = [name for names in PACKAGES.values() for name in names]
    steps = make_steps(HOSTS, packages=["memcached", "nginx", "haproxy", "redis-server", "postgresql-15"])
    for version in ("v2", "v3", "v4"):
        publish(steps.lab, every, version)
    return Fleet(steps.lab, tmp_path_factory.mktemp("resume"))


@pytest.mark.thorough
def test_after_a_failure_in_each_step(fleet: Fleet) -> None:
    for step in STEPS:
        fleet.mark(f"break-{step}", present=True)
        shown = fleet.site.play("upgrade", version="v2", retry_failed=True, upgrade_may_stop_timeout=1, code=2)
        assert {host: fleet.site.record(host).get("step") for host in HOSTS} == dict.fromkeys(HOSTS, step), shown
        fleet.mark(f"break-{step}", present=False)
    fleet.site.play("upgrade", version="v2", retry_failed=True)
    fleet.assert_upgraded("v2")


@pytest.mark.thorough
def test_by_tags(fleet: Fleet) -> None:
    for tags in ("prepare", "stop,upgrade,start", "verify"):
        fleet.site.play("upgrade", "--tags", tags, version="v3")
    fleet.assert_upgraded("v3")


@pytest.mark.thorough
def test_after_a_kill_in_each_step(fleet: Fleet) -> None:
    for step in STEPS:
        fleet.mark(f"sleep-{step}", present=True)
        process = fleet.site.start("upgrade", version="v4")
        until = time.monotonic() + 120
        while any(fleet.site.record(host).get("step") != step for host in HOSTS):
            assert time.monotonic() < until, f"not all hosts have come to {step}"
            time.sleep(0.2)
        kill(process)
        # Over SSH, a task goes on after its controller is gone.
        fleet.mark(f"sleep-{step}", present=False)
        for node in fleet.lab.nodes.values():
            node.run("pkill", "-x", "sleep", check=False)
    fleet.site.play("upgrade", version="v4")
    fleet.assert_upgraded("v4")
