# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent as a process, on a node without a machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devkit.agent import ROOT
from devkit.child import start, stop
from devkit.kv import RawKV

HOST = "compute7"
GATE = f"config_state/enable_puppet/host/{HOST}"
EVERYWHERE = "config_state/enable_puppet/global"
WAKE = f"upgrade/wake/{HOST}"
RECORD = f"upgrade/hosts/{HOST}"

# What stands for Ansible: it notes its call, and reports as an agent run does, unless it is instructed otherwise. "#!" takes no path
# with spaces, so the shell starts Python with this file. For Python, the second line is a string.
PROGRAM = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import json, os, sys, time, urllib.request
from pathlib import Path
folder = Path({folder!r})
if sys.argv[1] == "-c":
    sys.exit("ModuleNotFoundError: No module named 'ansible'" if (folder / "another_python").exists() else 0)
facts = {{}}
for name, value in zip(sys.argv, sys.argv[1:]):
    if name == "-e":
        text = Path(value[1:]).read_text() if value.startswith("@") else value
        facts.update(json.loads(text))
output = [os.readlink("/proc/self/fd/%s" % number) for number in (1, 2)]
call = {{"argv": sys.argv[1:], "facts": facts, "environ": dict(os.environ), "output": output, "at": time.time(), "pid": os.getpid()}}
with (folder / "runs").open("a") as out:
    out.write(json.dumps(call) + "\\n")
def instruction():
    return (folder / "what").read_text() if (folder / "what").exists() else "report"
what = instruction()
while what in ("wait", ""):
    time.sleep(0.02)
    what = instruction()
release = facts["puppet_gate_release"]
if what == "fail" or facts.get("puppet_gate_unusable"):
    sys.exit(2)
if what == "bring" and release == "r1":
    home = Path(facts["puppet_gate_home"])
    (home / "trial").write_text((home / "next").resolve().name + " " + facts["puppet_gate_run"] + "\\n")
    (folder / "version").write_text("")
    sys.exit(0)
if what != "silence" and not (what == "bring" and "broken" in release):
    root = "http://%s:%s/v1/kv/" % ("127.0.0.1", facts["upgrade_consul_port"])
    version = urllib.request.urlopen(root + "current_version?raw").read().decode()
    record = json.dumps({{"version": version, "state": "upgraded", "release": release}}).encode()
    urllib.request.urlopen(urllib.request.Request(root + "upgrade/hosts/" + {host!r}, record, method="PUT"))
    (folder / "version").write_text(version + "\\n")
"""


class Node:
    """A node without a machine: a folder with settings, releases and what its agent has done."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.home = folder / "opt"
        self.settings = {
            "puppet_gate_host": HOST,
            "puppet_gate_role": "compute",
            "puppet_gate_version_file": str(folder / "version"),
            "puppet_gate_lock_file": str(folder / "run/node.lock"),
            "puppet_gate_health": False,
            "upgrade_consul_port": port,
        }
        self.file = folder / "node.json"
        self.write()
        self.at("v1")
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []

    def write(self, **settings: Any) -> None:
        """Write the settings, with these on top."""
        self.file.write_text(json.dumps({**self.settings, **settings}))

    def at(self, version: str) -> None:
        """Let the node be at a version."""
        (self.folder / "version").write_text(f"{version}\n")

    def release(self, name: str, python: str | None = None) -> Path:
        """Return the folder of a new release, which is not installed."""
        folder = self.folder / "new" / name
        shutil.copytree(
            ROOT / "agent", folder / "agent", ignore=shutil.ignore_patterns("__pycache__", ".*", "ruff.toml")
        )
        program = folder / "ansible"
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(self.folder), host=HOST))
        program.chmod(0o755)
        (folder / "release.json").write_text(json.dumps({"name": name, "python": "ansible"}))
        (folder / "bin").mkdir()
        starter = folder / "bin/convoy-node"
        starter.write_text(
            f'#!/bin/sh\nexec "{python or sys.executable}" -I "{self.home}/releases/{name}/agent" "$@"\n'
        )
        starter.chmod(0o755)
        return folder

    def install(self, name: str, *more: str) -> str:
        """Install a release, as enrolment and a package do."""
        folder = self.release(name)
        command = [sys.executable, folder / "agent", "install", folder, "--home", self.home, *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def command(self, *words: str) -> list[str]:
        return [str(self.home / "current/bin/convoy-node"), "--settings", str(self.file), *words]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "STATE_DIRECTORY": str(self.folder / "state"), "PYTHONUNBUFFERED": "1"}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environ, check=False, timeout=60
        )

    def start(self, **environ: str) -> None:
        """Start the agent."""
        self.process = start(
            self.command("agent"),
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        lines = self.process.stdout
        threading.Thread(target=lambda: self.lines.extend(lines), daemon=True).start()

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)
        self.process = None

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.folder / "runs"
        # A run that writes its line at this moment has not finished it.
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def active(self) -> str:
        return (self.home / "current").resolve().name

    def says(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in list(self.lines))


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20) -> float:
    """Return the time at which the condition held (unix seconds)."""
    until = time.time() + seconds
    while not condition():
        assert time.time() < until, f"{what}: not within {seconds} s"
        time.sleep(0.01)
    return time.time()


def admit(consul: RawKV) -> None:
    """Admit the node as planners do."""
    consul.put(GATE, "True")
    consul.put(WAKE, str(time.time()))


def start_in_run(consul: RawKV, node: Node) -> None:
    """Start the agent of an admitted node, whose agent run lasts until the file ``what`` is removed."""
    consul.put(GATE, "True")
    (node.folder / "what").write_text("wait")
    node.start()
    wait_for(lambda: node.runs, "a run")
