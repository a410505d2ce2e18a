# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first report of an enrolment, on this machine as the host, with a real Consul. The lab's tests have whole enrolments."""

from __future__ import annotations

import fcntl
import json
from typing import Any

import pytest
from devkit.agent import ROOT
from devkit.kv import RawKV
from integration.support.runs.playbook import Played, Runner
from integration.support.runs.shipped import Shipped

pytestmark = [pytest.mark.one_release, pytest.mark.thorough]

HOST = "web1"
RECORD = f"upgrade/hosts/{HOST}"
RELEASE = "0.1.0-0123456789"
CHANGES = {
    "Write the version file",
    "Create the folder of the facts",
    "Write the version as a fact",
    "Write the package sources from the templates of the node",
    "Report the version",
}


class Node:
    """A host whose files are in a folder."""

    def __init__(self, run: Runner, consul: RawKV) -> None:
        self.run, self.consul = run, consul
        self.folder = run.folder / "node"
        self.folder.mkdir()
        self.lock, self.version = self.folder / "lock", self.folder / "version"
        self.fact, self.sources = self.folder / "facts.d/convoy.txt", self.folder / "fleet.list"
        (run.folder / "fleet.list.j2").write_text("deb http://packages/{{ version }} ./\n")

    def enroll(self, *, check: bool = False, **variables: Any) -> Played:
        """Run the tasks of an enrolment from the version file on."""
        given = {
            "puppet_gate_host": HOST,
            "puppet_gate_lock_file": str(self.lock),
            "puppet_gate_version_file": str(self.version),
            "puppet_gate_facts_file": str(self.fact),
            "puppet_gate_repositories": [
                {"src": str(self.run.folder / "fleet.list.j2"), "dest": str(self.sources)},
            ],
            "puppet_gate_new_release": RELEASE,
            **variables,
        }
        role = {"name": "convoy.upgrade.puppet_gate", "tasks_from": "install/first_report"}
        return self.run([{"ansible.builtin.include_role": role}], seconds=300, check=check, extra_vars=given)

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.consul.get(RECORD) or b"{}")
        return found


@pytest.fixture
def node(run: Runner, consul: RawKV) -> Node:
    return Node(run, consul)


def changes(played: Played) -> set[str]:
    """Return the tasks that have changed something."""
    assert not [task for task in played if task["failed"]], played.stdout
    _start, *tasks = played.stdout.split("TASK [convoy.upgrade.puppet_gate : ")
    return {task.partition("]")[0] for task in tasks if "\nchanged: " in task}


def test_it_reports_version_and_release_and_check_mode_says_the_same(node: Node) -> None:
    assert changes(node.enroll(check=True, puppet_gate_version="v1")) == CHANGES
    assert not list(node.folder.iterdir())
    assert node.record() == {}
    assert changes(node.enroll(puppet_gate_version="v1")) == CHANGES
    record = node.record()
    assert (record["version"], record["state"], record["release"]) == ("v1", "upgraded", RELEASE)
    assert node.fact.read_text() == "convoy_version=v1\n"
    assert node.sources.read_text() == "deb http://packages/v1 ./\n"
    assert changes(node.enroll(check=True, puppet_gate_version="v1")) == set()
    assert changes(node.enroll(puppet_gate_version="v1")) == set()
    # It has another release of the agent now, as `status` shows.
    assert changes(node.enroll(puppet_gate_new_release="0.2.0-0123456789")) == {"Report the version"}
    assert node.record()["release"] == "0.2.0-0123456789"


@pytest.mark.parametrize("check", [False, True])
def test_a_run_that_has_the_lock_keeps_its_record_fact_and_sources(check: bool, node: Node) -> None:
    node.enroll(puppet_gate_version="v1")
    before = {**node.record(), "version": "v2", "state": "started"}
    node.consul.put(RECORD, json.dumps(before))
    node.fact.write_text("convoy_version=v2\n")
    node.sources.write_text("deb http://packages/v2 ./\n")
    with node.lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # The tasks of services have arrived in any case, so the record has them.
        played = node.enroll(check=check, puppet_gate_tasks_id="new")
    expected = {"Report the tasks of services and the role of a host without a reported version"}
    assert changes(played) == expected
    assert "web1: another run has the lock of this node, so its fact, its package sources" in played.stdout
    assert node.record() == (before if check else {**before, "services": "new"})
    assert node.fact.read_text() == "convoy_version=v2\n"
    assert node.sources.read_text() == "deb http://packages/v2 ./\n"


