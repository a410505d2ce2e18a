# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull hosts run the tasks of services themselves: the same composition as on push hosts, and `once` holds across both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import MakeFleet
from .fleet import Fleet, wait_for

pytestmark = pytest.mark.thorough

ROLES = {"controller1": "controller", "compute1": "compute", "compute2": "compute"}
RULES = {"rolling_rules": {"global": "unlimited", "roles": {"controller": 1, "compute": 1}}}
LOG = "/var/log/shop"
SETTINGS = "/etc/convoy/node.json"

_NOTE = """\
- name: {name}
  ansible.builtin.shell:
    cmd: echo "{name} {what}" >>{log}
  tags: [{tags}]

"""


def _write_roles(folder: Path) -> None:
    """Write the services of an operator: a shop with a checkpoint, and a schema that one host changes for all."""

    def note(name: str, tags: str = "", what: str = "{{ shop_name }} {{ upgrade_version }}") -> str:
        return _NOTE.format(name=name, tags=tags or name, what=what, log=LOG)

    shop, schema = folder / "roles/shop", folder / "roles/schema"
    for role in (shop, schema):
        (role / "tasks").mkdir(parents=True, exist_ok=True)
        (role / "meta").mkdir(exist_ok=True)
    (shop / "defaults").mkdir(exist_ok=True)
    (shop / "defaults/main.yml").write_text("shop_name: unnamed\nshop_file: /srv/unnamed\n")
    (shop / "meta/upgrade.yml").write_text(
        'allowed_from: "*"\nallow_downgrade: true\nupgrade_path: ["v2"]\nrequires: [schema]\n'
    )
    (shop / "tasks/upgrade_to").mkdir(exist_ok=True)
    (shop / "tasks/upgrade_to/v2.yml").write_text(note("convert", "upgrade", "from {{ upgrade_version_before }}"))
    (shop / "tasks/upgrade_tasks.yml").write_text(
        note("validate", what="{{ shop_file }}")
        + note("prepare")
        + note("stop")
        + "- name: Fail while the disk is broken\n"
        "  ansible.builtin.command: {argv: [test, '!', -e, /root/broken]}\n  changed_when: false\n  tags: [upgrade]\n\n"
        "- name: Hang while the database does\n"
        "  ansible.builtin.command: {argv: [sh, -c, 'while [ -e /root/hangs ]; do sleep 1; done']}\n"
        "  changed_when: false\n  tags: [upgrade]\n\n" + note("upgrade") + note("start") + note("verify")
    )
    (shop / "tasks/post_upgrade_tasks.yml").write_text(note("unpin").replace("  tags: [unpin]\n", ""))
    (schema / "meta/upgrade.yml").write_text("allow_downgrade: true\n")
    (schema / "tasks/upgrade_tasks.yml").write_text(note("expand", "prepare, once", "schema {{ upgrade_version }}"))


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """A push host and two pull hosts that have the same service, at v1."""
    fleet = make_fleet(ROLES)
    _write_roles(fleet.folder)
    fleet.consul.put("current_version", "v1")
    fleet.write_inventory(
        upgrade_roles={
            "controller": {"plane": "controlplane", "services": ["schema"]},
            "compute": {"plane": "dataplane", "pull": True, "services": ["schema", "shop"]},
        },
        # One is resolved when the host is enrolled, the other one in each upgrade.
        shop_name="{{ 'shop of ' ~ inventory_hostname }}",
        shop_file="/srv/{{ upgrade_version }}",
    )
    fleet.enroll("--limit", "compute", puppet_gate_version="v1")
    wait_for(lambda: fleet.reported("v1") == {"compute1", "compute2"}, "the pull hosts run v1")
    yield fleet


def test_each_host_runs_the_steps_of_its_services_once_it_is_admitted(fleet: Fleet) -> None:
    delivered = fleet.lab.nodes["compute1"].run("cat", "/etc/convoy/services.yml").stdout
    assert "shop_name: shop of compute1" in delivered
    assert "shop_file: /srv/{{ upgrade_version }}" in delivered
    shown = fleet.play("upgrade", version="v2", instructions=RULES)
    assert "3 of 3 hosts upgraded" in shown
    logs = {name: (node.read(LOG) or "").splitlines() for name, node in fleet.lab.nodes.items()}
    assert logs["controller1"] == ["expand schema v2"]
    for name in ("compute1", "compute2"):
        what = f"shop of {name} v2"
        assert logs[name] == [
            "validate /srv/v2", f"prepare {what}", f"stop {what}", "convert from v1", f"upgrade {what}", f"start {what}",
            f"verify {what}", f"unpin {what}",
        ]  # fmt: skip
        record = fleet.record(name)
        assert (record["state"], record["version"], record["post"]) == ("upgraded", "v2", "done")
    assert fleet.consul.get("config_state/enable_puppet/global") == b"True"


def test_a_task_that_fails_is_named_and_the_next_try_goes_on_from_there(fleet: Fleet) -> None:
    nodes = fleet.lab.nodes
    for node in nodes.values():
        node.run("rm", "-f", LOG)
    nodes["compute1"].write("/root/broken", "")
    upgrade = fleet.start("upgrade", version="v1", instructions=RULES)
    wait_for(lambda: fleet.record("compute1").get("state") == "failed", "compute1 has failed")
    record = fleet.record("compute1")
    assert (record["service"], record["step"]) == ("shop", "upgrade")
    assert "exit status 1" in record["error"], record
    before = len((nodes["compute1"].read(LOG) or "").splitlines())
    # The other one waits for its slot, so the run ends.
    assert upgrade.end(900).code == 2
    nodes["compute1"].run("rm", "/root/broken")
    assert fleet.agent_run("compute1").returncode == 0
    fleet.play("upgrade", version="v1", instructions=RULES)
    log = (nodes["compute1"].read(LOG) or "").splitlines()
    assert [line.split()[0] for line in log[:before]] == ["validate", "prepare", "stop"]
    # It was not started since, so it is stopped again: an operator may have started the old version.
    assert [line.split()[0] for line in log[before:]] == ["stop", "upgrade", "start", "verify", "unpin"]


