# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A standby that can't ask its primary says so, and never with the password of primary_conninfo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"rc": 2, "stderr": "bad value in password = s3cret"}, "taken down: exit status 2."),
        ({"rc": 2, "stderr": "can't reach postgresql://replica:s3cret@db1"}, "taken down: exit status 2."),
        ({"msg": "no psql"}, "taken down: no psql."),
    ],
    ids=["spaces", "URI", "no status"],
)
def test_a_standby_that_cannot_ask_says_why_without_a_password(
    result: dict[str, Any], says: str, tmp_path: Path
) -> None:
    tasks = yaml.safe_load((ROOT / "roles/postgresql/tasks/may_stop.yml").read_text())
    task = next(one for one in tasks[-1]["block"] if one["name"].startswith("Refuse to take a standby down"))
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "result.json").write_text(json.dumps({"postgresql_synchronous": {"stdout": "", **result}}))
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [program, "-i", "localhost,", "-c", "local", "play.yml", "-e", "@result.json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert says in ended.stdout
    assert "s3cret" not in ended.stdout + ended.stderr
