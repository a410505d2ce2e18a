# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-runner, which AWX uses too, ansible-navigator and Semaphore run the playbooks as docs/operating.md shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT, Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.processes.nodes import living_nodes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.shipped import Shipped

pytestmark = [pytest.mark.thorough, pytest.mark.one_release]


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


def test_ansible_navigator_runs_the_command_of_the_documentation(play: Shipped, store: Store, consul: RawKV) -> None:
    """Without an execution environment."""
    hosts = names(web=3)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    text = (ROOT / "docs/operating.md").read_text()
    (command,) = re.findall(r"^(ansible-navigator run .*) --eei=\S+$", text, re.MULTILINE)
    done = by_command(play, [*shlex.split(command), "--ee", "false"])
    assert done.returncode == 0, done.stdout
    assert "Rollout to 2 from 1" in done.stdout
    # By default, it writes a file with all output beside the playbooks of the collection.
    assert [*(ROOT / "playbooks").glob("*artifact*")] == []


def test_the_playbook_for_semaphore_runs_an_upgrade_with_the_variable_of_its_survey(
    play: Shipped, agent: Agent, consul: RawKV
) -> None:
    hosts = names(web=3)
    seed(consul, hosts)
    text = (ROOT / "docs/operating.md").read_text().partition("### Semaphore")[2]
    found = re.search(r"```yaml\n# upgrade\.yml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (play.folder / "upgrade.yml").write_text(found[1])
    (play.folder / "group_vars").mkdir()
    (play.folder / "group_vars/all.yml").write_text(json.dumps({"instructions": {"rolling_rules": {"global": 1}}}))
    # Semaphore gives an inventory, the answers of a survey and the playbook like this.
    given = {"version": "2", "ansible_python_interpreter": sys.executable}
    options = ["-i", "inventory.yml", "--extra-vars", json.dumps(given)]
    with living_nodes(Settings(port=agent.http_port), hosts, "2"):
        done = by_command(play, ["ansible-playbook", *options, "upgrade.yml"])
    assert done.returncode == 0, done.stdout
    assert "3 of 3 hosts upgraded" in done.stdout


def by_runner(play: Shipped, playbook: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook of the collection with ansible-runner."""
    command = [
        "ansible-runner",
        "run",
        str(play.folder),
        "-p",
        f"convoy.upgrade.{playbook}",
        "--inventory",
        str(play.folder / "inventory.yml"),
    ]
    given = {"ansible_python_interpreter": sys.executable, **variables}
    return by_command(play, [*command, "--cmdline", f"-e {shlex.quote(json.dumps(given))}"])


def by_command(play: Shipped, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that is installed beside Python, in a folder with an inventory."""
    (play.folder / "inventory.yml").write_text(json.dumps({"web": {"hosts": dict.fromkeys(names(web=3))}}))
    folder = Path(sys.executable).parent
    return subprocess.run(
        [folder / command[0], *command[1:]],
        cwd=play.folder,
        env={**play.environment(), "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(play.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
