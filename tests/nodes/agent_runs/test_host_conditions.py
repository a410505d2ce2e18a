# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agent runs on a host whose Puppet, settings, hooks, disk or Consul are not as they should be."""

from __future__ import annotations

import json
import time

import pytest
from devkit.agent import consul_binary
from lab.node import Node
from lab.packages import Package

from ..fleet import Fleet, wait_for
from ..snapshots import PACKAGES, publish
from .one_node import (
    FOLDERS,
    GATE,
    HOOK,
    NODE,
    RELEASE,
    SETTINGS,
    SOURCES,
    agent_run,
    bring_to,
    changed,
    forget,
    stop_agent,
)

pytestmark = pytest.mark.thorough


MAINT = '#!/bin/sh\nexec "{}" maint {}\n'


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
    ("settings", "message"),
    [
        ("", f"{SETTINGS} is empty"),
        ('{"puppet_gate_host": "comp', f"{SETTINGS} is not JSON"),
        ('{"puppet_gate_rle": "compute"}', "puppet_gate_rle is not a setting"),
        ('{"puppet_gate_puppet": "maybe"}', "puppet_gate_puppet is"),
    ],
    ids=["nothing", "cut", "unknown", "value"],
)
def test_settings_that_cannot_be_used_fail_the_unit_and_are_reported(
    settings: str, message: str, fleet: Fleet, node: Node
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
        assert message in fleet.checks(NODE)["puppet"][1]
        # Not admitted, it takes no slot.
        assert fleet.consul.tree() == before
        fleet.consul.put(GATE, "True")
        assert message in agent_run(fleet, code=78)
        record = fleet.record(NODE)
        assert (record["state"], record["step"], record["version"]) == ("failed", "ask", "v2")
        assert message in record["error"]
        assert fleet.version_of(NODE) == "v1"
    finally:
        node.write(SETTINGS, good)
    agent_run(fleet)
    assert fleet.record(NODE)["state"] == "upgraded"
    wait_for(lambda: fleet.checks(NODE)["puppet"][0] == "passing", "it is well again")


def test_a_token_that_cannot_be_read_fails_the_unit_and_is_reported_until_it_is_there_again(
    fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    good, token = node.read(SETTINGS) or "", "/etc/convoy/token"
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "False")
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_token_file": token}))
    message = f"the token file {token} can't be read: No such file or directory"
    try:
        node.run("systemctl", "start", "convoy-node.path")
        assert node.run("systemctl", "start", "convoy-node.service", check=False).returncode
        assert node.run("systemctl", "is-failed", "convoy-node.service", check=False).stdout == "failed\n"
        assert message in node.run("journalctl", "-u", "convoy-node").stdout
        wait_for(lambda: message in fleet.checks(NODE)["puppet"][1], "it is reported")
        # The unit starts again by itself, so that an upgrade for which the node is admitted later is reported too.
        fleet.consul.put(GATE, "True")
        wait_for(lambda: fleet.record(NODE).get("state") == "failed", "it has failed")
        assert fleet.record(NODE)["step"] == "ask"
        assert message in fleet.record(NODE)["error"]
        node.write(token, "5ec2e7\n", 0o600)
        wait_for(lambda: fleet.version_of(NODE) == "v2", "it is upgraded")
        wait_for(lambda: fleet.record(NODE).get("state") == "upgraded", "it has reported")
        # What is lost while the service runs fails it too. An operator who stops it is obeyed.
        node.run("rm", token)
        wait_for(lambda: message in fleet.checks(NODE)["puppet"][1], "it is reported")
        stop_agent(node)
        node.run("systemctl", "reset-failed", "convoy-node.service")
        wait_for(lambda: not node.run("systemctl", "list-timers", "-q", "convoy-node-again.timer").stdout, "it is over")
        assert node.run("systemctl", "is-active", "convoy-node.service", check=False).stdout == "inactive\n"
    finally:
        stop_agent(node)
        node.run("rm", "-f", token)
        node.write(SETTINGS, good)


def test_a_hook_that_fails_keeps_the_node_drained_and_is_reported(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    # Consul shows maintenance as a check of the node.
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


def test_a_disk_that_fills_in_an_upgrade_fails_the_host_and_the_next_run_goes_on(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    folder, hook = "/var/lib/dpkg/updates", "/etc/convoy/hooks/before.d/90-fill"
    fill = f"mount -t tmpfs -o size=4k tmpfs {folder} && dd if=/dev/zero of={folder}/tmp.full bs=4k count=2 || true"
    node.write(hook, f"#!/bin/sh\n{fill}\n", 0o755)
    try:
        agent_run(fleet, code=2)
        record = fleet.record(NODE)
        assert (record["state"], record["step"], record["version"]) == ("failed", "packages", "v2")
        assert "No space left on device" in record["error"]
        # Until the upgrade ends, it has no version.
        assert fleet.version_of(NODE) is None
    finally:
        node.run("rm", "-f", hook)
        node.run("umount", folder)
    agent_run(fleet)
    assert fleet.record(NODE)["state"] == "upgraded"
    assert fleet.version_of(NODE) == "v2"


def test_a_maintainer_script_that_hangs_fails_the_host_with_its_output_in_the_record(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    hangs = "#!/bin/sh\necho waiting for a human\nexec sleep 3000\n"
    publish(fleet.lab.shared, "v4", more=[Package("fleet-hangs", "1.0", {}, scripts={"postinst": hangs})])
    options = {"puppet_gate_packages": [*PACKAGES, "fleet-hangs"], "puppet_gate_package_timeout": 20}
    fleet.consul.put("current_version", "v4")
    agent_run(fleet, "-e", json.dumps(options), code=2)
    record = fleet.record(NODE)
    assert (record["state"], record["step"], record["version"]) == ("failed", "packages", "v4")
    assert "took longer than 20 s" in record["error"]
    assert "waiting for a human" in record["error"]
    assert fleet.version_of(NODE) is None
    assert node.run("pgrep", "-f", "sleep 3000", check=False).stdout == ""
    publish(fleet.lab.shared, "v4", more=[Package("fleet-hangs", "2.0", {})])
    agent_run(fleet, "-e", json.dumps(options))
    record = fleet.record(NODE)
    assert (record["state"], record["attempt"], fleet.version_of(NODE)) == ("upgraded", 2, "v4")
    assert node.run("dpkg", "--audit").stdout == ""
    node.run("dpkg", "--purge", "fleet-hangs")


def test_a_puppet_that_hangs_fails_the_host_and_leaves_nothing_behind(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write("/root/hangs.pp", "exec { '/bin/sleep 321': }\n")
    fleet.consul.put("current_version", "v2")
    options = {"puppet_gate_manifest": "/root/hangs.pp", "puppet_gate_puppet_timeout": 20}
    agent_run(fleet, "-e", json.dumps(options), code=2)
    record = fleet.record(NODE)
    assert (record["state"], record["step"], record["version"]) == ("failed", "puppet", "v2")
    assert "puppet apply took longer than 20 s and was ended" in record["error"]
    assert fleet.version_of(NODE) is None
    assert node.run("pgrep", "-f", "sleep 321", check=False).stdout == ""
    agent_run(fleet)
    record = fleet.record(NODE)
    assert (record["state"], record["attempt"], fleet.version_of(NODE)) == ("upgraded", 2, "v2")


@pytest.mark.parametrize(("clock", "days"), [("+1d", 1), ("-1d", -1)])
def test_a_clock_that_is_a_day_off_keeps_the_node_from_nothing(clock: str, days: int, fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    done = node.run("faketime", "-f", clock, "convoy-node", "run", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.version_of(NODE) == "v2"
    record = fleet.record(NODE)
    assert (record["state"], record["attempt"]) == ("upgraded", 1)
    # Each time that the node wrote is of its own clock, to the day.
    written = [*record["times"].values(), int(fleet.consul.get(f"running/versions/v2/{NODE}") or b"0")]
    assert len(written) > 2
    assert {round((at - time.time()) / 86400) for at in written} == {days}, record


def test_another_machine_of_the_same_name_can_t_report_until_the_former_one_is_forgotten(
    fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    agent_run(fleet)
    fleet.consul.put("current_version", "v2")
    first = fleet.record(NODE)["machine"]
    started = {"version": "v2", "state": "started", "machine": first, "attempt": 1}
    fleet.consul.put(f"upgrade/hosts/{NODE}", json.dumps(started))
    identifier = node.read("/etc/machine-id") or ""
    try:
        # A new image of the host, or another one with its name.
        node.write("/etc/machine-id", "0123456789abcdef" * 2 + "\n")
        forget(node)
        shown = agent_run(fleet, code=2)
        assert f"{NODE} reports started from the machine" in shown, shown
        record = fleet.record(NODE)
        second = record.pop("other_machine")
        assert first not in (None, second)
        assert {name: record[name] for name in started} == started
        assert node.read(RELEASE) is None
        fleet.play("forget", host=NODE, force=True)
        agent_run(fleet)
        assert fleet.version_of(NODE) == "v2"
        assert fleet.record(NODE)["machine"] == second
    finally:
        node.write("/etc/machine-id", identifier)


def test_a_host_that_was_renamed_is_another_host_with_a_warning_until_its_former_name_is_forgotten(
    fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    agent_run(fleet)
    assert fleet.record(NODE)["state"] == "upgraded"
    good = node.read(SETTINGS) or ""
    node.write(SETTINGS, json.dumps({**json.loads(good), "puppet_gate_host": "compute9"}))
    try:
        agent_run(fleet)
        assert fleet.record("compute9")["machine"] == fleet.record(NODE)["machine"]
        warning = "have reported from one machine"
        shown = " ".join(fleet.play("status", host="compute9").split())
        assert warning in shown, shown
        fleet.play("forget", host=NODE, force=True)
        assert warning not in " ".join(fleet.play("status", host="compute9").split())
    finally:
        node.write(SETTINGS, good)


def test_while_all_servers_are_dead_nothing_begins_and_the_node_is_upgraded_once_they_are_back(
    fleet: Fleet, node: Node
) -> None:
    bring_to(fleet, "v1")
    note, server = "/etc/convoy/hooks/drain.d/10-note", fleet.lab.servers["consul1"]
    node.write(note, HOOK % "drain", 0o755)
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "False")
    try:
        node.run("systemctl", "start", "convoy-node.service")
        wait_for(lambda: fleet.consul.get(f"upgrade/wake/{NODE}"), "its agent waits")
        server.kill()
        # Its own Consul agent answers, and knows of no server.
        wait_for(lambda: node.run("convoy-node", "check", check=False).returncode, "the gate can't be read")
        shown = agent_run(fleet, "-e", "upgrade_consul_timeout=1")
        assert "The node stays at v1." in shown
        assert (fleet.version_of(NODE), node.read("/root/hooks")) == ("v1", None)
        server.boot()
        wait_for(fleet.consul.has_leader, "the servers are back")
        # The gate is as it was.
        wait_for(lambda: node.run("convoy-node", "check", check=False).returncode == 0, "the gate can be read")
        agent_run(fleet)
        assert (fleet.version_of(NODE), node.read("/root/hooks")) == ("v1", None)
        assert "v2" not in fleet.record(NODE).values()
        # The agent lived through all of this, and is told of its gate as before.
        fleet.consul.put(GATE, "True")
        fleet.consul.put(f"upgrade/wake/{NODE}", "1")
        wait_for(lambda: fleet.reported("v2") == {NODE}, "it is upgraded")
        assert fleet.record(NODE)["attempt"] == 1
        assert node.read("/root/hooks") == f"drain {NODE} v2\n"
    finally:
        if not server.is_up:
            server.boot()
            wait_for(fleet.consul.has_leader, "the servers are back")
        stop_agent(node)
        node.run("rm", "-f", "/root/hooks", note)


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


def test_a_node_that_never_was_set_up_may_run_puppet_without_consul_if_the_settings_allow_it(
    fleet: Fleet, node: Node
) -> None:
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
