# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo`: on a terminal it shows the live view; killed in the middle, it leaves nothing running and nothing lying about."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from integration.support.runs.playbook import wait_until
from terminal import Terminal

# What it is about is not Ansible, so one release will do.
pytestmark = pytest.mark.one_release

ROOT = Path(__file__).resolve().parents[3]


def bearing(mark: str) -> list[str]:
    """Return the processes whose environment has a mark of this test's own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_demonstration_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    # A short name, because Ansible's sockets stand below it, and their paths can't be long.
    temporary = Path(tempfile.mkdtemp(prefix="demo-"))
    mark = f"CONVOY_TEST_DEMO={tmp_path}"
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, ROOT / "tools" / "demo"],
            env={**os.environ, "CONVOY_TEST_DEMO": str(tmp_path), "TMPDIR": str(temporary)},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # A shell that runs the tests in the background lets them ignore what Ctrl-C sends.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        # The real upgrade is on its way: Consul, twelve nodes, Ansible and its module are all running.
        wait_until(lambda: "controller1 upgraded" in log.read_text(), 60, "the upgrade")
        assert len(bearing(mark)) > 14
        process.send_signal(number)
        assert process.wait(20) != 0
        wait_until(lambda: not bearing(mark), 20, "the end of all processes")
        wait_until(lambda: not list(temporary.iterdir()), 5, "the removal of all files")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(temporary)


@pytest.mark.thorough
def test_on_a_terminal_it_shows_the_live_view_and_where_its_page_is(tmp_path: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="demo-"))
    page = ROOT / ".cache/demo/page"
    began = int(time.time())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "CONSUL_"))}
    # The checks of this project are run without colours.
    kept.pop("NO_COLOR", None)
    kept |= {"CONVOY_TEST_DEMO": str(tmp_path), "TMPDIR": str(temporary)}
    # Wide enough for the path of the page.
    demo = Terminal([sys.executable, ROOT / "tools" / "demo"], cwd=tmp_path, env=kept, rows=40, columns=200)
    try:
        demo.wait_for(lambda _screen: f"kept up to date: {(page / 'index.html').as_uri()}" in demo.text, 60)
        # A bar, the count above it, and no lines of tasks.
        screen = demo.wait_for(lambda screen: "of 12 hosts upgraded" in screen and "█" in screen and "░" in screen, 60)
        assert "TASK [" not in screen
        wait_until(lambda: (page / "state.json").exists() and state(page)["at"] >= began, 20, "the page")
        assert state(page)["rollout"]["version"] == "v2"
        assert "<title>Rollout to v2: " in (page / "index.html").read_text()
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end(20) != 0
        wait_until(lambda: not list(temporary.iterdir()), 20, "the removal of all files")
    finally:
        demo.close()
        shutil.rmtree(temporary)


def state(page: Path) -> dict[str, Any]:
    """Return the data of a page."""
    found: dict[str, Any] = json.loads((page / "state.json").read_text())
    return found
