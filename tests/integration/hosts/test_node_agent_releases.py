# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent as a process: which of its releases goes on."""

from __future__ import annotations

import json
import os
import signal

import pytest
from devkit.kv import RawKV
from integration.support.processes.agent_process import GATE, RECORD, Node, start_in_run, wait_for
from thorough import quick


def test_a_release_that_an_upgrade_brings_finishes_it_and_becomes_active(consul: RawKV, node: Node) -> None:
    node.install("r2", "--stage")
    (node.folder / "what").write_text("bring")
    consul.put(GATE, "True")
    node.start()
    wait_for(node.says("convoy-node r2 waits"), "the agent is that of the new release")
    assert [run["facts"]["puppet_gate_release"] for run in node.runs] == ["r1", "r2"]
    assert node.active == "r2"
    assert (node.home / "previous").resolve().name == "r1"
    assert not os.path.lexists(node.home / "next")
    assert json.loads(consul.get(RECORD) or b"")["release"] == "r2"


@pytest.mark.parametrize("fault", quick(1, ["no report", "no loop", "no program"]))
def test_a_release_that_can_t_report_is_refused_and_the_one_before_goes_on(
    fault: str, consul: RawKV, node: Node
) -> None:
    node.install("broken", "--stage")
    (node.folder / "what").write_text("bring")
    if fault == "no program":
        (node.home / "releases/broken/bin/convoy-node").write_text("#!/bin/sh\nexit 3\n")
    if fault == "no loop":
        # It could report, but no agent would read the gate after that.
        module = node.home / "releases/broken/agent/convoy_node/resident.py"
        module.write_text(
            module.read_text().replace("def _wait(self, seconds: float) -> None:", "def _waits(self) -> None:")
        )
        program = node.home / "releases/broken/ansible"
        program.write_text(program.read_text().replace('"broken" in release', "False"))
    consul.put(GATE, "True")
    node.start()
    wait_for(node.says("can't report"), "it is refused")
    wait_for(lambda: node.runs[-1]["facts"]["puppet_gate_release"] == "r1" and len(node.runs) > 1, "r1 goes on")
    assert node.active == "r1"
    refused = (node.home / "releases/broken/refused").read_text()
    reasons = {
        "no report": "wrote no report for",
        "no loop": "its convoy-node agent ended with 1",
        "no program": "its convoy-node check ended with 3",
    }
    assert reasons[fault] in refused
    # The next upgrade brings a release that works.
    node.install("r3", "--stage")
    node.stop()
    (node.folder / "version").write_text("")
    node.start()
    wait_for(lambda: node.active == "r3", "r3 is active")
    wait_for(
        lambda: sorted(one.name for one in (node.home / "releases").iterdir()) == ["r1", "r3"], "others are removed"
    )


@pytest.mark.thorough
def test_an_installation_keeps_the_release_of_a_run(consul: RawKV, node: Node) -> None:
    start_in_run(consul, node)
    node.install("r2")
    node.install("r3")
    assert sorted(one.name for one in (node.home / "releases").iterdir()) == ["r1", "r2", "r3"]
    (node.folder / "what").unlink()
    wait_for(node.says("convoy-node r3 waits"), "r3 goes on")
    node.install("r4")
    assert sorted(one.name for one in (node.home / "releases").iterdir()) == ["r3", "r4"]


@pytest.mark.thorough
def test_an_agent_that_is_stopped_in_a_run_goes_on_as_no_other_release(consul: RawKV, node: Node) -> None:
    start_in_run(consul, node)
    node.install("r2")
    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(timeout=20) == 0
    assert not node.says("r2 goes on")()
