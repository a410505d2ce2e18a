# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's upgrade path: its files, their order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.provider import (
    decode_provider,
    encode_provider,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record, encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.providers import Provider
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.files import files_of
from written_services import META, POST, TASKS, Roles

TASK = "- command: x\n  tags: upgrade\n"


@pytest.fixture
def roles(tmp_path: Path) -> Roles:
    return Roles(tmp_path / "roles")


def add(roles: Roles, name: str, checkpoints: dict[str, str], meta: str = "", tasks: str = TASK) -> None:
    """Write a service with a file for each version."""
    versions = ", ".join(f'"{version}"' for version in checkpoints)
    texts = {f"tasks/upgrade_to/{version}.yml": text for version, text in checkpoints.items()}
    roles.add(name, {TASKS: tasks, META: meta or f"upgrade_path: [{versions}]\n", **texts})


def task_groups(roles: Roles, *services: str) -> list[str]:
    return [task_group.name for task_group in roles.compose({"node": [*services]}).roles["node"].task_groups]


def refused(roles: Roles, *services: str) -> str:
    with pytest.raises(UpgradeError) as caught:
        roles.compose({"node": [*services]})
    assert caught.value.code == "bad_service"
    return caught.value.message.replace(str(roles.folder), "R")


def test_checkpoints_come_before_a_services_own_tasks_of_their_step_the_oldest_first(roles: Roles) -> None:
    both = "- command: a\n  tags: start\n- command: b\n"
    own = "- command: x\n  tags: upgrade\n- command: y\n  tags: start\n"
    add(roles, "db", {"2.10": both, "2.9": "- command: c\n", "2.10-rc1": both}, tasks=own)
    assert task_groups(roles, "db") == [
        *("upgrade/db@2.9", "upgrade/db@2.10-rc1", "upgrade/db@2.10", "upgrade/db"),
        *("start/db@2.10-rc1", "start/db@2.10", "start/db"),
    ]


def test_within_a_step_all_services_come_to_a_version_before_any_goes_further(roles: Roles) -> None:
    for name, requires in (("app", "[db]"), ("db", "[]"), ("lib", "[]")):
        versions = ("v7", "v9") if name == "lib" else ("2.4", "2.6")
        meta = f"upgrade_path: [{', '.join(repr(version) for version in versions)}]\nrequires: {requires}\n"
        add(roles, name, dict.fromkeys(versions, TASK), meta, f"- command: {name}\n  tags: upgrade\n")
    assert task_groups(roles, "app", "db", "lib") == [
        *("upgrade/db@2.4", "upgrade/app@2.4", "upgrade/db@2.6", "upgrade/app@2.6"),
        *("upgrade/lib@v7", "upgrade/lib@v9", "upgrade/db", "upgrade/app", "upgrade/lib"),
    ]


def test_where_a_use_lists_its_versions_their_order_counts(roles: Roles) -> None:
    add(roles, "db", {"jessie": TASK, "buster": TASK, "bullseye": TASK})
    listed = {"service": "db", "versions": ["jessie", "buster", "bullseye"]}
    found = roles.compose({"node": {"services": [listed]}})
    assert [task_group.checkpoint for task_group in found.roles["node"].task_groups] == [
        "jessie",
        "buster",
        "bullseye",
        "",
    ]
    assert found.plain()["roles"]["node"]["paths"] == {
        "db": {"checkpoints": ["jessie", "buster", "bullseye"], "provider": False}
    }
    assert refused(roles, "db").startswith("R/db/meta/upgrade.yml:1: upgrade_path: ")


def test_a_service_may_have_a_path_and_nothing_else(roles: Roles) -> None:
    roles.add("db", {META: 'upgrade_path: {"2.4": way/to24.yml}\n', "tasks/way/to24.yml": "- command: x\n"})
    (task_group,) = roles.compose({"node": ["db"]}).roles["node"].task_groups
    assert task_group.plain() == {
        "name": "upgrade/db@2.4", "step": "upgrade", "service": "db", "once": False, "checkpoint": "2.4", "provider": False,
        "tags": ["step3", "upgrade", "db"], "tasks": 1,
    }  # fmt: skip


