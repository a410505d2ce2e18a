# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with tasks, cut into pieces: each task as its author wrote it, comments included, with the line it is on."""

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

# What would end a host's turn behind the engine's back, so that it would keep its slot without anybody at work.
_ENDINGS = ("end_host", "end_play", "end_batch", "end_role", "clear_host_errors")

# What is the same in one line as in many.
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "bool", "null", "seq", "map", "merge"))

_DASH = re.compile(r"\s*-(\s|$)")


@dataclass(frozen=True, slots=True)
class TaskPiece:
    """One task or block at the top of a file.

    :param text: as it stands in the file, from column 0 on, with the comments above it.
    :param data: the same as data.
    :param where: file and line.
    :param step: the step it belongs to.
    :param once: whether one host per version runs it for all.
    :param tags: its own tags, and those of all that is inside.
    :param leaves: the tags of each task that is in it, with those from around that task.
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

    :param shown: the path as messages have it.
    :param step: the step of all of them; None where each names its own by a tag.
    :param default: the step of those that name none; None to refuse them.
    :param top: the folder from which they name other files; None for the file's own.
    :raises UpgradeError: ``bad_service``, with file and line.
    """
    text = _text_of(path, shown)
    root = _root(text, shown)
    if root is None or not root.value:
        return []
    if root.flow_style:
        raise refusal(
            f"{shown}:{root.start_mark.line + 1}", "the tasks stand in brackets. Write them as a list of lines."
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
                "the task stands in the list once more, by its anchor. Write it out there.",
            )
    items = []
    for item in root.value:
        data = _data(item, shown)
        if not isinstance(data, dict) or not data:
            raise refusal(
                f"{shown}:{item.start_mark.line + 1}",
                f"this is no task but {data!r}. A task is a mapping with a name and a module.",
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
        raise refusal(where, f"tasks after the upgrade have no step, and this one is tagged {own}. Take the tag away.")
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
                at, f"the task has two steps, {own or POST} from around it and {other} of its own. Keep one of them."
            )
        if ONCE in inner_tags and ONCE not in tags:
            raise refusal(at, f"{ONCE} counts for what a file's top level has. Tag what is around this task with it.")
        found += inner_tags
    _refuse_endings(data, where)
    return TaskPiece(text, data, where, step or own or "", ONCE in tags, tuple(dict.fromkeys(found)), tuple(leaves))


def _inside(
    data: Mapping[str, Any], path: Path, shown: str, top: Path, tags: Sequence[str], depth: int = 0
) -> Iterator[tuple[Any, str, Sequence[str]]]:
    """Give every task below another: those of its blocks, and those of files that it names.

    :param top: the folder of the first file, where Ansible looks after that of the file that names another.
    :param tags: those of the task, with what it has from around it.
    :returns: each task, its file and line, and the tags that it has from around it.
    """
    for name in _BLOCKS:
        for inner in data.get(name) or ():
            if isinstance(inner, dict):
                yield inner, _at(inner, shown), tags
                yield from _inside(inner, path, shown, top, [*tags, *_tags(inner)], depth)
    for name in _INCLUDES:
        value = data.get(name)
        file = value.get("file") if isinstance(value, Mapping) else value
        # What is only known when it runs is Ansible's to complain of then.
        if not isinstance(file, str) or "{{" in file or depth > 8:
            continue
        places = dict.fromkeys((path.parent / file, top / file))
        inner_path = next((one for one in places if one.is_file()), None)
        if inner_path is None:
            raise refusal(_at(data, shown), f"{name} names {file}, and {path.parent / file} is not there.")
        inner_shown = str(inner_path)
        # Ansible does not hand the tags of an include down to what it includes, only those from around it.
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
            where, f"meta: {meta} would end the host's turn before it is reported. Use when, or let the task fail."
        )
    if data.get("run_once") in (True, "yes", "true"):
        raise refusal(
            where,
            f"run_once does not work where each host goes by itself. Tag the task with {ONCE}: one host runs it for all.",
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
        raise refusal(where, f"this is no YAML: {_problem(error)}.") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null")):
        return None
    if not isinstance(root, yaml.SequenceNode):
        raise refusal(f"{shown}:{root.start_mark.line + 1}", "the file has to hold a list of tasks.")
    return root


def _problem(error: Exception) -> str:
    return " ".join(str(getattr(error, "problem", None) or error).split())


class _Lined(dict[Any, Any]):
    """A mapping that knows the line it is on."""

    line = 1


class _Loader(yaml.SafeLoader):
    """Takes Ansible's own tags, such as ``!vault``, for what they are on."""


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
        hint = " A value that begins with {{ has to stand in quotes." if "unhashable" in why else ""
        raise refusal(f"{shown}:{line + 1}", f"this can't be read: {why}.{hint}") from error
    finally:
        loader.dispose()


def _refuse_other_text(text: str, data: Mapping[str, Any], where: str) -> None:
    """Refuse a task that would be another one in another file, such as one with a text whose blank lines count."""
    for shown in (text, f"{text}\n"):
        try:
            root = yaml.compose(shown, _Loader)
            again = [_data(item, where) for item in root.value] if root is not None else []
        except yaml.YAMLError:
            again = []
        if repr(again) != repr([data]):
            raise refusal(
                where,
                "the task means something else once the file around it is gone. Write it out, and without |+ or >+.",
            )


def _start(lines: Sequence[str], line: int, floor: int) -> int:
    """Return where a task begins: at its dash, or at the comments right above it.

    :param floor: the line below the task before; a line above it that looks like a comment is of that one's text.
    """
    while not _DASH.match(lines[line]):
        line -= 1
    while line > floor and lines[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


def _below(node: yaml.Node) -> int:
    """Return the line below the last one with a text of the node."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return max(_below(part) for pair in node.value for part in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return max(map(_below, node.value))
    line: int = node.end_mark.line
    return line + 1 if node.end_mark.column else line


def _end(lines: Sequence[str], root: yaml.SequenceNode) -> int:
    # Without a line break at the end of the file, the end is on the last line itself.
    return min(root.end_mark.line + bool(root.end_mark.column), len(lines))


def _dedented(lines: Sequence[str]) -> str:
    first = next(line for line in lines if _DASH.match(line))
    width = len(first) - len(first.lstrip())
    shifted = [line[width:] if line.startswith(" " * width) else line for line in lines]
    return "".join(shifted).strip("\n") + "\n"


def _written_out(text: str, root: yaml.SequenceNode, shown: str) -> str:
    """Return the text with what another task's anchor stands for in place of its name, as the two may be parted.

    :raises UpgradeError: ``bad_service`` for what can't be written in one line, such as a vaulted value.
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
            f"the task uses the anchor of line {node.start_mark.line + 1}, which another task has. Write it out.",
        )
    return json.dumps(_data(node, shown), ensure_ascii=False)
