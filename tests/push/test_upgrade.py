# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible upgrades the services of a fleet: who goes when, and what is recorded of it."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from .site import Site, most_at_once, spans, wait_for

CONTROLLERS = ["controller1", "controller2", "controller3"]
WEB = [f"web{number}" for number in range(1, 6)]
ROLES = {
    "controller": {"plane": "controlplane", "services": ["balancer", "api", "database"]},
    "web": {"plane": "dataplane", "services": ["app"]},
}
PLANES = {"controller": "controlplane", "web": "dataplane"}
CAPS = {"rolling_rules": {"global": "unlimited", "roles": {"controller": 2, "web": 2}}}

API = ["validate", "prepare", "upgrade", "upgrade,once", "start"]
BALANCER = ["prepare", "stop", "upgrade", "start", "verify"]


@pytest.fixture
def fleet(site: Site) -> Site:
    """A control plane of three hosts with three services, and five hosts with one."""
    site.service("api", API, requires=["database"])
    site.service("database", ["prepare", "upgrade"])
    site.service("balancer", BALANCER)
    site.service("app", ["validate", "prepare", "stop", "upgrade", "start", "verify"], after=["after"])
    site.inventory(ROLES, {"controller": CONTROLLERS, "web": WEB})
    return site


@pytest.mark.thorough
def test_a_small_fleet_is_upgraded(site: Site) -> None:
    """An upgrade for each release of ansible-core."""
    site.service("app", ["validate", "upgrade", "upgrade,once", "verify"], after=["after"])
    roles = {role: {"plane": plane, "services": ["app"]} for role, plane in PLANES.items()}
    site.inventory(roles, {"controller": ["controller1"], "web": ["web1"]})
    assert "2 of 2 hosts upgraded" in site.play("upgrade", version="v1", instructions=CAPS)
    assert site.reported("v1") == {"controller1", "web1"}
    assert site.done("controller1") == ["app/validate", "app/upgrade", "app/upgrade-once", "app/verify", "app/after"]
    assert site.done("web1") == ["app/validate", "app/upgrade", "app/verify", "app/after"]


@pytest.mark.thorough
def test_a_fleet_goes_through_its_steps_in_order(fleet: Site) -> None:
    shown = fleet.play("upgrade", version="v1", instructions=CAPS)
    assert "8 of 8 hosts upgraded" in shown
    assert fleet.reported("v1") == {*CONTROLLERS, *WEB}
    assert fleet.consul.get("config_state/enable_puppet/global") == b"True"
    assert not fleet.consul.tree("upgrade/drivers/")

    # Every host is checked before any is touched, and the data plane begins after the control plane.
    entries = fleet.entries()
    checks = [one.at for one in entries if one.task.endswith("/validate")]
    assert len(checks) == 2 * len([*CONTROLLERS, *WEB])
    touches = [one for one in entries if not one.task.endswith("/validate")]
    assert max(checks) < min(one.at for one in touches)
    control = [one.at for one in touches if one.host in CONTROLLERS]
    data = [one for one in touches if one.host in WEB]
    assert max(control) < min(one.at for one in data)

    # Services come in the order of what they require, else as they are listed, each stopped, upgraded and started before the next.
    once = [one for one in entries if one.task == "api/upgrade-once" and one.what == "end"]
    assert len(once) == 1
    for host in CONTROLLERS:
        own = [task for task in fleet.done(host) if not task.endswith(("-once", "/validate"))]
        assert own == [
            *(
                "balancer/prepare",
                "database/prepare",
                "api/prepare",
                "balancer/stop",
                "balancer/upgrade",
                "balancer/start",
            ),
            *("database/upgrade", "api/upgrade", "api/start", "balancer/verify"),
        ]
    # No one goes on to the next step before what is done once for all is done.
    starts = [one.at for one in entries if one.task == "api/start" and one.what == "begin"]
    assert once[0].at < min(starts)

    # The hosts of a wave take each step together; those of the data plane wait for no one, and not for the slowest.
    for before, after in (
        ("api/prepare", "balancer/stop"),
        ("balancer/upgrade", "balancer/start"),
        ("api/start", "balancer/verify"),
    ):
        last = max(one.at for one in touches if one.host in CONTROLLERS[:2] and one.task == before)
        first = min(one.at for one in touches if one.host in CONTROLLERS[:2] and one.task == after)
        assert last < first
    work = spans([one for one in touches if "/after" not in one.task])
    assert most_at_once(work, CONTROLLERS) == 2
    assert most_at_once(work, WEB) == 2

    # What comes after the upgrade comes after all of it, under the same caps.
    after = [one for one in entries if one.task == "app/after"]
    assert {one.host for one in after} == set(WEB)
    assert min(one.at for one in after) > max(one.at for one in data if one.task != "app/after")
    assert most_at_once(spans(after), WEB) <= 2

    # A second run does nothing and changes nothing.
    before = fleet.consul.tree()
    again = fleet.play("upgrade", version="v1", instructions=CAPS)
    assert set(fleet.consul.tree().items()) ^ set(before.items()) == set()
    assert fleet.entries() == entries
    assert "changed=0" in again


