# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples in the READMEs of `repositories` and `postgresql`, together in one fleet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.node import ROOT
from push.site import Site

from .conftest import MakeSteps
from .databases import create, sql
from .snapshots import PINS, installed, publish
from .web import LAYER, PACKAGES, serve

VERSION = "2.1"
DATABASE = ["postgresql-15", "postgresql-client-15"]


@pytest.mark.thorough
def test_the_examples_work_as_written(make_steps: MakeSteps, tmp_path: Path) -> None:
    """The files are beside the inventory, and the runs begin in the folder above."""
    repositories, postgresql = (
        (ROOT / f"roles/{role}/README.md").read_text() for role in ("repositories", "postgresql")
    )
    settings = [_first_example(text) for text in (repositories, postgresql)]
    source = re.search(r"`fleet\.list\.j2` contains, for example, `(deb .+)`", repositories)
    assert source is not None

    lab = make_steps({"db1": "database", "web1": "web"}, packages=["postgresql-15", *LAYER]).lab
    publish(lab, [*DATABASE, *PACKAGES], VERSION)
    database, web = lab.nodes["db1"], lab.nodes["web1"]
    create(database)
    sql(database, "CREATE DATABASE shop")
    sql(database, "CREATE TABLE accounts AS SELECT 1 AS id", "shop")
    serve(web)

    site = Site(tmp_path, lab)
    roles = {name: what for one in settings for name, what in one.pop("upgrade_roles").items()}
    site.inventory(roles, {"database": ["db1"], "web": ["web1"]})
    folder = tmp_path / "fleet"
    folder.mkdir()
    (tmp_path / "inventory.yml").rename(folder / "inventory.yml")
    (tmp_path / "inventory.yml").write_text("all: {}\n")
    inventory = ("-i", "fleet/inventory.yml")
    files = {
        "group_vars/all.yml": yaml.safe_dump({"ansible_become": True, **settings[0], **settings[1]}),
        # The lab has its packages in a folder.
        "templates/fleet.list.j2": re.sub(r"https://[^/]+/", "[trusted=yes] file:/srv/lab/", source[1]).replace(
            "bookworm main", "./\n"
        ),
        "templates/fleet.pref.j2": PINS,
        f"migrations/{VERSION}.sql": "ALTER TABLE accounts ADD COLUMN email text;\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    site.play("upgrade", *inventory, "--check", version=VERSION)
    assert sql(database, "SELECT to_regclass('convoy_migrations') IS NULL", "shop") == "t"
    site.play("upgrade", *inventory, version=VERSION)

    assert site.reported(VERSION) == {"db1", "web1"}
    assert installed(database, "postgresql-15").endswith(f"+{VERSION}")
    assert installed(web, "nginx").endswith(f"+{VERSION}")
    assert sql(database, "SELECT id, email IS NULL FROM accounts", "shop") == "1|t"
    assert sql(database, "SELECT version FROM convoy_migrations", "shop") == VERSION


def _first_example(readme: str) -> dict[str, Any]:
    found = re.search(r"```yaml\n(upgrade_roles:.*?)```", readme, re.DOTALL)
    assert found is not None
    settings: dict[str, Any] = yaml.safe_load(found[1])
    return settings
