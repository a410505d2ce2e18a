# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that run jobs with the code of the agent and a real command, ``work``."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from convoy_node.jobs.job_run import JobRun
from convoy_node.jobs.spool import Spool
from convoy_node.machine.errors import ConsulError
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings
from devkit.agent import ROOT

SCHEMA = {"timeout": 30, "repeatable": True, "properties": {"grace": {"type": "integer", "maximum": 60}}}


@contextmanager
def command_folder() -> Iterator[Path]:
    """Make a folder that no other user can change, nor those above it, with the schema of the command. Its name has spaces, as a checkout's may."""
    (ROOT / ".cache").mkdir(mode=0o755, exist_ok=True)
    found = Path(tempfile.mkdtemp(prefix="some jobs ", dir=ROOT / ".cache"))
    (found / "commands.d").mkdir(mode=0o755)
    (found / "commands.d/work.json").write_text(json.dumps(SCHEMA))
    try:
        yield found
    finally:
        shutil.rmtree(found)


def install(folder: Path, script: str) -> None:
    """Write the command: it notes its begin and its end, so that two at once are seen."""
    program = folder / "commands.d/work"
    note = shlex.quote(f"{folder}/log")
    program.write_text(
        f"#!/bin/sh\necho begin $CONVOY_HOST >>{note}\n{script}\ncode=$?\necho end $CONVOY_HOST >>{note}\nexit $code\n"
    )
    program.chmod(0o755)


def lines(folder: Path) -> list[str]:
    """Return what the commands have noted so far."""
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


@contextmanager
def running_nodes(
    connections: Connection | Mapping[str, Connection], fleet: Mapping[str, str], folder: Path, **settings: Any
) -> Iterator[None]:
    """Let hosts run jobs meanwhile.

    :param connections: that of all hosts, or host -> its own.
    :param fleet: host -> role.
    :param folder: that of :func:`command_folder`.
    """
    ended = threading.Event()

    def be(host: str) -> None:
        connection = connections if isinstance(connections, Connection) else connections[host]
        mine = NodeSettings(host, fleet[host], connection, {}, commands_dir=str(folder / "commands.d"), **settings)
        spool = Spool(str(folder / f"spool-{host}"))
        while not ended.wait(0.1):
            with suppress(ConsulError):
                JobRun(mine, folder / f"{host}.lock", "test", spool, lambda _line: None).run()

    with ExitStack() as stack:
        for host in fleet:
            thread = threading.Thread(target=be, args=(host,))
            thread.start()
            stack.callback(thread.join, 30)
        stack.callback(ended.set)
        yield