@pytest.mark.thorough
def test_hosts_of_several_roles_in_a_wave_take_each_step_together(site: Site) -> None:
    # For the operator's own playbooks.
    (site.folder / "ansible.cfg").write_text("[defaults]\nstrategy = free\n")
    site.sleep(1.0, "api2")
    steps = ["prepare", "stop", "upgrade", "start", "verify"]
    # The roles require each other, so nothing is upgraded before all is stopped.
    for name, requires in (("app", "store"), ("store", ""), ("backup", "cache"), ("cache", "")):
        site.service(name, steps, meta=f"requires: [{requires}]\n")
    roles = {
        "api": {"plane": "controlplane", "services": ["app", "cache"]},
        "db": {"plane": "controlplane", "services": ["store", "backup"]},
    }
    site.inventory(roles, {"api": ["api1", "api2"], "db": ["db1"]})
    site.play("upgrade", version="v1")
    times = {step: [one.at for one in site.entries() if one.task.endswith(f"/{step}")] for step in steps}
    assert [len(found) for found in times.values()] == [12] * 5
    for before, after in pairwise(times.values()):
        assert max(before) < min(after)


@pytest.mark.thorough
def test_services_get_where_a_host_comes_from_and_goes_to(site: Site) -> None:
    site.service("app", ["validate", "upgrade"], after=["after"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": ["web1", "web2"]})
    site.play("upgrade", version="v1")
    assert {one.version for one in site.entries() if one.task != "app/after"} == {"none>v1"}
    site.play("upgrade", version="v2.10")
    last = [one for one in site.entries("web1") if one.version.endswith(">v2.10")]
    assert [(one.task, one.version) for one in last if one.what == "end"] == [
        ("app/validate", "v1>v2.10"),
        ("app/upgrade", "v1>v2.10"),
        ("app/after", "v2.10>v2.10"),
    ]


@pytest.mark.thorough
def test_the_step_of_a_host_is_in_its_record(fleet: Site) -> None:
    # Once a host has failed, its record stays as it was.
    fleet.fail("web1", "app/start")
    shown = fleet.play("upgrade", version="v1", code=2)
    record = fleet.record("web1")
    assert (record["state"], record["service"], record["step"]) == ("failed", "app", "start")
    assert record["done"] == ["prepare/app", "stop/app", "upgrade/app"]
    assert "app-start is broken here" in record["error"]
    assert "web1: failed, service app, step start" in shown
    assert "app-start is broken here" in shown


@pytest.mark.thorough
def test_a_failed_host_is_tried_again_only_when_asked_and_from_the_step_that_failed(fleet: Site) -> None:
    broken = fleet.fail("controller2", "balancer/start")
    shown = fleet.play("upgrade", version="v1", instructions=CAPS, code=2)
    assert "controller2 (failed): failed, service balancer, step start" in shown
    assert not any(one.host in WEB for one in fleet.entries() if not one.task.endswith("/validate"))
    assert fleet.reported("v1") == {"controller1", "controller3"}

    broken.unlink()
    before = fleet.entries("controller2")
    fleet.play("upgrade", version="v1", code=2)
    assert fleet.entries("controller2") == before

    fleet.play("upgrade", version="v1", retry_failed=True)
    assert fleet.reported("v1") == {*CONTROLLERS, *WEB}
    since = [one.task for one in fleet.entries("controller2")[len(before) :] if one.what == "end"]
    assert since == [
        "balancer/stop",
        "balancer/start",
        "database/upgrade",
        "api/upgrade",
        "api/start",
        "balancer/verify",
    ]
    assert fleet.record("controller2")["attempt"] == 2
    # Those that were done are not visited again.
    assert fleet.done("controller1").count("balancer/prepare") == 1


@pytest.mark.thorough
def test_what_no_log_hides_of_a_failure_is_reported_nowhere(site: Site) -> None:
    site.service("vault", ["prepare"])
    with (site.folder / "roles/vault/tasks/upgrade_tasks.yml").open("a") as tasks:
        tasks.write(
            "- name: Fail\n  ansible.builtin.shell: echo s3$(echo cret); false\n  no_log: true\n  tags: upgrade\n"
        )
    site.inventory({"web": {"plane": "dataplane", "services": ["vault"]}}, {"web": ["web1"]})
    shown = site.play("upgrade", version="v1", code=2)
    record = site.record("web1")
    assert (record["state"], record["step"]) == ("failed", "upgrade")
    assert "no_log hides why" in record["error"]
    assert "s3cret" not in shown
    assert not any(b"s3cret" in value for value in site.consul.tree().values())


@pytest.mark.thorough
def test_what_is_done_once_for_all_stops_all_when_it_fails(fleet: Site) -> None:
    broken = [fleet.fail(host, "api/upgrade-once") for host in CONTROLLERS]
    shown = fleet.play("upgrade", version="v1", code=2)
    tried = [one.host for one in fleet.entries() if one.task == "api/upgrade-once"]
    assert len(tried) == 1
    assert not [one for one in fleet.entries() if one.task == "api/start"]
    for host in CONTROLLERS:
        assert fleet.record(host)["state"] == "failed"
    others = [host for host in CONTROLLERS if host != tried[0]]
    assert f"upgrade/api/2, which {tried[0]} runs for all hosts, failed there" in fleet.record(others[0])["error"]
    assert "api-upgrade-once is broken here" in shown

    for file in broken:
        file.unlink()
    fleet.play("upgrade", version="v1", retry_failed=True)
    ends = [one for one in fleet.entries() if one.task == "api/upgrade-once" and one.what == "end"]
    assert len(ends) == 1
    assert fleet.reported("v1") == {*CONTROLLERS, *WEB}


@pytest.mark.thorough
def test_a_host_that_fails_its_checks_keeps_everything_from_beginning(fleet: Site) -> None:
    fleet.fail("web4", "app/validate")
    # Check mode says so too.
    for options in (("--check",), ()):
        shown = fleet.play("upgrade", *options, version="v1", code=2)
        assert "Nothing was touched: 1 of 8 hosts can't be upgraded. web4: " in shown
        assert "app-validate is broken here" in shown
        assert fleet.consul.tree() == {}
    assert {one.task for one in fleet.entries()} <= {"app/validate", "api/validate"}


def unreachable_while(file: Path) -> dict[str, object]:
    """Return variables of a host that is unreachable as long as a file exists."""
    connection = {"ansible_connection": "{{ 'ssh' if lookup('ansible.builtin.fileglob', gone) else 'local' }}"}
    return connection | {"gone": str(file), "ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.mark.thorough
def test_an_unreachable_host_keeps_its_slot_and_the_rest_from_following(site: Site) -> None:
    site.service("app", ["prepare", "upgrade"])
    # It can be reached until its connection is changed by the first step.
    roles = {"web": {"plane": "dataplane", "services": ["app"]}}
    site.inventory(roles, {"web": ["web1", "web2", "web3"]}, web1=unreachable_while(site.log / "fail-gone"))
    site.sleep(1.5, "web1")
    process = site.start(
        "upgrade", version="v1", instructions={"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}
    )
    wait_for(lambda: [one for one in site.entries("web1") if one.task == "app/prepare"], "web1 has begun")
    (site.log / "fail-gone").touch()
    ended = site.end(process)
    assert ended.code == 4, ended.stdout
    record = site.record("web1")
    assert (record["state"], record["step"]) == ("failed", "upgrade")
    # Ansible writes to its ssh, which may have ended already.
    assert re.match(r"unreachable: .*(port 1: Connection refused|Broken pipe)", record["error"])
    assert not site.entries("web2", "web3")
    assert "rolling_rules.roles.web admits 1 of role web at once" in ended.stdout
    assert "web1 (lost): lost, service app, step upgrade: unreachable: " in ended.stdout

    (site.log / "fail-gone").unlink()
    site.play("upgrade", version="v1", retry_failed=True)
    assert site.reported("v1") == {"web1", "web2", "web3"}
    assert site.done("web1") == ["app/prepare", "app/upgrade"]


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        (
            (),
            {},
            {
                "web1": [],
                "web2": ["ConnectTimeout=7", "ServerAliveInterval=3"],
                "web3": ["ServerAliveInterval=4"],
                "lb1": ["ConnectTimeout=6"],
            },
        ),
        pytest.param(
            ("--ssh-extra-args", "-o ConnectTimeout=8"),
            {},
            {"web1": ["ConnectTimeout=8"], "web2": ["ConnectTimeout=7", "ServerAliveInterval=3"]},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            (),
            {"ansible_ssh_extra_args": "-o ConnectTimeout=9"},
            {"web1": ["ConnectTimeout=9"], "web2": ["ConnectTimeout=9"]},
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["inventory", "option", "extra variable"],
)
def test_keepalives_of_ssh_follow_the_arguments_of_the_operator(
    site: Site, arguments: Sequence[str], given: dict[str, str], expected: dict[str, list[str]]
) -> None:
    site.service("app", ["prepare", "upgrade"])
    addresses = {"web1": "127.0.0.1", "web2": "127.0.0.2", "web3": "127.0.0.3"}
    refused = {"ansible_connection": "ssh", "ansible_port": 1}
    host_vars: dict[str, dict[str, object]] = {host: refused | {"ansible_host": at} for host, at in addresses.items()}
    # A template, as of an operator with groups of hosts behind several jump hosts.
    host_vars["web2"] |= {
        "ansible_ssh_extra_args": "-o ConnectTimeout={{ patience }} -o ServerAliveInterval=3",
        "patience": 7,
    }
    host_vars["web3"] |= {"ansible_ssh_common_args": "-o ServerAliveInterval=4"}
    # A balancer is in no play. Tasks of the hosts are delegated to it.
    host_vars["lb1"] = refused | {"ansible_host": "127.0.0.4", "ansible_ssh_extra_args": "-o ConnectTimeout=6"}
    host_vars["near"] = {"ansible_connection": "local"}
    tasks = site.folder / "roles/app/tasks/upgrade_tasks.yml"
    tasks.write_text(
        f"{tasks.read_text()}\n- name: Drain\n  ansible.builtin.command: 'true'\n  delegate_to: lb1\n  tags: [validate]\n"
    )
    roles = {"web": {"plane": "dataplane", "services": ["app"]}}
    site.inventory(roles, {"web": [*addresses, "near"], "balancers": ["lb1"]}, **host_vars)
    addresses["lb1"] = "127.0.0.4"
    ended = site.end(site.start("upgrade", "-vvv", *arguments, version="v1", **given))
    assert "4 of 4 hosts can't be upgraded" in ended.stdout
    for host, own in expected.items():
        line = next(line for line in ended.stdout.splitlines() if line.startswith(f"<{addresses[host]}> SSH: EXEC "))
        words = shlex.split(line)
        # ssh takes the first value of each option.
        named = [
            word
            for word in words
            if word.startswith(("ServerAlive", "ConnectTimeout=")) and word != "ConnectTimeout=10"
        ]
        assert named == [*own, "ServerAliveInterval=10", "ServerAliveCountMax=6"], line


def test_pull_hosts_are_admitted_after_the_only_push_host_is_lost(site: Site) -> None:
    site.service("app", ["prepare", "upgrade"])
    roles = {"web": {"plane": "dataplane", "services": ["app"]}, "cache": {"plane": "dataplane"}}
    caches = ["cache1", "cache2"]
    site.inventory(roles, {"web": ["web1"], "cache": caches}, web1=unreachable_while(site.log / "fail-gone"))
    site.sleep(1.5, "web1")
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"cache": 1}}}
    process = site.start("upgrade", version="v1", instructions=rules)
    wait_for(lambda: [one for one in site.entries("web1") if one.task == "app/prepare"], "web1 has begun")
    (site.log / "fail-gone").touch()
    wait_for(lambda: site.record("web1").get("state") == "failed", "web1 has failed")
    # As their nodes do. The second one is admitted once the first one is done.
    for host in caches:
        gate = f"config_state/enable_puppet/host/{host}"
        wait_for(lambda gate=gate: site.consul.get(gate) == b"True", f"{host} is admitted")
        site.consul.put(f"running/versions/v1/{host}", str(int(time.time())))
        host_record = {"version": "v1", "state": "upgraded", "reported": "v1"}
        site.consul.put(f"upgrade/hosts/{host}", json.dumps(host_record))
    ended = site.end(process)
    assert ended.code == 4, ended.stdout
    assert "[stuck] No host can continue without an operator" in ended.stdout
    assert re.search("Next: .*retry_failed", ended.stdout), ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["controlplane", "dataplane"])
