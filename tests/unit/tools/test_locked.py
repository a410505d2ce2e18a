# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""requirements/locked: exact versions with hashes of all that is required, for every Python that it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from devkit.agent import ROOT
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = ROOT / "requirements"
ALL = ("3.10", "3.11", "3.12", "3.13", "3.14")
# What is installed into .venv, which may have no Python before 3.11, and into environments of their own.
PYTHONS = {"runtime": ALL, "live": ALL, "planner": ALL, "test": ALL[1:], "docs": ALL[1:], "rulebook": ALL[1:]}
EACH = [(kind, python) for kind, pythons in PYTHONS.items() for python in pythons]
# As tools/checks/matrix.sh has them.
MATRIX = {
    "2.17": ALL[:3],
    "2.18": ALL[1:4],
    "2.19": ALL[1:4],
    "2.20": ALL[2:],
    "2.21": ALL[2:],
}
RELEASES = [(release, python) for release, pythons in MATRIX.items() for python in pythons]
FILES = sorted((REQUIREMENTS / "locked").iterdir())


def required(path: Path) -> list[Requirement]:
    """Return what a file requires, without comments and hashes."""
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [Requirement(line.split(" --hash=")[0]) for line in lines if line.strip() and not line.startswith("#")]


def locked(kind: str, python: str) -> dict[str, Requirement]:
    """Return what pip installs with a Python, by its name."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    found: dict[str, Requirement] = {}
    for one in required(REQUIREMENTS / "locked" / f"{kind}.txt"):
        if one.marker is None or one.marker.evaluate(environment):
            assert canonicalize_name(one.name) not in found
            found[canonicalize_name(one.name)] = one
    return found


@pytest.mark.parametrize(("kind", "python"), EACH)
def test_all_that_is_required_is_locked_as_it_is_required(kind: str, python: str) -> None:
    found = locked(kind, python)
    for one in [*required(REQUIREMENTS / "runtime.txt"), *required(REQUIREMENTS / f"{kind}.txt")]:
        (pin,) = found[canonicalize_name(one.name)].specifier
        assert pin.operator == "=="
        assert one.specifier.contains(pin.version), f"run make lock: {one} is required, {pin} is locked"


@pytest.mark.parametrize("python", PYTHONS["test"])
def test_one_environment_can_hold_them_all(python: str) -> None:
    versions: dict[str, set[str]] = {}
    for kind in PYTHONS:
        for name, one in locked(kind, python).items():
            versions.setdefault(name, set()).add(str(one.specifier))
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize(("release", "python"), RELEASES)
def test_each_release_of_the_matrix_is_locked_with_the_tests_own_versions(release: str, python: str) -> None:
    found = locked(f"matrix-{release}", python)
    assert f"=={release}." in str(found["ansible-core"].specifier)
    assert {"py-consul", "pytest", "pytest-xdist", "hypothesis", "jsonschema", "pillow", "pyte", "rich"} <= set(found)
    for one in required(REQUIREMENTS / "test.txt"):
        if canonicalize_name(one.name) in found:
            assert found[canonicalize_name(one.name)].specifier == one.specifier


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_each_has_hashes_and_no_file_names_an_index(path: Path) -> None:
    assert path.stem in {*PYTHONS, *(f"matrix-{release}" for release in MATRIX)}
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(
            r"[\w.-]+==[\w.]+( ; [^;\\]+?)?( +--hash=sha256:[0-9a-f]{64})+", line
        )
    assert "://" not in text


def test_setup_matrix_and_enrolment_install_nothing_else() -> None:
    scripts = [(ROOT / "tools" / name).read_text(encoding="utf-8") for name in ("setup.sh", "checks/matrix.sh")]
    installs = [line for text in scripts for line in text.splitlines() if "-m pip install" in line]
    assert len(installs) == 2
    enrolment = (ROOT / "roles/puppet_gate/tasks/install/build.yml").read_text(encoding="utf-8")
    package = (ROOT / "tools/deb/build.sh").read_text(encoding="utf-8")
    for line in (*installs, enrolment, package):
        assert "--require-hashes --only-binary :all: " in line
