# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Alertmanager for a test, and the silences in it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devkit.agent import ROOT
from devkit.child import start, stop
from missing import missing


@contextlib.contextmanager
def running_alertmanager(folder: Path) -> Iterator[str]:
    """Run an Alertmanager with its files in a folder; return its address."""
    found = subprocess.run(
        [ROOT / "tools/monitoring.sh", "prometheus-alertmanager"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        missing(f"no Alertmanager here: {found.stderr}")
    (folder / "config.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        f"--config.file={folder}/config.yml",
        f"--storage.path={folder}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    program = found.stdout.strip()
    # Debian's build reads a template below /usr/share, also if it is unpacked elsewhere.
    share = Path(program).parents[1] / "share"
    mounted = f'mount -t overlay none -o lowerdir={share}:/usr/share /usr/share && exec "$@"'
    command = ["unshare", "--mount", "bash", "-c", mounted, "bash"] if share.joinpath("prometheus").is_dir() else []
    if command and subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        missing("Alertmanager is not installed here, and the unpacked one needs CAP_SYS_ADMIN.")
    process = start([*command, program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 20
        while not _is_ready(url):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield url
    finally:
        stop(process)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def active_silences(url: str, author: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return host and silence for each active silence, as Alertmanager itself returns them.

    :param author: empty for those of all authors.
    """
    with urllib.request.urlopen(f"{url}/api/v2/silences", timeout=5) as answer:
        found = json.load(answer)
    active = [
        one for one in found if one["createdBy"] == (author or one["createdBy"]) and one["status"]["state"] == "active"
    ]
    return [(one["comment"].partition(" is ")[0], one) for one in active]
