# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo`: upgrade twelve simulated pull hosts with the real playbook and a throw-away Consul."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from devkit.agent import Agent
from devkit.child import start, stop
from devkit.guard import run_guarded

OLD, NEW = "v1", "v2"
PAGE = ROOT / ".cache" / "demo" / "page"

ACTS = [
    ("The plan (--check writes nothing):", "upgrade", ["-e", f"version={NEW}", "--check"]),
    (
        f"The upgrade to {NEW}: controllers first, one at a time, then the computes, three at a time.",
        "upgrade",
        ["-e", f"version={NEW}"],
    ),
    ("One host explained:", "status", ["-e", "host=compute9"]),
    ("The state of the fleet:", "status", []),
]


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def playbook(nodes: subprocess.Popen[bytes], folder: Path, name: str, *more: str) -> int:
    """Run one of the collection's playbooks while the nodes run, and return its exit code."""
    command = ["ansible-playbook", f"playbooks/{name}.yml", "-i", "tools/demo/inventory.yml", *more]
    say(f"$ {' '.join(command)}")
    environ = {
        **os.environ,
        "ANSIBLE_DISPLAY_OK_HOSTS": "false",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        "ANSIBLE_HOME": str(folder / "ansible"),
    }
    if sys.stdout.isatty():
        # The live view.
        environ.setdefault("ANSIBLE_CONFIG", str(HERE / "ansible.cfg"))
    command[0] = str(Path(sys.executable).parent / command[0])
    process = start(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL)
    try:
        while nodes.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(0.5)
        return 1
    finally:
        stop(process)


def show_fleet(folder: Path) -> int:
    """Upgrade the fleet; return the exit code."""
    say("A throw-away Consul agent starts on free ports.")
    with Agent() as agent:
        os.environ.update(agent.environ)
        say(f"3 controllers and 9 computes start as nodes at {OLD}. Each reads its gate, upgrades and reports.")
        ready, done = os.pipe()
        nodes = start([sys.executable, HERE / "nodes.py", OLD, str(done)], pass_fds=[done], stdin=subprocess.DEVNULL)
        os.close(done)
        if os.read(ready, 1) != b"!":
            return nodes.wait() or 1
        PAGE.mkdir(parents=True, exist_ok=True)
        page = start([sys.executable, HERE / "page.py", PAGE], stdin=subprocess.DEVNULL)
        say(f"A page of this fleet for your browser, kept up to date: {(PAGE / 'index.html').as_uri()}")
        for words, name, arguments in ACTS:
            say(words)
            code = playbook(nodes, folder, name, *arguments)
            if code:
                return code
        stop(nodes)
        stop(page)
    return 0


def main() -> int:
    """Run the demonstration, and remove all its processes and files."""
    folder = Path(tempfile.mkdtemp(prefix="convoy-demo-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return run_guarded(lambda: show_fleet(folder), folder)


if __name__ == "__main__":
    sys.exit(main())
