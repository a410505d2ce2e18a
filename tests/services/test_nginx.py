# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nginx, the real one, under constant requests."""

from __future__ import annotations

from typing import Any

import pytest
from lab.node import Node

from .conftest import MakeSteps
from .snapshots import installed, publish, use_version
from .steps import STEPS, Steps, one_line
from .traffic import Download, Traffic
from .web import LAYER, PACKAGES, SLOW, old_processes, serve

SETTINGS = {"nginx_packages": PACKAGES, "nginx_verify_timeout": 5}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A node that serves with Debian's nginx, and snapshots of two later versions."""
    steps = make_steps({"web1": "web"}, packages=LAYER)
    for version in ("v2", "v3"):
        publish(steps.lab, PACKAGES, version)
    node = steps.lab.nodes["web1"]
    serve(node)
    use_version(node, "v2")
    return steps


@pytest.fixture
def node(steps: Steps) -> Node:
    return steps.lab.nodes["web1"]


def run(steps: Steps, *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    arguments = ["--check"] if check else []
    return steps.run("nginx", which or STEPS, ["web1"], {**SETTINGS, **more}, *arguments, code=code)


def main_process(node: Node) -> str:
    return node.run("systemctl", "show", "--property=MainPID", "--value", "nginx").stdout.strip()


def test_no_request_fails_and_none_is_cut_while_it_is_upgraded(steps: Steps, node: Node) -> None:
    before = main_process(node)
    run(steps, check=True)
    assert (main_process(node), installed(node, "nginx").endswith("+v2")) == (before, False)
    run(steps, "validate", "prepare", "stop", "upgrade")
    assert installed(node, "nginx").endswith("+v2")
    assert old_processes(node, "nginx")
    assert "process" in one_line(run(steps, "verify", code=2))
    with Traffic(node.address) as traffic:
        download = Download(node.address, "/slow")
        run(steps, "start", "verify")
        assert download.end() == SLOW
    assert traffic.failures == []
    assert traffic.answers["web1"] > 50
    assert main_process(node) != before
    assert old_processes(node, "nginx") == []
    assert node.run("systemctl", "is-active", "nginx").stdout == "active\n"


@pytest.mark.thorough
def test_a_second_run_leaves_it_as_it_is(steps: Steps, node: Node) -> None:
    before = main_process(node)
    assert "changed=0 " in run(steps)
    assert main_process(node) == before


@pytest.mark.thorough
def test_a_run_that_was_interrupted_between_old_and_new_is_finished(steps: Steps, node: Node) -> None:
    use_version(node, "v3")
    run(steps, "upgrade")
    old = main_process(node)
    node.run("kill", "-USR2", old)
    node.run("sh", "-c", "until [ -s /run/nginx.pid.oldbin ] && [ -s /run/nginx.pid ]; do sleep 0.1; done")
    with Traffic(node.address) as traffic:
        run(steps)
    assert traffic.failures == []
    assert old_processes(node, "nginx") == []
    assert node.read("/usr/share/doc/nginx/remade") == f"{installed(node, 'nginx')}\n"


@pytest.mark.thorough
def test_a_configuration_that_nginx_does_not_take_is_refused(steps: Steps, node: Node) -> None:
    node.write("/etc/nginx/conf.d/broken.conf", "no_such_directive on;\n")
    for step in ("validate", "start", "verify"):
        shown = one_line(run(steps, step, code=2))
        assert "web1: the configuration of nginx is invalid: " in shown
        assert 'unknown directive "no_such_directive" in /etc/nginx/conf.d/broken.conf:1' in shown
    node.run("rm", "/etc/nginx/conf.d/broken.conf")


@pytest.mark.thorough
def test_a_pid_file_without_the_master_process_is_refused(steps: Steps, node: Node) -> None:
    node.write("/run/other.pid", "1\n")
    for file in ("/run/nginx/nginx.pid", "/run/other.pid"):
        for step in ("validate", "verify"):
            shown = one_line(run(steps, step, code=2, nginx_pid_file=file))
            assert f"web1: nginx.service is active, but {file} does not have the ID of its master process" in shown


@pytest.mark.thorough
def test_one_that_was_stopped_is_started(steps: Steps, node: Node) -> None:
    node.run("systemctl", "stop", "nginx")
    shown = one_line(run(steps, "verify", code=2, nginx_verify_timeout=1))
    assert "web1: the unit nginx.service is inactive" in shown
    run(steps, "start", "verify")
