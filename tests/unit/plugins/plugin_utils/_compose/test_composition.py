# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The composition: the tasks of a role's hosts, their order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.composition import ComposedRole, compose
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import REPLACEMENT
from written_services import META, POST, TASKS, Roles


@pytest.fixture
def roles(tmp_path: Path) -> Roles:
    return Roles(tmp_path)


def refused(roles: Roles, upgrade_roles: dict[str, Any], hosts: dict[str, int] | None = None) -> str:
    """Return the error message, with ``R`` for the folder of the roles."""
    with pytest.raises(UpgradeError) as caught:
        roles.compose(upgrade_roles, hosts)
    assert caught.value.code == "bad_service"
    return caught.value.message.replace(str(roles.folder), "R")


def commands(role: ComposedRole) -> list[str]:
    return [piece.data["command"] for task_group in role.task_groups for piece in task_group.pieces]


def test_each_service_is_stopped_upgraded_and_started_before_the_next(roles: Roles) -> None:
    roles.simple("web", "undrain", "start", "stop", "validate", "upgrade", "drain")
    roles.simple("db", "verify", "start", "stop", "prepare", "may_stop")
    role = roles.compose({"node": ["web", "db"]}).roles["node"]
    assert [task_group.name for task_group in role.task_groups] == [
        "validate/web", "prepare/db", "may_stop/db", "drain/web", "stop/web", "upgrade/web", "start/web", "stop/db", "start/db", "verify/db",
        "undrain/web",
    ]  # fmt: skip
    in_files = [
        [task_group.name for task_group in role.of_file(step)] for step in ("stop", "upgrade", "start", "verify")
    ]
    assert in_files == [
        ["may_stop/db", "drain/web"], ["stop/web", "upgrade/web", "start/web", "stop/db", "start/db"], [], ["verify/db", "undrain/web"],
    ]  # fmt: skip


@pytest.mark.parametrize("together", ["web", "db"])
def test_services_stop_together_if_one_of_them_says_so(roles: Roles, together: str) -> None:
    for name, steps in (("web", ("start", "stop", "validate", "upgrade")), ("db", ("verify", "stop"))):
        text = "".join(f"- command: {step}-{name}\n  tags: {step}\n" for step in steps)
        roles.add(name, {TASKS: text, META: f"stop_together: {str(name == together).lower()}\n"})
    role = roles.compose({"node": ["web", "db"]}).roles["node"]
    assert [task_group.name for task_group in role.task_groups] == [
        "validate/web", "stop/web", "stop/db", "upgrade/web", "start/web", "verify/db",
    ]  # fmt: skip
    assert [task_group.name for task_group in role.of_file("stop")] == ["stop/web", "stop/db"]
    assert role.task_groups[1].tags == ("step2", "stop", "web")


def test_what_is_required_goes_first_within_each_step(roles: Roles) -> None:
    roles.simple("web", "stop", "start", requires="db")
    roles.simple("db", "stop", "start")
    role = roles.compose({"node": ["web", "db"]}).roles["node"]
    assert commands(role) == ["stop-db", "start-db", "stop-web", "start-web"]


def test_tasks_of_a_step_stay_in_the_order_of_their_file(roles: Roles) -> None:
    roles.add("web", "".join(f"- command: c{n}\n  tags: {s}\n" for n, s in enumerate(["stop", "start", "stop"])))
    assert commands(roles.compose({"node": ["web"]}).roles["node"]) == ["c0", "c2", "c1"]


def test_post_upgrade_tasks_come_last(roles: Roles) -> None:
    roles.add("web", {POST: "- command: after\n", TASKS: "- command: it\n  tags: step5\n"})
    role = roles.compose({"node": ["web"]}).roles["node"]
    assert [task_group.name for task_group in role.task_groups] == ["verify/web", "post_upgrade/web"]
    assert role.task_groups[1].plain() == {
        "name": "post_upgrade/web",
        "step": "post_upgrade",
        "service": "web",
        "once": False,
        "checkpoint": "",
        "provider": False,
        "tags": ["post_upgrade", "web"],
        "tasks": 1,
    }


