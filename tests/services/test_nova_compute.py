# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nova_compute on two nodes with the real nova-compute, and a real conductor to talk to."""

from __future__ import annotations

import re

import pytest
from lab.node import Node

from .conftest import MakeSteps
from .novas import ALL_PACKAGES, PACKAGES, PUBLISHED, Novas
from .snapshots import installed, publish, use_version
from .steps import POST, STEPS, Steps

PIN = "/etc/systemd/system/nova-compute.service.d/convoy-upgrade.conf"
LOG = "/var/log/nova/nova-compute.log"
BOTH = ("compute1", "compute2")


@pytest.fixture(scope="module")
def steps(make_steps: MakeSteps) -> Steps:
    """A controller and two compute hosts; a later version of nova-compute is there."""
    roles = {"controller1": "controller", "compute1": "compute", "compute2": "compute"}
    steps = make_steps(roles, packages=ALL_PACKAGES)
    publish(steps.lab, PUBLISHED)
    return steps


@pytest.fixture(scope="module")
def novas(steps: Steps) -> Novas:
    """A Nova that runs."""
    novas = Novas(steps.lab)
    for node in novas.computes:
        use_version(node, "v2")
    return novas


def run(steps: Steps, which: tuple[str, ...], *hosts: str, code: int = 0, check: bool = False, **more: object) -> str:
    settings = {"nova_compute_verify_seconds": 3, **more}
    shown = steps.run("nova_compute", which, hosts, settings, *(["--check"] if check else []), code=code)
    return " ".join(shown.split())


def pinned(node: Node) -> str:
    """Return what the nova-compute that runs was given as RPC version; it logs its options at its start."""
    process = node.run("systemctl", "show", "--property=MainPID", "--value", "nova-compute").stdout.strip()
    found: list[str] = re.findall(rf"(?m)^\S+ \S+ {process} .*upgrade_levels\.compute += (\S+)", node.read(LOG) or "")
    return found[-1]


@pytest.mark.thorough
def test_check_mode_changes_nothing(steps: Steps, novas: Novas) -> None:
    before = installed(novas.computes[0], "nova-compute")
    run(steps, (*STEPS, POST), *BOTH, check=True)
    assert installed(novas.computes[0], "nova-compute") == before
    assert novas.computes[0].read(PIN) is None


@pytest.mark.thorough
def test_the_first_host_is_upgraded_with_its_messages_pinned(steps: Steps, novas: Novas) -> None:
    first, second = novas.computes
    assert pinned(first) == "None"
    run(steps, STEPS, "compute1")
    assert [installed(first, name).endswith("+v2") for name in PACKAGES] == [True] * 4
    assert not installed(second, "nova-compute").endswith("+v2")
    assert (pinned(first), pinned(second)) == ("auto", "None")
    assert novas.is_known(first)
    assert "fake.FakeDriver" in (first.read("/etc/nova/nova-compute.conf") or "")


@pytest.mark.thorough
def test_what_is_interrupted_is_done_whole_the_next_time(steps: Steps, novas: Novas) -> None:
    second = novas.computes[1]
    run(steps, ("prepare", "stop"), "compute2", nova_compute_rpc="zed")
    assert second.run("systemctl", "is-active", "nova-compute", check=False).stdout == "inactive\n"
    run(steps, STEPS, "compute2", nova_compute_rpc="zed")
    assert pinned(second) == "zed"
    assert novas.is_known(second)


@pytest.mark.thorough
def test_the_pin_is_taken_out_after_the_last_host(steps: Steps, novas: Novas) -> None:
    run(steps, (POST,), *BOTH)
    assert [pinned(node) for node in novas.computes] == ["None", "None"]
    assert [node.read(PIN) for node in novas.computes] == [None, None]
    assert [novas.is_known(node) for node in novas.computes] == [True, True]


@pytest.mark.thorough
def test_an_unpinning_that_was_cut_off_is_done_whole(steps: Steps, novas: Novas) -> None:
    first = novas.computes[0]
    run(steps, ("prepare", "stop", "start"), "compute1")
    first.write(PIN, "# Nothing is pinned any more\n")
    assert pinned(first) == "auto"
    run(steps, (POST,), "compute1")
    assert pinned(first) == "None"
    assert "changed=0 " in run(steps, (POST,), "compute1")


@pytest.mark.thorough
def test_a_traceback_since_the_start_is_reported_in_a_sentence(steps: Steps, novas: Novas) -> None:
    first = novas.computes[0]
    first.run("systemctl", "restart", "nova-compute")
    run(steps, ("verify",), "compute1")
    novas.controller.run("systemctl", "stop", "placement-api")
    assert novas.logs(first, "Traceback")
    shown = run(steps, ("verify",), "compute1", code=2)
    assert "compute1: nova-compute.service runs, but logged a traceback since it was started:" in shown
    run(steps, ("verify",), "compute1", nova_compute_verify_log=False)
    novas.start_placement()
    # What the run before has logged does not count.
    first.run("systemctl", "restart", "nova-compute")
    run(steps, ("verify",), "compute1")


@pytest.mark.thorough
def test_a_host_that_does_not_reach_the_queue_is_reported_in_a_sentence(steps: Steps, novas: Novas) -> None:
    first = novas.computes[0]
    first.run("mkdir", "-p", "/run/systemd/system/nova-compute.service.d")
    first.write("/run/systemd/system/nova-compute.service.d/lab.conf", "[Service]\nTimeoutStartSec=10\n")
    novas.controller.run("systemctl", "stop", "rabbitmq-server")
    shown = run(steps, ("stop", "start"), "compute1", code=2)
    assert "compute1: nova-compute.service does not start:" in shown
    assert "It becomes active only when it has reached the message queue and a conductor" in shown
