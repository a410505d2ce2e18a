# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real Keystones on nodes of the lab that share a PostgreSQL, and a next release of it with migrations of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.lab import Lab
from lab.node import ROOT, Node
from lab.packages import download, remade, repository

PACKAGES = ("keystone", "python3-keystone")
ALL_PACKAGES = ("keystone", "postgresql", "python3-psycopg2")
PASSWORD = "secret-of-the-lab"
_MIGRATIONS = "usr/lib/python3/dist-packages/keystone/common/sql/migrations/versions/yoga"

# What every release's migrations look like. Each notes which host ran it.
_MIGRATION = '''\
"""A migration of the next release."""

import socket
import time

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade():
    time.sleep(1)
    {does}
    op.execute(f"insert into lab_runs values ('{phase}', '{{socket.gethostname()}}')")
'''
_NEXT = {
    "expand": ("29e87d24a316", "a00000000001", 'op.add_column("project", sa.Column("lab_note", sa.String(64)))'),
    "contract": ("e25ffa003242", "c00000000001", 'op.drop_table("lab_old")'),
}


def publish_next(lab: Lab, version: str = "v2") -> None:
    """Make the snapshot of a release of Keystone that expands and contracts the schema."""
    folder = lab.shared / version
    files = [remade(one, folder / "made", f"+{version}") for one in download(ROOT / ".cache/lab/debs", PACKAGES)]
    repository(folder, [*(_with(one, _migrations()) if "python3-" in one.name else one for one in files)])


def _migrations() -> dict[str, str]:
    return {
        f"{_MIGRATIONS}/{phase}/{revision}_next.py": _MIGRATION.format(
            phase=phase, before=before, revision=revision, does=does
        )
        for phase, (before, revision, does) in _NEXT.items()
    }


def _with(file: Path, more: Mapping[str, str]) -> Path:
    """Put files into a package that is built."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["dpkg-deb", "--raw-extract", file, f"{work}/tree"], check=True)
        for path, text in more.items():
            (Path(work) / "tree" / path).write_text(text)
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", f"{work}/tree", file]
        subprocess.run(command, check=True, capture_output=True)
    return file


class Keystones:
    """Two hosts that share the database of a third, or of one of them."""

    def __init__(
        self, lab: Lab, hosts: tuple[str, str] = ("keystone1", "keystone2"), database: str = "database1"
    ) -> None:
        """Set them up on a lab that is up, and start them."""
        self.lab = lab
        self.nodes = [lab.nodes[host] for host in hosts]
        self._database = lab.nodes[database]
        self._start_database()
        self._configure()

    def sql(self, *commands: str) -> list[str]:
        """Run SQL in Keystone's database; return the rows."""
        words = [word for command in commands for word in ("-c", command)]
        return self._database.run("runuser", "-u", "postgres", "--", "psql", "-qAt", "keystone", *words).stdout.split()

    def _start_database(self) -> None:
        node = self._database
        node.write("/etc/postgresql/15/main/conf.d/lab.conf", "listen_addresses = '*'\nfsync = off\n")
        node.run("sh", "-c", "echo host all all samenet scram-sha-256 >>/etc/postgresql/15/main/pg_hba.conf")
        node.run("systemctl", "start", "postgresql@15-main")
        self._database.run("runuser", "-u", "postgres", "--", "createdb", "keystone")
        self.sql(f"create role keystone login password '{PASSWORD}'", "alter database keystone owner to keystone")

    def _configure(self) -> None:
        url = f"postgresql://keystone:{PASSWORD}@{self._database.address}/keystone"
        for node in self.nodes:
            node.run("sed", "-i", rf"/^\[database\]/a connection = {url}", "/etc/keystone/keystone.conf")
            node.run("sed", "-i", "s/^processes = .*/processes = 2/", "/etc/keystone/keystone-uwsgi.ini")
        first, second = self.nodes
        user = ("--keystone-user", "keystone", "--keystone-group", "keystone")
        manage(first, "db_sync")
        manage(first, "fernet_setup", *user)
        manage(first, "credential_setup", *user)
        manage(first, "bootstrap", "--bootstrap-password", PASSWORD)
        first.run("tar", "-C", "/etc/keystone", "-cf", "/srv/lab/keys.tar", "fernet-keys", "credential-keys")
        second.run("tar", "-C", "/etc/keystone", "-xf", "/srv/lab/keys.tar")
        self.go_back()
        for node in self.nodes:
            node.run("systemctl", "start", "keystone")
            node.wait(5000)

    def go_back(self) -> None:
        """Let the database be one revision older than the installed release, with a table that the next one drops."""
        self.sql(
            "delete from alembic_version",
            "insert into alembic_version values ('27e647c0fad4')",
            "create table lab_old (id int)",
            "create table lab_runs (phase text, host text)",
            "alter table lab_old owner to keystone",
            "alter table lab_runs owner to keystone",
        )

    def revisions(self) -> set[str]:
        """Return the revisions that the database is at."""
        return set(self.sql("select version_num from alembic_version"))

    def runs(self) -> list[str]:
        """Return which host ran which of the next release's migrations."""
        return self.sql("select phase, host from lab_runs")


def manage(node: Node, *words: str) -> str:
    """Run keystone-manage."""
    return node.run("runuser", "-u", "keystone", "--", "keystone-manage", *words).stdout


def login(node: Node) -> str:
    """Return a token of the administrator."""
    identity = {
        "methods": ["password"],
        "password": {"user": {"name": "admin", "domain": {"id": "default"}, "password": PASSWORD}},
    }
    scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
    _status, headers, _body = call(node, "auth/tokens", {"auth": {"identity": identity, "scope": scope}})
    return str(headers["X-Subject-Token"])


def call(node: Node, path: str, body: Any = None, token: str = "") -> tuple[int, Mapping[str, str], Any]:
    """Call a node's Keystone; return status, headers and body."""
    request = urllib.request.Request(
        f"http://{node.address}:5000/v3/{path}",
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Content-Type": "application/json", "X-Auth-Token": token},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.headers, json.load(answer)


@contextmanager
def client(node: Node) -> Iterator[list[str]]:
    """Log in at a node and list its projects again and again; give the list of what became of it."""
    seen: list[str] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                call(node, "projects", token=login(node))
                seen.append("ok")
            except (OSError, urllib.error.HTTPError) as error:
                seen.append(str(error))
            time.sleep(0.05)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