def test_tasks_for_one_host_are_task_groups_of_their_own(roles: Roles) -> None:
    roles.add(
        "db", "".join(f"- command: c{n}\n  tags: [step3{o}]\n" for n, o in enumerate(["", ", once", ", once", ""]))
    )
    role = roles.compose({"node": ["db"]}).roles["node"]
    assert [(task_group.name, task_group.once, len(task_group.pieces)) for task_group in role.task_groups] == [
        ("upgrade/db", False, 1),
        ("upgrade/db/2", True, 2),
        ("upgrade/db/3", False, 1),
    ]


def test_a_whole_step_may_be_for_one_host(roles: Roles) -> None:
    roles.simple("db", "stop", "upgrade", once="step3")
    role = roles.compose({"node": ["db"]}).roles["node"]
    assert [(task_group.name, task_group.once) for task_group in role.task_groups] == [
        ("stop/db", False),
        ("upgrade/db", True),
    ]


TOGETHER = "stop_together: true\n"
SAME = "- name: Stop the cluster\n  command: pcs stop\n  tags: [step2{tag}]\n{more}"


def dropped(roles: Roles, more: str = "", tags: tuple[str, str] = ("", ""), **variables: Any) -> list[str]:
    for name, tag in zip(("web", "db"), tags, strict=True):
        text = SAME.format(more=more, tag=tag)
        roles.add(name, {TASKS: text, META: TOGETHER, "defaults/main.yml": "---\nrole_flag: true\n"})
    services = [{"service": name, "vars": variables} for name in ("web", "db")]
    found = roles.compose({"node": services}).roles["node"].dropped
    return [sentence.replace(str(roles.folder), "R") for sentence in found]


def test_the_same_task_of_two_services_runs_once_and_that_is_reported(roles: Roles) -> None:
    assert dropped(roles, tags=("", ", cluster")) == [
        "R/db/tasks/upgrade_tasks.yml:1: left out of db, as web has the same task (R/web/tasks/upgrade_tasks.yml:1)."
    ]


def test_what_one_host_runs_for_all_has_one_name_in_all_roles(roles: Roles) -> None:
    lists = "- name: Update the package lists\n  command: apt-get update\n  tags: prepare\n"
    dump = "- name: Dump the database\n  command: dump\n  tags: [prepare, once]\n"
    roles.add("base", {TASKS: lists})
    roles.add("shop", {TASKS: lists + dump})
    found = roles.compose({"api": ["shop"], "worker": ["base", "shop"]})
    names = {name: [one.name for one in role.task_groups if one.once] for name, role in found.roles.items()}
    assert names == {"api": ["prepare/shop/2"], "worker": ["prepare/shop/2"]}


@pytest.mark.parametrize("more", ["  when: is_bootstrap\n", "  args: {creates: /x}\n", "  src: /x\n"])
def test_so_does_one_that_says_more_as_long_as_it_is_the_same(roles: Roles, more: str) -> None:
    assert len(dropped(roles, more)) == 1


@pytest.mark.parametrize(
    "more",
    [
        "  args: {creates: '{{ x }}'}\n",
        "  args: {creates: '{% if x %}a{% endif %}'}\n",
        "  when: role_flag | bool\n",
        "  until: given == 1\n",
        "  notify: restart\n",
        "  template: {src: /a, dest: /b}\n",
        "  ansible.builtin.copy: {src: /a, dest: /b}\n",
        "  ansible.builtin.script: /x\n",
        "  x: {src: a}\n",
        "  with_fileglob: ['*.conf']\n",
        "  ansible.builtin.meta: flush_handlers\n",
        "  block:\n    - include_role: {name: x}\n",
        "  rescue:\n    - ansible.builtin.meta: flush_handlers\n",
    ],
)
def test_tasks_that_may_differ_in_meaning_in_another_service_are_kept(roles: Roles, more: str) -> None:
    assert dropped(roles, more, given=1) == []