def test_the_next_command_retries_a_host_that_was_lost(site: Site, plane: str) -> None:
    site.service("app", ["prepare", "upgrade"])
    roles = {"web": {"plane": plane, "services": ["app"]}}
    site.inventory(roles, {"web": ["web1"]}, web1=unreachable_while(site.log / "fail-gone"))
    site.sleep(1.5, "web1")
    process = site.start("upgrade", version="v1")
    wait_for(lambda: [one for one in site.entries("web1") if one.task == "app/prepare"], "web1 has begun")
    (site.log / "fail-gone").touch()
    ended = site.end(process)
    assert ended.code == 4, ended.stdout
    assert re.search("Next: .*retry_failed", ended.stdout), ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["dataplane", "controlplane"])
def test_a_resumed_host_that_was_unreachable_during_the_validation_has_its_facts_when_it_is_back(
    site: Site, plane: str
) -> None:
    site.service("app", ["validate", "prepare", "upgrade"])
    roles, gone = {"web": {"plane": plane, "services": ["app"]}}, site.log / "fail-gone"
    site.inventory(roles, {"web": ["web1", "web2"]}, web1=unreachable_while(gone))
    broken = site.fail("web1", "app/upgrade")
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}
    site.play("upgrade", version="v1", instructions=rules, code=2)
    broken.unlink()
    gone.touch()
    site.sleep(1.5, "web2")
    before = len(site.entries("web2"))
    process = site.start("upgrade", version="v1", retry_failed=True)
    # The facts of both are gathered before the checks of one begin.
    wait_for(lambda: len(site.entries("web2")) > before, "web2 is validated")
    gone.unlink()
    ended = site.end(process)
    assert ended.code == 0, ended.stdout
    assert "UNREACHABLE" in ended.stdout
    assert site.reported("v1") == {"web1", "web2"}
    assert site.done("web1") == ["app/validate", "app/prepare", "app/upgrade"]


