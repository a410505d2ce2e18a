# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters of Debian's PostgreSQL, and a standby that streams from another node."""

from __future__ import annotations

import time

from lab.node import Node

DATA = "/var/lib/postgresql/15/main"
UNIT = "postgresql@15-main"
# Stops this primary, promotes the other host, and follows it. The standby gets all writes before the primary ends.
SWITCH = "/usr/local/sbin/switch"
_SCRIPT = """\
#!/bin/sh -e
systemctl stop {unit}
runuser -u postgres -- psql -XqAt -h {other} -c 'SELECT pg_promote()'
runuser -u postgres -- touch {data}/standby.signal
echo "primary_conninfo = 'host={other} user=postgres'" >>{data}/postgresql.auto.conf
systemctl start {unit}
"""
_RULES = "host all all samenet trust\\nhost replication all samenet trust\\n"


def create(node: Node) -> None:
    """Start a new cluster on a node."""
    # This machine may have a cluster of its own, which shines through.
    node.run("sh", "-c", f"pg_dropcluster 15 main; rm -rf {DATA} /etc/postgresql/15/main")
    node.run("pg_createcluster", "15", "main")
    node.run("systemctl", "start", UNIT)


def sql(node: Node, query: str, database: str = "postgres") -> str:
    """Return what a query prints."""
    command = ("runuser", "-u", "postgres", "--", "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", query)
    return node.run(*command).stdout.strip()


def wait_for(node: Node, query: str, answer: str) -> None:
    """Wait until a query has this answer."""
    until = time.monotonic() + 20
    while (found := sql(node, query)) != answer:
        assert time.monotonic() < until, f"{query}: {found!r}"
        time.sleep(0.2)


def replicate(primary: Node, standby: Node) -> None:
    """Make a node a standby of another one, whose cluster stays as it is. Both get the command ``SWITCH``."""
    for node, other in ((primary, standby), (standby, primary)):
        node.run("systemctl", "stop", UNIT)
        # The standby finds all WAL after it was down.
        node.write("/etc/postgresql/15/main/conf.d/lab.conf", "listen_addresses = '*'\nwal_keep_size = '256MB'\n")
        node.run("sh", "-c", f"printf '{_RULES}' >>/etc/postgresql/15/main/pg_hba.conf")
        node.write(SWITCH, _SCRIPT.format(unit=UNIT, data=DATA, other=other.address), 0o755)
    primary.run("systemctl", "start", UNIT)
    standby.run("rm", "-r", DATA)
    user = ("runuser", "-u", "postgres", "--")
    standby.run(*user, "pg_basebackup", "-h", primary.address, "-D", DATA, "-R", "--checkpoint=fast")
    standby.run("systemctl", "start", UNIT)