def test_a_task_for_one_host_is_not_one_for_all(roles: Roles) -> None:
    assert dropped(roles, tags=(", once", "")) == []
    assert len(dropped(roles, tags=(", once", ", once"))) == 1


def test_what_one_service_has_twice_stays_twice(roles: Roles) -> None:
    roles.add("web", "- command: sync\n  tags: stop\n- command: x\n  tags: stop\n- command: sync\n  tags: stop\n")
    role = roles.compose({"node": ["web"]}).roles["node"]
    assert (commands(role), role.dropped) == (["sync", "x", "sync"], ())


def test_the_same_task_in_another_step_or_role_is_another_one(roles: Roles) -> None:
    roles.add("web", "- command: x\n  tags: stop\n")
    roles.add("db", "- command: x\n  tags: start\n")
    found = roles.compose({"one": ["web", "db"], "two": ["web"]})
    assert [commands(role) for role in found.roles.values()] == [["x", "x"], ["x"]]


def test_one_role_may_serve_several_services(roles: Roles) -> None:
    roles.add("pkg", "- command: '{{ pkg }}'\n  tags: prepare\n- command: sync\n  tags: prepare\n")
    services = [{"service": "pkg", "name": name, "vars": {"pkg": name}} for name in ("cron", "ssh")]
    role = roles.compose({"node": services}).roles["node"]
    assert [(task_group.name, len(task_group.pieces)) for task_group in role.task_groups] == [
        ("prepare/cron", 2),
        ("prepare/ssh", 2),
    ]


def test_the_same_task_after_another_one_is_kept(roles: Roles) -> None:
    update = "- apt: {update_cache: true}\n  tags: prepare\n"
    for name in ("web", "db"):
        roles.add(
            name, f"- copy: {{content: {name}, dest: /etc/apt/sources.list.d/{name}.list}}\n  tags: prepare\n{update}"
        )
    roles.add("cache", update + "- command: x\n  tags: prepare\n")
    roles.add("cloud", {TASKS: "- command: add-source\n  tags: prepare\n", META: "provider: true\n"})
    roles.add("app", update)

    def kept(*services: str) -> list[int]:
        role = roles.compose({"node": list(services)}).roles["node"]
        counts = {group.service: len(group.pieces) for group in role.task_groups}
        return [counts.get(service, 0) for service in services]

    # The package sources of both are read.
    assert kept("web", "db") == [2, 2]
    assert kept("web", "cache", "app") == [2, 1, 1]
    assert kept("web", "cloud", "app") == [2, 1, 1]
    assert kept("db", "app", "cache") == [2, 0, 1]


def test_instances_without_a_difference_run_once(roles: Roles) -> None:
    roles.add("pkg", "- command: '{{ pkg }}'\n  notify: x\n  tags: prepare\n")
    services = [{"service": "pkg", "name": name} for name in ("cron", "ssh")]
    role = roles.compose({"node": services}).roles["node"]
    assert [task_group.name for task_group in role.task_groups] == ["prepare/cron"]


def test_services_that_are_replaced_in_turn_each_have_their_own_stop_upgrade_and_start(roles: Roles) -> None:
    text = "".join(f"- command: same\n  tags: {step}\n" for step in ("prepare", "stop", "upgrade", "start", "verify"))
    names = ["stop", "upgrade", "start"]
    roles.add("web", text)
    roles.add("db", text)
    role = roles.compose({"node": ["web", "db"]}).roles["node"]
    replaced = [f"{step}/{name}" for name in ("web", "db") for step in names]
    assert [task_group.name for task_group in role.task_groups] == ["prepare/web", *replaced, "verify/web"]
    roles.add("db", {TASKS: text, META: TOGETHER})
    role = roles.compose({"node": ["web", "db"]}).roles["node"]
    assert [task_group.service for task_group in role.task_groups] == ["web"] * 5


def test_a_service_that_is_listed_twice_is_one(roles: Roles) -> None:
    roles.simple("web", "stop")
    assert commands(roles.compose({"node": ["web", "web", {"service": "web"}]}).roles["node"]) == ["stop-web"]