@pytest.mark.thorough
def test_a_wave_that_is_cut_off_does_not_end_the_run(site: Site) -> None:
    site.service("app", ["prepare", "upgrade"])
    roles = {"db": {"plane": "controlplane", "services": ["app"]}}
    gone = site.log / "fail-gone"
    site.inventory(roles, {"db": ["db1", "db2"]}, db1=unreachable_while(gone))
    site.sleep(1.5, "db1")
    process = site.start("upgrade", version="v1", instructions={"rolling_rules": {"global": 1}})
    wait_for(lambda: [one for one in site.entries("db1") if one.task == "app/prepare"], "db1 has begun")
    gone.touch()
    ended = site.end(process)
    assert site.record("db1")["state"] == "failed"
    # The next wave asks, and the state of the fleet is shown.
    assert "db2 is not admitted (pending): " in ended.stdout
    assert "[stuck] No host can continue without an operator" in ended.stdout


@pytest.mark.thorough
def test_a_lost_host_of_the_control_plane_does_not_end_each_run_after_that(site: Site) -> None:
    site.service("app", ["upgrade"])
    gone = site.log / "fail-gone"
    site.inventory(
        {"web": {"plane": "controlplane", "services": ["app"]}}, {"web": ["web1", "web2"]}, web1=unreachable_while(gone)
    )
    broken = site.fail("web1", "app/upgrade")
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}
    site.play("upgrade", version="v1", instructions=rules, code=2)
    broken.unlink()
    gone.touch()
    rules["rolling_rules"]["roles"] = {"web": 2}
    shown = site.play("upgrade", version="v1", instructions=rules, retry_failed=True, code=2)
    assert (
        "web1 is not admitted (failed): an earlier run has begun it, and it could not be reached when its wave began"
        in shown
    )
    assert site.reported("v1") == {"web2"}
    gone.unlink()
    site.play("upgrade", version="v1", retry_failed=True)
    assert site.reported("v1") == {"web1", "web2"}


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["dataplane", "controlplane"])
def test_a_host_that_fails_before_anything_on_it_stops_is_undrained(site: Site, plane: str) -> None:
    steps = ["drain", "stop", "upgrade", "undrain"]
    site.service("balancer", steps)
    site.service("registry", steps)
    site.service("app", steps)
    roles = {"web": {"plane": plane, "services": ["balancer", "registry", "app"]}}
    site.inventory(roles, {"web": ["web1"]})
    files = [site.fail("web1", "registry/drain"), site.fail("web1", "registry/undrain")]
    # The services that are drained, and the one that is half drained.
    shown = site.play("upgrade", version="v1", code=2)
    assert site.done("web1") == ["balancer/drain", "balancer/undrain"]
    record = site.record("web1")
    assert (record["state"], record["service"], record["step"]) == ("failed", "registry", "drain")
    assert "registry-drain is broken here" in record["error"]
    assert "Nothing was stopped, but the host may still be drained: " in record["error"]
    assert "registry-undrain is broken here" in record["error"]

    files.pop().unlink()
    site.play("upgrade", version="v1", retry_failed=True, code=2)
    assert site.done("web1")[2:] == ["balancer/drain", "balancer/undrain", "registry/undrain"]
    record = site.record("web1")
    assert "drained" not in record["error"]
    assert "registry-drain is broken here" in record["error"]

    # Once a service may be down, the host stays drained.
    files.pop().unlink()
    broken = site.fail("web1", "balancer/stop")
    site.play("upgrade", "--tags", "prepare,stop,upgrade,start", version="v1", retry_failed=True, code=2)
    assert site.done("web1")[5:] == ["balancer/drain", "registry/drain", "app/drain"]
    broken.unlink()
    shown = site.play("upgrade", version="v1", retry_failed=True)
    assert "1 of 1 host" in shown
    assert site.done("web1")[-3:] == ["balancer/undrain", "registry/undrain", "app/undrain"]


