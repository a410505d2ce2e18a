# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of a real PostgreSQL as a provider: brought from version to version by the tasks of the service postgresql."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.guard import guarded
from lab.lab import Lab
from lab.node import ROOT
from missing import needs_lab

from .site import Site

README = (ROOT / "roles/postgresql/README.md").read_text()
# Path in the operator's folder -> the file, as the page has it.
FILES = dict(re.findall(r"```yaml\n# (roles/\S+)\n(.*?)```", README, re.DOTALL))


@pytest.fixture
def lab() -> Iterator[Lab]:
    needs_lab()
    with guarded(f"schema{os.environ.get('PYTEST_XDIST_WORKER', '')}") as found:
        found.up({"db1": "database", "web1": "web", "web2": "web"}, packages=["postgresql-15"])
        yield found


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    """A database at 2.2, and two hosts that can bring it further."""
    node = lab.nodes["db1"]
    # This machine may have a cluster of its own, which shines through.
    node.run("sh", "-c", "pg_dropcluster 15 main; rm -rf /var/lib/postgresql/15/main /etc/postgresql/15/main")
    node.run("pg_createcluster", "15", "main")
    node.run("systemctl", "start", "postgresql@15-main")
    sql(lab, "CREATE DATABASE shop", "postgres")
    sql(lab, "CREATE TABLE accounts (id integer); INSERT INTO accounts VALUES (7)")
    site = Site(tmp_path, lab)
    site.service("app", ["upgrade"])
    assert FILES.keys() == {"roles/shop_schema/meta/upgrade.yml", "roles/shop_schema/tasks/schema.yml"}
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "migrations").mkdir()
    roles = {"web": {"plane": "dataplane", "services": ["shop_schema", "app"]}}
    site.inventory(roles, {"database": ["db1"], "web": ["web1", "web2"]})
    return site


def sql(lab: Lab, query: str, database: str = "shop") -> str:
    command = ("runuser", "-u", "postgres", "--", "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", query)
    return lab.nodes["db1"].run(*command).stdout.strip()


@pytest.mark.thorough
def test_a_schema_goes_from_version_to_version_once_and_on_after_a_failure(lab: Lab, site: Site) -> None:
    changes = {
        "2.4": "ALTER TABLE accounts ADD COLUMN mail text;",
        "2.6": "UPDATE accounts SET mail = 'of 2.6'; SELECT no_such_function();",
        "2.8": "ALTER TABLE accounts RENAME COLUMN mail TO email;",
    }
    for version, text in changes.items():
        (site.folder / f"migrations/{version}.sql").write_text(f"{text}\n")
    declared = {"shop_schema": "2.2"}
    shown = site.play("upgrade", version="2.8", upgrade_provider_versions=declared, code=2)
    assert "provider shop_schema from 2.2 to 2.8 by shop_schema@2.4, shop_schema@2.6, shop_schema@2.8" in shown
    found = json.loads(site.consul.get("upgrade/providers/shop_schema") or b"")
    assert (found["version"], found["done"]) == ("2.2", ["upgrade/shop_schema@2.4"])
    assert "the schema of shop could not be migrated to 2.6 with" in found["error"]
    assert "function no_such_function() does not exist" in found["error"]
    assert sql(lab, "SELECT id, mail IS NULL FROM accounts") == "7|t"
    assert not site.entries()

    (site.folder / "migrations/2.6.sql").write_text("UPDATE accounts SET mail = 'of 2.6';\n")
    site.play("upgrade", version="2.8", retry_failed=True)
    assert sql(lab, "SELECT id, email FROM accounts") == "7|of 2.6"
    assert sql(lab, "SELECT version FROM convoy_migrations ORDER BY made") == "2.4\n2.6\n2.8"
    found = json.loads(site.consul.get("upgrade/providers/shop_schema") or b"")
    assert (found["version"], "target" in found, "error" in found) == ("2.8", False, False)
    assert site.reported("2.8") == {"web1", "web2"}
    assert [site.done(host) for host in ("web1", "web2")] == [["app/upgrade"]] * 2