def test_roles_without_services_upgrade_themselves_and_are_in_no_composition(roles: Roles) -> None:
    found = roles.compose({"node": None, "other": {"plane": "dataplane"}, "third": {"services": []}})
    assert (dict(found.roles), found.warnings) == ({}, ())


@pytest.mark.parametrize("text", ["", "- command: x\n  tags: validate\n"])
def test_a_role_without_any_task_is_reported(roles: Roles, text: str) -> None:
    roles.add("web", text)
    roles.add("db", text.replace("x", "y"))
    assert roles.compose({"node": ["web", "db"]}).warnings == (
        "upgrade_roles.node: none of its services (web, db) has a task between prepare and verify, so its hosts count as "
        "upgraded without anything being done on them.",
    )


def test_requirements_between_roles_become_their_order(roles: Roles) -> None:
    roles.simple("web", "stop", requires="db")
    roles.simple("db", "stop")
    plain = roles.compose({"front": ["web"], "back": ["db"]}).plain()
    assert plain["role_order"] == {"front": ["back"]}
    assert plain["reasons"] == {"front": {"back": "web requires db, which back has"}}
    assert plain["lockstep"] == []


def test_control_roles_that_need_each_other_go_together(roles: Roles) -> None:
    for name, requires in (("a", "b"), ("b", ""), ("c", "d"), ("d", "")):
        roles.simple(name, "stop", requires=requires)
    stage = {"plane": "controlplane"}
    found = roles.compose({"x": {**stage, "services": ["a", "d"]}, "y": {**stage, "services": ["b", "c"]}}).plain()
    assert (found["lockstep"], found["role_order"], found["reasons"]) == ([["x", "y"]], {}, {"x": {}, "y": {}})


@pytest.mark.parametrize("pull", [False, True])
def test_a_rollback_replaces_each_service_before_those_that_it_requires(roles: Roles, pull: bool) -> None:
    # app requires store through a service of another role.
    roles.simple("app", "prepare", "stop", "start", "verify", requires="cache")
    roles.simple("cache", "upgrade", requires="store")
    roles.simple("store", "prepare", "stop", "upgrade", "verify")
    roles.simple("other", "upgrade")
    web = {"services": ["app", "other", "store"], "pull": pull}
    role = roles.compose({"web": web, "caches": {"services": ["cache", "store"]}}).roles["web"]
    others = ["prepare/store", "prepare/app"], ["verify/store", "verify/app"]
    assert [group.name for group in role.task_groups] == [
        *others[0], "stop/store", "upgrade/store", "stop/app", "start/app", "upgrade/other", *others[1],
    ]  # fmt: skip
    assert role.plain()["reversed_task_groups"] == [
        *others[0], "stop/app", "start/app", "upgrade/other", "stop/store", "upgrade/store", *others[1],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("requires", "steps", "more"),
    [
        ("", ("stop", "start"), ""),
        # It replaces nothing.
        ("store", ("prepare", "verify"), ""),
        ("store", ("stop", "start"), "stop_together: true\n"),
    ],
)
def test_without_another_order_a_rollback_has_none_of_its_own(
    roles: Roles, requires: str, steps: tuple[str, ...], more: str
) -> None:
    roles.simple("app", *steps)
    roles.add("app", {META: f"requires: [{requires}]\n{more}"})
    roles.simple("store", "stop", "start")
    role = roles.compose({"web": ["app", "store"]}).roles["web"]
    assert role.reversed_task_groups is None
    assert "reversed_task_groups" not in role.plain()


