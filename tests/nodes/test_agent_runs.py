# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent runs of one node in each situation. Its resident agent is stopped, so that each run is seen."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from devkit.agent import consul_binary
from devkit.child import stop
from lab.node import Node

from .conftest import MakeFleet
from .fleet import RUNTIME, Fleet, wait_for
from .snapshots import publish

pytestmark = pytest.mark.thorough

NODE = "compute1"
GATE = f"config_state/enable_puppet/host/{NODE}"
FACTS = "/etc/facter/facts.d/convoy.txt"
SOURCES = "/etc/apt/sources.list.d/fleet.list"
RELEASE = "/etc/fleet-release"
# Where Puppet's lock may be, by its packages.
FOLDERS = ("/var/lib/puppet/state", "/var/cache/puppet/state", "/opt/puppetlabs/puppet/cache/state")
SLOW = "#!/bin/sh\ntouch /root/validating\nwhile [ -e /root/slow ]; do sleep 0.1; done\nrm -f /root/validating\n"


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """One host, enrolled while its gate is closed."""
    fleet = make_fleet({NODE: "compute"})
    fleet.consul.put(GATE, "False")
    fleet.enroll(puppet_gate_interval=100000)
    node = fleet.lab.nodes[NODE]
    wait_for(lambda: fleet.consul.get(f"upgrade/wake/{NODE}"), "its agent waits")
    stop_agent(node)
    node.write("/etc/convoy/validation.d/10-slow", SLOW, 0o755)
    publish(fleet.lab.shared, "v3", service="v2.9")
    return fleet


@pytest.fixture
def node(fleet: Fleet) -> Iterator[Node]:
    """The node, at rest, its gate open and nothing else in Consul."""
    fleet.consul.delete("", tree=True)
    yield fleet.lab.nodes[NODE]
    if fleet.lab.nodes[NODE].is_up:
        hooks = [f"/etc/convoy/hooks/{name}.d/50-consul" for name in ("drain", "undrain")]
        fleet.lab.nodes[NODE].run("rm", "-f", "/root/slow", "/root/validating", *hooks)


def bring_to(fleet: Fleet, version: str) -> None:
    """Let the node be at a version, and at rest."""
    fleet.consul.put("current_version", version)
    if fleet.version_of(NODE) == version:
        fleet.consul.put(f"running/versions/{version}/{NODE}", "1700000000")
    else:
        agent_run(fleet)
    assert fleet.version_of(NODE) == version


def stop_agent(node: Node) -> None:
    node.run("systemctl", "stop", "convoy-node.path", "convoy-node.service", "convoy-node-run.service")


def forget(node: Node) -> None:
    """Make a host of the node that never was set up."""
    node.run("rm", "-f", "/etc/convoy/version", FACTS, SOURCES, RELEASE)


