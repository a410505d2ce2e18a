# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with its disk that runs jobs, and the keys of its fleet in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_consul import AgentConsul
from convoy_node.jobs.job_need import needs_run
from convoy_node.jobs.job_run import JobRun
from convoy_node.jobs.spool import Spool
from convoy_node.node.connection import Connection
from convoy_node.node.gate import NodeKeys
from convoy_node.node.settings import NodeSettings

Install = Callable[..., Path]
RECORD, OUTPUT = "upgrade/job_records/web1", "upgrade/job_output/web1"
KEYS = NodeKeys("web1", "web")


class Node:
    """A node with its disk, and the keys of its fleet."""

    def __init__(self, folder: Path, consul: AgentConsul, **settings: Any) -> None:
        self.folder, self.consul = folder, consul
        self.lines: list[str] = []
        connection = Connection(host="127.0.0.1", port=1, token="the token of the node")
        data = {"puppet_gate_lock_timeout": 0.2}
        self.settings = NodeSettings(
            "web1", "web", connection, data, commands_dir=str(folder / "commands.d"), **settings
        )
        self.spool = Spool(str(folder / "spool"))
        self.lock_file = folder / "node.lock"

    def admit(self, identifier: str, command: str = "a", **facts: Any) -> None:
        job = {"id": identifier, "command": command, "expires": int(time.time()) + 600, **facts}
        self.consul.put(f"upgrade/jobs/{identifier}", json.dumps(job))
        self.consul.put("upgrade/current_job", f"job/{identifier}")
        self.consul.put("upgrade/hold/", "")
        self.consul.put("upgrade/job_gates/host/web1", "True", flags=1)

    def run(self) -> int:
        return JobRun(self.settings, self.lock_file, "test", self.spool, self.lines.append).run()

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.consul.data(RECORD)
        return found

    def retry(self) -> None:
        self.consul.put(RECORD, json.dumps({**self.record, "state": "retried"}))


def needs_run_of(node: Node, identifier: str | None = None) -> str:
    return needs_run(KEYS, node.consul, node.spool, identifier)[0]
