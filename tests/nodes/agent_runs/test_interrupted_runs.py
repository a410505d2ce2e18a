# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agent runs that reboots, power cuts, kills, locks and a dead Consul interrupt."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest
from devkit.child import stop
from lab.node import Node

from ..fleet import Fleet, wait_for
from .one_node import (
    FACTS,
    GATE,
    HOOK,
    NODE,
    RELEASE,
    SETTINGS,
    SOURCES,
    agent_run,
    bring_to,
    changed,
    next_run_works,
    start_agent_run,
    stop_agent,
)

pytestmark = pytest.mark.thorough


HOOKS = ("drain", "before", "after", "undrain")
ASKS = "[ -e /root/asked ] || touch /root/asked /run/reboot-required\n"


def test_hooks_run_in_order_and_an_upgrade_goes_on_after_a_reboot(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    good = node.read(SETTINGS) or ""
    for name in HOOKS:
        node.write(f"/etc/convoy/hooks/{name}.d/10-note", HOOK % name + (ASKS if name == "after" else ""), 0o755)
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_reboot": "file"}))
    first = node.first_process
    try:
        fleet.consul.put("current_version", "v2")
        fleet.consul.put(GATE, "True")
        node.run("systemctl", "start", "convoy-node.service")
        wait_for(lambda: node.is_up and node.first_process != first, "it reboots")
        assert fleet.record(NODE)["state"] == "started"
        wait_for(lambda: fleet.record(NODE)["state"] == "upgraded", "it carries on after the boot")
        assert fleet.version_of(NODE) == "v2"
        once = [f"{name} {NODE} v2" for name in ("drain", "before", "after")]
        assert (node.read("/root/hooks") or "").splitlines() == [*once, *once, f"undrain {NODE} v2"]
        record = fleet.record(NODE)
        assert (record["state"], record["attempt"], record.get("failures")) == ("upgraded", 1, None)
        assert node.read("/etc/convoy/version.reboot") is None
    finally:
        node.wait(22)
        stop_agent(node)
        node.run("rm", "-rf", "/root/hooks", "/root/asked", *(f"/etc/convoy/hooks/{name}.d/10-note" for name in HOOKS))
        node.write(SETTINGS, good)


LOCK = """\
import fcntl, os, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/root/locked", "w").close()
while os.path.exists("/root/locked"):
    time.sleep(0.1)
"""


def test_a_lock_of_dpkg_is_waited_for_and_spends_no_failure(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    holder = subprocess.Popen(node.command("timeout", "120", "python3", "-c", LOCK))
    try:
        wait_for(lambda: node.read("/root/locked") is not None, "the lock is taken")
        process = start_agent_run(node)
        wait_for(lambda: node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v2 ./\n", "the packages come next")
        # Long enough for dpkg to be refused, and to be tried again.
        time.sleep(4)
        assert process.poll() is None
        assert fleet.record(NODE)["state"] == "started"
    finally:
        node.run("rm", "-f", "/root/locked")
        holder.wait(timeout=30)
    shown, _none = process.communicate(timeout=180)
    assert process.returncode == 0, shown
    assert fleet.version_of(NODE) == "v2"
    record = fleet.record(NODE)
    assert (record["attempt"], record.get("failures")) == (1, None)


def test_an_upgrade_that_has_begun_leaves_no_version_until_it_ends(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write("/etc/convoy/version", "")
    node.run("rm", RELEASE)
    node.run("systemctl", "stop", "consul")
    try:
        away = agent_run(fleet, "-e", "upgrade_consul_timeout=0.5", "-e", '{"puppet_gate_bootstrap": true}')
    finally:
        node.run("systemctl", "start", "consul")
    assert "An upgrade of this node has not ended" in away
    assert node.read(RELEASE) is None
    wait_for(lambda: fleet.agent_run(NODE).returncode == 0 and fleet.version_of(NODE) == "v1", "the next run ends it")
    assert node.read(RELEASE) == "manifest v1 on v1\n"


def test_a_failure_that_cannot_reach_consul_is_reported_on_the_node(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_agent_run(node)
    wait_for(lambda: node.read("/root/validating") is not None, "it validates")
    node.run("systemctl", "stop", "consul")
    node.run("rm", "/root/slow")
    shown, _none = process.communicate(timeout=60)
    node.run("systemctl", "start", "consul")
    assert process.returncode == 2, shown
    assert "step report: [unreachable] Consul at http://127.0.0.1:8500 can't be reached" in shown
    assert "It could not be reported to Consul: Consul at" in shown
    assert fleet.version_of(NODE) is None
    wait_for(lambda: next_run_works(fleet), "the next agent run makes up for it")
    assert fleet.reported("v2") == {NODE}


def last_run(node: Node) -> str:
    """Return what the last agent run noted. /run is in memory: it is not among the files of the node that the lab sees."""
    return node.run("cat", "/run/convoy/last_run").stdout


def test_two_runs_at_once_don_t_happen(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_agent_run(node)
    wait_for(lambda: node.read("/root/validating") is not None, "it validates")
    shown = agent_run(fleet)
    assert f"the run of root@{NODE} (process " in shown
    assert "has the lock of this node. Nothing is done." in shown
    assert changed(shown) == 0
    # So the agent does not count it as a run of Puppet.
    assert last_run(node) == "locked\n"
    over_ssh = fleet.play("node", "--limit", NODE)
    assert f"the run of root@{NODE} (process " in over_ssh
    node.run("rm", "/root/slow")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert last_run(node) == "ended\n"
    assert fleet.record(NODE)["attempt"] == 1


def test_a_run_that_was_killed_leaves_no_lock(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_agent_run(node)
    wait_for(lambda: node.read("/root/validating") is not None, "it validates")
    node.run("pkill", "-9", "-f", "ansible playbook")
    stop(process)
    node.run("pkill", "-9", "-f", "validation.d", check=False)
    node.run("rm", "-f", "/root/slow")
    agent_run(fleet)
    assert fleet.version_of(NODE) == "v2"
    assert fleet.record(NODE)["state"] == "upgraded"


@pytest.mark.parametrize(
    ("state", "gate", "schedule"),
    [("started", "True", "agent"), ("started", "False", "agent"), ("failed", "True", "external")],
    ids=["killed", "killed-and-closed", "failed-and-external"],
)
def test_a_node_whose_record_does_not_say_that_it_is_well_reports_and_repeats_no_upgrade(
    state: str, gate: str, schedule: str, fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    bring_to(fleet, "v2")
    ended, good = fleet.record(NODE), node.read(SETTINGS) or ""
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_puppet_schedule": schedule}))
    fleet.consul.put(GATE, gate)
    facts = node.run("stat", "-c", "%Y", FACTS).stdout
    for name in HOOKS:
        node.write(f"/etc/convoy/hooks/{name}.d/10-note", HOOK % name, 0o755)
    try:
        # As after the version file and before the report, or after a run of Puppet that failed later.
        fleet.consul.put(f"upgrade/hosts/{NODE}", json.dumps({**ended, "state": state}))
        node.run("systemctl", "start", "convoy-node.service")
        wait_for(lambda: fleet.record(NODE)["state"] == "upgraded", "it reports")
        assert fleet.record(NODE)["attempt"] == ended["attempt"]
        assert (fleet.version_of(NODE), node.read("/root/hooks")) == ("v2", None)
        assert node.run("stat", "-c", "%Y", FACTS).stdout == facts
    finally:
        stop_agent(node)
        node.write(SETTINGS, good)
        node.run("rm", "-rf", "/root/hooks", *(f"/etc/convoy/hooks/{name}.d/10-note" for name in HOOKS))


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda node: node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v2 ./\n", id="sources"),
        pytest.param(lambda node: "fleet-service_2.0" in (node.read("/var/log/apt/term.log") or "")
                     or node.run("pgrep", "-x", "dpkg", check=False).stdout, id="packages"),
        pytest.param(lambda node: node.run("pgrep", "-f", "puppet apply", check=False).stdout, id="puppet"),
        pytest.param(lambda node: node.read("/root/validating") is not None, id="validation"),
    ],
)  # fmt: skip
def test_a_run_that_a_power_cut_ends_is_done_by_the_next(fleet: Fleet, node: Node, moment: Any) -> None:
    bring_to(fleet, "v1")
    node.run("rm", "-f", "/var/log/apt/term.log", FACTS)
    node.write("/root/slow", "")
    fleet.consul.put("current_version", "v2")
    process = start_agent_run(node)
    until = time.monotonic() + 240
    while not moment(node):
        assert time.monotonic() < until
        # The question itself takes processor time from the node.
        time.sleep(0.1)
    node.kill()
    stop(process)
    assert fleet.record(NODE)["state"] == "started"
    assert fleet.version_of(NODE) is None
    node.boot()
    node.wait(22)
    stop_agent(node)
    node.run("rm", "-f", "/root/slow", "/root/validating")
    wait_for(lambda: node.run("curl", "-sf", "http://127.0.0.1:8500/v1/status/leader", check=False).stdout, "Consul")
    wait_for(lambda: next_run_works(fleet), "the next agent run does it")
    assert fleet.record(NODE)["state"] == "upgraded"
    assert node.read(RELEASE) == "manifest v2 on v2\n"
    assert node.run("dpkg-query", "-W", "-f", "${Version}", "fleet-service").stdout == "2.0"
    assert node.run("dpkg", "--audit").stdout == ""


def test_a_node_is_in_maintenance_during_its_upgrade_whatever_ends_the_run(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    good = node.read(SETTINGS) or ""
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_maintenance": True}))
    bad_hook = "/etc/convoy/hooks/after.d/10-bad"

    def is_away() -> bool:
        return fleet.checks(NODE).get("_node_maintenance", ("",))[0] == "critical"

    try:
        fleet.consul.put("current_version", "v2")
        # Its own Consul agent can't be asked, so nothing begins.
        elsewhere = json.dumps({"puppet_gate_agent": {"port": 9}, "puppet_gate_health": False})
        shown = agent_run(fleet, "-e", elsewhere, "-e", "upgrade_consul_timeout=1", code=2)
        assert f"The maintenance mode of {NODE} in Consul could not be begun, so nothing was changed on it" in shown
        record = fleet.record(NODE)
        assert (record["state"], record["step"]) == ("failed", "maintenance")
        assert node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v1 ./\n"
        assert fleet.version_of(NODE) == "v1"
        # It fails.
        node.write(bad_hook, "#!/bin/sh\nexit 3\n", 0o755)
        agent_run(fleet, code=2)
        assert fleet.record(NODE)["step"] == "after"
        wait_for(lambda: not is_away(), "the node that failed is back")
        node.run("rm", bad_hook)
        # It is killed, and then the power goes.
        node.write("/root/slow", "")
        process = start_agent_run(node)
        wait_for(lambda: node.read("/root/validating") is not None, "it validates")
        wait_for(is_away, "it is in maintenance")
        node.run("pkill", "-9", "-f", "ansible playbook")
        stop(process)
        assert is_away()
        node.run("rm", "-f", "/root/validating")
        node.kill()
        node.boot()
        node.wait(22)
        wait_for(lambda: node.read("/root/validating") is not None, "it goes on after the boot")
        wait_for(is_away, "it is in maintenance again")
        node.run("rm", "/root/slow")
        wait_for(lambda: fleet.record(NODE)["state"] == "upgraded", "it is upgraded")
        wait_for(lambda: not is_away(), "it is back")
    finally:
        stop_agent(node)
        node.run("rm", "-f", "/root/slow", bad_hook)
        node.write(SETTINGS, good)


RUNS_OF_HOOKS = [f"{name} {NODE} v2" for name in HOOKS]
# A hook waits where the test has to strike. It is after Puppet, and before the report.
WAITS = "touch /root/held\nwhile [ -e /root/hold/%s ]; do sleep 0.1; done\nrm -f /root/held\n"


def strike(node: Node, *units: str) -> None:
    """Kill all processes of units at once."""
    node.run("systemctl", "kill", "--signal=KILL", *units)


def main_process(node: Node) -> str:
    return node.run("systemctl", "show", "--value", "--property=MainPID", "convoy-node.service").stdout.strip()


def test_an_agent_that_is_killed_at_each_stage_lets_its_run_end_and_starts_no_other(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    for name in HOOKS:
        node.write(f"/etc/convoy/hooks/{name}.d/10-note", HOOK % name + WAITS % name, 0o755)
    try:
        fleet.consul.put("current_version", "v2")
        fleet.consul.put(GATE, "True")
        for stage in HOOKS:
            node.write(f"/root/hold/{stage}", "")
        node.run("systemctl", "start", "convoy-node.service")
        # Before anything is changed, before the packages, after Puppet, and before the report.
        for count, stage in enumerate(HOOKS, 1):
            hooks = RUNS_OF_HOOKS[:count]
            wait_for(lambda hooks=hooks: notes(node) == hooks, f"the run waits at {hooks[-1]}")
            killed = main_process(node)
            strike(node, "convoy-node.service")
            wait_for(lambda killed=killed: main_process(node) not in ("0", killed), "systemd starts the agent again")
            assert fleet.record(NODE)["state"] == "started"
            node.run("rm", f"/root/hold/{stage}")
        wait_for(lambda: fleet.reported("v2") == {NODE}, "the run has ended")
        assert notes(node) == RUNS_OF_HOOKS
        record = fleet.record(NODE)
        assert (record["attempt"], record.get("failures"), fleet.version_of(NODE)) == (1, None, "v2")
    finally:
        stop_agent(node)
        clear_hooks(node)


def test_an_agent_that_hangs_is_started_again_and_upgrades_the_node(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    unit, folder = "convoy-node.service", "/etc/systemd/system/convoy-node.service.d"
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "False")
    node.write(f"{folder}/watchdog.conf", "[Service]\nWatchdogSec=10\n")
    try:
        node.run("systemctl", "daemon-reload")
        node.run("systemctl", "start", unit)
        wait_for(lambda: fleet.consul.get(f"upgrade/wake/{NODE}"), "its agent waits")
        hung = main_process(node)
        node.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", unit)
        fleet.consul.put(GATE, "True")
        fleet.consul.put(f"upgrade/wake/{NODE}", "1")
        wait_for(lambda: fleet.reported("v2") == {NODE}, "the agent that systemd started again upgrades it")
        assert main_process(node) not in ("0", hung)
        assert "Watchdog timeout" in node.run("journalctl", "-o", "cat", "-u", unit).stdout
        assert fleet.record(NODE)["attempt"] == 1
    finally:
        stop_agent(node)
        node.run("rm", "-rf", folder)
        node.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("stage", ["start", "puppet", "report"])
def test_an_agent_and_its_run_that_are_killed_are_made_up_for_by_one_run(stage: str, fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    for name in HOOKS:
        node.write(
            f"/etc/convoy/hooks/{name}.d/10-note", HOOK % name + (WAITS % name if name == "undrain" else ""), 0o755
        )
    node.write("/root/hold/undrain", "")
    node.run("rm", "-f", FACTS)
    moments: dict[str, Any] = {
        "start": lambda: node.run("pgrep", "-f", "ansible playbook", check=False).stdout,
        "puppet": lambda: node.run("pgrep", "-f", "puppet apply", check=False).stdout,
        "report": lambda: node.read("/root/held") is not None,
    }
    try:
        fleet.consul.put("current_version", "v2")
        fleet.consul.put(GATE, "True")
        node.run("systemctl", "start", "convoy-node.service")
        wait_for(moments[stage], f"the run is at {stage}")
        strike(node, "convoy-node.service", "convoy-node-run.service")
        before = notes(node)
        assert (fleet.record(NODE).get("version") == "v2") == (stage != "start")
        assert fleet.record(NODE).get("state") in ((None, "upgraded") if stage == "start" else ("started",))
        assert fleet.version_of(NODE) == ("v1" if stage == "start" else None)
        assert fleet.reported("v2") == set()
        node.run("rm", "-rf", "/root/hold")
        wait_for(lambda: fleet.reported("v2") == {NODE}, "the next run does it")
        assert notes(node) == [*before, *RUNS_OF_HOOKS]
        record = fleet.record(NODE)
        assert (record["attempt"], record.get("failures"), fleet.version_of(NODE)) == (1, None, "v2")
        assert node.read(RELEASE) == "manifest v2 on v2\n"
    finally:
        stop_agent(node)
        clear_hooks(node)


def notes(node: Node) -> list[str]:
    """Return which hooks have run."""
    return (node.read("/root/hooks") or "").splitlines()


def clear_hooks(node: Node) -> None:
    files = [f"/etc/convoy/hooks/{name}.d/10-note" for name in HOOKS]
    node.run("rm", "-rf", "/root/hooks", "/root/hold", "/root/held", *files)
