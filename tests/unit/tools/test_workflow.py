# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosted CI's workflow calls commands that exist, for releases that the matrix knows."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT

FILE = ROOT / ".github/workflows/test.yml"
JOBS: dict[str, Any] = yaml.safe_load(FILE.read_text())["jobs"]
COMMANDS = [
    (name, re.sub(r"^sudo (env (\S+=\S+ )+)?", "", step["run"]).split())
    for name, job in JOBS.items()
    for step in job["steps"]
    if "run" in step
]


@pytest.mark.parametrize(
    ("job", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_every_command_exists(job: str, command: list[str]) -> None:
    if command[0] == "make":
        assert len(command) == 2, job
        # -n prints what would be run, and fails for a target that there is none of.
        asked = subprocess.run(["make", "-n", command[1]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr
    else:
        assert os.access(ROOT / command[0], os.X_OK), job


def test_pushes_run_make_test_and_nights_make_test_all() -> None:
    of = {name: [command for job, command in COMMANDS if job == name] for name in JOBS}
    assert of["test"] == [["make", "test"]]
    assert of["nightly"] == [["make", "test-all"]]
    assert "schedule" in JOBS["nightly"]["if"]


def test_strict_runs_are_those_of_root() -> None:
    """An ordinary user lacks what the lab needs, which is a failure there."""
    steps = [step for job in JOBS.values() for step in job["steps"]]
    strict = [step for step in steps if "CONVOY_TEST_STRICT" in str(step)]
    assert [step["run"].startswith("sudo ") for step in strict] == [True]


def test_a_push_does_not_end_the_run_of_the_night() -> None:
    concurrency = yaml.safe_load(FILE.read_text())["concurrency"]
    assert "github.event_name" in concurrency["group"]


def test_the_matrix_has_every_release_with_a_python_that_it_runs_on() -> None:
    known = dict(re.findall(r"^ +([\d. |]+)\) echo (.+) ;;$", (ROOT / "tools/checks/matrix.sh").read_text(), re.M))
    pythons = {release: value.split() for key, value in known.items() for release in re.findall(r"\d\.\d+", key)}
    tested = {one["ansible"]: one["python"] for one in JOBS["releases"]["strategy"]["matrix"]["include"]}
    assert tested.keys() == pythons.keys()
    assert all(python in pythons[release] for release, python in tested.items())


def test_each_test_that_the_matrix_selects_exists() -> None:
    script = (ROOT / "tools/checks/matrix.sh").read_text().replace("\\\n", " ")
    calls = re.findall(r'try "\$release" \d ([^"\n]+) -k "(.+)"', script)
    assert len(calls) == 2
    for files, selected in calls:
        tests = re.findall(r"^def (test_\w+)", "".join((ROOT / one).read_text() for one in files.split()), re.M)
        assert all(any(one in name for name in tests) for one in selected.split(" or ")), selected
