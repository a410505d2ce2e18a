# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent run does by its gate, its version and its package source."""

from __future__ import annotations

import json
import re

import pytest
from lab.node import Node

from ..fleet import RUNTIME, Fleet, wait_for
from ..snapshots import publish
from .one_node import FACTS, GATE, NODE, RELEASE, SOURCES, agent_run, bring_to, changed

pytestmark = pytest.mark.thorough


def test_a_closed_gate_leaves_the_node_alone_and_its_key_is_printed(fleet: Fleet, node: Node) -> None:
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


def test_a_gate_that_cannot_be_read_is_a_failure_and_never_a_yes(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    fleet.consul.put("current_version", "v2")
    fleet.consul.put(GATE, "Flase")
    shown = agent_run(fleet, code=2)
    assert GATE in shown
    assert "Flase" in shown
    assert node.read(RELEASE) == "manifest v1 on v1\n"


def test_an_open_gate_takes_it_to_the_version_and_the_next_run_changes_nothing(fleet: Fleet, node: Node) -> None:
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


def test_check_mode_reports_what_would_be_done_and_does_nothing(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write(RELEASE, "changed by hand")
    fleet.consul.put("current_version", "v2")
    before = fleet.consul.tree()
    shown = agent_run(fleet, "--check", "--diff")
    assert "+deb [trusted=yes] file:/srv/lab/v2 ./" in shown
    assert '"started"' in shown
    assert changed(shown) > 3
    assert fleet.consul.tree() == before
    assert fleet.version_of(NODE) == "v1"
    assert node.read(FACTS) == "convoy_version=v1\n"
    assert node.read(RELEASE) == "changed by hand"
    assert node.run("pgrep", "-f", "AnsiballZ_node_lock", check=False).stdout == ""


def test_with_noop_puppet_reports_and_nothing_else_happens(fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    node.write(RELEASE, "changed by hand")
    fleet.consul.put("current_version", "v2")
    before = fleet.consul.tree()
    shown = agent_run(fleet, "-e", '{"puppet_gate_noop": true}')
    assert changed(shown) == 1
    assert node.read(RELEASE) == "changed by hand"
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
def test_a_package_source_that_is_not_there_fails_the_node_and_the_next_run_fixes_it(fleet: Fleet) -> None:
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


@pytest.mark.parametrize("where", ["consul", "/srv/lab/sources/{version}"])
def test_package_sources_come_with_the_version_and_go_with_it(where: str, fleet: Fleet, node: Node) -> None:
    bring_to(fleet, "v1")
    own = "/etc/apt/preferences.d/fleet-own.pref"
    for version in ("v1", "v2"):
        files = {"fleet.list": "deb [trusted=yes] file:/srv/lab/{{ version }} ./\n# as it is: {{ 7 * 7 }}\n"}
        if version == "v2":
            files["fleet-own.pref"] = "Package: fleet-nothing\nPin: version 1\nPin-Priority: 1\n"
        for name, text in files.items():
            if where == "consul":
                fleet.consul.put(f"upgrade/sources/{version}/{name}", text)
            else:
                file = fleet.lab.shared / "sources" / version / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    options = ("-e", json.dumps({"puppet_gate_repositories": [], "puppet_gate_sources": where}))
    for version in ("v2", "v1"):
        fleet.consul.put("current_version", version)
        agent_run(fleet, *options)
        assert fleet.version_of(NODE) == version
        assert node.read(SOURCES) == f"deb [trusted=yes] file:/srv/lab/{version} ./\n# as it is: {{{{ 7 * 7 }}}}\n"
        assert (node.read(own) is not None) == (version == "v2")
        assert node.read(RELEASE) == f"manifest {version} on {version}\n"
    # A version without any fails before the packages, and says where they belong.
    fleet.consul.put("current_version", "v3")
    agent_run(fleet, *options, code=2)
    record = fleet.record(NODE)
    assert (record["state"], record["step"], record["version"]) == ("failed", "sources", "v3")
    assert ("upgrade/sources/v3/" if where == "consul" else "/srv/lab/sources/v3") in record["error"]


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
