# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The composer as playbooks use it: what it writes, what it leaves alone, and what Ansible makes of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.child import start
from integration.support.runs.playbook import Runner, Task
from integration.support.runs.push import WATCHED
from written_services import META, POST, TASKS, Roles

ROOT = Path(__file__).resolve().parents[3]
SPECS = "meta/argument_specs.yml"


@pytest.fixture
def roles(tmp_path: Path) -> Roles:
    """An operator's roles: web requires db, and db has a task that one host runs for all."""
    found = Roles(tmp_path / "own")
    found.add(
        "web",
        {
            TASKS: """\
                ---
                # Of the file.

                # Why it is reported:
                - name: Say what web is
                  ansible.builtin.debug:
                    msg: "web is {{ web_name }} of {{ web_more }}"
                  tags: [step3, saying]

                - name: Look at many things
                  tags: stop
                  block:
                    - name: Include more
                      ansible.builtin.include_tasks: sub/more.yml
            """,
            "tasks/sub/more.yml": "- name: More of it\n  ansible.builtin.debug:\n    msg: more of {{ web_name }}\n",
            "defaults/main.yml": "web_more: Größe\n",
            "templates/deep/x.j2": "x\n",
            "README.md": "not copied\n",
            "tests/x.yml": "not copied\n",
            META: "requires: [db]\n",
            SPECS: "argument_specs:\n  upgrade_tasks:\n    options:\n      web_name: {type: str, required: true}\n",
        },
    )
    found.add(
        "db",
        {
            TASKS: "- name: Migrate\n  ansible.builtin.debug: {msg: migrated}\n  tags: [upgrade, once]\n",
            POST: "- name: Say after\n  ansible.builtin.debug: {msg: after}\n",
        },
    )
    return found


def upgrade_roles() -> dict[str, Any]:
    web = {"service": "web", "vars": {"web_name": "first"}}
    other = {"service": "web", "name": "web-2", "vars": {"web_name": "second", "web_more": "{{ 1 + 1 }}"}}
    return {"node": {"plane": "dataplane", "services": [web, other, "db"]}, "puppet": {"plane": "dataplane"}}


def compose(folder: Path, roles: Roles, **options: Any) -> dict[str, Any]:
    given = {"upgrade_roles": upgrade_roles(), "folder": str(folder), "roles_path": [str(roles.folder)], **options}
    return {"convoy.upgrade.compose_upgrade_tasks": given}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_text_in_place_of_a_list_is_refused_and_a_list_is_not(run: Runner, tmp_path: Path) -> None:
    roles = Roles(tmp_path / "own")
    specs = "argument_specs: {upgrade_tasks: {options: {web_ports: {type: list, elements: int}}}}\n"
    roles.add("web", {TASKS: "- ansible.builtin.debug:\n  tags: stop\n", SPECS: specs})
    of_role = {"node": {"plane": "dataplane", "services": ["web"]}}
    checking = {
        "ansible.builtin.include_role": {
            "name": str(tmp_path / "one/node/services/web"),
            "tasks_from": "step0_validate",
        }
    }
    given: list[dict[str, Any]] = [{}, {"web_ports": [443]}, {"web_ports": "443"}]
    played = run(
        [compose(tmp_path / "one", roles, upgrade_roles=of_role), *({**checking, "vars": one} for one in given)]
    )
    checks = [result for result in played if result["action"].endswith("assert")]
    assert [result["failed"] for result in checks] == [False, False, True], played.stdout
    assert checks[-1]["msg"] == (
        "localhost: web_ports must be a list, and is one value. Write web_ports=[...] in an INI inventory, and "
        "-e '{\"web_ports\": [...]}' on a command line."
    )


