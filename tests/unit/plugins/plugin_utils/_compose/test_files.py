# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a composition, and their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.files import files_of, plain
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.folder import (
    Difference,
    compare,
    refuse_untrusted,
    write,
    write_new,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import PATIENCE
from jinja2.nativetypes import NativeEnvironment
from written_services import POST, TASKS, Roles

SPECS = "meta/argument_specs.yml"


@pytest.fixture
def roles(tmp_path: Path) -> Roles:
    return Roles(tmp_path / "roles")


def files(roles: Roles, *services: str) -> dict[str, bytes]:
    return files_of(roles.compose({"node": [*services]}), "/composed")


def test_a_name_of_several_lines_stays_a_comment(roles: Roles) -> None:
    roles.add("web", "- name: |\n    a\n    b: c\n  command: x\n  tags: stop\n")
    text = files(roles, "web")["node/step3_upgrade.yml"].decode()
    assert "#   tasks/upgrade_tasks.yml:1 a b: c\n" in text
    assert len(yaml.safe_load(text)) == 2


def test_a_host_may_wait_for_others_longer_than_a_task_may_take(roles: Roles) -> None:
    roles.simple("web", "stop", once="stop")
    tasks = yaml.safe_load(files(roles, "web")["node/step3_upgrade.yml"])
    timeouts = {task["name"]: task.get("timeout") for task in tasks}
    assert set(timeouts.values()) == {0, None}
    assert [name for name, timeout in timeouts.items() if timeout is None] == ["Stop web"]


def test_the_validation_is_selected_by_the_tags_of_every_step_and_runs_no_task_with_the_tag_never(roles: Roles) -> None:
    roles.add("web", "- {tags: validate, x: 1}\n")
    roles.add("db", "- {tags: validate, x: 2}\n- {tags: [validate, never, deep], x: 3}\n")
    web, db = (task["tags"] for task in yaml.safe_load(files(roles, "web", "db")["node/step0_validate.yml"]))
    assert web == ["always", "step0", "validate", "web"]
    assert "always" not in db
    assert {"step1", "prepare", "step2", "stop", "upgrade", "start", "verify", "step0", "validate", "db"} <= {*db}


def test_a_step_reports_every_task_to_the_push_daemon_by_its_tags(roles: Roles) -> None:
    roles.add("web", "- tags: [stop, x]\n  block:\n    - {tags: inner, x: 1}\n    - {x: 2}\n    - {x: 3}\n")
    begin, tasks = yaml.safe_load(files(roles, "web")["node/step3_upgrade.yml"])
    assert begin["convoy.upgrade.push_step"] == {
        "task_group": "stop/web",
        "task_tags": [["step2", "stop", "web", "x", "inner"], ["step2", "stop", "web", "x"]],
    }
    assert (tasks["when"], tasks["tags"]) == ("upgrade_task_group.run", ["step2", "stop", "web"])


def test_a_host_is_undrained_also_if_its_verification_is_skipped(roles: Roles) -> None:
    roles.simple("web", "verify", "undrain")
    begin, undrain = yaml.safe_load(files(roles, "web")["node/step5_verify.yml"])[2:]
    assert begin["convoy.upgrade.push_step"]["task_tags"] == [["step5", "verify", "undrain", "web"]]
    assert (undrain["when"], undrain["tags"]) == ("upgrade_task_group.run", ["always"])


@pytest.mark.parametrize(
    "more",
    [
        "notify: restart",
        "x: 1\n  notify: []",
        "block:\n    - x: 1\n    - {block: [{x: 1}], rescue: [{x: 1, notify: restart}]}",
        # The handlers of what these include are not known here.
        "include_role: {name: x}",
        "ansible.builtin.import_role: {name: x}",
        "block: [{action: 'include_role name=x'}]",
        "local_action: x",
    ],
)
def test_handlers_run_at_the_end_of_their_task_group_and_what_runs_once_is_ended(roles: Roles, more: str) -> None:
    roles.add("web", f"- tags: [stop, once]\n  {more}\n")
    tasks = yaml.safe_load(files(roles, "web")["node/step3_upgrade.yml"])
    assert [task["name"] for task in tasks] == ["Begin stop/web", "Stop web", "Handlers of web", "End stop/web"]
    # A tag of a task selects them too.
    assert (tasks[2]["ansible.builtin.meta"], tasks[2]["tags"]) == ("flush_handlers", ["always"])


def test_steps_without_tasks_are_files_without_tasks(roles: Roles) -> None:
    roles.simple("web", "stop")
    found = files(roles, "web")
    assert yaml.safe_load(found["node/step1_prepare.yml"]) == []
    assert [task["name"] for task in yaml.safe_load(found["node/step3_upgrade.yml"])][1:2] == ["Stop web"]


def test_the_file_of_all_steps_has_the_tasks_of_the_other_files(roles: Roles) -> None:
    roles.simple("web", "prepare", "drain", "stop", "verify")
    roles.simple("db", "may_stop", "upgrade")
    found = files(roles, "web", "db")
    steps = ("step1_prepare", "step2_stop", "step3_upgrade", "step4_start", "step5_verify")
    parts = [task for step in steps for task in yaml.safe_load(found[f"node/{step}.yml"])]
    assert yaml.safe_load(found["node/upgrade.yml"]) == parts
    assert [task["name"] for task in parts][::2] == [
        "Begin prepare/web", "Begin may_stop/db", "Begin drain/web", "Begin stop/web", "Begin upgrade/db", "Begin verify/web",
    ]  # fmt: skip


def test_a_rollback_has_files_of_its_own_if_its_order_is_another_one(roles: Roles) -> None:
    roles.simple("web", "prepare", "stop", "upgrade", requires="db")
    roles.simple("db", "stop", "verify")
    upgrade_roles = {"node": {"services": ["web", "db"], "pull": True}, "other": {"services": ["db"], "pull": True}}
    composition = roles.compose(upgrade_roles)
    found = files_of(composition, "/composed")
    names = ["node/step3_upgrade_reversed.yml", "node/upgrade_reversed.yml"]
    assert [name for name in found if "_reversed" in name] == names

    def begun(name: str) -> list[str]:
        return [task["name"] for task in yaml.safe_load(found[name])][::2]

    assert begun("node/step3_upgrade.yml") == ["Begin stop/db", "Begin stop/web", "Begin upgrade/web"]
    assert begun(names[0]) == ["Begin stop/web", "Begin upgrade/web", "Begin stop/db"]
    assert begun(names[1]) == ["Begin prepare/web", *begun(names[0]), "Begin verify/db"]
    assert b"# A rollback runs node/step3_upgrade_reversed.yml instead" in found["node.yml"]
    # The ID comes from these data and files. That of the other role is what it was, so that its hosts need not be enrolled again.
    data = plain(composition, found)["pull_roles"]
    assert {role for role in data if "reversed_task_groups" in data[role]} == {"node"}


def test_drained_services_can_be_undrained_after_a_failure(roles: Roles) -> None:
    roles.simple("web", "drain", "stop", "undrain")
    roles.add("db", "- {tags: drain, x: 1}\n- {tags: undrain, x: 1, notify: x}\n")
    tasks = yaml.safe_load(files(roles, "web", "db")["node/undrain_after_failure.yml"])
    assert [(task["name"], task["when"], task["tags"]) for task in tasks] == [
        ("Undrain web", "'web' in upgrade_drained", ["always"]),
        ("Undrain db", "'db' in upgrade_drained", ["always"]),
        ("Handlers of db", "'db' in upgrade_drained", ["always"]),
    ]
    # Handlers would inherit the condition from an import, and other hosts may run them.
    assert tasks[0]["ansible.builtin.include_role"]["apply"] == {"tags": ["always"]}
    roles.simple("api", "stop")
    assert "node/undrain_after_failure.yml" not in files(roles, "api")


def test_the_check_before_a_stop_is_tried_again(roles: Roles) -> None:
    roles.simple("web", "may_stop")
    found = files(roles, "web")
    begin, check = yaml.safe_load(found["node/step2_stop.yml"])
    again = {"file": "{{ upgrade_tasks_folder }}/step2_may_stop_web.yml"}
    assert check["ansible.builtin.include_tasks"] == again
    (block,) = yaml.safe_load(found["node/step2_may_stop_web.yml"])
    assert block["block"][0]["ansible.builtin.import_role"]["tasks_from"] == "step2_may_stop"
    assert "upgrade_may_stop_timeout" in block["block"][0]["timeout"]
    # A try ends at the time limit of the check, after a minute at the earliest, and never later than any other task of the run.
    limit = jinja2.Environment(autoescape=False).from_string(block["block"][0]["timeout"])
    for patience, of_tasks, expected in ((5, 0, 60), (300, 0, 300), (None, 0, PATIENCE), (300, 120, 120), (5, 30, 30)):
        given = {} if patience is None else {"upgrade_may_stop_timeout": patience}
        assert limit.render(**given, upgrade_prepared={"task_timeout": of_tasks}) == str(expected)
    wait, include = block["rescue"]
    assert (wait["convoy.upgrade.push_step"]["state"], include["ansible.builtin.include_tasks"]) == ("refused", again)
    assert block["tags"] == check["tags"] == ["step2", "stop", "may_stop", "web"]
    # A time that is too long is refused before the first try.
    assert begin["convoy.upgrade.push_step"]["patience"] == wait["convoy.upgrade.push_step"]["patience"]


@pytest.mark.parametrize(("name", "source"), [("step2_stop", TASKS), ("post_upgrade", POST), ("step0_validate", SPECS)])
def test_a_file_of_a_service_is_not_lost_under_a_composed_one(roles: Roles, name: str, source: str) -> None:
    texts = {TASKS: "- x: 1\n  tags: stop\n", POST: "- x: 1\n", SPECS: "argument_specs: {upgrade_tasks: {}}\n"}
    roles.add("web", {TASKS: "", source: texts[source], f"tasks/{name}.yml": "- x: 2\n"})
    with pytest.raises(UpgradeError) as caught:
        files(roles, "web")
    assert caught.value.message == (
        f"{roles.folder}/web/tasks/{name}.yml: a composed file has this name and would overwrite it. Rename this file."
    )


@pytest.mark.parametrize("text", ["[", "[]\n[", "- a\n", "argument_specs: [a]\n", "a: 2020-13-45\n"])
def test_argument_specs_that_can_not_be_read_are_refused(roles: Roles, text: str) -> None:
    roles.add("web", {TASKS: "", SPECS: text})
    with pytest.raises(UpgradeError, match=r"web/meta/argument_specs\.yml: the file can't be read as argument specs: "):
        files(roles, "web")


@pytest.mark.parametrize("tasks", ["- x: 1\n  tags: validate\n", "- x: 1\n  tags: stop\n"])
def test_a_text_in_place_of_a_list_is_refused_before_any_host_changes(roles: Roles, tasks: str) -> None:
    options = {"web_ports": {"type": "list"}, "web_units": {"type": "list"}, "web_name": {"type": "str"}}
    specs = yaml.safe_dump({"argument_specs": {"upgrade_tasks": {"options": options}}})
    roles.add("web", {TASKS: tasks, SPECS: specs})
    check = yaml.safe_load(files(roles, "web")["node/services/web/tasks/step0_validate.yml"])[0]
    assert check["ansible.builtin.assert"]["that"] == "upgrade_texts | length == 0"

    def found(**variables: Any) -> Any:
        return NativeEnvironment().from_string(check["vars"]["upgrade_texts"]).render(**variables)

    assert found(web_ports=[443], web_name="web") == []
    assert found(web_ports="443", web_units=[]) == ["web_ports"]
    assert found(web_ports=443, web_units="a,b") == ["web_ports", "web_units"]


def test_a_service_keeps_its_collections_and_not_its_dependencies(roles: Roles) -> None:
    roles.add(
        "web", {TASKS: "- x: 1\n  tags: stop\n", "meta/main.yml": "{collections: [a.b, c.d], dependencies: [common]}\n"}
    )
    assert yaml.safe_load(files(roles, "web")["node/services/web/meta/main.yml"]) == {
        "dependencies": [],
        "collections": ["a.b", "c.d"],
    }
    roles.add("web", {"meta/main.yml": "collections: a.b\n"})
    with pytest.raises(
        UpgradeError, match=r"web/meta/main\.yml: the file can't be read as metadata of a role: collections is 'a\.b'"
    ):
        files(roles, "web")


def test_what_is_copied_and_what_is_not(roles: Roles) -> None:
    texts = ("files/tests/a.sh", "library/x.py", "library/__pycache__/x.pyc", "meta/main.yml", "molecule/x.yml", "x.md")
    roles.add("web", {TASKS: "- x: 1\n  tags: stop\n", **dict.fromkeys(texts, "x: 1\n")})
    below = "node/services/web/"
    assert [path.removeprefix(below) for path in files(roles, "web") if path.startswith(below)] == [
        "files/tests/a.sh", "library/x.py", "meta/main.yml", "tasks/step2_stop.yml",
    ]  # fmt: skip


def test_a_composition_names_all_its_files(roles: Roles) -> None:
    roles.simple("web", "stop")
    found = files(roles, "web")
    assert json.loads(found["composition.json"])["files"] == sorted(found)
    assert list(found) == sorted(found)


def sign(*names: str) -> bytes:
    return json.dumps({"files": ["composition.json", *names]}).encode()


def test_a_folder_gets_what_it_lacks_and_loses_what_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new/folder"
    first = {"composition.json": sign("a/b/c", "d"), "a/b/c": b"1", "d": b"2"}
    write(folder, compare(folder, first))
    assert compare(folder, first) == []
    second = {"composition.json": sign("a", "d"), "a": b"3", "d": b"2"}
    assert [one.path for one in compare(folder, second)] == ["a", "a/b/c", "composition.json"]
    write(folder, compare(folder, second))
    assert compare(folder, second) == []
    assert sorted(path.name for path in folder.rglob("*")) == ["a", "composition.json", "d"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"files": 7}', sign()])
def test_only_what_an_earlier_composition_names_is_deleted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "composition.json").write_bytes(content)
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UpgradeError) as caught:
        compare(tmp_path, {"mine": b"y"})
    assert caught.value.code == "bad_folder"


