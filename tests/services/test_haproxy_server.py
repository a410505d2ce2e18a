# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module haproxy_server by itself, with a real HAProxy, and what ansible-doc says of it."""

from __future__ import annotations

import json

import pytest
from lab.node import Node
from module_calls import ModuleCalls

from .balancer import ask, balance, status, wait_for_status
from .conftest import MakeSteps
from .steps import Steps
from .traffic import Download
from .web import LAYER, SLOW, serve

BALANCER = "balancer1"
APP = {"backend": "app", "server": "web1"}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    steps = make_steps({BALANCER: "balancer", "web1": "web", "web2": "web"}, packages=LAYER)
    nodes = steps.lab.nodes
    for name in ("web1", "web2"):
        serve(nodes[name])
    balance(nodes[BALANCER], {name: nodes[name].address for name in ("web1", "web2")})
    return steps


@pytest.fixture(scope="module")
def server(steps: Steps) -> ModuleCalls:
    inventory = steps.folder / "inventory.json"
    inventory.write_text(json.dumps(steps.lab.inventory()))
    return ModuleCalls("haproxy_server", inventory, BALANCER, steps.folder / "home")


@pytest.fixture
def balancer(steps: Steps) -> Node:
    """The balancer, with both of its servers at work."""
    node = steps.lab.nodes[BALANCER]
    for name in ("web1", "web2"):
        ask(node, f"set server app/{name} state ready")
        wait_for_status(node, name, "UP")
    return node


@pytest.mark.thorough
def test_a_server_is_taken_out_and_put_back(balancer: Node, server: ModuleCalls) -> None:
    result = server(**APP, state="drained", check=True)
    assert (result["changed"], result["status"], status(balancer, "web1")) == (True, "UP", "UP")
    result = server(**APP, state="drained", others_up=1)
    assert (result["changed"], result["status"], result["sessions"]) == (True, "DRAIN", 0)
    assert result["before"] == {"state": "ready", "status": "UP", "sessions": 0}
    assert status(balancer, "web1") == "DRAIN"
    assert not server(**APP, state="drained")["changed"]
    result = server(**APP, state="ready")
    assert (result["changed"], result["before"]["state"], result["status"]) == (True, "drained", "UP")
    assert status(balancer, "web1") == "UP"
    assert not server(**APP, state="ready")["changed"]


@pytest.mark.thorough
def test_maintenance_is_ended_unless_it_is_to_be_kept(balancer: Node, server: ModuleCalls) -> None:
    assert server(**APP, state="maintenance")["status"] == "MAINT"
    assert not server(**APP, state="drained")["changed"]
    assert not server(**APP, state="ready", keep_maintenance=True)["changed"]
    assert status(balancer, "web1") == "MAINT"
    assert server(**APP, state="ready")["changed"]
    assert status(balancer, "web1") == "UP"


@pytest.mark.thorough
def test_a_server_that_fails_its_checks_after_maintenance_is_not_up(
    steps: Steps, balancer: Node, server: ModuleCalls
) -> None:
    """HAProxy takes it for up until its first checks have failed."""
    web = steps.lab.nodes["web1"]
    assert server(**APP, state="maintenance")["status"] == "MAINT"
    web.run("systemctl", "stop", "nginx")
    try:
        result = server(**APP, state="ready", timeout=3)
        assert (result["failed"], result["failure"]["code"]) == (True, "not_up")
    finally:
        web.run("systemctl", "start", "nginx")
    wait_for_status(balancer, "web1", "UP")


@pytest.mark.thorough
def test_sessions_are_waited_for_and_then_cut_off_if_that_is_set(balancer: Node, server: ModuleCalls) -> None:
    ask(balancer, "set server app/web2 weight 0")
    download = Download(balancer.address, "/slower")
    ask(balancer, "set server app/web2 weight 100%")
    result = server(**APP, state="drained", timeout=0.5)
    assert (result["failed"], result["failure"]["code"]) == (True, "still_busy")
    assert not download.is_over
    result = server(**APP, state="drained", timeout=0.5, shutdown_sessions=True)
    assert (result["failed"], result["sessions"]) == (False, 0)
    assert download.end() < SLOW


@pytest.mark.thorough
def test_nothing_is_taken_out_where_too_few_would_serve(balancer: Node, server: ModuleCalls) -> None:
    result = server(**APP, state="drained", others_up=2, timeout=60, others_timeout=0.5)
    assert (result["failed"], result["failure"]["code"]) == (True, "too_few_servers")
    assert status(balancer, "web1") == "UP"


@pytest.mark.thorough
def test_an_api_that_is_not_there_is_reported(server: ModuleCalls) -> None:
    result = server(**APP, state="ready", socket="127.0.0.1:9")
    assert (result["failed"], result["failure"]["code"]) == (True, "haproxy_unreachable")
    assert result["msg"] == f"[{result['failure']['code']}] {result['failure']['message']}"
    assert "HAProxy's runtime API at 127.0.0.1:9 does not answer" in result["msg"]


@pytest.mark.thorough
@pytest.mark.usefixtures("balancer")
def test_every_example_runs_unchanged(server: ModuleCalls) -> None:
    for options in server.examples():
        # The examples are tasks of the web server itself.
        result = server(**{**options, "server": options["server"].replace("{{ inventory_hostname }}", "web1")})
        assert not result["failed"], result


@pytest.mark.thorough
def test_every_option_was_used_and_every_result_seen(server: ModuleCalls) -> None:
    server.assert_documented()
