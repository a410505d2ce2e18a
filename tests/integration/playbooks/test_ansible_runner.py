# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-runner, which AWX and ansible-navigator use too, runs the playbooks as docs/operating.md shows."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.nodes import living_nodes
from integration.support.runs.shipped import Shipped

pytestmark = [pytest.mark.thorough, pytest.mark.one_release]

RUNNER = Path(sys.executable).with_name("ansible-runner")


def test_it_runs_an_upgrade_and_the_status_after_it(play: Shipped, agent: Agent, consul: RawKV) -> None:
    hosts = names(web=3)
    seed(consul, hosts)
    with living_nodes(Settings(port=agent.http_port), hosts, "2"):
        done = by_runner(play, "upgrade", version="2", instructions={"rolling_rules": {"global": 1}})
    assert done.returncode == 0, done.stdout
    assert ledger(consul)["state"] == "complete"
    assert "3 of 3 hosts upgraded" in done.stdout
    status = by_runner(play, "status")
    assert status.returncode == 0, status.stdout
    assert "Rollout to 2 from 1" in status.stdout


def test_a_refusal_is_its_exit_code_and_ends_with_the_next_command(play: Shipped, consul: RawKV) -> None:
    seed(consul, names(web=3))
    refused = by_runner(play, "upgrade", version="2", instructions={"rolling_rules": {"roles": {"wbe": 1}}})
    assert refused.returncode != 0
    assert "[unknown_names]" in refused.stdout
    assert "Next: ansible-playbook " in refused.stdout.strip().splitlines()[-1]


def by_runner(play: Shipped, playbook: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook of the collection with ansible-runner."""
    hosts = play.folder / "inventory.yml"
    hosts.write_text(json.dumps({"web": {"hosts": dict.fromkeys(names(web=3))}}))
    given = shlex.quote(json.dumps({"ansible_python_interpreter": sys.executable, **variables}))
    command = [RUNNER, "run", play.folder, "-p", f"convoy.upgrade.{playbook}", "--inventory", hosts]
    return subprocess.run(
        [*map(str, command), "--cmdline", f"-e {given}"],
        env={**play.environment(), "PATH": f"{RUNNER.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
