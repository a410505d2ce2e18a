# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of services on a pull host, with a real Consul. The lab's tests have real agent runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, seed
from integration.support.runs.playbook import Played, Runner, Task, plan, report
from integration.support.runs.push import WATCHED, host_task, in_groups
from integration.support.runs.shipped import Shipped
from written_services import META, POST, TASKS, Roles

pytestmark = pytest.mark.one_release

HOST = "localhost"
RECORD = f"upgrade/hosts/{HOST}"
ONCE = "upgrade/once/2/prepare/schema"
UPGRADE_ROLES: dict[str, Any] = {"web": {"plane": "dataplane", "pull": True, "services": ["schema", "shop"]}}


class Node:
    """A pull host that is this machine, its composed tasks, and the log that they write."""

    def __init__(self, run: Runner, consul: RawKV) -> None:
        self.run, self.consul = run, consul
        self.composed = run.folder / "composed"
        self.log = run.folder / "log"
        self.upgrade_roles: dict[str, Any] = UPGRADE_ROLES
        roles = Roles(run.folder / "roles")
        roles.add("schema", {TASKS: self.note("expand", "[prepare, once]"), META: "allow_downgrade: true\n"})
        roles.add(
            "shop",
            {
                TASKS: self.note("check", "validate")
                + self.note("stop {{ shop_name }}", "stop")
                + "- name: Fail if asked\n  fail: {msg: the disk is full}\n  when: shop_fails | default(false)\n  tags: upgrade\n"
                + self.note("start", "start"),
                "tasks/upgrade_to/2.yml": self.note("convert from {{ upgrade_version_before }}"),
                POST: self.note("unpin"),
                META: 'upgrade_path: ["2"]\nallowed_from: ">=1"\n',
            },
        )
        consul.put("current_version", "2")
        consul.put("config_state/enable_puppet/global", "True")

    def note(self, text: str, tags: str = "") -> str:
        """Return a task that writes a line to the log."""
        task = f'- name: Note\n  shell: {{cmd: "echo {text} >>{self.log}"}}\n'
        return task + (f"  tags: {tags}\n" if tags else "")

    def lines(self) -> list[str]:
        """Return what the tasks have written, and forget it."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    def record(self) -> dict[str, Any]:
        """Return the host's record."""
        found: dict[str, Any] = json.loads(self.consul.get(RECORD) or b"{}")
        return found

    def __call__(self, *tasks: Task, **variables: Any) -> Played:
        """Run tasks on the host; the results of the first two, which compose, are left out."""
        compose = {
            "upgrade_roles": self.upgrade_roles,
            "folder": str(self.composed),
            "roles_path": [str(self.run.folder / "roles")],
        }
        before = [in_groups({HOST: "web"}), {"convoy.upgrade.compose_upgrade_tasks": compose}]
        given = {"shop_name": "shop", "upgrade_variables_of": HOST, **variables}
        played = self.run([*before, *tasks], environ=WATCHED, extra_vars=given)
        assert not played[1]["failed"], played[1]
        return Played(played[2:], played.stdout, played.code)

    def services(self, state: str, **options: Any) -> Task:
        """Return a task of node_services."""
        given = {"folder": str(self.composed), "role": "web", "version": "2", **options}
        return {
            "convoy.upgrade.node_services": {"state": state, **given},
            "register": "prepared" if state == "prepared" else state,
        }

    def upgrade(self, file: str = "upgrade.yml", **variables: Any) -> Played:
        """Make an upgrade as an agent run does.

        :param file: the file with all steps.
        """
        return self(
            self.services("prepared", version_before="1"),
            report(HOST, "2", "started", role="web"),
            self.services("begun", prepared="{{ prepared }}"),
            {
                "ignore_errors": False,
                "block": [self.include(file), host_task("ended")],
                "rescue": [host_task("failed", error="it failed")],
            },
            **variables,
        )

    def include(self, file: str) -> Task:
        """Return a task that runs a file of the composition."""
        return {
            "ansible.builtin.include_tasks": {"file": f"{self.composed}/web/{file}"},
            "vars": {
                "upgrade_composed": str(self.composed),
                "upgrade_tasks_folder": f"{self.composed}/web",
                "upgrade_version": "2",
                "upgrade_version_before": "{{ hostvars['localhost'].prepared.version_before | default('') }}",
                "upgrade_providers": {},
            },
        }


@pytest.fixture
def node(run: Runner, consul: RawKV) -> Node:
    return Node(run, consul)


def test_the_host_gets_its_role_and_the_variables_of_its_services(node: Node) -> None:
    shop_name, other = "{{ 'shop of ' ~ inventory_hostname }}", {"web": {"services": ["schema"]}}
    found, push = node(
        node.services("delivered", upgrade_roles=UPGRADE_ROLES),
        node.services("delivered", upgrade_roles=other),
        shop_name=shop_name,
    )
    assert (found["role"], len(found["tasks_id"])) == ("web", 16)
    assert yaml.safe_load(found["inventory"])["all"]["hosts"] == {
        HOST: {"upgrade_variables_of": HOST, "shop_name": "shop of localhost"}
    }
    assert (push["role"], push["inventory"], push["tasks_id"]) == ("", "", "")