def test_services_of_roles_that_go_together_all_stop_before_any_is_upgraded(roles: Roles) -> None:
    # In a wave, Ansible runs the whole file of x and then that of y, so in turn a would be replaced before b.
    for name, requires in (("a", "b"), ("b", ""), ("c", "d"), ("d", "")):
        roles.simple(name, "stop", "upgrade", "start", requires=requires)
    stage = {"plane": "controlplane"}
    fleet: dict[str, Any] = {"x": {**stage, "services": ["a", "d"]}, "y": {**stage, "services": ["b", "c"]}}
    found = roles.compose(fleet)
    in_files = {name: [len(role.of_file(step)) for step in REPLACEMENT] for name, role in found.roles.items()}
    assert in_files == {"x": [2, 2, 2], "y": [2, 2, 2]}
    assert commands(found.roles["x"]) == ["stop-a", "stop-d", "upgrade-a", "upgrade-d", "start-a", "start-d"]
    assert found.roles["x"].reversed_task_groups is None
    # A role that goes before them still replaces its services in turn.
    fleet["y"]["services"] = ["b"]
    found = roles.compose(fleet)
    assert (found.among.lockstep, found.roles["x"].stops_together) == ((), False)


def test_roles_of_pull_hosts_are_apart_and_never_go_together_with_others(roles: Roles) -> None:
    roles.simple("web", "stop", requires="db")
    roles.simple("db", "stop")
    fleet: dict[str, Any] = {
        "front": {"plane": "controlplane", "services": ["web"]},
        "back": {"plane": "controlplane", "pull": True, "services": ["db"]},
    }
    plain = roles.compose(fleet).plain()
    assert (list(plain["roles"]), list(plain["pull_roles"])) == (["front"], ["back"])
    assert plain["role_order"] == {"front": ["back"]}
    roles.simple("db", "stop", requires="web2")
    roles.simple("web2", "stop")
    fleet["front"]["services"] = ["web", "web2"]
    with pytest.raises(UpgradeError, match="Only roles of the control plane without pull can be upgraded together"):
        roles.compose(fleet)


def test_a_service_that_needs_a_controller_is_refused_on_pull_hosts(roles: Roles) -> None:
    roles.add("web", {TASKS: "- command: x\n  tags: stop\n", META: "needs_controller: true\n"})
    roles.compose({"node": {"services": ["web"]}})
    with pytest.raises(UpgradeError) as caught:
        roles.compose({"node": {"pull": True, "services": ["web"]}})
    assert caught.value.message.replace(str(roles.folder), "R") == (
        "upgrade_roles.node.services[0]: web needs a controller (R/web/meta/upgrade.yml:1), but the hosts of node run their tasks themselves "
        "(pull: true). Remove web, or pull."
    )


def test_data_roles_that_need_each_other_are_refused(roles: Roles) -> None:
    for name, requires in (("a", "b"), ("b", ""), ("c", "d"), ("d", "")):
        roles.simple(name, "stop", requires=requires)
    assert refused(roles, {"x": ["a", "d"], "y": ["b", "c"]}) == (
        "upgrade_roles: roles wait for each other, x -> y -> x: a requires b, which y has; c requires d, which x has. "
        "Only roles of the control plane without pull can be upgraded together. Move the services of these roles into one role, or remove a requirement."
    )


def test_a_circle_of_requirements_is_printed_with_file_and_line(roles: Roles) -> None:
    for name, requires in (("a", "b"), ("b", "c"), ("c", "b")):
        roles.simple(name, "stop", requires=requires)
    assert refused(roles, {"x": ["a", "b"], "y": ["c"]}) == (
        "R/b/meta/upgrade.yml:1: requires has a cycle: b -> c -> b. Remove one of these."
    )


def test_a_required_service_that_no_role_has_is_a_warning_and_one_that_is_nowhere_a_refusal(roles: Roles) -> None:
    roles.simple("web", "stop", requires="db, lib")
    roles.simple("lib", "stop")
    assert refused(roles, {"x": ["web", "lib"]}) == (
        "R/web/meta/upgrade.yml:1: requires: no service 'db' is in upgrade_roles or in R."
    )
    roles.simple("db", "stop")
    (warning,) = roles.compose({"x": ["web", "lib"]}).warnings
    assert warning.endswith("web/meta/upgrade.yml:1: web requires db, which no role has, so it has no effect.")


