# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Nova on nodes of the lab: message queue, databases, placement and conductor, and hosts that compute nothing."""

from __future__ import annotations

import re
import time

from lab.lab import Lab
from lab.node import Node

PACKAGES = ("nova-compute", "nova-compute-kvm", "nova-common", "python3-nova")
# Every node of the lab has what the controller has, and these packages fit only those of their own version.
PUBLISHED = (*PACKAGES, "nova-conductor")
ALL_PACKAGES = ("nova-compute", "nova-conductor", "placement-api", "rabbitmq-server", "postgresql", "python3-psycopg2")
PASSWORD = "secret-of-the-lab"

# Nova's hypervisor of its own tests, which keeps what it is given in memory. What it has is reported every two seconds.
_COMPUTE = "[DEFAULT]\ncompute_driver = fake.FakeDriver\nupdate_resources_interval = 2\n"

# What nova.conf itself says goes before it.
_LAB = """\
[DEFAULT]
transport_url = rabbit://nova:{password}@{controller}:5672/
debug = true
[database]
connection = postgresql+psycopg2://nova:{password}@{controller}/nova
[api_database]
connection = postgresql+psycopg2://nova:{password}@{controller}/nova_api
[placement]
auth_type = admin_token
token = admin
endpoint = http://{controller}:8778
endpoint_override = http://{controller}:8778
"""

_PLACEMENT = """\
[api]
auth_strategy = noauth2
[placement_database]
connection = postgresql+psycopg2://nova:{password}@{controller}/placement
"""


class Novas:
    """The hosts ``compute1`` and ``compute2`` with what they need, on ``controller1``."""

    def __init__(self, lab: Lab) -> None:
        """Set them up on a lab that is up, and start them."""
        self.controller = lab.nodes["controller1"]
        self.computes = [lab.nodes["compute1"], lab.nodes["compute2"]]
        self._values = {"password": PASSWORD, "controller": self.controller.address}
        self._start_controller()
        for node in self.computes:
            self._configure(node)
            node.write("/etc/nova/nova-compute.conf", _COMPUTE)
            node.run("systemctl", "start", "nova-compute")

    def _configure(self, node: Node) -> None:
        node.run("sed", "-i", r"/^connection = sqlite/d; /^\[placement\]/,/^\[/{/^[a-z]/d}", "/etc/nova/nova.conf")
        node.write("/etc/nova/nova.conf.d/10-lab.conf", _LAB.format(**self._values))

    def _start_controller(self) -> None:
        node = self.controller
        node.write("/etc/postgresql/15/main/conf.d/lab.conf", "listen_addresses = '*'\nfsync = off\n")
        node.run("sh", "-c", "echo host all all samenet scram-sha-256 >>/etc/postgresql/15/main/pg_hba.conf")
        node.run("systemctl", "start", "postgresql@15-main", "rabbitmq-server")
        node.run("rabbitmqctl", "add_user", "nova", PASSWORD)
        node.run("rabbitmqctl", "set_permissions", "nova", ".*", ".*", ".*")
        self.sql("postgres", f"create role nova login password '{PASSWORD}'")
        for name in ("nova", "nova_api", "nova_cell0", "placement"):
            node.run("runuser", "-u", "postgres", "--", "createdb", "-O", "nova", name)
        self._configure(node)
        node.write("/etc/placement/placement.conf", _PLACEMENT.format(**self._values))
        # Each of its processes loads everything by itself, which is seconds of work; as packaged there are eight of them.
        node.run("sed", "-i", "s/^processes = .*/processes = 2/", "/etc/placement/placement-api-uwsgi.ini")
        node.run("runuser", "-u", "placement", "--", "placement-manage", "db", "sync")
        for command in ("api_db sync", "cell_v2 map_cell0", "cell_v2 create_cell --name cell1", "db sync"):
            node.run("runuser", "-u", "nova", "--", "nova-manage", *command.split())
        node.run("systemctl", "start", "nova-conductor")
        self.start_placement()

    def sql(self, database: str, command: str) -> list[str]:
        """Run SQL on the controller; return the rows."""
        words = ("runuser", "-u", "postgres", "--", "psql", "-qAt", database, "-c", command)
        return self.controller.run(*words).stdout.split()

    def start_placement(self) -> None:
        """Start what the compute hosts report to, and wait until it answers."""
        self.controller.run("systemctl", "start", "placement-api")
        # It listens before it answers.
        words = ("--retry", "30", "--retry-all-errors", "-o", "/dev/null", "http://127.0.0.1:8778/")
        self.controller.run("curl", "-sSf", *words)

    def is_known(self, node: Node, seconds: float = 60) -> bool:
        """Return whether the conductor hears of a compute host, and does so again."""
        command = f"select report_count from services where host = '{node.name}'"
        first = self.sql("nova", command)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.sql("nova", command) != first:
                return True
            time.sleep(1)
        return False

    def logs(self, node: Node, text: str, seconds: float = 60) -> bool:
        """Return whether the nova-compute that runs on a host logs a text."""
        process = node.run("systemctl", "show", "--property=MainPID", "--value", "nova-compute").stdout.strip()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if re.search(rf"(?m)^\S+ \S+ {process} .*{text}", node.read("/var/log/nova/nova-compute.log") or ""):
                return True
            time.sleep(0.5)
        return False
