# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module puppet_run with real Puppet, on a node: exit codes, noop, locks, time limits, and what ansible-doc says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._node.puppet import _LOCKS, _OWN_LOCK
from lab.node import Node
from module_calls import ModuleCalls

from .conftest import MakeFleet
from .fleet import Fleet

NODE = "compute1"
UNTIL_WAITED_FOR = f"while flock --nonblock {_OWN_LOCK} true; do sleep 0.1; done; sleep 2"
SITE = "/etc/puppet/code/environments/production/manifests"


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    return make_fleet({NODE: "compute"})


@pytest.fixture
def node(fleet: Fleet) -> Node:
    node = fleet.lab.nodes[NODE]
    node.run("rm", "-rf", "/root/puppet", "/etc/puppet/code")
    node.run("mkdir", "-p", "/root/puppet", SITE)
    return node


@pytest.fixture(scope="module")
def puppet(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> ModuleCalls:
    """The module, over ssh."""
    return ModuleCalls("puppet_run", fleet.inventory, NODE, tmp_path_factory.mktemp("calls") / "home")


def write(node: Node, manifest: str, name: str = "site.pp") -> str:
    node.write(f"/root/puppet/{name}", manifest)
    return f"/root/puppet/{name}"


FILE = "file { '/root/puppet/made': content => 'by puppet' }\n"


@pytest.mark.thorough
def test_a_run_that_changes_something_is_a_change_and_the_next_one_is_none(node: Node, puppet: ModuleCalls) -> None:
    manifest = write(node, FILE)
    first = puppet(manifest=manifest)
    assert (first["changed"], first["exit_code"], first["waited"]) == (True, 2, 0)
    assert first["command"] == ["/usr/bin/puppet", "apply", "--detailed-exitcodes", "--color=false", manifest]
    assert "/File[/root/puppet/made]/ensure: defined content" in first["output"]
    assert first["seconds"] > 0
    assert node.run("cat", "/root/puppet/made").stdout == "by puppet"
    second = puppet(manifest=manifest)
    assert (second["changed"], second["exit_code"]) == (False, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"noop": True}, {"check": True}])
def test_noop_and_check_mode_report_what_would_change_and_change_nothing(
    options: Any, node: Node, puppet: ModuleCalls
) -> None:
    manifest = write(node, FILE)
    result = puppet(manifest=manifest, **options)
    assert result["changed"] is True
    assert "(noop)" in result["output"]
    assert node.run("ls", "/root/puppet").stdout == "site.pp\n"
    puppet(manifest=manifest)
    assert puppet(manifest=manifest, **options)["changed"] is False


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("manifest", "code", "message"),
    [
        ("exec { '/bin/false': }", 4, "some resources failed: Error: '/bin/false' returned 1"),
        ("exec { '/bin/false': } exec { '/bin/true': }", 6, "some resources were changed and others failed: Error:"),
        ("fail('not on this host')", 1, "the run itself failed: Error: Evaluation Error"),
        ("nonsense {", 1, "the run itself failed: Error: Could not parse for environment production"),
    ],
)
def test_each_failure_is_reported_with_puppets_own_reason(
    manifest: str, code: int, message: str, node: Node, puppet: ModuleCalls
) -> None:
    result = puppet(manifest=write(node, manifest))
    assert result["failed"]
    assert result["exit_code"] == code
    assert result["failure"]["code"] == "puppet_failed"
    assert f"puppet apply ended with {code}, {message}" in result["msg"]


@pytest.mark.thorough
def test_modules_environment_and_arguments_are_handed_on(node: Node, puppet: ModuleCalls) -> None:
    node.write("/root/puppet/modules/greeting/manifests/init.pp", "class greeting { notice('hello from the module') }")
    node.write("/etc/puppet/code/environments/canary/manifests/site.pp", "")
    result = puppet(
        manifest=write(node, 'include greeting\nnotice("in ${environment}")'),
        modulepath=["/root/puppet/modules"],
        environment="{version}",
        version="canary",
        arguments=["--show_diff"],
    )
    assert "hello from the module" in result["output"]
    assert "in canary" in result["output"]
    assert result["command"][-2:] == ["--show_diff", "/root/puppet/site.pp"]