@pytest.mark.parametrize("required", ["pkg", "a.b.pkg", "cron"])
def test_a_service_is_required_by_its_own_name_or_by_that_of_its_role(roles: Roles, required: str) -> None:
    roles.simple("pkg", "stop")
    roles.simple("web", "start", requires=required)
    services: list[Any] = ["web", {"service": "a.b.pkg", "name": "cron"}]
    role = roles.compose({"x": services}).roles["x"]
    assert [entry.name for entry, _service in role.services] == ["cron", "web"]


def test_services_are_refused_with_file_and_line(roles: Roles) -> None:
    roles.add("web", "---\n- command: x\n  tags: stop\n\n- name: b\n  command: y\n")
    assert refused(roles, {"x": ["web"]}).startswith("R/web/tasks/upgrade_tasks.yml:5: the task has no step, so it ")


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ("web", "upgrade_roles.x.services: 'web' is not a list of services."),
        ({"web": 1}, "upgrade_roles.x.services: {'web': 1} is not a list of services."),
        (
            ["web", "wbe"],
            "upgrade_roles.x.services[1]: no role 'wbe' is in R. Check its name, and whether its collection is installed.",
        ),
        (
            ["plain"],
            "upgrade_roles.x.services[0]: the role 'plain' in R/plain is not a service: it has neither tasks/upgrade_tasks.yml "
            "nor tasks/post_upgrade_tasks.yml nor an upgrade_path in meta/upgrade.yml.",
        ),
        (
            ["web", {"service": "web", "vars": {"a": 1}}],
            "upgrade_roles.x.services[1]: the role has another service 'web' already. Give one of them a name "
            "of its own.",
        ),
    ],
)
def test_lists_of_services_that_are_refused(roles: Roles, services: Any, message: str) -> None:
    roles.simple("web", "stop")
    roles.add("plain", {"tasks/main.yml": ""})
    assert refused(roles, {"x": {"services": services}}) == message


def test_a_name_means_one_service_in_all_roles(roles: Roles) -> None:
    roles.simple("a", "stop")
    roles.simple("b", "stop")
    message = refused(roles, {"x": [{"service": "a", "name": "db"}], "y": [{"service": "b", "name": "db"}]})
    assert message == (
        "upgrade_roles.y: 'db' is R/b here and R/a in another role, so requires would be ambiguous. Give one "
        "of them a name of its own."
    )


@pytest.mark.parametrize("role", ["../up", "a/b", "a.b", "", 7])
def test_a_role_is_the_name_of_a_folder(roles: Roles, role: Any) -> None:
    assert refused(roles, {role: None}).startswith(f"upgrade_roles: the role {role!r} can't name a folder.")


def test_what_one_host_runs_for_all_needs_a_host(roles: Roles) -> None:
    roles.simple("db", "upgrade", once="upgrade")
    upgrade_roles = {"x": ["db"], "y": ["db"]}
    for hosts in ({}, {"x": 0, "y": 0, "other": 3}):
        assert refused(roles, upgrade_roles, hosts) == (
            "upgrade_roles.x: db has tasks that one host runs for all, but no role with this service has a host: x, y. Add a "
            "host to the role, or remove the service."
        )
    assert list(roles.compose(upgrade_roles, {"y": 1}).roles) == ["x", "y"]
    assert list(roles.compose(upgrade_roles).roles) == ["x", "y"]


