# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments with other libraries than .venv has."""

from __future__ import annotations

import subprocess
import sys

from devkit.agent import ROOT

OLD_LIBRARY = "python-consul==1.1.0"


def environment(name: str, *packages: str) -> str:
    """Return the Python of an environment with these packages, made once and kept for the next time."""
    version = ".".join(map(str, sys.version_info[:2]))
    folder = ROOT / ".cache" / "environments" / f"{name}-{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        if packages:
            command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *packages]
            subprocess.run(command, check=True)
        (folder / "ready").touch()
    return str(python)
