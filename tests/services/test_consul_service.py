# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_service: two hosts that offer a service, each with a real agent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from devkit.agent import consul_binary
from lab.node import Node

from .conftest import MakeSteps
from .steps import STEPS, Steps, one_line

REASON = "convoy.upgrade upgrades this host"


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    steps = make_steps({"web1": "web", "web2": "web"})
    for node in steps.lab.nodes.values():
        consul(node, "services", "register", "-name=shop")
    return steps


def consul(node: Node, *arguments: str) -> str:
    """Run a command of Consul's own tool against the node's agent; the nodes themselves have only the agent."""
    return node.run(str(consul_binary()), *arguments).stdout


def checks(node: Node) -> str:
    return consul(node, "maint")


def run(steps: Steps, host: str, *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    settings = {"consul_service_names": ["shop"], "consul_service_passing_timeout": 5, **more}
    return one_line(
        steps.run("consul_service", which or STEPS, [host], settings, *(["--check"] if check else []), code=code)
    )


@pytest.mark.thorough
def test_a_host_is_out_of_its_services_while_it_is_upgraded(steps: Steps) -> None:
    web1, web2 = (steps.lab.nodes[name] for name in ("web1", "web2"))
    run(steps, "web1", check=True)
    assert REASON not in checks(web1)
    run(steps, "web1", "validate", "may_stop", "drain")
    assert REASON in checks(web1)
    assert "changed=0 " in run(steps, "web1", "drain")
    # The other one is the last that serves.
    shown = run(steps, "web2", "may_stop", code=2)
    assert "web2: the service shop passes on 0 other hosts (none), and consul_service_others_passing is 1" in shown
    run(steps, "web2", "may_stop", consul_service_others_passing=0)
    shown = run(steps, "web2", "drain", code=2, consul_service_others_timeout=5)
    assert (
        "web2: it was not taken out of its services in Consul: web2: the service shop passes on 0 other hosts" in shown
    )
    assert REASON not in checks(web2)
    run(steps, "web1", "undrain")
    assert REASON not in checks(web1)
    assert "changed=0 " in run(steps, "web1", "undrain")
    run(steps, "web2", "may_stop")


@pytest.mark.thorough
def test_hosts_that_go_at_the_same_moment_are_out_one_after_the_other(steps: Steps) -> None:
    other = Steps(steps.lab, steps.folder / "other")
    with ThreadPoolExecutor() as pool:
        for one in [
            pool.submit(run, run_of, host, "drain", "undrain") for run_of, host in ((steps, "web1"), (other, "web2"))
        ]:
            one.result()
    assert [REASON in checks(node) for node in steps.lab.nodes.values()] == [False, False]


@pytest.mark.thorough
def test_a_host_that_is_one_too_many_is_put_back_and_tries_again(steps: Steps) -> None:
    web1 = steps.lab.nodes["web1"]
    # As if another host had gone at the same moment: once this one is out, too few are left.
    gone = "consul_service_is_known | default(false) and consul_service_try | int <= TRIES"
    needed = "{{ 2 if " + gone + " else 1 }}"
    shown = run(steps, "web1", "drain", consul_service_others_passing=needed.replace("TRIES", "1"))
    assert shown.count("TASK [consul_service : Let another host go first]") == 1
    assert REASON in checks(web1)
    run(steps, "web1", "undrain")
    shown = run(steps, "web1", "drain", code=2, consul_service_others_passing=needed.replace("TRIES", "5"))
    assert (
        "web1: it could not be taken out of its services in Consul, and was put back: web1: the service shop passes on 1 other hosts"
        in shown
    )
    assert shown.count("TASK [consul_service : Let another host go first]") == 4
    assert REASON not in checks(web1)


@pytest.mark.thorough
def test_what_an_operator_put_into_maintenance_stays_there(steps: Steps) -> None:
    web1 = steps.lab.nodes["web1"]
    consul(web1, "maint", "-enable", "-service=shop", "-reason=new disk")
    assert "changed=0 " in run(steps, "web1", "drain")
    # Nor is it waited for.
    run(steps, "web1", "undrain")
    assert "new disk" in checks(web1)
    consul(web1, "maint", "-disable", "-service=shop")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"consul_service_names": []}, "web1: consul_service_names is empty."),
        (
            {"consul_service_names": ["shpo"]},
            "web1: its Consul agent has no service shpo. It has shop. Correct consul_service_names.",
        ),
        (
            {"consul_service_agent": "http://127.0.0.1:1"},
            "web1: the Consul agent at http://127.0.0.1:1 does not list its services: ",
        ),
    ],
)
def test_failures_are_sentences(steps: Steps, settings: dict[str, Any], sentence: str) -> None:
    assert sentence in run(steps, "web1", "validate", code=2, **settings)
