# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions checked in a pipeline: every mistake with its place, and no Consul anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devkit.agent import ROOT
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, Task

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

CHECK = "convoy.upgrade.check_instructions"
# Requests to Consul there get no answer.
NOWHERE = {"CONSUL_HTTP_ADDR": "127.0.0.1:1"}
FLEET = {"controller1": "controller", "compute1": "compute", "compute2": "compute"}


def check(**options: object) -> Task:
    """Return a task that checks instructions."""
    return {CHECK: options}


def test_every_mistake_has_its_key_file_and_line(run: Runner) -> None:
    file = run.folder / "rules.yml"
    file.write_text("rolling_rules:\n  global: two\n  roles:\n    compute: 110%\n    web: 5\nhealth: {soak: 1y}\n")
    inline = {"rolling_rules": {"roles": {"db": -1}}, "stages": [{"hosts": 0}]}

    (found,) = run([check(instructions=inline, instructions_file=str(file))], environ=NOWHERE)

    assert found["failed"]
    assert [(one["key"], one["file"], one["line"]) for one in found["mistakes"]] == [
        ("rolling_rules.roles.db", "", 0),
        ("stages[0].hosts", "", 0),
        ("rolling_rules.global", str(file), 2),
        ("rolling_rules.roles.compute", str(file), 4),
        ("health.soak", str(file), 6),
    ]
    assert found["mistakes"][2]["message"].startswith("rolling_rules.global: 'two' is not a cap.")
    assert found["failure"]["message"].startswith(
        "5 mistakes in the instructions, the first of which is: rolling_rules.roles.db: -1 is"
    )
    assert found["failure"]["code"] == "bad_instructions"


@pytest.mark.thorough
def test_lines_are_known_in_json_too_and_a_file_that_is_none_is_one_mistake(run: Runner) -> None:
    good, bad = run.folder / "rules.json", run.folder / "bad.yml"
    good.write_text('{\n  "rolling_rules": {\n    "fleet": "x"\n  }\n}\n')
    bad.write_text("a: [\n")

    found = run([check(instructions_file=str(file)) for file in (good, bad)], environ=NOWHERE)

    assert [(one["key"], one["line"]) for one in found[0]["mistakes"]] == [("rolling_rules.fleet", 3)]
    assert [(one["key"], one["file"]) for one in found[1]["mistakes"]] == [("", str(bad))]
    assert f"{bad} can't be used" in found[1]["msg"]


@pytest.mark.thorough
def test_rules_that_can_be_read_are_checked_against_the_fleet(run: Runner) -> None:
    stages = [{"name": "canary", "hosts": ["compute9"]}, {"name": "second", "roles": "compte"}]
    typo = {"rolling_rules": {"global": 1, "roles": {"compte": 1}}}
    order = {"controller": "compute"}

    played = run(
        [
            check(instructions={**UNLIMITED, "stages": stages}, fleet=FLEET),
            check(instructions=typo, fleet=FLEET),
            check(instructions={**typo, "optional_names": "compte"}, fleet=FLEET, strict=True),
            check(instructions={"role_order": {"compute": "controller"}}, fleet=FLEET, role_order=order),
            check(instructions={"rolling_rules": {"global": "2"}}, fleet=FLEET, role_order=order),
            check(instructions={"rolling_rules": {"roles": {"compute": 1}}}, fleet=FLEET),
        ],
        environ=NOWHERE,
    )

    assert [one["key"] for one in played[5]["mistakes"]] == ["rolling_rules"]
    assert [one["key"] for one in played[0]["mistakes"]] == ["stages[0].hosts", "stages[1].roles"]
    mistake = "instructions: rolling_rules.roles.compte: no host of this fleet has the role or group 'compte'; did you mean 'compute'?"
    assert [one["message"] for one in played[1]["mistakes"]] == [mistake]
    assert (played[2]["mistakes"], played[2]["remarks"]) == ([], [])
    assert [one["key"] for one in played[3]["mistakes"]] == ["role_order"]
    assert played[4]["rules"] == {"rolling_rules": {"global": 2}, "role_order": {"controller": ["compute"]}}


@pytest.mark.thorough
def test_nothing_to_check_and_a_bad_fleet_are_failures(run: Runner) -> None:
    played = run([check(), check(instructions={}, fleet={"a/b": "web"})], environ=NOWHERE)

    assert [one["failure"]["code"] for one in played] == ["no_instructions", "bad_name"]
    assert "nothing was checked" in played[0]["msg"]


def pipeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the playbook as a pipeline does: without anything of Consul around it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
    return subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", ROOT / "playbooks/check_instructions.yml", *arguments],
        env={**environ, **NOWHERE, "PWD": str(folder), "ANSIBLE_HOME": str(folder / "home"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=90,
        check=False,
    )


@pytest.mark.thorough
def test_a_pipeline_sees_a_line_for_each_mistake_and_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text("rolling_rules: {global: two}\nrolling_rulez: {}\nhealth: {soak: 1y}\n")
    (tmp_path / "inventory.yml").write_text(
        "all:\n  children: {web: {hosts: {web1: }}}\n  vars:\n    upgrade_roles: {web: {plane: dataplane}}\n"
        "    instructions: {rolling_rules: {global: 1}, stages: [{hosts: 100%, soak: 1h}]}\n"
    )

    bad = pipeline(tmp_path, "-e", "instructions_file=rules.yml")
    warned = pipeline(tmp_path, "-i", "inventory.yml")
    strict = pipeline(tmp_path, "-i", "inventory.yml", "-e", "strict=true", "--check")
    typo = pipeline(
        tmp_path, "-i", "inventory.yml", "-e", '{"instructions": {"rolling_rules": {"global": 1, "roles": {"wep": 1}}}}'
    )

    assert bad.returncode == 2, bad.stdout
    shown = [line for line in bad.stdout.splitlines() if "rules.yml:" in line]
    assert [line.partition("rules.yml:")[2].partition(": ")[0] for line in shown] == ["1", "2", "3"], bad.stdout
    assert warned.returncode == 0, warned.stdout
    assert "Warning: instructions: stages[0]: no host of this fleet comes after" in warned.stdout
    assert "No mistake in the instructions: {" in warned.stdout
    assert strict.returncode == 2, strict.stdout
    assert strict.stdout.count("no host of this fleet comes after") == 1, strict.stdout
    assert typo.returncode == 2, typo.stdout
    assert typo.stdout.count("no host of this fleet has the role or group 'wep'") == 1, typo.stdout
