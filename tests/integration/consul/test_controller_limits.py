# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a controller: memory that runs out, a result that is cut off, and one bad name among a hundred thousand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import seed
from integration.support.runs.playbook import Runner, info, plan
from integration.support.runs.shipped import Shipped

pytestmark = pytest.mark.one_release

RULES = {"rolling_rules": {"global": 1}}
# What the process has after its imports, and 4 MiB; some thousand hosts need more.
_SHORT_OF_MEMORY = """
import resource, sys
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

store = Store(Settings(port=int(sys.argv[1])))
store.epochs()
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (4 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 1}}))
except UpgradeError as error:
    print(error.as_text())
"""


@pytest.mark.thorough
def test_if_memory_runs_out_nothing_is_written_and_the_cause_is_named(agent: Agent, consul: RawKV) -> None:
    consul.load((f"running/versions/1/compute{number}", "1789000000") for number in range(20_000))
    before = consul.tree()
    ended = subprocess.run(
        [sys.executable, "-c", _SHORT_OF_MEMORY, str(agent.http_port)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stdout.startswith(
        "[out_of_memory] Memory ran out while the fleet was read and planned. Nothing was written. "
    ), ended.stderr
    assert consul.tree() == before


@pytest.mark.thorough
def test_a_result_that_is_cut_off_is_a_failure_that_says_so(run: Runner, consul: RawKV, tmp_path: Path) -> None:
    seed(consul, {"compute1": "compute"})
    cut = tmp_path / "python"
    cut.write_text(f'#!/bin/sh\n{sys.executable} "$@" | head -c 300\n')
    cut.chmod(0o755)
    before = consul.tree()
    found, checked = run([info(), plan(version="2", instructions=RULES)], check=True, python=str(cut))
    for name, result in (("consul_upgrade_info", found), ("consul_upgrade_plan", checked)):
        # Ansible prints a line feed before it.
        assert result["msg"].startswith(f"[unreadable_result] {name}: its result is cut off or damaged after 299 ")
        assert "Nothing was written." in result["msg"]
    assert consul.tree() == before
    (made,) = run([plan(version="2", instructions=RULES)], python=str(cut))
    assert "What it had written until then obeys the rules." in made["msg"]


@pytest.mark.thorough
def test_a_module_that_ends_without_a_result_shows_what_it_printed(run: Runner, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no space left on device' >&2\nexit 28\n")
    broken.chmod(0o755)
    (result,) = run([info()], python=str(broken))
    assert result["msg"].startswith(
        "[unreadable_result] consul_upgrade_info: it ended without a result (exit code 28): no space left on device "
    )


@pytest.mark.thorough
def test_one_bad_name_among_100_000_hosts_is_named_and_nothing_is_written(play: Shipped, consul: RawKV) -> None:
    consul.put("current_version", "1")
    before = consul.tree()
    hosts = {"web": ["web[1:100000]", "rack1/web7"]}
    done = play("upgrade", inventory=hosts, version="2", instructions=RULES, upgrade_roles={"web": {}})
    assert done.returncode == 2
    assert "[bad_name] fleet: the host 'rack1/web7' has a '/'" in done.stdout
    assert consul.tree() == before
