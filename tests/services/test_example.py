# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The example of docs/services.md, with a real primary and its standby."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from lab.node import ROOT
from push.site import Site

from .conftest import MakeSteps
from .databases import SWITCH, UNIT, create, replicate, sql, wait_for
from .snapshots import installed, publish

SOURCE = "deb https://packages.example.com/"


@pytest.mark.thorough
def test_the_example_upgrades_a_database_unchanged(make_steps: MakeSteps, tmp_path: Path) -> None:
    page = (ROOT / "docs/services.md").read_text().partition("## Example: ")[2]
    files = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, re.DOTALL))
    rules = yaml.safe_load(files["group_vars/all.yml"])
    version = re.search(r"-e version=(\S+)", page)
    assert version is not None

    lab = make_steps({"db1": "database", "db2": "database"}, packages=["postgresql-15"]).lab
    publish(lab, ["postgresql-15", "postgresql-client-15"], version[1])
    primary, standby = lab.nodes["db1"], lab.nodes["db2"]
    create(primary)
    create(standby)
    replicate(primary, standby)
    wait_for(primary, "SELECT state FROM pg_stat_replication", "streaming")
    for node in (primary, standby):
        node.write(
            "/usr/local/bin/patronictl",
            f"#!/bin/sh -e\n[ \"$*\" = '-c /etc/patroni/15-main.yml switchover --force shop' ]\nexec {SWITCH}\n",
            0o755,
        )

    site = Site(tmp_path, lab)
    site.inventory(rules["upgrade_roles"], {"database": ["db1", "db2"]})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        # The lab has its packages in a folder, and its clusters run in Debian's units.
        text = text.replace(SOURCE, "deb [trusted=yes] file:/srv/lab/").replace("bookworm main", "./")
        (tmp_path / name).write_text(text.replace("patroni@15-main.service", f"{UNIT}.service"))
    given = {"version": version[1], "instructions": rules["instructions"]}
    site.play("upgrade", "--check", **given)
    site.play("upgrade", **given)

    assert site.reported(version[1]) == {"db1", "db2"}
    for node in (primary, standby):
        assert installed(node, "postgresql-15").endswith(f"+{version[1]}")
        assert node.run("systemctl", "is-active", UNIT).stdout == "active\n"
    # The former standby was upgraded first, and took over.
    assert sql(standby, "SELECT pg_is_in_recovery()") == "f"
    assert sql(primary, "SELECT status FROM pg_stat_wal_receiver") == "streaming"