def test_what_every_host_runs_does_not(roles: Roles) -> None:
    roles.simple("db", "upgrade")
    assert list(roles.compose({"x": ["db"]}, {}).roles) == ["x"]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("require: [db]\n", "R/web/meta/upgrade.yml:1: unknown key 'require'; did you mean 'requires'? Known are: requires, "
         "once, stop_together, plane, upgrade_path, provider, needs_controller, versions, allowed_from, allow_downgrade."),
        ("---\n\n1: x\n", "R/web/meta/upgrade.yml:3: unknown key 1. Known are: requires, "
         "once, stop_together, plane, upgrade_path, provider, needs_controller, versions, allowed_from, allow_downgrade."),
        ("[db]\n", "R/web/meta/upgrade.yml:1: ['db'] is not a mapping with requires, "
         "once, stop_together, plane, upgrade_path, provider, needs_controller, versions, allowed_from and "),
        ("once: x\nrequires: {a: b}\n", "R/web/meta/upgrade.yml:2: requires: {'a': 'b'} is not a list of names."),
        ("requires: [1]\n", "R/web/meta/upgrade.yml:1: requires: [1] is not a list of names."),
        ("requires: []\nonce: [upgrad]\n", "R/web/meta/upgrade.yml:2: once: 'upgrad' is not a step; did you mean 'upgrade'? Steps are: "),
        ("\nonce: step7\n", "R/web/meta/upgrade.yml:2: there is no step 'step7'. Tag it with one of"),
        ("once: [start]\n", "R/web/meta/upgrade.yml:1: once: no task has the step start, so nothing would run once. Remove the "),
        ("once: post_upgrade\n", "R/web/meta/upgrade.yml:1: once: no task has the step post_upgrade, so nothing"),
        ("once: may_stop\n", "R/web/meta/upgrade.yml:1: once: no task has the step may_stop, so nothing"),
        ("stop_together: 1\n", "R/web/meta/upgrade.yml:1: stop_together: 1 is neither true nor false."),
        ("once: validate\n", "R/web/tasks/upgrade_tasks.yml:1: once is not allowed in the step validate, which checks every host before it "),
        ("a: [\n", "R/web/meta/upgrade.yml: the file can't be read: while parsing a flow node"),
        ("requires: 2020-13-45\n", "R/web/meta/upgrade.yml: the file can't be read: month must be in 1..12."),
    ],
)  # fmt: skip
def test_meta_that_is_refused(roles: Roles, meta: str, message: str) -> None:
    roles.add("web", {TASKS: "- command: x\n  tags: validate\n", META: meta})
    assert refused(roles, {"x": ["web"]}).startswith(message)


@pytest.mark.parametrize(
    "meta", ["", "---\n", "# none\n", "requires:\nonce:\n", "requires: []\n", "\ufeffrequires: lib\n"]
)
def test_meta_that_says_little(roles: Roles, meta: str) -> None:
    roles.simple("lib", "stop")
    roles.add("web", {TASKS: "- command: x\n  tags: start\n", META: meta})
    assert commands(roles.compose({"x": ["web", "lib"]}).roles["x"]) == (
        ["stop-lib", "x"] if "lib" in meta else ["x", "stop-lib"]
    )


def test_a_role_with_services_of_both_planes_is_refused(roles: Roles) -> None:
    roles.add("api", {TASKS: "- command: x\n  tags: start\n", META: "plane: controlplane\n"})
    roles.add("agent", {TASKS: "- command: x\n  tags: start\n", META: "plane: dataplane\n"})
    assert refused(roles, {"x": {"plane": "controlplane", "services": ["api", "agent"]}}) == (
        "upgrade_roles.x.services[1]: agent belongs to the plane dataplane, and the role x to controlplane. A host is upgraded as a whole, "
        "in one of the planes. So accept that agent goes with controlplane: {service: agent, plane: controlplane}, or have it on other "
        "hosts, in a role of dataplane."
    )
    accepted = ["api", {"service": "agent", "plane": "controlplane"}]
    assert roles.compose({"x": {"plane": "controlplane", "services": accepted}}).roles["x"].services


@pytest.mark.parametrize("services", [["api"], ["agent", "api"], [{"service": "agent", "plane": "controlplane"}]])
def test_a_role_without_a_plane_has_no_services_of_the_control_plane(roles: Roles, services: list[Any]) -> None:
    """Its hosts go with the data plane."""
    roles.add("api", {TASKS: "- command: x\n  tags: start\n", META: "plane: controlplane\n"})
    roles.add("agent", {TASKS: "- command: x\n  tags: start\n", META: "plane: dataplane\n"})
    said = refused(roles, {"x": {"services": services}})
    assert "belongs to the plane controlplane, and the role x has none, so it goes with dataplane." in said
    assert "Set upgrade_roles.x.plane to controlplane, or accept that" in said
    assert roles.compose({"x": {"plane": "controlplane", "services": ["api"]}}).roles["x"].services
    accepted = ["agent", {"service": "api", "plane": "dataplane"}]
    assert roles.compose({"x": {"services": accepted}}).roles["x"].services