@pytest.mark.parametrize("plane", ["dataplane", pytest.param("controlplane", marks=pytest.mark.thorough)])
def test_handlers_run_in_their_step_and_not_after_a_failure(site: Site, plane: str) -> None:
    """A handler that runs later than its task group restarts a service that counts as verified, or starts one that is half upgraded."""
    site.service("balancer", ["drain", "upgrade", "verify", "undrain"])
    site.service("registry", ["drain"])
    site.inventory({"web": {"plane": plane, "services": ["balancer", "registry"]}}, {"web": ["web1", "web2", "web3"]})
    roles = site.folder / "roles"
    for role in ("balancer", "proxy"):
        (roles / role / "handlers").mkdir(parents=True)
        (roles / role / "handlers/main.yml").write_text(
            f"- name: Restart {role}\n  ansible.builtin.shell: "
            f'echo "$(date +%s.%N) end {role}/handler x" >> {site.log}/{{{{ inventory_hostname }}}}\n'
        )
    notify = "- name: Configure\n  ansible.builtin.command: 'true'\n  notify: Restart "
    (roles / "proxy/tasks").mkdir()
    (roles / "proxy/tasks/main.yml").write_text(notify + "proxy\n")
    file = roles / "balancer/tasks/upgrade_tasks.yml"
    file.write_text(
        f"{file.read_text()}\n{notify}balancer\n  tags: upgrade\n"
        f"- name: Include a role\n  ansible.builtin.include_role: {{name: {roles}/proxy}}\n  tags: upgrade\n"
        "- name: Break\n  ansible.builtin.fail:\n  when: inventory_hostname == 'web3'\n  tags: upgrade\n"
    )
    site.fail("web1", "registry/drain")
    # web1 is put back before web2 runs its handlers.
    site.sleep(3, "web2")
    site.play("upgrade", version="v1", code=2)
    assert site.done("web1") == ["balancer/drain", "balancer/undrain"]
    drained = ["balancer/drain", "registry/drain"]
    handled = ["balancer/upgrade", "balancer/handler", "proxy/handler", "balancer/verify", "balancer/undrain"]
    assert site.done("web2") == drained + handled
    assert site.done("web3") == [*drained, "balancer/upgrade"]
    assert {host: site.record(host)["state"] for host in ("web1", "web2", "web3")} == {
        "web1": "failed", "web2": "upgraded", "web3": "failed",
    }  # fmt: skip