def test_a_host_runs_its_steps_and_reports_where_it_is(node: Node) -> None:
    played = node.upgrade()
    prepared = played[0]
    assert {name: prepared[name] for name in ("version", "version_before", "checkpoints", "validate", "providers", "tasks_folder")} == {
        "version": "2", "version_before": "1", "checkpoints": ["shop@2"], "validate": ["shop@2"], "providers": {},
        "tasks_folder": f"{node.composed}/web",
    }  # fmt: skip
    assert (played[2]["go"], played[-1]["state"]) == (True, "upgraded")
    assert node.lines() == ["expand", "stop shop", "convert from 1", "start"]
    record = node.record()
    # The agent run reports the end of the upgrade, after Puppet and the validations.
    assert (record["state"], record["origin"]) == ("started", "1")
    assert record["done"] == ["prepare/schema", "stop/shop", "upgrade/shop@2", "upgrade/shop", "start/shop"]
    assert json.loads(node.consul.get(ONCE) or b"{}")["host"] == HOST
    assert not node.consul.tree("upgrade/leases/").keys() - {"upgrade/leases/"}


def test_a_host_that_failed_names_the_step_and_continues_there(node: Node) -> None:
    failed = node.upgrade(shop_fails=True)
    assert (failed[-1]["service"], failed[-1]["step"], failed[-1]["error"]) == ("shop", "upgrade", "it failed")
    assert node.lines() == ["expand", "stop shop", "convert from 1"]
    # The agent run reports the failure.
    assert node.record()["state"] == "started"
    again = node.upgrade()
    assert (failed[0]["resumes"], again[0]["resumes"]) == (False, True)
    # Puppet may have started the old version since.
    assert node.lines() == ["stop shop", "start"]


@pytest.mark.parametrize(("target", "flags", "is_reversed"), [("2", 1, True), ("2", 0, False), ("1", 1, False)])
def test_a_host_goes_back_in_the_reversed_order_if_the_version_says_so(
    node: Node, target: str, flags: int, is_reversed: bool
) -> None:
    for name, meta in (("cart", "requires: [stock]\n"), ("stock", "")):
        files = {TASKS: node.note(name, "upgrade"), META: f"allow_downgrade: true\n{meta}"}
        Roles(node.run.folder / "roles").add(name, files)
    node.upgrade_roles = {"web": {**UPGRADE_ROLES["web"], "services": ["cart", "stock"]}}
    node.consul.call("PUT", f"kv/current_version?flags={flags}", target.encode())
    (prepared,) = node(node.services("prepared", version_before="3"))
    assert prepared["is_reversed"] is is_reversed
    if target == "2":
        file = "upgrade_reversed.yml" if is_reversed else "upgrade.yml"
        played = node.upgrade(file)
        assert played[-1]["state"] == "upgraded"
        assert node.lines() == (["cart", "stock"] if is_reversed else ["stock", "cart"])
        done = ["upgrade/cart", "upgrade/stock"]
        assert node.record()["done"] == (done if is_reversed else done[::-1])


@pytest.mark.thorough
def test_what_failed_on_another_host_for_all_is_not_tried_here(node: Node) -> None:
    node.consul.put(ONCE, json.dumps({"state": "failed", "host": "db1", "error": "no space"}))
    played = node.upgrade()
    failures = [one["failure"] for one in played if one.get("failure")]
    assert failures[0]["code"] == "once_failed"
    assert failures[0]["message"].endswith(
        "Fix that, then ansible-playbook convoy.upgrade.retry -e host=db1,localhost."
    )
    assert node.lines() == []


@pytest.mark.thorough
def test_post_upgrade_tasks_run_once_planners_have_admitted_the_host(node: Node) -> None:
    def after() -> Played:
        more = [
            {**node.include("post_upgrade.yml"), "when": "begun_post_upgrade.go"},
            {**host_task("ended"), "when": "begun_post_upgrade.go"},
        ]
        return node(node.services("begun_post_upgrade"), *more)

    node.consul.put(RECORD, json.dumps({"version": "2", "state": "upgraded", "reported": "2"}))
    assert after()[0]["go"] is False
    assert node.lines() == []
    node.consul.put(RECORD, json.dumps({"version": "2", "state": "upgraded", "reported": "2", "post": "open"}))
    node.consul.put(f"upgrade/hold/host/{HOST}", json.dumps({"reason": "disk", "by": "ann", "at": 1}))
    assert after()[0]["go"] is False, "it is held since its run began"
    node.consul.delete(f"upgrade/hold/host/{HOST}")
    assert after()[0]["go"] is True
    assert node.lines() == ["unpin"]
    node.consul.put(RECORD, json.dumps({"version": "2", "state": "upgraded", "reported": "2", "post": "failed"}))
    assert after()[0]["go"] is True, "the agent tries again, as it does with an upgrade"
    assert node.lines() == ["unpin"]
    assert (node.record()["state"], node.record()["post"]) == ("upgraded", "done")
    assert after()[0]["go"] is False


