# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent knows of its node: the version file, and when Puppet last ran, which has to outlive the agent."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Optional

# systemd sets it for StateDirectory=convoy; without systemd it is the same folder.
FOLDER = os.environ.get("STATE_DIRECTORY", "/var/lib/convoy")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST_BYTES = 4096


def node_version(path: str) -> Optional[str]:
    """Return the version of the node; empty during an upgrade, None if it never had one.

    A file that can't be read counts as an unfinished upgrade, so that an agent run finds out and reports it.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def is_rebooting(version_file: str) -> bool:
    """Return whether an agent run of this boot has asked for a reboot, after which the upgrade goes on."""
    try:
        words = Path(f"{version_file}.reboot").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    # The version, the kernel that is to run if it is known, and the boot.
    return len(words) in (2, 3) and words[-1] == _boot_id()


class PuppetRuns:
    """When Puppet last ran.

    Within a boot the monotonic clock counts, which no one sets. After a boot the time of day has to do; if it says that the last run was in
    the future, that time is not believed.
    """

    def __init__(self, path: str = f"{FOLDER}/agent.json") -> None:
        """Remember the file."""
        self._path = Path(path)
        self._noted: Optional[float] = None

    def last(self) -> Optional[float]:
        """Return when Puppet last ran, in seconds of the monotonic clock; None if that is not known."""
        if self._noted is not None:
            return self._noted
        try:
            found = json.loads(self._path.read_bytes()[:_MOST_BYTES])
            at, boot, monotonic = float(found["at"]), found["boot"], float(found["monotonic"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        if boot and boot == _boot_id() and monotonic <= time.monotonic():
            return monotonic
        ago = time.time() - at
        return time.monotonic() - ago if ago >= 0 else None

    def note(self, ago: float = 0.0) -> None:
        """Store that Puppet has run. On a full disk, this process still knows it, and the next one lets Puppet run sooner.

        :param ago: how long ago (seconds).
        """
        self._noted = time.monotonic() - ago
        facts = {"at": time.time() - ago, "boot": _boot_id(), "monotonic": self._noted}
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new.write_text(json.dumps(facts), encoding="ascii")
            new.replace(self._path)


def boot_id() -> str:
    """Return the ID of this boot of the node; empty if it is not known."""
    return _boot_id()


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path(_BOOT_ID).read_text(encoding="ascii").strip()
    return ""