@pytest.mark.thorough
def test_the_lock_of_an_agent_is_where_puppet_says_and_is_waited_for(node: Node, puppet: ModuleCalls) -> None:
    lock = node.run("puppet", "config", "print", "agent_catalog_run_lockfile").stdout.strip()
    assert lock in _LOCKS
    manifest = write(node, FILE)
    node.run("mkdir", "-p", str(Path(lock).parent))
    # An agent that ends a while after a run has begun to wait for it, however late that is.
    node.run(
        "sh",
        "-c",
        f"setsid bash -c 'echo $$ > {lock}; exec -a puppet bash -c \"{UNTIL_WAITED_FOR}\"' >/dev/null 2>&1 &",
    )
    result = puppet(manifest=manifest, lock_timeout=60)
    assert result["waited"] >= 1
    assert result["exit_code"] == 2
    # The lock file is still there; no one alive has it.
    assert puppet(manifest=manifest)["waited"] == 0
    node.run("sh", "-c", f"setsid bash -c 'echo $$ > {lock}; exec -a puppet sleep 600' >/dev/null 2>&1 &")
    result = puppet(manifest=manifest, lock_timeout=0.5)
    assert result["failure"]["code"] == "puppet_locked"
    assert "Another run of Puppet has not ended within 0.5 s (process " in result["msg"]
    node.run("sh", "-c", f"kill $(cat {lock})")
    node.run("rm", lock)


@pytest.mark.thorough
def test_a_daemon_that_puppet_started_does_not_keep_its_lock(node: Node, puppet: ModuleCalls) -> None:
    manifest = write(node, "exec { '/bin/sh -c \"setsid sleep 123 >/dev/null 2>&1 &\"': }")
    assert puppet(manifest=manifest)["exit_code"] == 2
    assert node.run("pgrep", "-f", "sleep 123").stdout
    assert puppet(manifest=manifest, lock_timeout=1)["waited"] < 1
    node.run("pkill", "-f", "sleep 123")


@pytest.mark.thorough
def test_a_run_that_takes_too_long_is_ended_with_all_that_it_started(node: Node, puppet: ModuleCalls) -> None:
    result = puppet(manifest=write(node, "exec { '/bin/sleep 321': }"), timeout=4)
    assert result["failure"]["code"] == "puppet_timeout"
    assert "puppet apply took longer than 4 s and was ended" in result["msg"]
    assert result["exit_code"] is None
    assert node.run("pgrep", "-f", "sleep 321", check=False).stdout == ""


@pytest.mark.thorough
def test_a_puppet_that_is_not_there_is_reported(puppet: ModuleCalls) -> None:
    result = puppet(manifest="/nowhere", executable="pupet")
    assert result["failure"]["message"].startswith("executable: 'pupet' is neither on PATH nor in ")
    assert result["failure"]["details"] == {}


@pytest.mark.thorough
def test_an_agent_that_reaches_no_server_fails_with_its_reason(node: Node, puppet: ModuleCalls) -> None:
    node.write("/etc/puppet/puppet.conf", "[main]\nserver = localhost\n")
    result = puppet(kind="agent")
    assert result["failed"]
    assert "puppet agent ended with 1, the run itself failed: Error:" in result["msg"]


@pytest.mark.thorough
def test_every_example_runs_unchanged(node: Node, puppet: ModuleCalls) -> None:
    node.write(f"{SITE}/site.pp", FILE)
    node.write("/etc/puppet/code/environments/release_2_10/manifests/site.pp", FILE)
    node.run("mkdir", "-p", "/etc/puppet/code/modules")
    for options in puppet.examples():
        assert not puppet(**options)["failed"]


@pytest.mark.thorough
def test_every_option_was_used_and_every_result_seen(puppet: ModuleCalls) -> None:
    puppet.assert_documented()
