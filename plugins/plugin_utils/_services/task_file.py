# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Splits a task file into pieces: the text of each task with its comments, and its file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from ...module_utils._common.names import did_you_mean
from .refusal import refusal
from .steps import ONCE, POST, STEPS, no_step, step_of

_BLOCKS = ("block", "rescue", "always")
_INCLUDES = ("import_tasks", "include_tasks", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks")

# These end a host's tasks without a report, so the host would keep its slot forever.
_ENDINGS = ("end_host", "end_play", "end_batch", "end_role", "clear_host_errors")

# Values with these YAML tags have the same meaning in JSON.
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "bool", "null", "seq", "map", "merge"))

_DASH = re.compile(r"\s*-(\s|$)")


@dataclass(frozen=True, slots=True)
class TaskPiece:
    """One task or block at the top level of a file.

    :param text: its text in the file with the comments above it, moved to column 0.
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


def read_pieces(
    path: Path, shown: str, step: str | None = None, default: str | None = None, top: Path | None = None
) -> list[TaskPiece]:
    """Return the tasks of a file.

    :param shown: the path for messages.
    :param step: the step of all tasks; None if each names its own by a tag.
    :param default: the step of tasks that name none; None to refuse them.
    :param top: the folder from which included files are resolved; None for the file's own folder.
    :raises UpgradeError: ``bad_service``, with file and line.
    """
    text = _text_of(path, shown)
    root = _root(text, shown)
    if root is None or not root.value:
        return []
    if root.flow_style:
        raise refusal(
            f"{shown}:{root.start_mark.line + 1}",
            "the tasks are in brackets. Write each task as an item that begins with a dash.",
        )
    items = _items(root, shown)
    lines = _written_out(text, root, shown).splitlines(keepends=True)
    floors = [0, *(_below(item) for item, _data_of_it in items)]
    starts = [
        _start(lines, item.start_mark.line, floor) for (item, _data_of_it), floor in zip(items, floors, strict=False)
    ]
    ends = [*starts[1:], _end(lines, root)]
    return [
        _piece(path if top is None else top / path.name, shown, data, _dedented(lines[start:end]), step, default)
        for (_item, data), start, end in zip(items, starts, ends, strict=True)
    ]


def _items(root: yaml.SequenceNode, shown: str) -> list[tuple[yaml.Node, dict[str, Any]]]:
    for one, other in pairwise(root.value):
        if other.start_mark.index <= one.start_mark.index:
            raise refusal(
                f"{shown}:{other.start_mark.line + 1}",
                "the list repeats a task by an alias. Write the task out.",
            )
    items = []
    for item in root.value:
        data = _data(item, shown)
        if not isinstance(data, dict) or not data:
            raise refusal(
                f"{shown}:{item.start_mark.line + 1}",
                f"{data!r} is not a task. A task is a mapping with a name and a module.",
            )
        items.append((item, data))
    return items


def _piece(path: Path, shown: str, data: dict[str, Any], text: str, step: str | None, default: str | None) -> TaskPiece:
    where = _at(data, shown)
    _refuse_other_text(text, data, where)
    tags = _tags(data)
    own = step_of(tags, where)
    if own is None and default is not None:
        if any(did_you_mean(tag, STEPS) for tag in tags):
            raise no_step(tags, where)
        own = default
    if step is not None and own is not None:
        raise refusal(where, f"tasks after the upgrade have no step, but this one has the tag {own}. Remove the tag.")
    if step is None and own is None:
        raise no_step(tags, where)
    found = list(tags)
    leaves = {tuple(tags): None} if _is_leaf(data) else {}
    for inner, at, around in _inside(data, path, shown, path.parent, tags):
        if _is_leaf(inner):
            leaves[tuple(dict.fromkeys((*around, *_tags(inner))))] = None
        _refuse_endings(inner, at)
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
    _refuse_endings(data, where)
    return TaskPiece(text, data, where, step or own or "", ONCE in tags, tuple(dict.fromkeys(found)), tuple(leaves))


def _inside(
    data: Mapping[str, Any], path: Path, shown: str, top: Path, tags: Sequence[str], depth: int = 0
) -> Iterator[tuple[Any, str, Sequence[str]]]:
    """Yield every task inside a task: those of its blocks, and those of files that it includes or imports.

    :param top: the folder of the first file. Ansible searches it after the folder of the including file.
    :param tags: the tags of the task, including inherited ones.
    :returns: each task, its file and line, and the tags that it inherits.
    """
    for name in _BLOCKS:
        for inner in data.get(name) or ():
            if isinstance(inner, dict):
                yield inner, _at(inner, shown), tags
                yield from _inside(inner, path, shown, top, [*tags, *_tags(inner)], depth)
    for name in _INCLUDES:
        value = data.get(name)
        file = value.get("file") if isinstance(value, Mapping) else value
        # A name with a template is known only at run time, so Ansible checks it then.
        if not isinstance(file, str) or "{{" in file or depth > 8:
            continue
        places = dict.fromkeys((path.parent / file, top / file))
        inner_path = next((one for one in places if one.is_file()), None)
        if inner_path is None:
            raise refusal(_at(data, shown), f"{name} names {file}, but {path.parent / file} does not exist.")
        inner_shown = str(inner_path)
        # Tasks of an include do not inherit its own tags, only those from around it.
        handed = tags if "import" in name else [tag for tag in tags if tag not in _tags(data)]
        root = _root(_text_of(inner_path, inner_shown), inner_shown)
        for item in root.value if root is not None else ():
            inner = _data(item, inner_shown)
            if isinstance(inner, dict):
                yield inner, _at(inner, inner_shown), handed
                yield from _inside(inner, inner_path, inner_shown, top, [*handed, *_tags(inner)], depth + 1)


def _is_leaf(data: Mapping[str, Any]) -> bool:
    return not any(name in data for name in ("block", "import_tasks", "ansible.builtin.import_tasks"))


def _at(data: Mapping[str, Any], shown: str) -> str:
    return f"{shown}:{getattr(data, 'line', 1)}"


def _refuse_endings(data: Mapping[str, Any], where: str) -> None:
    meta = data.get("ansible.builtin.meta", data.get("meta"))
    if isinstance(meta, str) and meta.strip() in _ENDINGS:
        raise refusal(
            where, f"meta: {meta} would end the host's upgrade before it is reported. Use when, or let the task fail."
        )
    if data.get("run_once") in (True, "yes", "true"):
        raise refusal(
            where,
            f"run_once does not work, because each host is upgraded on its own. Tag the task with {ONCE}: one host runs it for all.",
        )


def _tags(data: Mapping[str, Any]) -> list[str]:
    tags = data.get("tags") or []
    found = tags if isinstance(tags, list) else [tags]
    return [part.strip() for tag in found for part in str(tag).split(",") if part.strip()]


def _text_of(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(shown, f"the file can't be read: {error}.") from error


def _root(text: str, shown: str) -> yaml.SequenceNode | None:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{shown}:{mark.line + 1}" if mark is not None else shown
        raise refusal(where, f"this is not valid YAML: {_problem(error)}.") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null")):
        return None
    if not isinstance(root, yaml.SequenceNode):
        raise refusal(f"{shown}:{root.start_mark.line + 1}", "the file has to contain a list of tasks.")
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


def _data(node: yaml.Node, shown: str) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", node.start_mark.line)
        why = _problem(error)
        hint = " A value that begins with {{ has to be in quotes." if "unhashable" in why else ""
        raise refusal(f"{shown}:{line + 1}", f"this can't be read: {why}.{hint}") from error
    finally:
        loader.dispose()


def _refuse_other_text(text: str, data: Mapping[str, Any], where: str) -> None:
    """Refuse a task whose meaning changes outside of its file, such as one with significant blank lines at its end."""
    for shown in (text, f"{text}\n"):
        try:
            root = yaml.compose(shown, _Loader)
            again = [_data(item, where) for item in root.value] if root is not None else []
        except yaml.YAMLError:
            again = []
        if repr(again) != repr([data]):
            raise refusal(
                where,
                "the task would have another meaning outside of this file. Write it out, without |+ or >+.",
            )


def _start(lines: Sequence[str], line: int, floor: int) -> int:
    """Return the line where a task begins: its dash, or the comments directly above it.

    :param floor: the line below the task before. Above it, a line that looks like a comment belongs to the text of that task.
    """
    while not _DASH.match(lines[line]):
        line -= 1
    while line > floor and lines[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


def _below(node: yaml.Node) -> int:
    """Return the line below the last line of a node."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return max(_below(part) for pair in node.value for part in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return max(map(_below, node.value))
    line: int = node.end_mark.line
    return line + 1 if node.end_mark.column else line