def test_a_folder_that_was_interrupted_is_known_as_a_composition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"a": b"1", "composition.json": sign("a", "z"), "z": b"2"}
    write_bytes = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> int:
        if path.name == "z":
            raise KeyboardInterrupt
        return write_bytes(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, compare(tmp_path, found))
    assert compare(tmp_path, found) == [Difference("z", None, b"2")]


def test_a_folder_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/old").write_text("x")
    write_new(tmp_path / "run", {"a/b": b"1"})
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "run").rglob("*") if path.is_file()] == ["run/a/b"]


def test_the_tasks_of_pull_hosts_have_an_id_that_changes_with_them(roles: Roles) -> None:
    def ids(folder: str) -> dict[str, str]:
        fleet = {"cache": {"pull": True, "services": ["db"]}, "web": {"services": ["web"]}}
        composition = roles.compose(fleet)
        return {
            name: role["tasks_id"]
            for name, role in plain(composition, files_of(composition, folder))["pull_roles"].items()
        }

    roles.simple("web", "stop")
    roles.simple("db", "stop")
    first = ids("/a")
    roles.simple("web", "stop", "start")
    assert ids("/b") == first
    roles.simple("db", "stop", "start")
    assert ids("/a").keys() == first.keys() == {"cache"}
    assert ids("/a") != first


def test_tasks_that_others_could_change_are_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "services"
    (folder / "web").mkdir(parents=True)
    file = folder / "web/upgrade.yml"
    file.write_text("[]\n")
    refuse_untrusted(folder)
    for path, mode in ((file, 0o666), (folder / "web", 0o775), (tmp_path, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(UpgradeError) as caught:
            refuse_untrusted(folder)
        assert caught.value.message.startswith(
            f"{path} can be changed by others than root (user {os.geteuid()}, mode {mode:04o}), so no task in"
        )
        path.chmod(before)
    refuse_untrusted(folder)
