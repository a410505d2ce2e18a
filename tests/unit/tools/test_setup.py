# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/setup.sh makes .venv with a Python that can be used, and only where there is none yet. It is ended before it installs anything into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from devkit.agent import ROOT
from thorough import quick

pytestmark = pytest.mark.one_release

# Where its functions end.
_END = "install_requirements runtime\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the part of the script that makes .venv."""
    folder = tmp_path / "a checkout"
    (folder / "tools").mkdir(parents=True)
    text = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    before, end, _after = text.partition(_END)
    assert end, text
    (folder / "tools/setup.sh").write_text(before)
    return folder


def call(checkout: Path, path: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {key: value for key, value in os.environ.items() if key != "PYTHON"} | environ
    if path is not None:
        given["PATH"] = path
    return subprocess.run(
        ["/bin/bash", checkout / "tools/setup.sh"], capture_output=True, text=True, check=False, env=given
    )


def made(checkout: Path) -> int:
    return (checkout / ".venv/pyvenv.cfg").stat().st_ino


def test_it_is_made_once(checkout: Path) -> None:
    done = call(checkout, PYTHON=sys.executable)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"setup: making .venv with Python {sys.version.split()[0]} ({sys.executable})\n"
    subprocess.run([checkout / ".venv/bin/python", "-m", "pip", "--version"], check=True, stdout=subprocess.DEVNULL)
    first = made(checkout)
    assert (call(checkout).stdout, made(checkout)) == ("", first)


@pytest.mark.parametrize("fault", quick(1, ["made in part", "moved", "another version", "its Python is gone"]))
def test_one_that_can_t_be_used_is_made_again(fault: str, checkout: Path, tmp_path: Path) -> None:
    assert call(checkout, PYTHON=sys.executable).returncode == 0
    if fault == "made in part":
        (checkout / ".venv/.made").unlink()
    elif fault == "moved":
        checkout = checkout.rename(tmp_path / "moved")
    elif fault == "another version":
        (checkout / ".venv/.made").write_text(f"{checkout} 3.10\n")
    else:
        for link in (checkout / ".venv/bin").glob("python*"):
            link.unlink()
            link.symlink_to(tmp_path / "gone")
    (checkout / ".venv/old").touch()
    done = call(checkout, PYTHON=sys.executable)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "making .venv" in done.stdout
    assert not (checkout / ".venv/old").exists()


@pytest.mark.parametrize("python", ["/no/python", "/bin/false", "no-such-python"])
def test_a_given_python_that_can_t_be_used_is_refused_and_no_other_one_taken(python: str, checkout: Path) -> None:
    done = call(checkout, PYTHON=python)
    assert done.returncode == 1
    assert done.stderr == (
        f"setup: PYTHON is {python}, and no Python 3.11 or later: set it to one, or unset it, and try again.\n"
    )
    assert not (checkout / ".venv").exists()


def test_without_a_python_and_without_apt_the_packages_are_named(checkout: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "id", "cmp"):
        (programs / name).symlink_to(shutil.which(name) or "")
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    done = call(checkout, str(programs))
    assert done.returncode == 1
    assert done.stderr == (
        "setup: needs Python 3.11 or later with its venv module: install it (on Debian and Ubuntu, python3.13-venv, python3.12-venv or"
        " python3.11-venv), or set PYTHON to one, and try again.\n"
    )


def test_the_same_version_of_the_distribution_is_preferred(checkout: Path, tmp_path: Path) -> None:
    """The first one in PATH decides the version, as it is the one that its user chose."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = Path(f"/usr/bin/python{version}")
    has_venv = system.exists() and not subprocess.run([system, "-c", "import ensurepip"], check=False).returncode
    first = tmp_path / "python3"
    first.symlink_to(sys.executable)
    done = call(checkout, f"{tmp_path}:/usr/bin:/bin")
    assert f"({system if has_venv else first})" in done.stdout, done