def test_post_upgrade_tasks_that_can_not_begin_are_reported_as_failed_by_an_admitted_host(
    node: Node, tmp_path: Path
) -> None:
    def refused(**options: Any) -> str:
        code: str = node(node.services("begun_post_upgrade", **options))[0]["failure"]["code"]
        return code

    record = {"version": "2", "state": "upgraded", "reported": "2", "post": "open"}
    node.consul.put(RECORD, json.dumps(record))
    assert refused(role="db") == "no_services"
    failed = node.record()
    assert (failed["state"], failed["post"], "post_failed" in failed["times"]) == ("upgraded", "failed", True)
    assert failed["error"].startswith("[no_services] ")
    # The run that has the lease writes the record of a host.
    node.consul.put(RECORD, json.dumps(record))
    session = json.loads(node.consul.call("PUT", "session/create", b'{"TTL": "60s"}')[2])["ID"]
    node.consul.call("PUT", f"kv/upgrade/drivers/{HOST}?acquire={session}", b"other")
    assert refused() == "leased"
    assert node.record() == record
    # Without an admission, nothing is read or written.
    node.consul.put(RECORD, json.dumps({**record, "post": "done"}))
    assert node(node.services("begun_post_upgrade", folder=str(tmp_path)))[0]["go"] is False
    assert node.record() == {**record, "post": "done"}


def test_what_can_not_run_is_refused_before_anything_begins(node: Node, tmp_path: Path) -> None:
    remote = {**node.services("prepared"), "vars": {"ansible_connection": "ansible.builtin.ssh"}}
    missing = node(node.services("prepared", version_before="1"), upgrade_variables_of="former")[0]["failure"]
    assert (missing["code"], "upgrade_variables_of is 'former'" in missing["message"]) == ("no_services", True)
    old, role, other, away = node(
        node.services("prepared", version_before="0.5"),
        node.services("prepared", role="db"),
        node.services("prepared", folder=str(tmp_path)),
        remote,
    )
    codes = [one["failure"]["code"] for one in (old, role, other, away)]
    assert codes == ["forbidden_upgrade", "no_services", "bad_folder", "not_on_host"]
    assert "Nothing was touched: localhost may not go to 2." in old["failure"]["message"]
    (node.composed / "web/upgrade.yml").chmod(0o666)
    untrusted = node(node.services("prepared", version_before="1"))[0]
    assert untrusted["failure"]["code"] == "untrusted_services"
    assert node.consul.get(RECORD) is None


@pytest.mark.thorough
def test_a_rollout_begins_only_if_pull_hosts_have_their_tasks(
    node: Node, play: Shipped, store: Store, consul: RawKV
) -> None:
    seed(consul, {"web1": "web"})
    given: dict[str, Any] = {
        "upgrade_folder": str(play.folder / "composed"),
        "inventory": {"web": ["web1"]}, "upgrade_roles": UPGRADE_ROLES, "upgrade_roles_path": [str(node.run.folder / "roles")],
        "instructions": {"rolling_rules": {"global": 1}}, "version": "2", "once": True,
    }  # fmt: skip
    refused = play("upgrade", **given)
    assert refused.returncode != 0
    assert "[other_services] Nothing was touched: 1 pull host has no tasks" in refused.stdout
    assert "convoy.upgrade.enroll --limit web1" in refused.stdout
    assert consul.get("upgrade/ledger") is None
    tasks_id = json.loads((play.folder / "composed/composition.json").read_text())["pull_roles"]["web"]["tasks_id"]
    write_report(store, HostReport("web1", "1", "upgraded", services=tasks_id))
    done = play("upgrade", **given)
    assert done.returncode == 0, done.stdout
    assert "1 admitted" in done.stdout
    # Another run admits the hosts to these tasks, when all are upgraded.
    assert (ledger(consul)["post_upgrade"], ledger(consul)["services"]) == (["web"], {"web": tasks_id})


def test_a_host_that_loses_its_tasks_in_a_rollout_or_joins_without_them_is_not_admitted(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, {"web1": "web", "web2": "web"})
    for host, services in (("web1", "a1"), ("web2", "a1")):
        write_report(store, HostReport(host, "1", "upgraded", services=services))
    rules = {"rolling_rules": {"global": 1}}
    (begun,) = run([plan(version="2", instructions=rules, services={"web": "a1"})])
    assert [one["host"] for one in begun["transitions"]] == ["web1"]
    write_report(store, HostReport("web1", "2", "upgraded"))
    # It is enrolled again without upgrade_roles by an older release, and web3 joins.
    write_report(store, HostReport("web2", "1", "upgraded", services=""))
    write_report(store, HostReport("web3", "1", "upgraded"))
    (after,) = run([plan(version="2", hosts=["all"])])
    assert after["transitions"] == []
    assert {after["hosts"][host]["cause"] for host in ("web2", "web3")} == {"other_services"}
    write_report(store, HostReport("web3", "1", "upgraded", services="a2"))
    # The tasks are corrected, and delivered to one of them.
    (corrected,) = run([plan(version="2", services={"web": "a2"})])
    assert [one["host"] for one in corrected["transitions"]] == ["web3"]
    assert history(consul)[-2]["reason"] == "the tasks of services changed"