def test_a_machine_under_the_name_of_one_that_upgrades_is_not_reported(node: Node) -> None:
    node.enroll(puppet_gate_version="v1")
    before = {**node.record(), "version": "v2", "state": "started", "machine": "other"}
    assert "machine" in node.record()
    node.consul.put(RECORD, json.dumps(before))
    played = node.enroll()
    assert [task["failure"]["code"] for task in played if task["failed"]] == ["other_machine"]
    found = node.record()
    assert (found["version"], found["state"], found["machine"]) == ("v2", "started", "other")


def test_a_host_that_failed_at_its_version_stays_failed(node: Node) -> None:
    node.enroll(puppet_gate_version="v1")
    before = {**node.record(), "state": "failed", "error": "no space left"}
    node.consul.put(RECORD, json.dumps(before))
    assert changes(node.enroll(puppet_gate_new_release="0.2.0-0123456789")) == {"Report the version"}
    assert node.record() == {**before, "release": "0.2.0-0123456789"}


def test_the_lock_is_free_after_a_failure(node: Node) -> None:
    played = node.enroll(puppet_gate_version="not/one")
    failed = [task for task in played if task["failed"]]
    assert [task["failure"]["code"] for task in failed] == ["bad_name"]
    assert played[-1]["released"]


def test_hosts_that_ansible_upgrades_get_no_agent(play: Shipped) -> None:
    roles = {"cache": {"services": ["memcached"]}, "compute": {"services": []}, "pulls": {"pull": True, "services": []}}
    given = {
        "inventory": {"cache": ["cache1"]},
        "upgrade_roles": roles,
        "ansible_connection": "local",
        "puppet_gate_settings_dir": str(play.folder / "convoy"),
    }
    left_out = play("enroll", **given)
    assert left_out.returncode == 0, left_out.stdout
    assert "cache1 gets no agent: its role has services without pull, so Ansible upgrades it." in left_out.stdout
    assert not (play.folder / "convoy").exists()

    (play.folder / "convoy").mkdir()
    (play.folder / "convoy/node.json").write_text("{}")
    refused = play("enroll", **given)
    assert refused.returncode == 2
    assert "Add pull: true to the role, or remove the agent: run systemctl disable" in refused.stdout


def test_the_prefix_of_the_keys_stays_beside_other_options_of_consul(run: Runner) -> None:
    roles = ROOT / "roles"

    def rendered(role: str, template: str, **variables: Any) -> dict[str, Any]:
        shown = run(
            [
                {"ansible.builtin.include_vars": str(roles / role / "defaults/main.yml")},
                *({"ansible.builtin.include_vars": str(one)} for one in (roles / role / "vars").glob("main.yml")),
                {"ansible.builtin.set_fact": variables},
                {"ansible.builtin.debug": {"msg": f"{{{{ lookup('template', '{roles / role / 'templates' / template}') }}}}"}},
            ],
            play={"vars": {"upgrade_consul_kv_prefix": "fleet2"}},
        )  # fmt: skip
        found = shown[-1]["msg"]
        text: dict[str, Any] = found if isinstance(found, dict) else json.loads(found)
        return text

    there = {"stat": {"exists": False}}
    for given, prefix in (({}, "fleet2"), ({"host": "c1"}, "fleet2"), ({"kv_prefix": "own"}, "own")):
        node = rendered("puppet_gate", "node.json.j2", puppet_gate_consul=given, puppet_gate_token_there=there)
        # Without it, a node would find no gate, and a missing gate is open.
        assert node["upgrade_consul_kv_prefix"] == prefix
        assert node.get("upgrade_consul_host") == given.get("host")
        planner = rendered("planner", "planner.json.j2", planner_consul=given, planner_found_token=there)
        assert planner["consul"] == {"kv_prefix": "fleet2", **given}
