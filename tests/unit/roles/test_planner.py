# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of a planner service keeps what systemd itself counts as its sandbox."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from devkit.agent import ROOT
from jinja2 import Environment, StrictUndefined
from missing import missing

# The highest exposure that systemd-analyze may find, ten times what it shows. Releases of systemd differ a little: release 252 finds 17.
THRESHOLD = 20
# Without any of these, systemd finds more.
OPTIONS = (
    "CapabilityBoundingSet",
    "NoNewPrivileges",
    "ProtectHome",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "SystemCallFilter",
    "User",
)


def unit() -> str:
    """Return the unit as the role writes it."""
    role = ROOT / "roles/planner"
    variables = yaml.safe_load((role / "vars/main.yml").read_text())
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string((role / "templates/convoy-planner.service.j2").read_text()).render(
        **yaml.safe_load((role / "defaults/main.yml").read_text())
        | {"planner_folders": ["/var/www/convoy"], "planner_sandbox": variables["planner_sandbox"]},
        ansible_managed="",
        puppet_gate_new_release="1",
    )


def security(folder: Path, text: str, threshold: int = THRESHOLD) -> subprocess.CompletedProcess[str]:
    """Let systemd judge a unit that is not installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        missing("no systemd-analyze here")
    file = folder / "convoy-planner.service"
    file.write_text(text)
    command = [program, "security", "--offline=true", f"--threshold={threshold}", "--no-pager", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in found.stderr:
        missing("systemd-analyze here is older than release 250")
    assert "Overall exposure level" in found.stdout, found.stderr
    return found


def test_its_exposure_is_not_above_the_threshold(tmp_path: Path) -> None:
    found = security(tmp_path, unit())
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("option", OPTIONS)
def test_each_of_its_options_counts(tmp_path: Path, option: str) -> None:
    whole = unit()
    text, count = re.subn(rf"(?m)^{option}=.*\n", "", whole)
    assert count == 1
    found = re.search(r"Overall exposure level .*: (\d+)\.(\d)", security(tmp_path, whole).stdout)
    assert found is not None
    less = security(tmp_path, text, int(found[1] + found[2]))
    assert less.returncode != 0, less.stdout
