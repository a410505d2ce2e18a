# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifier of a run, as the callback knows it, which sees how the run ends whatever becomes of its tasks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...module_utils._common.processes import start_ticks, wait_for_exit

# In its folder: the pipe that it waits at for the end of the run, and what it warns of.
END, WARNINGS = "end", "warnings"

# Of the run: the notifier's process, when that started, and its folder.
_SIGN = "CONVOY_UPGRADE_NOTIFIER"


def remember_notifier(result: Mapping[str, Any]) -> None:
    """Take note of a notifier, from the result of the task that started it."""
    folder, process = result.get("notifier"), result.get("process")
    if isinstance(folder, str) and folder and isinstance(process, int):
        os.environ[_SIGN] = f"{process}:{start_ticks(process)}:{folder}"


def known_notifier() -> tuple[int, str] | None:
    """Return the process and the folder of this run's notifier, None where there is none."""
    process, _colon, rest = os.environ.get(_SIGN, "").partition(":")
    return (int(process), rest.partition(":")[2]) if process else None


def end_notifier() -> list[str]:
    """Let the notifier tell what is left, wait for that, and return what it warns of."""
    process, _colon, rest = os.environ.pop(_SIGN, "").partition(":")
    if not process:
        return []
    started, _colon, folder = rest.partition(":")
    _finish(Path(folder))
    if started.isdigit():
        wait_for_exit(int(process), int(started))
    return _warnings(Path(folder))


def _finish(folder: Path) -> None:
    """Let a notifier tell what is left, and end."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder / END, os.O_WRONLY | os.O_NONBLOCK))


def _warnings(folder: Path) -> list[str]:
    """Return what a notifier warns of, each once."""
    try:
        lines = (folder / WARNINGS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(json.loads(line) for line in lines))
