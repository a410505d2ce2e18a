# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a composition, which operators can read, compare and keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ...module_utils._fleet.checkpoints import checkpoint_name
from .._services.refusal import refusal
from .._services.service import Service, ServiceEntry
from .._services.steps import (
    DRAIN,
    MAY_STOP,
    MOST_PATIENCE,
    NUMBERED,
    PATIENCE,
    POST,
    STEPS,
    UNDRAIN,
    UPGRADE,
    file_of,
    tags_of,
)
from .._services.yaml_text import yaml_of
from .composition import ComposedRole, Composition
from .folder import SIGN
from .task_groups import TaskGroup

_NOT_COPIED = frozenset(("meta", "tests", "molecule", "__pycache__", ".git"))
_HEAD = "# Written by convoy.upgrade.compose_upgrade_tasks from upgrade_roles; the next composition replaces it.\n"

# The file with the tasks of the step undrain for a host that failed before any of its services stopped.
_AFTER_FAILURE = "undrain_after_failure.yml"
# Of the files that take the place of others in a rollback whose order is reversed.
_REVERSED = "_reversed"
_IN_ROLLBACK = " In a rollback: each service is replaced before those that it requires."
_PATIENCE = "{{ upgrade_may_stop_timeout | default(omit) }}"
# Of a task of the check. A check that does not hang has time to end, however short the patience is.
_LONGEST_CHECK = (
    f"{{{{ [[upgrade_may_stop_timeout | default({PATIENCE}) | int, 60] | max, "
    f"upgrade_prepared.task_timeout | default(0) | int or {MOST_PATIENCE}] | min }}}}"
)
# There is no failed result if Ansible could not include something.
_ERROR = "{{ ansible_failed_result | default({}) | convoy.upgrade.failure_text((ansible_failed_task | default({})).no_log | default(false)) }}"
# The entry point of a role's argument specs for its upgrade tasks.
_ENTRY_POINT = "upgrade_tasks"


def files_of(composition: Composition, folder: str) -> dict[str, bytes]:
    """Return path below the folder -> content. The same composition gives identical files.

    :param folder: the folder that they will be written to, for the playbooks that operators run.
    """
    files: dict[str, bytes] = {}
    for role in composition.roles.values():
        files[f"{role.name}.yml"] = _text(_playbook(role, folder))
        for step in (*NUMBERED, POST):
            files[f"{role.name}/{file_of(step)}.yml"] = _text(_step_file(role, step))
        files[f"{role.name}/upgrade.yml"] = _text(_all_steps(role))
        if role.reversed_task_groups is not None:
            back = replace(role, task_groups=role.reversed_task_groups)
            files[f"{role.name}/{file_of(UPGRADE)}{_REVERSED}.yml"] = _text(_step_file(back, UPGRADE, _IN_ROLLBACK))
            files[f"{role.name}/upgrade{_REVERSED}.yml"] = _text(_all_steps(back, _IN_ROLLBACK))
        if not role.pull and any(group.step == DRAIN for group in role.task_groups):
            files[f"{role.name}/{_AFTER_FAILURE}"] = _text(_undrain_after_failure(role))
        services = {entry.name: service for entry, service in role.services}
        for group in role.task_groups:
            if group.step == MAY_STOP:
                files[f"{role.name}/{_retry_file(group)}"] = _text(_retries(role, services[group.service], group))
        for entry, service in role.services:
            files |= _service_files(role, entry, service)
    # The list of files shows the next composition which files it may delete.
    sign = {**plain(composition, files), "files": sorted((*files, SIGN))}
    files[SIGN] = _text(json.dumps(sign, indent=2, sort_keys=True) + "\n")
    return dict(sorted(files.items()))