@pytest.mark.thorough
def test_the_same_input_gives_the_same_bytes_and_a_second_time_changes_nothing(
    run: Runner, roles: Roles, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    hosts = {"node": ["n1"]}
    kept: Task = {"ansible.builtin.command": f"cp -a {{{{ composed.run_folder }}}} {tmp_path / 'copy'}"}
    tasks = [{**compose(one, roles, hosts=hosts, for_run=True), "register": "composed"}, kept]
    again = [compose(one, roles, hosts=hosts), compose(one, roles, composed=str(one))]
    first, _kept, second, read = run([*tasks, *again], environ=WATCHED)
    before = {path: path.stat().st_mtime_ns for path in one.rglob("*")}
    (third,) = run([compose(one, roles)], environ={"PYTHONHASHSEED": "7"})
    assert [task["changed"] for task in (first, second, third, read)] == [True, False, False, False]
    assert read["roles"] == first["roles"]
    assert {path: path.stat().st_mtime_ns for path in one.rglob("*")} == before
    assert tree(one) == tree(tmp_path / "copy")
    # The copy is gone with the run.
    assert not Path(first["run_folder"]).parent.exists()
    assert first["files"] == sorted(tree(one))
    assert first["folder"] == str(one)
    assert (
        first["files"]
        == [
            "composition.json",
            "node.yml",
            "node/post_upgrade.yml",
            "node/services/db/meta/main.yml",
            "node/services/db/tasks/post_upgrade.yml",
            "node/services/db/tasks/step3_upgrade.yml",
            *(
                f"node/services/{name}/{path}"
                for name in ("web", "web-2")
                for path in (
                    "defaults/main.yml",
                    "meta/argument_specs.yml",
                    "meta/main.yml",
                    "tasks/step0_validate.yml",
                    "tasks/step2_stop.yml",
                    "tasks/step3_upgrade.yml",
                    "tasks/sub/more.yml",
                    "templates/deep/x.j2",
                )
            ),
            *(
                f"node/step{n}_{s}.yml"
                for n, s in enumerate(("validate", "prepare", "stop", "upgrade", "start", "verify"))
            ),
        ]
        or sorted(first["files"]) == first["files"]
    )
    assert first["roles"]["node"]["services"] == {"db": "db", "web": "web", "web-2": "web"}
    assert [task_group["name"] for task_group in first["roles"]["node"]["task_groups"]] == [
        "upgrade/db", "stop/web", "upgrade/web", "stop/web-2", "upgrade/web-2", "post_upgrade/db",
    ]  # fmt: skip
    shown = json.loads((one / "composition.json").read_text())
    assert {key: first[key] for key in ("roles", "role_order", "reasons", "lockstep")} == {
        key: shown[key] for key in ("roles", "role_order", "reasons", "lockstep")
    }
    written = (one / "node/services/web/tasks/step3_upgrade.yml").read_text()
    assert "# from tasks/upgrade_tasks.yml:5\n- name: Say what web is\n" in written


def test_every_file_is_yaml_that_ansible_takes(run: Runner, roles: Roles, tmp_path: Path) -> None:
    run([compose(tmp_path / "one", roles)])
    for path, content in tree(tmp_path / "one").items():
        if path.endswith(".yml"):
            assert isinstance(yaml.safe_load(content), list | dict), path


@pytest.mark.thorough
def test_check_mode_writes_nothing_and_diff_mode_shows_it(run: Runner, roles: Roles, tmp_path: Path) -> None:
    one = tmp_path / "one"
    (checked,) = run([compose(one, roles)], check=True, diff=True)
    assert checked["changed"]
    assert not one.exists()
    assert f"{one}/node/step2_stop.yml (new)" in [part["before_header"] for part in checked["diff"]]
    run([compose(one, roles)])
    before = tree(one)
    roles.add("db", "- name: Migrate it all\n  ansible.builtin.debug: {msg: migrated}\n  tags: [upgrade, once]\n")
    (roles.folder / "db" / POST).unlink()
    (again,) = run([compose(one, roles)], check=True, diff=True)
    assert tree(one) == before
    shown = {part["before_header"]: part for part in again["diff"]}
    gone = f"{one}/node/services/db/tasks/post_upgrade.yml"
    assert (shown[gone]["after_header"], shown[gone]["after"]) == (f"{gone} (deleted)", "")
    assert "name: Migrate it all" in shown[f"{one}/node/services/db/tasks/step3_upgrade.yml"]["after"]
    (written,) = run([compose(one, roles)])
    assert written["changed"]
    assert not Path(gone).exists()


@pytest.mark.thorough
def test_what_is_gone_from_the_roles_is_deleted(run: Runner, roles: Roles, tmp_path: Path) -> None:
    one = tmp_path / "one"
    fewer = {"node": {"services": ["db"]}}
    renamed = {"nodes": {"services": ["db"]}}
    played = run([compose(one, roles), compose(one, roles, upgrade_roles=fewer)])
    assert [path.name for path in (one / "node/services").iterdir()] == ["db"]
    played += run([compose(one, roles, upgrade_roles=renamed)])
    assert sorted(path.name for path in one.iterdir()) == ["composition.json", "nodes", "nodes.yml"]
    assert [task["changed"] for task in played] == [True, True, True]


@pytest.mark.thorough
def test_a_folder_with_other_files_is_refused_and_left_alone(run: Runner, roles: Roles, tmp_path: Path) -> None:
    other, one = tmp_path / "other", tmp_path / "one"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    run([compose(one, roles)])
    (one / ".git").mkdir()
    (one / ".git/HEAD").write_text("ref")
    (kept,) = run([compose(one, roles, upgrade_roles={"node": {"services": ["db"]}})])
    assert not kept["failed"], kept
    assert (one / ".git/HEAD").read_text() == "ref"
    (one / "node/notes.txt").write_text("mine")
    played = run([compose(other, roles), compose(one, roles), compose(tmp_path / "file", roles)])
    assert [task["failure"]["code"] for task in played] == ["bad_folder"] * 3
    assert played[0]["failure"]["message"] == (
        f"folder: {other} has files that belong to no composition, such as letter.txt. Give another folder."
    )
    assert "such as node/notes.txt." in played[1]["msg"]
    assert f"folder: {tmp_path / 'file'} can't be written: File exists." in played[2]["msg"]
    assert tree(other) == {"letter.txt": b"dear"}
    assert (one / "node/notes.txt").read_text() == "mine"


def test_what_is_refused_says_so_and_writes_nothing(run: Runner, roles: Roles, tmp_path: Path) -> None:
    one = tmp_path / "one"
    roles.add("bad", "- name: a\n  command: b\n  tags: step6\n")
    played = run(
        [
            compose(one, roles, upgrade_roles={"node": {"services": ["bad"]}}),
            compose(one, roles, upgrade_roles={"node": {"services": ["nowhere"]}}),
            compose(one, roles, upgrade_roles={"node": {"plane": "x"}}),
            compose(one, roles, hosts={"node": []}),
        ]
    )
    assert [task["failure"]["code"] for task in played] == [
        "bad_service", "bad_service", "bad_upgrade_roles", "bad_service",
    ]  # fmt: skip
    assert played[0]["failure"]["message"].startswith(
        f"{roles.folder}/bad/tasks/upgrade_tasks.yml:1: there is no step 'step6'."
    )
    assert f"upgrade_roles.node.services[0]: no role 'nowhere' is in {roles.folder}, " in played[1]["msg"]
    assert (
        "db has tasks that one host runs for all, but no role with this service has a host: node." in played[3]["msg"]
    )
    assert played[0]["failure"]["details"] == {"where": f"{roles.folder}/bad/tasks/upgrade_tasks.yml:1"}
    assert not one.exists()


@pytest.mark.thorough
def test_an_operators_role_goes_before_that_of_the_collection_and_the_first_folder_first(
    run: Runner, tmp_path: Path
) -> None:
    names = {}
    for place in ("given", "roles"):
        names[place] = Roles(tmp_path / place)
        # The collection has a role of this name, which is no service.
        names[place].add("puppet_gate", f"- name: From {place}\n  ansible.builtin.debug:\n  tags: stop\n")
    named = {"node": {"services": ["puppet_gate"]}}
    one = tmp_path / "one/node/services/puppet_gate/tasks/step2_stop.yml"
    run([compose(tmp_path / "one", names["given"], upgrade_roles=named)])
    assert "From given" in one.read_text()
    run([compose(tmp_path / "one", names["given"], upgrade_roles=named, roles_path=[])])
    assert "From roles" in one.read_text()
    full = {"node": {"services": ["convoy.upgrade.puppet_gate"]}}
    (found,) = run([compose(tmp_path / "one", names["given"], upgrade_roles=full)])
    assert re.match(
        r".*: the role 'convoy.upgrade.puppet_gate' in .*/roles/puppet_gate is not a service: it has neither",
        found["msg"],
    )


def ansible(tmp_path: Path, playbook: Path, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("node: {hosts: {n1: {ansible_connection: local}}}\n")
    process = start(
        [
            Path(sys.executable).parent / "ansible-playbook",
            *("-i", inventory, "-e", json.dumps({"ansible_python_interpreter": sys.executable, **variables})),
            *(playbook, *arguments),
        ],
        env={**environ, "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1", "PWD": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    stdout, _none = process.communicate(timeout=90)
    return subprocess.CompletedProcess([], process.returncode, stdout)


def by_playbook(tmp_path: Path, roles: Roles, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run the playbook that composes."""
    given = {"upgrade_roles": upgrade_roles(), "upgrade_roles_path": [str(roles.folder)], **variables}
    return ansible(tmp_path, ROOT / "playbooks/compose.yml", *arguments, **given)


@pytest.mark.thorough
def test_the_playbook_composes_and_says_what_is_in_it(roles: Roles, tmp_path: Path) -> None:
    done = by_playbook(tmp_path, roles, "--diff")
    assert done.returncode == 0, done.stdout
    folder = tmp_path / "composed"
    assert (folder / "node/step2_stop.yml").is_file()
    lines = [line.strip() for line in done.stdout.splitlines()]
    for shown in (
        f"Composed in {folder}:",
        "node (dataplane):",
        "upgrade       db (1 task, one host for all)",
        "stop          web (1 task)",
        "stop          web-2 (1 task)",
        "post_upgrade  db (1 task)",
        "+- name: Migrate",
    ):
        assert shown in lines, done.stdout
    again = by_playbook(tmp_path, roles)
    assert "changed=0" in again.stdout, again.stdout
    elsewhere = by_playbook(tmp_path, roles, "--check", upgrade_folder=str(tmp_path / "elsewhere"))
    assert elsewhere.returncode == 0, elsewhere.stdout
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.thorough
def test_a_template_that_would_be_resolved_on_the_planner_host_is_refused(roles: Roles, tmp_path: Path) -> None:
    service = {"service": "web", "vars": {"web_name": "{{ inventory_hostname }}"}}
    refused = by_playbook(tmp_path, roles, upgrade_roles={"node": {"services": ["db", service]}})
    assert refused.returncode == 2, refused.stdout
    assert "upgrade_roles.node.services[1].vars.web_name: its template uses inventory_hostname" in refused.stdout
    assert "on localhost, so all hosts would get what localhost has" in refused.stdout
    assert not (tmp_path / "composed").exists()


@pytest.mark.thorough
def test_tags_that_choose_nothing_are_an_error(roles: Roles, tmp_path: Path) -> None:
    wrong = by_playbook(tmp_path, roles, "--tags", "always,upgrad")
    # The play itself has no task with these tags but the ones that are always run.
    assert "no_such_tag" not in wrong.stdout
    play = tmp_path / "play.yml"
    task = {"tags": ["always"], **compose(tmp_path / "one", roles)}
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    for arguments, code in (
        (["--tags", "upgrad"], 2),
        (["--tags", "saying", "--skip-tags", "step3"], 2),
        (["--tags", "saying"], 0),
        (["--tags", "step3"], 0),
        (["--tags", "web-2,nonsense"], 0),
        (["--skip-tags", "web,web-2"], 0),
        (["--skip-tags", "db,web,web-2"], 2),
    ):
        done = ansible(tmp_path, play, *arguments)
        assert done.returncode == code, (arguments, done.stdout)
        if code:
            message = f"{' '.join(arguments)}: these tags select no task of any service, so nothing would be done. The known tags are "
            assert message in " ".join(done.stdout.split()), done.stdout
            assert "db, once, post_upgrade, saying, step2, step3, stop, upgrade, web, web-2." in done.stdout


def run_step(tmp_path: Path, step: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a composed file of the validation, or the tasks of a service, without anything that needs a push daemon."""
    folder = tmp_path / "composed"
    play = tmp_path / "play.yml"
    tasks = [{"ansible.builtin.include_tasks": str(folder / step), "tags": ["always"]}]
    play.write_text(json.dumps([{"hosts": "node", "gather_facts": False, "tasks": tasks}]))
    return ansible(tmp_path, play, *arguments, upgrade_composed=str(folder), upgrade_task_group={"run": True})


@pytest.mark.thorough
def test_variables_are_checked_by_their_specs_before_anything_is_done(roles: Roles, tmp_path: Path) -> None:
    assert by_playbook(tmp_path, roles).returncode == 0
    done = run_step(tmp_path, "node/step0_validate.yml")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Validating arguments against arg spec 'step0_validate'") == 2
    wrong = {"node": {"services": ["db", {"service": "web", "vars": {"web_nme": 1}}]}}
    assert by_playbook(tmp_path, roles, upgrade_roles=wrong).returncode == 0
    done = run_step(tmp_path, "node/step0_validate.yml")
    assert done.returncode == 2, done.stdout
    assert "missing required arguments: web_name" in done.stdout


@pytest.mark.thorough
def test_each_instance_runs_with_its_own_variables_and_files(roles: Roles, tmp_path: Path) -> None:
    assert by_playbook(tmp_path, roles).returncode == 0
    folder = tmp_path / "composed"
    # What is done around a task group needs the push daemon.
    path = folder / "node/step3_upgrade.yml"
    task_groups = [task for task in yaml.safe_load(path.read_text()) if "convoy.upgrade.push_step" not in task]
    path.write_text(json.dumps(task_groups))
    done = run_step(tmp_path, "node/step3_upgrade.yml")
    assert done.returncode == 0, done.stdout
    messages = re.findall(r'"msg": "(.*)"', done.stdout)
    assert messages == ["migrated", "more of first", "web is first of Größe", "more of second", "web is second of 2"]
    only = run_step(tmp_path, "node/step3_upgrade.yml", "--tags", "step2")
    assert re.findall(r'"msg": "(.*)"', only.stdout) == ["more of first", "more of second"], only.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["upgrade_tasks", "post_upgrade_tasks"])
def test_a_service_may_have_either_kind_of_tasks(run: Runner, tmp_path: Path, name: str) -> None:
    roles = Roles(tmp_path / "own")
    tags = "  tags: stop\n" if name == "upgrade_tasks" else ""
    roles.add("web", {f"tasks/{name}.yml": f"- name: a\n  ansible.builtin.debug:\n{tags}"})
    (found,) = run([compose(tmp_path / "one", roles, upgrade_roles={"node": {"services": ["web"]}})])
    step = "stop" if tags else "post_upgrade"
    assert [task_group["step"] for task_group in found["roles"]["node"]["task_groups"]] == [step]
