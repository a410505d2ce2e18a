# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""repositories on a node with the real apt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.packages import Package, repository

from .conftest import MakeSteps
from .snapshots import PINS
from .steps import STEPS, Steps, one_line

LIST = "/etc/apt/sources.list.d/fleet.list"


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node, and two versions of a package of the fleet."""
    steps = make_steps({"web1": "web"})
    for version in ("v1", "v2"):
        repository(steps.lab.shared / version, [Package("fleet-tool", f"{version[1:]}.0")])
    (steps.folder / "fleet.list.j2").write_text("deb [trusted=yes] file:/srv/lab/{{ version }} ./\n")
    (steps.folder / "fleet.pref.j2").write_text(PINS)
    return steps


def run(steps: Steps, version: str, *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    files = [
        {"src": "fleet.list.j2", "dest": LIST},
        {"src": str(steps.folder / "fleet.pref.j2"), "dest": "/etc/apt/preferences.d/fleet"},
    ]
    settings = {"repositories_files": files, "upgrade_version": version, **more}
    arguments = ["--check"] if check else []
    return steps.run("repositories", which or STEPS, ["web1"], settings, *arguments, code=code)


def candidate(steps: Steps) -> str:
    """Return the version of the fleet's package that apt would install."""
    lines = steps.lab.nodes["web1"].run("apt-cache", "policy", "fleet-tool").stdout.splitlines()
    return "".join(line.partition("Candidate: ")[2] for line in lines)


@pytest.mark.thorough
def test_the_sources_follow_the_version_and_back(steps: Steps) -> None:
    run(steps, "v1", check=True)
    assert steps.lab.nodes["web1"].read(LIST) is None
    for version in ("v1", "v2", "v1"):
        run(steps, version)
        assert steps.lab.nodes["web1"].read(LIST) == f"deb [trusted=yes] file:/srv/lab/{version} ./\n"
        assert candidate(steps) == f"{version[1:]}.0"


@pytest.mark.thorough
def test_a_second_run_changes_nothing_and_finds_what_was_published_since(steps: Steps) -> None:
    run(steps, "v1")
    assert candidate(steps) == "1.0"
    repository(steps.lab.shared / "v1", [Package("fleet-tool", "1.1")])
    assert "changed=0 " in run(steps, "v1")
    assert candidate(steps) == "1.1"


@pytest.mark.thorough
def test_sources_that_could_not_be_read_are_reported_and_asked_again_by_the_next_run(steps: Steps) -> None:
    shown = one_line(run(steps, "v3", "prepare", code=2))
    assert "web1: the package sources of v3 could not be read: " in shown
    assert f"Check the package sources in {LIST}, /etc/apt/preferences.d/fleet on the host." in shown
    repository(steps.lab.shared / "v3", [Package("fleet-tool", "3.0")])
    run(steps, "v3")
    assert candidate(steps) == "3.0"


@pytest.mark.thorough
def test_a_file_with_a_password_is_readable_and_shown_to_no_one_else(steps: Steps, tmp_path: Path) -> None:
    node = steps.lab.nodes["web1"]
    (tmp_path / "auth.j2").write_text("machine mirror login fleet password not-to-be-seen\n")
    files: list[dict[str, Any]] = [{"src": str(tmp_path / "auth.j2"), "dest": "/etc/apt/auth.conf.d/fleet.conf"}]
    # As YAML reads 0600 without quotes.
    for mode in ("0600", 0o600):
        files[0]["mode"] = mode
        node.run("rm", "-f", files[0]["dest"])
        settings = {"repositories_files": files, "upgrade_version": "v1"}
        shown = steps.run("repositories", ["prepare"], ["web1"], settings, "--diff")
        assert "not-to-be-seen" not in shown
        assert node.run("stat", "--format=%a", files[0]["dest"]).stdout == "600\n"


@pytest.mark.thorough
def test_a_template_that_cannot_be_rendered_is_refused_before_anything_is_touched(steps: Steps, tmp_path: Path) -> None:
    files = [{"src": "nowhere.j2", "dest": LIST}]
    shown = one_line(run(steps, "v1", "validate", code=2, repositories_files=files))
    assert f"web1: {LIST} can't be rendered for v1 from the template nowhere.j2 (repositories_files): " in shown
    assert "The template must be on the control node, with the version as '{{ version }}'." in shown
    (tmp_path / "broken.j2").write_text("deb {{ mirror_of_the_fleet }}/{{ version }} ./\n")
    files = [{"src": str(tmp_path / "broken.j2"), "dest": LIST}]
    shown = one_line(run(steps, "v1", "validate", code=2, repositories_files=files))
    assert "'mirror_of_the_fleet' is undefined" in shown