def plain(composition: Composition, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a composition as plain data, without the tasks themselves. Roles of pull hosts have the ID of their tasks.

    :param files: path -> content.
    """
    found = composition.plain()
    for name, role in found["pull_roles"].items():
        # The data has what the host checks itself, such as allowed versions.
        digest = hashlib.sha256(json.dumps(role, sort_keys=True).encode())
        for path in sorted(path for path in files if path.startswith(f"{name}/")):
            digest.update(f"{path} {len(files[path])}\n".encode() + files[path])
        role["tasks_id"] = digest.hexdigest()[:16]
    return found


def _playbook(role: ComposedRole, folder: str) -> str:
    order = "".join(f"#   {role.name}/{file_of(step)}.yml\n" for step in (*NUMBERED, POST) if role.of_file(step))
    if role.reversed_task_groups is not None:
        order += f"# A rollback runs {role.name}/{file_of(UPGRADE)}{_REVERSED}.yml instead, unless rollback_order is forward.\n"
    play = [
        {
            "name": f"Upgrade the role {role.name} as it is composed here",
            "ansible.builtin.import_playbook": "convoy.upgrade.role",
            "vars": {"role": role.name, "upgrade_composition": folder},
        }
    ]
    return (
        f"---\n{_HEAD}#\n# ansible-playbook -i INVENTORY {role.name}.yml -e version=X\n#\n"
        f"# Each admitted host runs these files, in this order:\n{order}{yaml_of(play)}"
    )


def _all_steps(role: ComposedRole, when: str = "") -> str:
    # It can't import the files of the steps: ansible-core 2.17 finds no file below an include whose path depends on the host.
    head = f"---\n{_HEAD}# All steps of an admitted host of the role {role.name}.{when}\n"
    return head + ("".join(_step_text(role, step) for step in NUMBERED[1:]) or "[]\n")


def _undrain_after_failure(role: ComposedRole) -> str:
    """Return a file that runs the step ``undrain`` of drained services, without the push daemon, as the host's own step is the one that failed."""
    tasks: list[dict[str, Any]] = []
    for group in role.task_groups:
        if group.step == UNDRAIN and not group.once and not group.provider:
            needed = {"when": f"'{group.service}' in upgrade_drained", "tags": ["always"]}
            imported = _import(role, group)
            # Handlers have the conditions of an import, and this one has a meaning only on a host that failed. Other hosts of the play may
            # run these handlers, as Ansible takes the last loaded ones of a name.
            named = {**imported.pop("ansible.builtin.import_role"), "apply": {"tags": ["always"]}}
            tasks += [
                {"name": imported.pop("name"), "ansible.builtin.include_role": named, **imported, **needed},
                *({**one, **needed} for one in _handlers(group)),
            ]
    head = f"---\n{_HEAD}# Undrains the services in upgrade_drained, of a host of the role {role.name} that failed before anything on it stopped.\n"
    return head + (yaml_of(tasks) if tasks else "[]\n")


def _step_file(role: ComposedRole, step: str, when: str = "") -> str:
    title = "Post-upgrade tasks" if step == POST else f"Step {NUMBERED.index(step)}, {step},"
    if step == UPGRADE and not role.stops_together:
        title = "Each service in turn: stop, upgrade and start,"
    return f"---\n{_HEAD}# {title} of the role {role.name}.{when}\n" + (_step_text(role, step) or "[]\n")


def _step_text(role: ComposedRole, step: str) -> str:
    groups = role.of_file(step)
    if step == NUMBERED[0]:
        groups = _with_argument_specs(role, groups)
    services = {entry.name: service for entry, service in role.services}
    return "".join(_group_text(role, services[group.service], group) for group in groups)


def _with_argument_specs(role: ComposedRole, groups: Sequence[TaskGroup]) -> list[TaskGroup]:
    """Return the task groups that validate a host. A service without such tasks still has its variables checked."""
    found = [group for group in groups if group.checkpoint]
    for entry, service in role.services:
        mine = [group for group in groups if group.service == entry.name and not group.checkpoint]
        if not mine and _argument_specs(service) is not None:
            step = NUMBERED[0]
            mine = [TaskGroup(f"{step}/{entry.name}", step, entry.name, once=False, tags=(), pieces=())]
        found += mine
    return found


def _group_text(role: ComposedRole, service: Service, group: TaskGroup) -> str:
    sources = "".join(
        f"#   {_source(service, piece.where)} {' '.join(str(piece.data.get('name', '')).split())}".rstrip() + "\n"
        for piece in group.pieces
    )
    at = f" at {group.checkpoint}" if group.checkpoint else ""
    return f"\n# {group.service}{at}, of the role {service.role}:\n{sources}{yaml_of(_group_tasks(role, group))}"


def _import(role: ComposedRole, group: TaskGroup) -> dict[str, Any]:
    """Return the task that imports the tasks of a task group, with the variables of its service."""
    entry = next(entry for entry, _service in role.services if entry.name == group.service)
    tasks: dict[str, Any] = {
        "name": f"{group.step.capitalize()} {_called(group)}",
        "ansible.builtin.import_role": {
            "name": f"{{{{ upgrade_composed }}}}/{role.name}/services/{group.service}",
            "tasks_from": _tasks_file(group),
        },
    }
    before = "{{ upgrade_providers['" + group.service + "'] }}"
    variables = {
        **entry.vars,
        **({"upgrade_checkpoint": group.checkpoint} if group.checkpoint else {}),
        **({"upgrade_version_before": before} if group.provider else {}),
    }
    if variables:
        tasks["vars"] = variables
    return tasks


def _group_tasks(role: ComposedRole, group: TaskGroup) -> list[dict[str, Any]]:
    own = [*tags_of(group.step), group.service]
    # Ansible would skip the step undrain because of its tag verify, so push_step alone decides on that step.
    tags = ["always"] if group.step == UNDRAIN else own
    tasks = _import(role, group)
    if group.step == MAY_STOP:
        tasks |= {"ansible.builtin.include_tasks": {"file": f"{{{{ upgrade_tasks_folder }}}}/{_retry_file(group)}"}}
        del tasks["ansible.builtin.import_role"]
    if group.step == NUMBERED[0]:
        # The step validate runs before the upgrade and is not recorded.
        condition = (
            {"when": f"'{checkpoint_name(group.service, group.checkpoint)}' in upgrade_checkpoints"}
            if group.checkpoint
            else {}
        )
        return [{**tasks, **condition, "tags": list(dict.fromkeys((*_tags_of_any_step(group), *tags)))}]
    options = {"task_group": group.name}
    # A time that is too long is refused before the first try.
    patience = {"patience": _PATIENCE} if group.step == MAY_STOP else {}
    every = dict.fromkeys(tuple(dict.fromkeys((*own, *leaf))) for piece in group.pieces for leaf in piece.leaves)
    begin: dict[str, Any] = {
        "name": f"Begin {group.name}",
        "convoy.upgrade.push_step": {**options, **patience, "task_tags": [list(one) for one in every]},
        "register": "upgrade_task_group",
        # It may wait for other hosts, for longer than a task of a service may take.
        "timeout": 0,
        "tags": ["always"],
    }
    found = [begin, {**tasks, "when": "upgrade_task_group.run", "tags": tags}, *_handlers(group)]
    # Other hosts wait for its end, or a later run must not repeat it.
    if group.once or group.checkpoint or group.provider:
        found.append(
            {
                "name": f"End {group.name}",
                "convoy.upgrade.push_step": {**options, "state": "done"},
                "when": "upgrade_task_group.run",
                "timeout": 0,
                "tags": ["always"],
            }
        )
    return found


def _handlers(group: TaskGroup) -> list[dict[str, Any]]:
    """Return the task that runs the handlers that a task group has notified; none if it can't have notified one.

    A service without handlers may include roles that have some. The next service or the end of the host is too late for them.
    """
    if not any(piece.may_notify for piece in group.pieces):
        return []
    return [{"name": f"Handlers of {group.service}", "ansible.builtin.meta": "flush_handlers", "tags": ["always"]}]


def _tags_of_any_step(group: TaskGroup) -> list[str]:
    """Return further tags for the validation, so that a run with ``--tags`` begins no host that fails it.

    With ``always``, tasks with the tag ``never`` would run too.
    """
    has_never = any("never" in leaf for piece in group.pieces for leaf in piece.leaves)
    return [tag for step in STEPS[1:] for tag in tags_of(step)] if has_never else ["always"]


def _retry_file(group: TaskGroup) -> str:
    return f"{_tasks_file(group)}_{group.service}.yml"


def _retries(role: ComposedRole, service: Service, group: TaskGroup) -> str:
    """Return a file that runs a task group again and again until it succeeds, or until its time is over."""
    tasks = [
        {
            "name": f"Check whether {group.service} may stop",
            "block": [
                {
                    "name": f"Run the checks of {group.service}",
                    "ansible.builtin.import_role": {
                        "name": f"{{{{ upgrade_composed }}}}/{role.name}/services/{group.service}",
                        "tasks_from": _tasks_file(group),
                    },
                    # A check that hangs is a check that fails.
                    "timeout": _LONGEST_CHECK,
                }
            ],
            "rescue": [
                {
                    "name": "Wait before the next try",
                    "convoy.upgrade.push_step": {
                        "task_group": group.name,
                        "state": "refused",
                        "error": _ERROR,
                        "patience": _PATIENCE,
                    },
                    "timeout": 0,
                },
                {
                    "name": "Try again",
                    "ansible.builtin.include_tasks": {"file": f"{{{{ upgrade_tasks_folder }}}}/{_retry_file(group)}"},
                },
            ],
            "tags": [*tags_of(group.step), group.service],
        }
    ]
    return f"---\n{_HEAD}# {group.name}, of the role {service.role}, until it succeeds.\n{yaml_of(tasks)}"


def _service_files(role: ComposedRole, entry: ServiceEntry, service: Service) -> dict[str, bytes]:
    folder = f"{role.name}/services/{entry.name}"
    files = {}
    for path in sorted(service.path.rglob("*")):
        inside = path.relative_to(service.path)
        if path.is_file() and len(inside.parts) > 1 and not _is_left_out(inside):
            files[f"{folder}/{inside}"] = path.read_bytes()
    for source in (
        "upgrade_tasks.yml",
        "post_upgrade_tasks.yml",
        *(checkpoint.file for checkpoint in service.checkpoints),
    ):
        files.pop(f"{folder}/tasks/{source}", None)
    specs = _argument_specs(service)
    for group in role.task_groups:
        if group.service == entry.name:
            head = f"---\n{_HEAD}# {group.name}, of the role {service.role}.\n\n"
            body = "\n".join(f"# from {_source(service, piece.where)}\n{piece.text}" for piece in group.pieces)
            composed = f"tasks/{_tasks_file(group)}.yml"
            _refuse_taken(service, composed)
            checks = _list_checks(specs) if _tasks_file(group) == file_of(NUMBERED[0]) else ""
            files[f"{folder}/{composed}"] = _text(head + checks + body)
    # Its dependencies would run in each step.
    collections = _collections(service)
    meta = {"dependencies": [], **({"collections": collections} if collections else {})}
    files[f"{folder}/meta/main.yml"] = _text(f"---\n{_HEAD}{yaml_of(meta)}")
    if specs is not None:
        # The variables are checked in the step validate, before any host is changed.
        first = file_of(NUMBERED[0])
        _refuse_taken(service, f"tasks/{first}.yml")
        only = f"---\n{_HEAD}# Only the variables are checked.\n{_list_checks(specs) or '[]'}\n"
        files.setdefault(f"{folder}/tasks/{first}.yml", _text(only))
        files[f"{folder}/meta/argument_specs.yml"] = _text(f"---\n{_HEAD}{yaml_of({'argument_specs': {first: specs}})}")
    return files


def _list_checks(specs: Any) -> str:
    """Return a task that refuses a text or a number in a variable that is a list by its argument specs; empty if there is none.

    Ansible's own check accepts both, as it can make a list of them, but gives the tasks what it was given. They would take a text letter by letter.
    """
    options = specs.get("options") if isinstance(specs, Mapping) else None
    lists = [
        name
        for name, spec in (options.items() if isinstance(options, Mapping) else ())
        if isinstance(spec, Mapping) and spec.get("type") == "list" and str(name).isidentifier()
    ]
    if not lists:
        return ""
    given = [f"['{name}'] * ({name} | default([]) is string or {name} | default([]) is number) | int" for name in lists]
    task = {
        "name": "Refuse a text in place of a list",
        "ansible.builtin.assert": {
            "that": "upgrade_texts | length == 0",
            "fail_msg": (
                # Ansible also resolves this message if the check passes.
                "{{ inventory_hostname }}: {{ upgrade_texts | join(' and ') }} must be a list, and is one value. Write "
                "{{ upgrade_texts | first | default }}=[...] in an INI inventory, and "
                "-e '{\"{{ upgrade_texts | first | default }}\": [...]}' on a command line."
            ),
            "quiet": True,
        },
        "vars": {"upgrade_texts": "{{ " + " + ".join(given) + " }}"},
    }
    return f"{yaml_of([task])}\n"


def _is_left_out(inside: Path) -> bool:
    return inside.parts[0] in _NOT_COPIED or "__pycache__" in inside.parts or inside.suffix == ".pyc"


def _refuse_taken(service: Service, composed: str) -> None:
    if (service.path / composed).is_file():
        raise refusal(
            str(service.path / composed), "a composed file has this name and would overwrite it. Rename this file."
        )


def _argument_specs(service: Service) -> Any:
    return _from_meta(service, "argument_specs", "argument_specs", dict, "argument specs").get(_ENTRY_POINT)


def _collections(service: Service) -> list[str]:
    """Return the collections in which Ansible looks for the modules of a service: its own one, and those of its ``meta/main.yml``."""
    own = service.role.rpartition(".")[0]
    given = _from_meta(service, "main", "collections", list, "metadata of a role")
    return [*dict.fromkeys([*([own] if own else []), *map(str, given)])]


def _from_meta(service: Service, file: str, key: str, wanted: type[dict[str, Any]] | type[list[Any]], what: str) -> Any:
    """Return a value of a file in the folder ``meta`` of a service; an empty one for none.

    :param wanted: its type.
    :param what: what the file holds, for messages.
    :raises UpgradeError: ``bad_service``.
    """
    for name in (f"{file}.yml", f"{file}.yaml"):
        path = service.path / "meta" / name
        if path.is_file():
            try:
                found = (yaml.safe_load(path.read_text(encoding="utf-8-sig")) or {}).get(key)
                if not isinstance(found or wanted(), wanted):
                    raise TypeError(f"{key} is {found!r}")
            except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
                why = " ".join(str(error).split())
                raise refusal(str(path), f"the file can't be read as {what}: {why}.") from error
            return found or wanted()
    return wanted()


def _tasks_file(group: TaskGroup) -> str:
    name = file_of(group.step) + (f"_to_{group.checkpoint}" if group.checkpoint else "")
    return name + (f"_{group.number}" if group.number > 1 else "")


def _called(group: TaskGroup) -> str:
    return f"{group.service} to {group.checkpoint}" if group.checkpoint else group.service


def _source(service: Service, where: str) -> str:
    path, _colon, line = where.rpartition(":")
    return f"{Path(path).relative_to(service.path)}:{line}"


def _text(text: str) -> bytes:
    return text.encode()