def test_a_task_that_hangs_is_ended_and_the_host_fails(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    node.write("/root/hangs", "")
    settings = node.read(SETTINGS) or ""
    node.write(SETTINGS, json.dumps({**json.loads(settings), "puppet_gate_services_timeout": 10}))
    upgrade = fleet.start("upgrade", version="v2", instructions=RULES)
    wait_for(lambda: fleet.record("compute1").get("state") == "failed", "compute1 has failed")
    record = fleet.record("compute1")
    assert (record["service"], record["step"]) == ("shop", "upgrade")
    assert "10" in record["error"] and "imed out" in record["error"], record
    node.run("rm", "/root/hangs")
    # With other settings, the agent tries again at once. The run may have ended before that, and one that begins before it would end too.
    node.write(SETTINGS, settings)
    upgrade.end(900)
    wait_for(lambda: fleet.record("compute1").get("state") != "failed", "compute1 tries again")
    assert "3 of 3 hosts upgraded" in fleet.play("upgrade", version="v2", instructions=RULES)


def test_tasks_that_others_could_change_do_not_run(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute2"]
    # The agent may still run the post-upgrade tasks, and a second run would do nothing beside it.
    node.run("systemctl", "stop", "convoy-node.path", "convoy-node")
    active = ("systemctl", "is-active", "convoy-node-run")
    wait_for(lambda: node.run(*active, check=False).stdout.strip() in ("inactive", "failed"), "its last run has ended")
    node.run("chmod", "-R", "o+w", "/etc/convoy/services/")
    node.write("/etc/convoy/version", "")
    run = fleet.agent_run("compute2")
    assert run.returncode != 0
    assert "can be changed by others than root" in run.stdout + run.stderr
    assert fleet.record("compute2")["step"] == "services"
    node.run("chmod", "-R", "go-w", "/etc/convoy/services/")
    assert fleet.agent_run("compute2").returncode == 0
    node.run("systemctl", "start", "convoy-node.path", "convoy-node")


def test_the_settings_name_where_the_tasks_are(fleet: Fleet) -> None:
    own = json.loads(fleet.lab.nodes["compute1"].read("/etc/convoy/node.json") or "")
    assert own["puppet_gate_services"] == "/etc/convoy/services"
    again = fleet.enroll("--limit", "compute")
    assert "changed=0" in again


def test_enrolling_without_upgrade_roles_keeps_the_tasks_and_without_pull_removes_them(fleet: Fleet) -> None:
    node, tasks = fleet.lab.nodes["compute1"], fleet.record("compute1")["services"]
    fleet.enroll("--limit", "compute1", upgrade_roles={})
    own = json.loads(node.read("/etc/convoy/node.json") or "")
    # The role is found in the name now.
    assert (own["puppet_gate_role"], own["puppet_gate_services"]) == ("", "/etc/convoy/services")
    assert fleet.record("compute1")["services"] == tasks != ""
    fleet.enroll("--limit", "compute1", upgrade_roles={"compute": {}})
    assert json.loads(node.read("/etc/convoy/node.json") or "")["puppet_gate_services"] == ""
    assert node.read("/etc/convoy/services.yml") is None
    assert not fleet.record("compute1").get("services")


def test_tasks_that_come_with_the_version_are_those_of_each_version(fleet: Fleet) -> None:
    """The folder that all nodes of the lab share is the file server."""
    file, nodes = fleet.folder / "roles/shop/tasks/upgrade_tasks.yml", fleet.lab.nodes
    tasks, hosts = file.read_text(), ("compute1", "compute2")

    def compose(version: str) -> None:
        file.write_text(tasks + _NOTE.format(name="own", what=f"tasks of {version}", tags="upgrade", log=LOG))
        fleet.play("compose", upgrade_folder=str(fleet.lab.shared / "composed" / version))

    def notes(name: str) -> list[str]:
        return [line for line in (nodes[name].read(LOG) or "").splitlines() if line.startswith("own ")]

    compose("v1")
    fleet.enroll("--limit", "compute", puppet_gate_services="/srv/lab/composed/{version}")
    fleet.play("upgrade", version="v1", instructions=RULES)
    assert {name: notes(name) for name in hosts} == {name: ["own tasks of v1"] for name in hosts}
    # Nothing is touched without the tasks of the version, and not those of another one run.
    logs = {name: nodes[name].read(LOG) for name in hosts}
    assert fleet.play("upgrade", version="v2", instructions=RULES, code=2)
    failed = fleet.record("compute1")
    assert (failed["state"], failed["step"], fleet.version_of("compute1")) == ("failed", "services", "v1"), failed
    assert "/srv/lab/composed/v2/composition.json can't be read" in failed["error"]
    assert {name: nodes[name].read(LOG) for name in hosts} == logs
    compose("v2")
    assert fleet.agent_run("compute1").returncode == 0
    fleet.play("upgrade", version="v2", instructions=RULES)
    assert {name: notes(name)[1:] for name in hosts} == {name: ["own tasks of v2"] for name in hosts}
    for name in hosts:
        record = fleet.record(name)
        assert (record["state"], record["version"], record["services"]) == ("upgraded", "v2", "{version}")
