# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Splits a task file into pieces: each task as YAML of its own, and its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import did_you_mean
from .refusal import refusal
from .steps import ONCE, POST, STEPS, UNDRAIN, no_step, step_of
from .yaml_text import yaml_of_node

_BLOCKS = ("block", "rescue", "always")
_INCLUDES = ("import_tasks", "include_tasks", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks")
# Keywords and modules whose tasks are elsewhere, or whose module may be one of these, begin so.
_RUN_OTHERS = ("include", "import_", "action", "local_action")
# How many files deep includes are read.
_DEEPEST = 8

# These end a host's tasks without a report, so the host would keep its slot forever.
_ENDINGS = ("end_host", "end_play", "end_batch", "end_role", "clear_host_errors")

# Ansible runs these once for all hosts. Where each host goes by itself, it ends the whole run when such a task comes, also if `when` leaves it out.
_FOR_ALL_HOSTS = {
    "add_host": "Add the host to the inventory.",
    "pause": "To wait, use ansible.builtin.wait_for: {timeout: N}.",
}
# What Ansible takes for false. Nothing else is: a template may be true.
_FALSE = ("none", "false", "f", "no", "n", "off", "0")
_OWN_TASKS = "because each host runs its tasks on its own"


@dataclass(frozen=True, slots=True)
class TaskPiece:
    """One task or block at the top level of a file.

    :param text: a YAML list of this task alone, without the comments in its file.
    :param data: the same as parsed data.
    :param where: file and line.
    :param step: its step.
    :param once: whether one host per version runs it for all.
    :param tags: its own tags, and those of all tasks in it.
    :param leaves: the tags of each task in it, including inherited ones.
    """

    text: str
    data: Mapping[str, Any]
    where: str
    step: str
    once: bool
    tags: tuple[str, ...]
    leaves: tuple[tuple[str, ...], ...]

    @property
    def may_notify(self) -> bool:
        """Whether one of its tasks may notify handlers: it says so, or includes a file or a role."""
        return _may_notify(self.data)


def read_pieces(
    path: Path, display_path: str, step: str | None = None, default: str | None = None, top: Path | None = None
) -> list[TaskPiece]:
    """Return the tasks of a file.

    :param display_path: the path for messages.
    :param step: the step of all tasks; None if each names its own by a tag.
    :param default: the step of tasks that name none; None to refuse them.
    :param top: the folder from which included files are resolved; None for the file's own folder.
    :raises UpgradeError: ``bad_service``, with file and line.
    """
    text = _text_of(path, display_path)
    root = _root(text, display_path)
    if root is None or not root.value:
        return []
    # The text comes first, because the construction of data resolves merge keys in the nodes.
    texts = [yaml_of_node(yaml.SequenceNode(root.tag, [item])) for item in root.value]
    return [
        _piece(path if top is None else top / path.name, display_path, _task(item, display_path), text, step, default)
        for item, text in zip(root.value, texts, strict=True)
    ]


def refuse_job_tasks(path: Path) -> None:
    """Refuse tasks that a job can't have, in a file and in the files that it includes.

    A file that can't be read here, such as one in a vault, is left to Ansible.

    :raises UpgradeError: ``bad_service``, with file and line.
    """
    for item in _items(path, str(path), is_job=True):
        data = _data(item, str(path))
        if isinstance(data, dict):
            _refuse_unfit(data, _at(data, str(path)), is_job=True)
            for inner, at, _tags_around in _inside(data, path, str(path), path.parent, (), is_job=True):
                _refuse_unfit(inner, at, is_job=True)


def read_handlers(path: Path, depth: int = 0) -> list[TaskPiece]:
    """Return the handlers of a file, and of the files that it imports; none if there is no such file. They have no step.

    :raises UpgradeError: ``bad_service``, with file and line.
    """
    if not path.is_file() or depth > _DEEPEST:
        return []
    found: list[TaskPiece] = []
    root = _root(_text_of(path, str(path)), str(path))
    for item in root.value if root is not None else ():
        data = _task(item, str(path))
        value = next((data[name] for name in _INCLUDES if "import" in name and name in data), None)
        file = value.get("file") if isinstance(value, Mapping) else value
        if isinstance(file, str):
            found += read_handlers(path.parent / file, depth + 1)
        else:
            found.append(TaskPiece("", data, _at(data, str(path)), "", once=False, tags=(), leaves=()))
    return found


def _may_notify(task: Any) -> bool:
    if not isinstance(task, Mapping):
        return True
    if any(name == "notify" or name.rpartition(".")[2].startswith(_RUN_OTHERS) for name in map(str, task)):
        return True
    return any(_may_notify(inner) for name in _BLOCKS for inner in task.get(name) or ())


def _task(item: yaml.Node, display_path: str) -> dict[str, Any]:
    data = _data(item, display_path)
    if not isinstance(data, dict) or not data:
        raise refusal(
            f"{display_path}:{item.start_mark.line + 1}",
            f"{data!r} is not a task. A task is a mapping with a name and a module.",
        )
    return data


def _piece(
    path: Path, display_path: str, data: dict[str, Any], text: str, step: str | None, default: str | None
) -> TaskPiece:
    where = _at(data, display_path)
    tags = _tags(data)
    own = step_of(tags, where)
    if own is None and default is not None:
        if any(did_you_mean(tag, STEPS) for tag in tags):
            raise no_step(tags, where)
        own = default
    if step is not None and own is not None:
        raise refusal(where, f"post-upgrade tasks have no step, but this one has the tag {own}. Remove the tag.")
    if step is None and own is None:
        raise no_step(tags, where)
    found = list(tags)
    leaves = {tuple(tags): None} if _is_leaf(data) else {}
    for inner, at, around in _inside(data, path, display_path, path.parent, tags):
        if _is_leaf(inner):
            leaves[tuple(dict.fromkeys((*around, *_tags(inner))))] = None
        _refuse_unfit(inner, at)
        inner_tags = _tags(inner)
        other = step_of(inner_tags, at)
        if other is not None and other != own:
            raise refusal(
                at,
                f"the task has two steps, {own or POST} from the task around it and {other} of its own. Keep one of them.",
            )
        if ONCE in inner_tags and ONCE not in tags:
            raise refusal(
                at, f"{ONCE} is allowed only at the top level of a file. Move the tag to the task around this one."
            )
        found += inner_tags
    _refuse_unfit(data, where)
    if own == UNDRAIN and "never" in found:
        raise refusal(
            where, f"a task of the step {UNDRAIN} can't have the tag never, as it puts a host back. Use when."
        )
    return TaskPiece(text, data, where, step or own or "", ONCE in tags, tuple(dict.fromkeys(found)), tuple(leaves))


def _inside(
    data: Mapping[str, Any],
    path: Path,
    display_path: str,
    top: Path,
    tags: Sequence[str],
    depth: int = 0,
    *,
    is_job: bool = False,
) -> Iterator[tuple[Any, str, Sequence[str]]]:
    """Yield every task inside a task: those of its blocks, and those of files that it includes or imports.

    :param top: the folder of the first file. Ansible searches it after the folder of the including file.
    :param tags: the tags of the task, including inherited ones.
    :param is_job: whether files that can't be read here are left out.
    :returns: each task, its file and line, and the tags that it inherits.
    """
    for name in _BLOCKS:
        for inner in data.get(name) or ():
            if isinstance(inner, dict):
                yield inner, _at(inner, display_path), tags
                yield from _inside(inner, path, display_path, top, [*tags, *_tags(inner)], depth, is_job=is_job)
    for name in _INCLUDES:
        value = data.get(name)
        file = value.get("file") if isinstance(value, Mapping) else value
        # A name with a template is known only at run time, so Ansible checks it then.
        if not isinstance(file, str) or "{{" in file or depth > _DEEPEST:
            continue
        places = dict.fromkeys((path.parent / file, top / file))
        inner_path = next((one for one in places if one.is_file()), None)
        if inner_path is None and is_job:
            continue
        if inner_path is None:
            raise refusal(_at(data, display_path), f"{name} names {file}, but {path.parent / file} does not exist.")
        inner_display_path = str(inner_path)
        # Tasks of an include do not inherit its own tags, only those from around it.
        handed = tags if "import" in name else [tag for tag in tags if tag not in _tags(data)]
        for item in _items(inner_path, inner_display_path, is_job=is_job):
            inner = _data(item, inner_display_path)
            if isinstance(inner, dict):
                yield inner, _at(inner, inner_display_path), handed
                around = [*handed, *_tags(inner)]
                yield from _inside(inner, inner_path, inner_display_path, top, around, depth + 1, is_job=is_job)


def _is_leaf(data: Mapping[str, Any]) -> bool:
    return not any(name in data for name in ("block", "import_tasks", "ansible.builtin.import_tasks"))


def _at(data: Mapping[str, Any], display_path: str) -> str:
    return f"{display_path}:{getattr(data, 'line', 1)}"


def _refuse_unfit(data: Mapping[str, Any], where: str, *, is_job: bool = False) -> None:
    """Refuse what does not work for hosts that run their tasks one by one."""
    for module, arguments in _modules(data):
        # In the tasks of a role, only its own tasks end with it.
        if module == "meta" and arguments in _ENDINGS and not (is_job and arguments == "end_role"):
            raise refusal(
                where, f"meta: {arguments} would end the host's tasks without a report. Use when, or let the task fail."
            )
        if module in _FOR_ALL_HOSTS:
            raise refusal(
                where,
                f"{module} does not work, because Ansible runs it once for all hosts, and each host runs its tasks on its own. {_FOR_ALL_HOSTS[module]}",
            )
    for keywords in (data, *_applied(data)):
        if not _is_false(keywords.get("run_once")):
            hint = "Give it to a job of one host (only=HOST)." if is_job else ""
            raise refusal(
                where,
                f"run_once does not work, {_OWN_TASKS}. {hint or f'Tag the task with {ONCE}: one host runs it for all.'}",
            )
        if not _is_false(keywords.get("any_errors_fatal")):
            raise refusal(
                where,
                f"any_errors_fatal does not work, {_OWN_TASKS}. failure_rules say how many hosts may fail before no further host is admitted.",
            )
        if keywords.get("throttle") not in (None, 0, "0"):
            raise refusal(
                where, f"throttle does not work, {_OWN_TASKS}. rolling_rules say how many hosts of a role are at work."
            )


def _modules(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what may be the module of a task, with its arguments as text: each of its keys, or what its action names."""
    for key, value in data.items():
        name, arguments = str(key), str(value)
        if name in ("action", "local_action"):
            text = value.get("module") if isinstance(value, Mapping) else value
            name, _space, arguments = str(text).strip().partition(" ")
        yield _short(name), arguments.strip()


def _applied(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the keywords that an include gives to all tasks that it includes."""
    for key, value in data.items():
        if _short(str(key)) in ("include_tasks", "include_role") and isinstance(value, Mapping):
            applied = value.get("apply")
            if isinstance(applied, Mapping):
                yield applied


def _short(module: str) -> str:
    return module.removeprefix("ansible.builtin.").removeprefix("ansible.legacy.")


def _is_false(value: object) -> bool:
    return str(value).strip().lower() in _FALSE


def _tags(data: Mapping[str, Any]) -> list[str]:
    tags = data.get("tags") or []
    found = tags if isinstance(tags, list) else [tags]
    return [part.strip() for tag in found for part in str(tag).split(",") if part.strip()]


def _items(path: Path, display_path: str, *, is_job: bool) -> Sequence[yaml.Node]:
    """Return the tasks of an included file, or of the file of a job, as nodes."""
    try:
        root = _root(_text_of(path, display_path), display_path)
    except UpgradeError:
        if is_job:
            return ()
        raise
    return root.value if root is not None else ()


def _text_of(path: Path, display_path: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(display_path, f"the file can't be read: {error}.") from error


def _root(text: str, display_path: str) -> yaml.SequenceNode | None:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{display_path}:{mark.line + 1}" if mark is not None else display_path
        raise refusal(where, f"this is not valid YAML: {_problem(error)}.") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null")):
        return None
    if not isinstance(root, yaml.SequenceNode):
        raise refusal(f"{display_path}:{root.start_mark.line + 1}", "the file has to contain a list of tasks.")
    return root


def _problem(error: Exception) -> str:
    return " ".join(str(getattr(error, "problem", None) or error).split())


class _Lined(dict[Any, Any]):
    """A mapping with its line in the file."""

    line = 1


class _Loader(yaml.SafeLoader):
    """A safe loader that ignores Ansible's own YAML tags, such as ``!vault``."""


def _any_tag(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


def _lined(loader: yaml.SafeLoader, node: yaml.MappingNode) -> _Lined:
    found = _Lined(loader.construct_mapping(node, deep=True))
    found.line = node.start_mark.line + 1
    return found


_Loader.add_multi_constructor("!", _any_tag)
_Loader.add_constructor("tag:yaml.org,2002:map", _lined)


def _data(node: yaml.Node, display_path: str) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", node.start_mark.line)
        why = _problem(error)
        hint = " A value that begins with {{ has to be in quotes." if "unhashable" in why else ""
        raise refusal(f"{display_path}:{line + 1}", f"this can't be read: {why}.{hint}") from error
    finally:
        loader.dispose()
