# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How exposed systemd finds a unit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from missing import missing


def exposure(folder: Path, text: str) -> tuple[float, str]:
    """Return how exposed systemd finds a service that is not installed, from 0 to 10, and what it says about each option.

    :param folder: for the unit.
    """
    program = shutil.which("systemd-analyze")
    if program is None:
        missing("no systemd-analyze here")
    file = folder / "convoy-sandbox.service"
    file.write_text(text)
    command = [program, "security", "--offline=true", "--no-pager", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in found.stderr:
        missing("systemd-analyze here is older than release 250")
    level = re.search(r"Overall exposure level .*: (\d+\.\d)", found.stdout)
    assert level is not None, found.stderr
    return float(level[1]), found.stdout


def without(text: str, option: str) -> str:
    """Return a unit without an option that it has once."""
    less, count = re.subn(rf"(?m)^{option}=.*\n", "", text)
    assert count == 1, option
    return less
