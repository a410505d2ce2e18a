# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source in the real ansible-rulebook: a failure in Consul starts the playbook of a rule."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ansible_collections.convoy.upgrade
import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT, Agent
from devkit.child import start, stop
from devkit.kv import RawKV
from missing import missing

pytestmark = [pytest.mark.thorough, pytest.mark.one_release]

SOURCE = ROOT / "extensions/eda/plugins/event_source/rollout.py"
PLAYBOOK = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        content: "{{{{ ansible_eda.event.failures | map(attribute='error') | join(',') }}}}"
        dest: {folder}/errors
        mode: "0644"
    - ansible.builtin.copy:
        content: "{{{{ ansible_eda.event.failures | map(attribute='host') | join(',') }}}}"
        dest: {folder}/collected
        mode: "0644"
"""
_SECONDS = 120
_COLLECTIONS = Path(next(iter(ansible_collections.convoy.upgrade.__path__))).parents[2]


@pytest.fixture(scope="module")
def program() -> str:
    """Return the path of ansible-rulebook."""
    found = subprocess.run([ROOT / "tools/rulebook.sh"], capture_output=True, text=True, check=False)
    if found.returncode:
        missing(f"no ansible-rulebook here: {found.stderr.strip()}")
    return found.stdout.strip()


@contextmanager
def rulebook(program: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Run the rulebook of a folder; give what it has printed so far."""
    environ = {
        **os.environ,
        "PATH": f"{Path(program).parent}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(_COLLECTIONS),
        "ANSIBLE_HOME": str(folder / "home"),
    }
    with (folder / "log").open("w") as log:
        process = start(
            [program, "--rulebook", "rulebook.yml", "--inventory", "inventory", "--verbose"],
            env=environ,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield (folder / "log").read_text
    finally:
        stop(process)


def test_a_failure_starts_the_playbook_of_its_rule(program: str, agent: Agent, consul: RawKV, tmp_path: Path) -> None:
    assert consul.tree() == {}
    (tmp_path / "rulebook.yml").write_text(documented_rulebook(agent.http_port))
    (tmp_path / "collect_logs.yml").write_text(PLAYBOOK.format(folder=tmp_path))
    (tmp_path / "inventory").write_text(
        f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    fleet, store = {"web1": "web", "web2": "web"}, Store(Settings(port=agent.http_port))
    with rulebook(program, tmp_path) as printed:
        wait_for(lambda: "Waiting for events" in printed(), printed)
        make_pass(store, PassRequest("v2", {"rolling_rules": {"global": 1}}, fleet=fleet))
        write_report(store, HostReport("web1", "v2", "started", role="web"))
        write_report(store, HostReport("web1", "v2", "failed", error="no disk {{ 1 + 1 }} {% raw %} {# 5 #}"))
        collected = tmp_path / "collected"
        wait_for(collected.exists, printed)
        assert collected.read_text() == "web1"
        # No host's text is evaluated.
        assert "no disk (( 1 + 1 )) (% raw %) (# 5 #)" in (tmp_path / "errors").read_text()


def documented_rulebook(port: int) -> str:
    """Return the example of the event source, with the Consul of the test."""
    (rulebook,) = yaml.safe_load(runpy.run_path(str(SOURCE))["EXAMPLES"])
    rulebook["sources"][0]["convoy.upgrade.rollout"] |= {"host": "127.0.0.1", "port": port}
    return str(yaml.safe_dump([rulebook]))


def wait_for(condition: Callable[[], object], printed: Callable[[], str]) -> None:
    """Return as soon as the condition holds."""
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until, printed()
        time.sleep(0.1)