def agent_run(fleet: Fleet, *arguments: str, code: int = 0) -> str:
    done = fleet.agent_run(NODE, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def start_turn(node: Node) -> subprocess.Popen[str]:
    return subprocess.Popen(
        node.command("convoy-node", "run"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def changed(shown: str) -> int:
    return int(shown.rpartition("changed=")[2].split()[0])


def test_a_closed_gate_leaves_the_node_alone_and_tells_the_key(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "False")
    before = fleet.consul.tree()
    shown = agent_run(fleet)
    assert f"{NODE}: closed: {GATE} is False" in shown
    assert changed(shown) == 0
    assert fleet.consul.tree() == before
    assert fleet.version_of(NODE) == "v1"
    assert node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v1 ./\n"


def test_a_hold_closes_it_whatever_the_gate_says(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "True")
    fleet.consul.put("upgrade/hold/role/compute", json.dumps({"reason": "disk", "by": "ann", "at": 1}))
    assert re.search(rf"{NODE}: closed: held by ann .*: disk", agent_run(fleet))
    assert node.read(RELEASE) == "manifest v1 on v1\n"


@pytest.mark.parametrize("kind", ["apply", "agent"])
def test_a_host_whose_puppet_is_disabled_is_held_with_the_reason_before_anything_begins(
    kind: str, fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    fleet.consul.put("config_state/enable_puppet/global", "False")
    node.run("puppet", "agent", "--disable", "its disk is being replaced")
    before = fleet.record(NODE)
    for gate in ("False", "True"):
        fleet.consul.put(GATE, gate)
        shown = agent_run(fleet, "-e", f"puppet_gate_puppet={kind}")
        assert "held: Puppet is disabled on this host: its disk is being replaced" in shown
        assert fleet.record(NODE) == {"version": "v2", "state": "retried", "attempt": 1, "times": {}, **before} | {
            "held": "its disk is being replaced"
        }
        assert node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v1 ./\n"
        assert fleet.version_of(NODE) == "v1"
    fleet.consul.put(GATE, "False")
    assert fleet.states()[NODE] == "held"
    status = fleet.play("status", host=NODE)
    assert "held by puppet agent --disable: its disk is being replaced" in status
    node.run("puppet", "agent", "--enable")
    agent_run(fleet)
    assert "held" not in fleet.record(NODE)
    assert fleet.states()[NODE] == "pending"


SETTINGS = "/etc/convoy/node.json"


@pytest.mark.parametrize("kind", ["apply", "agent"])
def test_puppet_that_something_else_runs_is_kept_out_until_the_node_is_upgraded(
    kind: str, fleet: Fleet, node: Node
) -> None:
    """With kind agent there is no Puppet server, so the run fails; but it gets past the lock."""
    bring_to(fleet, "v1")
    good = node.read(SETTINGS) or ""
    fleet.consul.put("current_version", "v2")
    fleet.consul.put("config_state/enable_puppet/global", "False")
    more = {"puppet_gate_puppet_schedule": "external", "puppet_gate_puppet": kind, "puppet_gate_interval": 300}
    node.write(SETTINGS, json.dumps({**json.loads(good), **more}))
    try:
        node.run("systemctl", "start", "convoy-node.service")
        wait_for(lambda: "convoy.upgrade: closed" in locks(node), "Puppet is kept out")
        assert "disabled" in node.run("puppet", "agent", "--test", check=False).stdout
        assert "held" not in fleet.record(NODE)
        fleet.consul.put(GATE, "True")
        fleet.consul.put(f"upgrade/wake/{NODE}", "1")
        if kind == "apply":
            wait_for(lambda: fleet.version_of(NODE) == "v2", "it is upgraded")
            wait_for(lambda: locks(node) == "", "Puppet is let in again")
        else:
            wait_for(lambda: fleet.record(NODE).get("state") == "failed", "there is no Puppet server")
            assert fleet.record(NODE)["step"] == "puppet"
            assert "disabled" not in fleet.record(NODE)["error"]
            assert "convoy.upgrade: " in locks(node)
    finally:
        stop_agent(node)
        node.run("rm", "-f", *(f"{folder}/agent_disabled.lock" for folder in FOLDERS))
        node.write(SETTINGS, good)


def locks(node: Node) -> str:
    files = " ".join(f"{folder}/agent_disabled.lock" for folder in FOLDERS)
    return node.run("sh", "-c", f"cat {files} 2>/dev/null", check=False).stdout


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("", f"{SETTINGS} is empty"),
        ('{"puppet_gate_host": "comp', f"{SETTINGS} is not JSON"),
        ('{"puppet_gate_rle": "compute"}', "puppet_gate_rle is not a setting"),
        ('{"puppet_gate_puppet": "maybe"}', "puppet_gate_puppet is"),
    ],
    ids=["nothing", "cut", "unknown", "value"],
)
def test_settings_that_cannot_be_used_fail_the_unit_and_are_reported(
    settings: str, told: str, fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    good = node.read(SETTINGS) or ""
    node.write(SETTINGS, settings)
    try:
        fleet.consul.put("current_version", "v2")
        fleet.consul.put(GATE, "False")
        before = fleet.consul.tree()
        assert node.run("systemctl", "start", "convoy-node.service", check=False).returncode
        assert node.run("systemctl", "is-failed", "convoy-node.service", check=False).stdout == "failed\n"
        wait_for(lambda: fleet.checks(NODE)["puppet"][0] == "warning", "it is reported")
        assert told in fleet.checks(NODE)["puppet"][1]
        # Not admitted, it takes no slot.
        assert fleet.consul.tree() == before
        fleet.consul.put(GATE, "True")
        assert told in agent_run(fleet, code=78)
        record = fleet.record(NODE)
        assert (record["state"], record["step"], record["version"]) == ("failed", "ask", "v2")
        assert told in record["error"]
        assert fleet.version_of(NODE) == "v1"
    finally:
        node.write(SETTINGS, good)
    agent_run(fleet)
    assert fleet.record(NODE)["state"] == "upgraded"
    wait_for(lambda: fleet.checks(NODE)["puppet"][0] == "passing", "it is well again")


HOOKS = ("drain", "before", "after", "undrain")
HOOK = '#!/bin/sh\necho "%s $CONVOY_HOST $CONVOY_VERSION" >>/root/hooks\n'
MAINT = '#!/bin/sh\nexec "{}" maint {}\n'
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
        wait_for(lambda: fleet.version_of(NODE) == "v2", "it carries on after the boot")
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


def test_a_hook_that_fails_keeps_the_node_drained_and_is_reported(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    # As in docs/pull.md. Consul shows maintenance as a check of the node.
    node.write(
        "/etc/convoy/hooks/drain.d/50-consul",
        MAINT.format(consul_binary(), '-enable -reason "upgrade to $CONVOY_VERSION"'),
        0o755,
    )
    node.write("/etc/convoy/hooks/undrain.d/50-consul", MAINT.format(consul_binary(), "-disable"), 0o755)
    node.write("/etc/convoy/hooks/drain.d/10-note", HOOK % "drain", 0o755)
    node.write("/etc/convoy/hooks/before.d/10-bad", "#!/bin/sh\necho instances are left\nexit 3\n", 0o755)
    node.write("/etc/convoy/hooks/undrain.d/10-note", HOOK % "undrain", 0o755)
    try:
        fleet.consul.put("current_version", "v2")
        assert "before.d/10-bad ended with 3: instances are left" in agent_run(fleet, code=2)
        record = fleet.record(NODE)
        assert (record["state"], record["step"]) == ("failed", "before")
        assert node.read(SOURCES) == "deb [trusted=yes] file:/srv/lab/v1 ./\n"
        assert node.read("/root/hooks") == f"drain {NODE} v2\n"
        assert fleet.checks(NODE)["_node_maintenance"][0] == "critical"
    finally:
        node.run("rm", "-rf", "/root/hooks", "/etc/convoy/hooks/before.d/10-bad")
        node.run("rm", "-f", "/etc/convoy/hooks/drain.d/10-note", "/etc/convoy/hooks/undrain.d/10-note")
    agent_run(fleet)
    assert fleet.version_of(NODE) == "v2"
    assert "_node_maintenance" not in fleet.checks(NODE)


def test_a_full_disk_fails_the_unit_and_is_reported(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    full = ["/var/lib/convoy", "/root/.ansible", "/tmp", "/var/tmp"]
    for folder in full:
        node.run("mkdir", "-p", folder)
        node.run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder)
        node.run("dd", "if=/dev/zero", f"of={folder}/full", "bs=4k", "count=2", check=False)
    try:
        assert node.run("systemctl", "start", "convoy-node-run.service", check=False).returncode
        assert node.run("systemctl", "is-failed", "convoy-node-run.service", check=False).stdout == "failed\n"
        record = fleet.record(NODE)
        assert (record["state"], record.get("step"), record["version"]) == ("failed", "ask", "v2")
        assert "No usable temporary directory" in record["error"]
        wait_for(lambda: fleet.checks(NODE)["puppet"][0] == "warning", "it is reported")
    finally:
        for folder in full:
            node.run("umount", folder)
    agent_run(fleet)
    assert fleet.record(NODE)["state"] == "upgraded"


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
        process = start_turn(node)
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


def test_a_gate_that_cannot_be_read_is_a_failure_and_never_a_yes(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "Flase")
    shown = agent_run(fleet, code=2)
    assert GATE in shown
    assert "Flase" in shown
    assert node.read(RELEASE) == "manifest v1 on v1\n"


def test_an_open_gate_takes_it_to_the_version_and_the_next_turn_changes_nothing(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    agent_run(fleet)
    assert fleet.version_of(NODE) == "v2"
    assert fleet.reported("v2") == {NODE}
    assert fleet.reported("v1") == set()
    assert node.read(FACTS) == "convoy_version=v2\n"
    assert node.read(RELEASE) == "manifest v2 on v2\n"
    before = fleet.consul.tree()
    shown = agent_run(fleet)
    assert changed(shown) == 0
    assert fleet.consul.tree() == before
    wait_for(lambda: fleet.checks(NODE)["validation"][0] == "passing", "its health is published")


@pytest.mark.usefixtures("node")
def test_a_report_that_was_lost_is_made_up_for(fleet: Fleet) -> None:
    bring_to(fleet, "v1")
    fleet.consul.delete("running", tree=True)
    fleet.consul.delete("upgrade", tree=True)
    agent_run(fleet)
    assert fleet.reported("v1") == {NODE}


def test_a_node_at_a_known_version_does_nothing_while_consul_is_away(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.run("rm", RELEASE)
    node.run("systemctl", "stop", "consul")
    try:
        shown = agent_run(fleet, "-e", "upgrade_consul_timeout=0.5", "-e", "puppet_gate_bootstrap=true")
    finally:
        node.run("systemctl", "start", "consul")
    assert "can't be reached" in shown
    assert "The node stays at v1." in shown
    assert changed(shown) == 0
    assert node.read(RELEASE) is None


def test_a_node_that_never_was_set_up_may_run_puppet_without_consul_if_it_is_let(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    forget(node)
    node.run("systemctl", "stop", "consul")
    try:
        shown = agent_run(fleet, "-e", "upgrade_consul_timeout=0.5")
        assert "never had a version. With puppet_gate_bootstrap, it would run" in shown
        assert node.read(RELEASE) is None
        agent_run(fleet, "-e", "upgrade_consul_timeout=0.5", "-e", '{"puppet_gate_bootstrap": true}')
    finally:
        node.run("systemctl", "start", "consul")
    assert node.read(RELEASE) == "manifest v1 on \n"
    assert fleet.version_of(NODE) is None


def test_check_mode_tells_what_would_be_done_and_does_nothing(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write(RELEASE, "somebody was here")
    fleet.consul.put("current_version", "v2")
    before = fleet.consul.tree()
    shown = agent_run(fleet, "--check", "--diff")
    assert "+deb [trusted=yes] file:/srv/lab/v2 ./" in shown
    assert '"started"' in shown
    assert changed(shown) > 3
    assert fleet.consul.tree() == before
    assert fleet.version_of(NODE) == "v1"
    assert node.read(FACTS) == "convoy_version=v1\n"
    assert node.read(RELEASE) == "somebody was here"
    assert node.run("pgrep", "-f", "AnsiballZ_node_lock", check=False).stdout == ""


def test_noop_lets_puppet_tell_and_nothing_else_happen(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write(RELEASE, "somebody was here")
    fleet.consul.put("current_version", "v2")
    before = fleet.consul.tree()
    shown = agent_run(fleet, "-e", '{"puppet_gate_noop": true}')
    assert changed(shown) == 1
    assert node.read(RELEASE) == "somebody was here"
    assert fleet.consul.tree() == before
    assert fleet.version_of(NODE) == "v1"


def test_from_a_controller_over_ssh_it_is_the_same(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    python = {"ansible_python_interpreter": str(RUNTIME / "bin/python")}
    shown = fleet.play("node", "--limit", NODE, **python)
    assert fleet.version_of(NODE) == "v2"
    assert node.read(RELEASE) == "manifest v2 on v2\n"
    assert fleet.reported("v2") == {NODE}
    shown = fleet.play("node", "--limit", NODE, **python)
    assert changed(shown) == 0
    assert node.run("pgrep", "-f", "AnsiballZ_node_lock", check=False).stdout == ""
    fleet.consul.put(GATE, "False")
    assert f"closed: {GATE} is False" in fleet.play("node", "--limit", NODE, **python)


@pytest.mark.usefixtures("node")
def test_over_ssh_a_node_without_the_consul_library_says_what_to_do(fleet: Fleet) -> None:
    bring_to(fleet, "v1")
    shown = fleet.play("node", "--limit", NODE, code=2)
    assert "The Python library 'consul' is missing for /usr/bin/python3" in shown
    shown = fleet.play("node", "--limit", NODE, puppet_gate_health=False)
    assert changed(shown) in (0, 1)


@pytest.mark.usefixtures("node")
def test_a_package_source_that_is_not_there_fails_the_node_and_the_next_turn_mends_it(fleet: Fleet) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v9")
    shown = agent_run(fleet, code=2)
    assert f"{NODE}, on its way to v9, step packages: " in shown
    record = fleet.record(NODE)
    assert (record["state"], record["step"], record["version"]) == ("failed", "packages", "v9")
    assert "/srv/lab/v9" in record["error"]
    assert fleet.version_of(NODE) is None
    publish(fleet.lab.shared, "v9")
    agent_run(fleet)
    record = fleet.record(NODE)
    assert (record["state"], record["attempt"], record.get("error")) == ("upgraded", 2, None)
    assert fleet.version_of(NODE) == "v9"


def test_a_failed_validation_keeps_the_node_from_claiming_the_version(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v2")
    check = '#!/bin/sh\n[ "$(fleet-service)" = v3 ] || { echo "it runs $(fleet-service)"; exit 1; }\n'
    node.write("/etc/convoy/validation.d/20-version", check, 0o755)
    fleet.consul.put("current_version", "v3")
    shown = agent_run(fleet, code=2)
    assert "20-version ended with 1: it runs v2.9" in shown
    assert fleet.record(NODE)["step"] == "validation"
    assert fleet.version_of(NODE) is None
    assert fleet.reported("v3") == set()
    wait_for(lambda: fleet.checks(NODE)["validation"][0] == "warning", "its health is published")
    assert "it runs v2.9" in fleet.checks(NODE)["validation"][1]
    node.run("rm", "/etc/convoy/validation.d/20-version")
    agent_run(fleet)
    assert fleet.version_of(NODE) == "v3"
    wait_for(lambda: fleet.checks(NODE)["validation"][0] == "passing", "its health is published")


def test_a_failure_that_cannot_be_reported_is_told_on_the_node(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_turn(node)
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


def next_run_works(fleet: Fleet) -> bool:
    return fleet.agent_run(NODE).returncode == 0 and fleet.version_of(NODE) == "v2"


def test_two_turns_at_once_don_t_happen(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_turn(node)
    wait_for(lambda: node.read("/root/validating") is not None, "it validates")
    shown = agent_run(fleet)
    assert f"the run of root@{NODE} (process " in shown
    assert "has the lock of this node. Nothing is done." in shown
    assert changed(shown) == 0
    over_ssh = fleet.play("node", "--limit", NODE)
    assert f"the run of root@{NODE} (process " in over_ssh
    node.run("rm", "/root/slow")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert fleet.record(NODE)["attempt"] == 1


def test_a_turn_that_was_killed_leaves_no_lock_behind(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    node.write("/root/slow", "")
    process = start_turn(node)
    wait_for(lambda: node.read("/root/validating") is not None, "it validates")
    node.run("pkill", "-9", "-f", "ansible playbook")
    stop(process)
    node.run("pkill", "-9", "-f", "validation.d", check=False)
    node.run("rm", "-f", "/root/slow")
    agent_run(fleet)
    assert fleet.version_of(NODE) == "v2"
    assert fleet.record(NODE)["state"] == "upgraded"


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
def test_a_turn_that_a_power_cut_ends_is_done_by_the_next(fleet: Fleet, node: Node, moment: Any) -> None:
    bring_to(fleet, "v1")
    node.run("rm", "-f", "/var/log/apt/term.log", FACTS)
    node.write("/root/slow", "")
    fleet.consul.put("current_version", "v2")
    process = start_turn(node)
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