def test_the_tasks_of_a_checkpoint_have_its_version_and_an_end_so_that_they_are_not_run_again(roles: Roles) -> None:
    add(roles, "db", {"2.4": "- command: look\n  tags: validate\n- command: x\n"})
    found = files_of(roles.compose({"node": ["db"]}), "/composed")
    (check,) = yaml.safe_load(found["node/step0_validate.yml"])
    assert (check["when"], check["vars"]) == ("'db@2.4' in upgrade_checkpoints", {"upgrade_checkpoint": "2.4"})
    begin, tasks, end = yaml.safe_load(found["node/step3_upgrade.yml"])[:3]
    assert begin["convoy.upgrade.push_step"]["task_group"] == "upgrade/db@2.4"
    assert tasks["ansible.builtin.import_role"]["tasks_from"] == "step3_upgrade_to_2.4"
    assert (tasks["name"], tasks["vars"]) == ("Upgrade db to 2.4", {"upgrade_checkpoint": "2.4"})
    assert end["convoy.upgrade.push_step"] == {
        "task_group": "upgrade/db@2.4",
        "state": "done",
    }
    below = "node/services/db/tasks/"
    assert [path.removeprefix(below) for path in found if path.startswith(below)] == [
        "step0_validate_to_2.4.yml", "step3_upgrade.yml", "step3_upgrade_to_2.4.yml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("meta", "text", "message"),
    [
        ("upgrade_path: [2.4]\n", TASK, "R/db/meta/upgrade.yml:1: upgrade_path: 2.4 is not text but a number or the like, and YAML may have changed it"),
        ("upgrade_path: {2.4: a.yml}\n", TASK, "R/db/meta/upgrade.yml:1: upgrade_path: 2.4 is not text"),
        ("a: 1\n", TASK, "R/db/meta/upgrade.yml:1: unknown key 'a'"),
        ('\nupgrade_path: "2.4"\n', TASK, "R/db/meta/upgrade.yml:2: upgrade_path: '2.4' is neither a list of versions nor"),
        ('upgrade_path: ["2.4", "2.4"]\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: 2.4 is listed twice. Remove one"),
        (
            'upgrade_path: {"2.4": upgrade_to/2.4.yml, "2.4.0": upgrade_to/2.4.yml}\n', TASK,
            "R/db/meta/upgrade.yml:1: upgrade_path: 2.4 is listed twice, in two spellings. Remove one of them.",
        ),
        ('upgrade_path: ["2/4"]\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: "),
        ('upgrade_path: {"2.4": /etc/x.yml}\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: '/etc/x.yml' of 2.4 is not a path below"),
        ('upgrade_path: {"2.4": ../x.yml}\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: '../x.yml' of 2.4 is not a path below"),
        ('upgrade_path: {"2.4": 7}\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: 7 of 2.4 is not a path below"),
        ('upgrade_path: ["2.5"]\n', TASK, "R/db/meta/upgrade.yml:1: upgrade_path: the file of 2.5, R/db/tasks/upgrade_to/2.5.yml, does not"),
        ('upgrade_path: ["2.4"]\n', "[]\n", "R/db/tasks/upgrade_to/2.4.yml: the file has no task, so nothing would be done."),
        (
            'upgrade_path: ["2.4"]\n', "- command: x\n  tags: [once]\n",
            "R/db/tasks/upgrade_to/2.4.yml:1: once is not allowed in upgrade_path: hosts at several versions",
        ),
        (
            'upgrade_path: ["2.4"]\n', "- command: x\n  tags: [verfy]\n",
            "R/db/tasks/upgrade_to/2.4.yml:1: the task has no step, so it would never run. Its tag 'verfy' is not a step; did you",
        ),
        (
            'upgrade_path: ["2.4"]\n', "- include_tasks: more.yml\n",
            "R/db/tasks/upgrade_to/2.4.yml:1: include_tasks names more.yml, but R/db/tasks/more.yml does not exist.",
        ),
        ('upgrade_path: ["2.4"]\nprovider: 1\n', TASK, "R/db/meta/upgrade.yml:2: provider: 1 is neither true nor false."),
    ],
)  # fmt: skip
def test_paths_that_are_refused(roles: Roles, meta: str, text: str, message: str) -> None:
    add(roles, "db", {"2.4": text}, meta)
    assert refused(roles, "db").startswith(message)


def test_what_a_checkpoint_includes_is_named_from_the_folder_of_tasks(roles: Roles) -> None:
    add(roles, "db", {"2.4": "- include_tasks: upgrade_to/more.yml\n"})
    (roles.folder / "db/tasks/upgrade_to/more.yml").write_text(TASK)
    found = files_of(roles.compose({"node": ["db"]}), "/composed")
    assert "node/services/db/tasks/upgrade_to/more.yml" in found
    assert "node/services/db/tasks/upgrade_to/2.4.yml" not in found


def test_the_tasks_of_a_provider_are_run_by_one_host_and_for_it_alone(roles: Roles) -> None:
    tasks = "- command: x\n  tags: upgrade\n"
    roles.add("cloud", {TASKS: tasks, POST: "- command: y\n", META: "provider: true\n"})
    roles.add("web", tasks)
    role = roles.compose({"node": ["cloud", "web"]}).roles["node"]
    assert [(task_group.name, task_group.provider, task_group.once) for task_group in role.task_groups] == [
        ("upgrade/cloud", True, False),
        # An identical task of a provider is not a duplicate.
        ("upgrade/web", False, False),
        ("post_upgrade/cloud", False, True),
    ]
    found = files_of(roles.compose({"node": ["cloud"]}), "/composed")
    _begin, run, end = yaml.safe_load(found["node/step3_upgrade.yml"])
    assert run["vars"] == {"upgrade_version_before": "{{ upgrade_providers['cloud'] }}"}
    assert end["convoy.upgrade.push_step"]["state"] == "done"
    assert "vars" not in yaml.safe_load(found["node/post_upgrade.yml"])[1]


@pytest.mark.parametrize(
    ("meta", "tags", "where"),
    [
        ("provider: true\nonce: upgrade\n", "upgrade", "meta/upgrade.yml:2"),
        ("provider: true\n", "[upgrade, once]", "tasks/upgrade_tasks.yml:1"),
    ],
)
def test_once_says_nothing_of_a_provider(roles: Roles, meta: str, tags: str, where: str) -> None:
    roles.add("cloud", {TASKS: f"- command: x\n  tags: {tags}\n", META: meta})
    assert refused(roles, "cloud") == (
        f"R/cloud/{where}: once has no effect here, because one host runs all tasks of a provider. Remove it."
    )


def test_a_provider_that_no_host_has_is_refused(roles: Roles) -> None:
    roles.add("cloud", {TASKS: TASK, META: "provider: true\n"})
    given: dict[str, Any] = {"node": {"services": ["cloud"]}}
    with pytest.raises(
        UpgradeError, match="cloud has tasks that one host runs for all, but no role with this service has a host"
    ):
        roles.compose(given, {"node": 0})
    assert roles.compose(given, {"node": 1}).roles


@pytest.mark.parametrize("more", ["", "provider: true\n"])
def test_more_checkpoints_than_a_record_can_have_are_refused(roles: Roles, more: str) -> None:
    # The name of the service's own task group has 208 characters, and that of each checkpoint has six more.
    name, most = "s" * 200, [f"2.{at}" for at in range(101, 193)]
    path = "upgrade_path: [{}]\n" + more
    add(roles, name, dict.fromkeys(most, TASK), path.format(", ".join(map(repr, most))))
    found = tuple(task_groups(roles, name))
    assert sum(map(len, found)) == 92 * 214 + 208
    there = decode_record("k", encode_record(HostRecord("2", "started", done=found)).encode())
    assert (there.readable, there.done) == (True, found)
    cloud = decode_provider("k", encode_provider(Provider("1", "2", done=found)).encode())
    assert (cloud.readable, cloud.done) == (True, found)

    many = [*most, "2.193"]
    add(roles, name, dict.fromkeys(many, TASK), path.format(", ".join(map(repr, many))))
    assert refused(roles, name) == (
        f"upgrade_roles.node: the names of its 94 task groups, such as upgrade/{name}@2.101, have 20110 characters in total, and "
        "a host's record has room for 20000. Remove checkpoints that no host needs any more, or spread the "
        "services over several roles."
    )


def test_checks_and_what_comes_after_the_upgrade_are_counted_apart(roles: Roles) -> None:
    name = "s" * 200
    versions = [f"2.{at}" for at in range(101, 141)]
    tasks = "".join(f"- command: x\n  tags: {step}\n" for step in ("validate", "upgrade", "start"))
    add(roles, name, dict.fromkeys(versions, tasks), tasks=tasks)
    found = task_groups(roles, name)
    assert (
        sum(map(len, found))
        > 20_000
        > sum(len(task_group) for task_group in found if not task_group.startswith("validate/"))
    )