@pytest.mark.thorough
def test_hosts_go_in_the_order_of_the_plan_whichever_asks_first(site: Site) -> None:
    site.service("app", ["upgrade"])
    # Before each task of the first one, Ansible has to find out what takes a while.
    slow = {"ansible_connection": "{{ lookup('ansible.builtin.pipe', 'sleep 0.4; echo local') }}"}
    hosts, controllers = ["web1", "web2", "web3", "web4"], ["controller1", "controller2"]
    roles = {plane: {"plane": f"{plane}plane", "services": ["app"]} for plane in ("control", "data")}
    site.inventory(roles, {"control": controllers, "data": hosts}, web1=slow)
    # No more forks than hosts ask in the end: those that went before in a wave are none of them.
    rules = {"rolling_rules": {"global": "unlimited", "roles": {"data": 1}}}
    ended = site.end(site.start("upgrade", forks=4, version="v1", instructions=rules))
    assert ended.code == 0, ended.stdout
    begun = [one.host for one in site.entries() if one.what == "begin"]
    assert begun[2:] == hosts, begun


def test_a_free_slot_is_taken_while_a_slow_host_of_another_role_has_the_other_fork(site: Site) -> None:
    site.service("app", ["upgrade"])
    roles = {role: {"plane": "dataplane", "services": ["app"]} for role in ("web", "cache")}
    site.inventory(roles, {"web": ["web1", "web2"], "cache": ["cache1", "cache2"]})
    for host, seconds in {"web1": 4, "cache1": 0.5, "web2": 8, "cache2": 8}.items():
        site.sleep(seconds, host)
    rules = {"rolling_rules": {"global": 1}}
    ended = site.end(site.start("upgrade", forks=2, version="v1", instructions=rules))
    assert ended.code == 0, ended.stdout
    log = [(one.what, one.host) for one in site.entries()]
    # When web1 ends, its slot and its fork are free.
    assert log.index(("end", "web1")) < log.index(("begin", "web2")) < log.index(("end", "cache2")), log


