# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""haproxy and haproxy_backend: a real HAProxy before two real nginx, under constant requests."""

from __future__ import annotations

import http.client
import select
import threading
import time
from typing import Any

import pytest
from lab.node import Node

from .balancer import ask, balance, status, wait_for_status
from .conftest import MakeSteps
from .snapshots import installed, publish, use_version
from .steps import STEPS, Steps, one_line
from .traffic import Download, Traffic
from .web import LAYER, PACKAGES, SLOW, old_processes, serve

BACKEND = {
    "haproxy_backend_balancers": ["balancer"],
    "haproxy_backend_servers": [{"backend": "app"}],
    "haproxy_backend_ready_timeout": 10,
}
CONFIG = "/etc/haproxy/haproxy.cfg"
WEB = {
    "package_service_packages": PACKAGES,
    "package_service_units": ["nginx.service"],
    "package_service_verify_ports": [80],
}


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A balancer and two web servers, and a snapshot v2 of their software."""
    steps = make_steps({"lb1": "balancer", "web1": "web", "web2": "web"}, packages=LAYER)
    publish(steps.lab, [*PACKAGES, "haproxy"])
    nodes = steps.lab.nodes
    for name in ("web1", "web2"):
        serve(nodes[name])
    balance(nodes["lb1"], {name: nodes[name].address for name in ("web1", "web2")})
    for node in nodes.values():
        use_version(node, "v2")
    return steps


@pytest.fixture
def balancer(steps: Steps) -> Node:
    return steps.lab.nodes["lb1"]


def backend(steps: Steps, host: str, *which: str, code: int = 0, check: bool = False, **more: Any) -> str:
    arguments = ["--check"] if check else []
    return steps.run("haproxy_backend", which, [host], {**BACKEND, **more}, *arguments, code=code)


@pytest.mark.thorough
def test_no_request_fails_while_one_web_server_after_the_other_is_upgraded(steps: Steps, balancer: Node) -> None:
    seen = set()
    with Traffic(balancer.address) as traffic:
        for host in ("web1", "web2"):
            before = traffic.answers.copy()
            # A request that is under way on the host is let end before nginx is stopped.
            downloads = [Download(balancer.address, "/slow") for _number in range(4)]
            shown = steps.run(["package_service", "haproxy_backend"], STEPS, [host], {**BACKEND, **WEB})
            assert "failed=0" in shown
            assert {one.server for one in downloads} == {"web1", "web2"}
            assert [one.end() for one in downloads] == [SLOW] * 4
            assert installed(steps.lab.nodes[host], "nginx").endswith("+v2")
            assert status(balancer, host) == "UP"
            seen |= set((traffic.answers - before).keys())
        time.sleep(1)
    assert traffic.failures == []
    assert seen == {"web1", "web2"}
    assert min(traffic.answers.values()) > 100


@pytest.mark.thorough
def test_no_request_fails_while_the_balancer_itself_is_upgraded(steps: Steps, balancer: Node) -> None:
    settings = {"haproxy_verify_ports": [80], "haproxy_verify_timeout": 5}
    steps.run("haproxy", STEPS, ["lb1"], settings, "--check")
    assert not installed(balancer, "haproxy").endswith("+v2")
    with Traffic(balancer.address) as traffic:
        download = Download(balancer.address, "/slow")
        steps.run("haproxy", STEPS[: STEPS.index("start")], ["lb1"], settings)
        assert old_processes(balancer, "haproxy")
        shown = one_line(steps.run("haproxy", ["verify"], ["lb1"], settings, code=2))
        assert "lb1: the old version of HAProxy still runs, because process" in shown
        steps.run("haproxy", ["start", "verify"], ["lb1"], settings)
        assert download.end() == SLOW
        # A reload without any upgrade, too.
        balancer.run("systemctl", "reload", "haproxy")
        time.sleep(1)
        assert "changed=0 " in steps.run("haproxy", STEPS, ["lb1"], settings)
    assert traffic.failures == []
    assert sum(traffic.answers.values()) > 200
    assert installed(balancer, "haproxy").endswith("+v2")
    assert old_processes(balancer, "haproxy") == []


@pytest.mark.thorough
def test_a_new_version_that_can_not_bind_an_address_fails_in_its_start_and_a_retry_repeats_it(
    steps: Steps, balancer: Node
) -> None:
    publish(steps.lab, [*PACKAGES, "haproxy"], "v3")
    use_version(balancer, "v3")
    before = balancer.read(CONFIG) or ""
    settings = {"haproxy_verify_ports": [80], "haproxy_verify_timeout": 5}
    # The check of the configuration binds nothing.
    balancer.write(CONFIG, f"{before}\nfrontend taken\n    mode http\n    bind 192.0.2.77:81\n")
    try:
        shown = one_line(steps.run("haproxy", STEPS, ["lb1"], settings, code=2))
        assert "lb1: the old version of HAProxy still runs, because process" in shown
        assert "PLAY [start]" in shown and "PLAY [verify]" not in shown
        assert balancer.run("curl", "-sSf", "http://127.0.0.1/").stdout == "well\n"
    finally:
        balancer.write(CONFIG, before)
    steps.run("haproxy", ["start", "verify"], ["lb1"], settings)
    assert old_processes(balancer, "haproxy") == []
    use_version(balancer, "v2")


@pytest.mark.thorough
@pytest.mark.parametrize("is_kept", [False, True])
def test_an_idle_connection_is_closed_at_once_unless_the_configuration_keeps_it(balancer: Node, is_kept: bool) -> None:
    before = balancer.read(CONFIG) or ""
    if is_kept:
        balancer.write(CONFIG, before.replace("    mode http\n", "    mode http\n    option idle-close-on-response\n"))
    # A reload would return before the process with the former configuration takes no more connections.
    balancer.run("systemctl", "restart", "haproxy")
    idle = http.client.HTTPConnection(balancer.address, 80, timeout=5)
    try:
        idle.request("GET", "/")
        assert idle.getresponse().read() == b"well\n"
        balancer.run("systemctl", "reload", "haproxy")
        assert bool(select.select([idle.sock], [], [], 3)[0]) is not is_kept
        if is_kept:
            idle.request("GET", "/")
            answer = idle.getresponse()
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        else:
            assert idle.sock.recv(1) == b""
    finally:
        idle.close()
        balancer.write(CONFIG, before)
        balancer.run("systemctl", "reload", "haproxy")


@pytest.mark.thorough
def test_a_configuration_that_haproxy_does_not_take_is_refused(steps: Steps, balancer: Node) -> None:
    good = balancer.read(CONFIG) or ""
    balancer.write(CONFIG, good + "    no_such_keyword\n")
    shown = one_line(steps.run("haproxy", ["validate"], ["lb1"], {}, code=2))
    assert "lb1: the configuration /etc/haproxy/haproxy.cfg of HAProxy is invalid: " in shown
    assert "no_such_keyword" in shown
    balancer.write(CONFIG, good)


@pytest.mark.thorough
def test_the_steps_can_be_repeated_and_check_mode_only_reports(steps: Steps, balancer: Node) -> None:
    assert "changed=1 " in backend(steps, "web1", "validate", "drain", check=True)
    assert status(balancer, "web1") == "UP"
    assert "changed=1 " in backend(steps, "web1", "validate", "drain")
    assert status(balancer, "web1") == "DRAIN"
    assert "changed=0 " in backend(steps, "web1", "validate", "drain")
    # Drained, and failing its checks: it has to be put back all the same.
    steps.lab.nodes["web1"].run("systemctl", "stop", "nginx")
    wait_for_status(balancer, "web1", "DOWN")
    start = threading.Timer(4, lambda: steps.lab.nodes["web1"].run("systemctl", "start", "nginx"))
    start.start()
    assert "changed=1 " in backend(steps, "web1", "undrain")
    start.join()
    assert status(balancer, "web1") == "UP"
    assert "changed=0 " in backend(steps, "web1", "undrain")


@pytest.mark.thorough
def test_what_an_operator_put_into_maintenance_stays_there(steps: Steps, balancer: Node) -> None:
    ask(balancer, "set server app/web1 state maint")
    assert "changed=0 " in backend(steps, "web1", "validate", "drain", "undrain")
    assert status(balancer, "web1") == "MAINT"
    assert "changed=1 " in backend(steps, "web1", "drain", "undrain", haproxy_backend_state="maintenance")
    wait_for_status(balancer, "web1", "UP")


@pytest.mark.thorough
def test_the_last_server_that_is_up_is_not_taken_out(steps: Steps, balancer: Node) -> None:
    ask(balancer, "set server app/web2 state maint")
    shown = one_line(backend(steps, "web1", "drain", code=2, haproxy_backend_others_timeout=1))
    assert "balancer lb1: app/web1 is not taken out: 1 other server of the backend must serve, and none would" in shown
    assert "has web2 MAINT." in shown
    assert status(balancer, "web1") == "UP"
    ask(balancer, "set server app/web2 state ready")


@pytest.mark.thorough
def test_the_last_server_that_is_up_may_not_stop(steps: Steps, balancer: Node) -> None:
    ask(balancer, "set server app/web2 state maint")
    shown = one_line(backend(steps, "web1", "may_stop", code=2))
    assert "balancer lb1: app/web1 is not taken out: 1 other server of the backend must serve, and none would" in shown
    assert "has web2 MAINT." in shown
    ask(balancer, "set server app/web2 state ready")
    wait_for_status(balancer, "web2", "UP")
    assert "changed=0 " in backend(steps, "web1", "may_stop")
    assert status(balancer, "web1") == "UP"


@pytest.mark.thorough
def test_of_two_hosts_that_go_at_once_one_stays(steps: Steps, balancer: Node) -> None:
    settings = {**BACKEND, "haproxy_backend_others_timeout": 1}
    shown = one_line(steps.run("haproxy_backend", ["drain"], ["web1", "web2"], settings, code=2))
    assert shown.count("is not taken out: 1 other server of the backend must serve, and none would") >= 1
    assert sorted(status(balancer, host) for host in ("web1", "web2")) == ["DRAIN", "UP"]
    steps.run("haproxy_backend", ["undrain"], ["web1", "web2"], BACKEND)


@pytest.mark.thorough
def test_sessions_that_do_not_end_are_a_failure_or_cut_off(steps: Steps, balancer: Node) -> None:
    ask(balancer, "set server app/web2 weight 0")
    download = Download(balancer.address, "/slower")
    ask(balancer, "set server app/web2 weight 100%")
    assert download.server == "web1"
    shown = one_line(backend(steps, "web1", "drain", code=2, haproxy_backend_drain_timeout=0))
    assert "app/web1 gets no new sessions any more, but has 1 that did not end within 0 s." in shown
    assert "Its services still run. They were put back." in shown
    assert status(balancer, "web1") == "UP"
    # An earlier run has drained it, and may have stopped services since.
    ask(balancer, "set server app/web1 state drain")
    shown = one_line(backend(steps, "web1", "drain", code=2, haproxy_backend_drain_timeout=0))
    assert "Its servers were out before, so they are not put back." in shown
    assert status(balancer, "web1") == "DRAIN"
    ask(balancer, "set server app/web1 state ready")
    wait_for_status(balancer, "web1", "UP")
    assert not download.is_over
    backend(steps, "web1", "drain", haproxy_backend_drain_timeout=0, haproxy_backend_shutdown_sessions=True)
    assert download.end() < SLOW
    steps.lab.nodes["web1"].run("systemctl", "stop", "nginx")
    wait_for_status(balancer, "web1", "DOWN")
    shown = one_line(backend(steps, "web1", "undrain", code=2, haproxy_backend_ready_timeout=1))
    assert "app/web1 was put back, but HAProxy at /run/haproxy/admin.sock says that it is DOWN after 1 s." in shown
    steps.lab.nodes["web1"].run("systemctl", "start", "nginx")
    backend(steps, "web1", "undrain")


@pytest.mark.thorough
def test_a_host_is_put_back_if_another_balancer_can_not_be_reached(steps: Steps, balancer: Node) -> None:
    other = steps.lab.nodes["web2"]
    other.run("systemctl", "stop", "ssh")
    try:
        shown = one_line(backend(steps, "web1", "drain", code=2, haproxy_backend_balancers=["lb1", "web2"]))
    finally:
        other.run("systemctl", "start", "ssh")
    assert "web1: its servers can't be set to drained: balancer web2: " in shown
    assert status(balancer, "web1") == "UP"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"haproxy_backend_servers": []},
            "web1: haproxy_backend_servers is empty, so this host can't be drained at",
        ),
        (
            {"haproxy_backend_balancers": ["lb9"]},
            "web1: haproxy_backend_balancers has lb9, which is neither",
        ),
        (
            {"haproxy_backend_servers": [{"backend": "app", "server": "web9"}]},
            "HAProxy at /run/haproxy/admin.sock has no server web9 in its backend app; it has: web1, web2.",
        ),
        ({"haproxy_backend_servers": [{"backend": "apps"}]}, "has no servers in a backend apps."),
        (
            {"haproxy_backend_socket": "/run/nowhere.sock"},
            "HAProxy's runtime API at /run/nowhere.sock does not answer: No such",
        ),
    ],
)
def test_a_server_that_the_balancers_do_not_have_is_refused(
    steps: Steps, settings: dict[str, Any], sentence: str
) -> None:
    assert sentence in one_line(backend(steps, "web1", "validate", code=2, **settings))