def _end(lines: Sequence[str], root: yaml.SequenceNode) -> int:
    # Without a line break at the end of the file, the end mark is on the last line.
    return min(root.end_mark.line + bool(root.end_mark.column), len(lines))


def _dedented(lines: Sequence[str]) -> str:
    first = next(line for line in lines if _DASH.match(line))
    width = len(first) - len(first.lstrip())
    shifted = [line[width:] if line.startswith(" " * width) else line for line in lines]
    return "".join(shifted).strip("\n") + "\n"


def _written_out(text: str, root: yaml.SequenceNode, shown: str) -> str:
    """Return the text with the aliases of other tasks' anchors replaced by their values, because the tasks may go to different files.

    :raises UpgradeError: ``bad_service`` for a value that can't be written in one line, such as a vaulted one.
    """
    nodes = {node.start_mark.index: node for node in _nodes(root)}
    anchors: dict[str, int] = {}
    found: list[tuple[int, int, str]] = []
    for token in yaml.scan(text, yaml.SafeLoader):
        if isinstance(token, yaml.AnchorToken):
            anchors[token.value] = token.start_mark.index
        elif isinstance(token, yaml.AliasToken):
            at, origin = token.start_mark.index, anchors[token.value]
            item = next(one for one in reversed(root.value) if one.start_mark.index <= at)
            if origin < item.start_mark.index:
                found.append((at, token.end_mark.index, _in_a_line(nodes[origin], item, shown)))
    for begin, end, value in reversed(found):
        text = text[:begin] + value + text[end:]
    return text


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    stack = [root]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            stack.extend(part for pair in node.value for part in pair)


def _in_a_line(node: yaml.Node, user: yaml.Node, shown: str) -> str:
    if any(one.tag not in _PLAIN_TAGS for one in _nodes(node)):
        raise refusal(
            f"{shown}:{user.start_mark.line + 1}",
            f"the task uses an anchor of another task (line {node.start_mark.line + 1}) that can't be copied. Write the value out.",
        )
    return json.dumps(_data(node, shown), ensure_ascii=False)