@pytest.mark.thorough
def test_a_held_host_is_left_out_and_named(fleet: Site) -> None:
    fleet.consul.put("upgrade/hold/host/web2", json.dumps({"reason": "disk on order", "by": "ann", "at": "today"}))
    shown = fleet.play("upgrade", version="v1", code=2)
    assert fleet.reported("v1") == {*CONTROLLERS, *WEB} - {"web2"}
    assert not [one for one in fleet.entries("web2") if one.task != "app/validate"]
    assert "disk on order" in shown
    # Nothing that waits for the whole fleet is done.
    assert not [one for one in fleet.entries() if one.task == "app/after"]
    assert fleet.consul.delete("upgrade/hold/host/web2")
    fleet.play("upgrade", version="v1")
    assert {one.host for one in fleet.entries() if one.task == "app/after"} == set(WEB)


@pytest.mark.thorough
def test_a_host_whose_puppet_is_disabled_is_held_until_it_is_enabled(site: Site) -> None:
    site.service("app", ["upgrade"])
    rules = {"rolling_rules": {"global": 1}}
    roles, hosts = {"web": {"plane": "dataplane", "services": ["app"]}}, {"web": [*WEB]}
    # The role puppet sets this fact.
    site.inventory(roles, hosts, web2={"upgrade_puppet_disabled": "its disk is being replaced"})
    shown = site.play("upgrade", "--check", version="v1", instructions=rules)
    assert "web2 would be held, as its Puppet is disabled: its disk is being replaced" in shown
    assert site.consul.tree() == {}
    for _again in range(2):
        shown = site.play("upgrade", version="v1", instructions=rules, code=2)
        assert "web2 is held, as its Puppet is disabled: its disk is being replaced" in shown
        assert "web2 is not admitted (held): held by puppet agent --disable: its disk is being replaced" in shown
        assert site.reported("v1") == {*WEB} - {"web2"}
        assert site.record("web2")["held"] == "its disk is being replaced"
    # Without a check, the hold stays.
    site.inventory(roles, hosts)
    site.play("upgrade", version="v1", instructions=rules, code=2)
    assert site.record("web2")["held"] == "its disk is being replaced"
    site.inventory(roles, hosts, web2={"upgrade_puppet_disabled": ""})
    site.play("upgrade", version="v1", instructions=rules)
    assert site.reported("v1") == {*WEB}
    assert site.record("web2").get("held") is None


