# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of jobs share: a folder that only this user can change, commands in it, and the keys of a fleet in memory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_consul import AgentConsul
from convoy_node.jobs import job_run
from devkit.agent import ROOT
from job_node import Node


@pytest.fixture
def trusted() -> Iterator[Path]:
    """A folder below folders that no other user can change; /tmp is not such a one. Its name has spaces, as a checkout's may."""
    (ROOT / ".cache").mkdir(mode=0o755, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="some jobs ", dir=ROOT / ".cache"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def install(trusted: Path) -> Callable[..., Path]:
    """Install a command: its shell script, and its schema."""
    folder = trusted / "commands.d"
    folder.mkdir(mode=0o755)

    def new(name: str, script: str, **schema: Any) -> Path:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        (folder / f"{name}.json").write_text(json.dumps(schema))
        (folder / f"{name}.json").chmod(0o644)
        return program

    return new


@pytest.fixture
def consul() -> AgentConsul:
    return AgentConsul()


@pytest.fixture
def node(trusted: Path, consul: AgentConsul, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(job_run, "Consul", lambda _connection: consul)
    monkeypatch.setattr(job_run, "_REPORT_SECONDS", 0.0)
    return Node(trusted, consul)