def test_every_service_of_the_collection_can_be_composed_beside_all_others() -> None:
    folder = Path(__file__).resolve().parents[5] / "roles"
    names = sorted({tasks.parents[1].name for tasks in folder.glob("*/tasks/*upgrade_tasks.yml")})
    assert len(names) > 10
    services = [{"service": name, "plane": "controlplane"} for name in names]
    roles = {"x": {"plane": "controlplane", "services": services}}
    composition = compose(roles, lambda name: folder / name.rpartition(".")[2], [str(folder)], {"x": 1})
    assert {task_group.service for task_group in composition.roles["x"].task_groups} == set(names)
    assert composition.warnings == ()


RESTART = "- name: Restart it\n  service: {name: '{{ unit }}'}\n"
RELOAD = "- name: Reload systemd\n  systemd_service: {daemon_reload: true}\n  listen: [reload]\n"


def use(service: str, name: str, unit: str = "") -> dict[str, Any]:
    return {"service": service, "name": name, **({"vars": {"unit": unit}} if unit else {})}


def with_handlers(roles: Roles, **handlers: str) -> None:
    for name, text in handlers.items():
        task = f"- command: {name}\n  notify: x\n  tags: stop\n"
        roles.add(name, {"tasks/upgrade_tasks.yml": task, "handlers/main.yml": text})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"services": [use("app", "a", "x"), use("app", "b", "y")]}, {}),
        ({"services": [use("app", "a", "x")]}, {"services": [use("app", "b", "y")]}),
        ({"services": [use("app", "a")]}, {"plane": "controlplane", "services": [use("api", "b")]}),
        ({"services": [use("app", "a", "x"), use("app", "b", "y")], "pull": True}, {}),
    ],
)
def test_a_handler_that_would_run_in_place_of_another_one_is_refused(
    roles: Roles, one: dict[str, Any], other: dict[str, Any]
) -> None:
    with_handlers(roles, app=RESTART, api="- import_tasks: more.yml\n")
    (roles.folder / "api/handlers/more.yml").write_text(RELOAD + RESTART)
    with pytest.raises(UpgradeError) as caught:
        roles.compose({"one": one, "other": other})
    message = caught.value.message
    file = "api/handlers/more.yml:4" if "api" in str(other) else "app/handlers/main.yml:1"
    assert message.startswith(f"{roles.folder}/{file}: b of the role ")
    assert "has the handler 'Restart it', and a of the role one has one of this name with another effect" in message
    assert f"({roles.folder}/app/handlers/main.yml:1)" in message
    assert "Give each a name of its own" in message


@pytest.mark.parametrize("listen", ["all", "[x, all]"])
def test_so_is_a_topic_of_two_services(roles: Roles, listen: str) -> None:
    with_handlers(roles, app=f"- {{name: a, listen: {listen}, x: 1}}\n", api="- {name: all, x: 2}\n")
    with pytest.raises(UpgradeError, match="api of the role node has the handler 'all', and app of the role node"):
        roles.compose({"node": ["app", "api"]})


@pytest.mark.parametrize(
    "fleet",
    [
        {"one": [use("app", "a", "x")], "other": [use("app", "a", "x")]},
        {"one": [use("app", "a"), use("app", "b"), use("web", "web", "x")]},
        {"one": [use("api", "a", "x"), use("api", "b", "y"), "db"], "other": [use("api", "a", "z"), "db"]},
        {name: {"pull": True, "services": [use("app", "a", name)]} for name in ("one", "other")},
    ],
)
def test_handlers_of_one_name_that_do_the_same_are_not(roles: Roles, fleet: dict[str, Any]) -> None:
    with_handlers(roles, app=RESTART + RELOAD.replace("Reload", "Restart"), api=RELOAD, db=RELOAD)
    with_handlers(roles, web=RESTART.replace("Restart it", "Restart {{ unit }}"))
    roles.compose(fleet)