def test_check_mode_shows_the_plan_checks_the_hosts_and_writes_nothing(fleet: Site) -> None:
    shown = fleet.play("upgrade", "--check", "--diff", version="v1", instructions=CAPS)
    assert "   2      1  controller3" in shown
    assert "upgrade of balancer" in shown
    # A fleet that Ansible upgrades is not also admitted as one that upgrades itself.
    assert "TASK [Admit hosts]" not in shown
    assert fleet.consul.tree() == {}
    assert {one.task for one in fleet.entries()} == {"api/validate", "app/validate"}
    assert not (fleet.folder / "composed").exists()


@pytest.mark.thorough
def test_a_composed_playbook_is_run_by_hand(fleet: Site) -> None:
    fleet.play("compose")
    assert (fleet.folder / "composed/controller/step3_upgrade.yml").is_file()
    fleet.play(Path("composed/controller.yml"), version="v1", instructions=CAPS)
    assert fleet.reported("v1") == set(CONTROLLERS)
    assert most_at_once(spans([one for one in fleet.entries() if "validate" not in one.task]), CONTROLLERS) == 2
    # What was composed is what is run, whatever became of the services.
    (fleet.folder / "roles/app/tasks/upgrade_tasks.yml").write_text("[]\n")
    fleet.play(Path("composed/web.yml"), version="v1")
    assert fleet.done("web1")[-2:] == ["app/verify", "app/after"]
