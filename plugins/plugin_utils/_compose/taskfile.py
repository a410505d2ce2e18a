# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with tasks, cut into pieces: each task as its author wrote it, comments included, with the line it is on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import refusal
from .steps import ONCE, POST, no_step, step_of

_BLOCKS = ("block", "rescue", "always")
_INCLUDES = ("import_tasks", "include_tasks", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks")

# What would end a host's turn behind the engine's back, so that it would keep its slot without anybody at work.
_ENDINGS = ("end_host", "end_play", "end_batch", "end_role", "clear_host_errors")


@dataclass(frozen=True, slots=True)
class Piece:
    """One task or block at the top of a file.

    :param text: as it stands in the file, from column 0 on, with the comments above it.
    :param data: the same as data.
    :param where: file and line.
    :param step: the step it belongs to.
    :param once: whether one host per version runs it for all.
    :param tags: its own tags, and those of all that is inside.
    """

    text: str
    data: Mapping[str, Any]
    where: str
    step: str
    once: bool
    tags: tuple[str, ...]


def read_pieces(path: Path, shown: str, step: str | None = None) -> list[Piece]:
    """Return the tasks of a file.

    :param shown: the path as messages have it.
    :param step: the step of all of them; None where each names its own by a tag.
    :raises UpgradeError: ``bad_service``, with file and line.
    """
    text = _text_of(path, shown)
    root = _root(text, shown)
    if root is None:
        return []
    if root.flow_style:
        raise refusal(
            f"{shown}:{root.start_mark.line + 1}", "the tasks stand in brackets. Write them as a list of lines."
        )
    lines = text.splitlines()
    starts = [_start(lines, item.start_mark.line) for item in root.value]
    ends = [*starts[1:], _end(lines, root)]
    pieces = []
    for item, start, end in zip(root.value, starts, ends, strict=True):
        where = f"{shown}:{item.start_mark.line + 1}"
        _refuse_far_aliases(item, shown)
        data = _data(item)
        if not isinstance(data, dict) or not data:
            raise refusal(where, f"this is no task but {data!r}. A task is a mapping with a name and a module.")
        pieces.append(_piece(path, shown, where, data, _dedented(lines[start:end]), step))
    return pieces


def _piece(path: Path, shown: str, where: str, data: dict[str, Any], text: str, step: str | None) -> Piece:
    tags = _tags(data)
    own = step_of(tags, where)
    if step is not None and own is not None:
        raise refusal(where, f"tasks after the upgrade have no step, and this one is tagged {own}. Take the tag away.")
    if step is None and own is None:
        raise no_step(tags, where)
    found = list(tags)
    for inner, at in _inside(data, path, shown, where):
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
    return Piece(text, data, where, step or own or "", ONCE in tags, tuple(dict.fromkeys(found)))


def _inside(data: Mapping[str, Any], path: Path, shown: str, where: str, depth: int = 0) -> Iterator[tuple[Any, str]]:
    """Give every task below another, with where it is: those of its blocks, and those of files that it names."""
    for name in _BLOCKS:
        for inner in data.get(name) or ():
            if isinstance(inner, dict):
                yield inner, where
                yield from _inside(inner, path, shown, where, depth)
    for name in _INCLUDES:
        value = data.get(name)
        file = value.get("file") if isinstance(value, Mapping) else value
        # What is only known when it runs is Ansible's to complain of then.
        if not isinstance(file, str) or "{{" in file or depth > 8:
            continue
        inner_path = path.parent / file
        if not inner_path.is_file():
            raise refusal(where, f"{name} names {file}, and {inner_path} is not there.")
        inner_shown = str(Path(shown).parent / file)
        root = _root(_text_of(inner_path, inner_shown), inner_shown)
        for item in root.value if root is not None else ():
            inner = _data(item)
            at = f"{inner_shown}:{item.start_mark.line + 1}"
            if isinstance(inner, dict):
                yield inner, at
                yield from _inside(inner, inner_path, inner_shown, at, depth + 1)


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
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(shown, f"the file can't be read: {error}.") from error


def _root(text: str, shown: str) -> yaml.SequenceNode | None:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{shown}:{mark.line + 1}" if mark is not None else shown
        raise refusal(where, f"this is no YAML: {getattr(error, 'problem', None) or error}.") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null")):
        return None
    if not isinstance(root, yaml.SequenceNode):
        raise refusal(f"{shown}:{root.start_mark.line + 1}", "the file has to hold a list of tasks.")
    return root


class _Loader(yaml.SafeLoader):
    """Takes Ansible's own tags, such as ``!vault``, for what they are on."""


def _any_tag(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


_Loader.add_multi_constructor("!", _any_tag)


def _data(node: yaml.Node) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _start(lines: Sequence[str], line: int) -> int:
    """Return where a task begins: at its dash, or at the comments right above it."""
    while not lines[line].lstrip().startswith("- "):
        line -= 1
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


def _end(lines: Sequence[str], root: yaml.SequenceNode) -> int:
    end: int = root.end_mark.line
    return end if end < len(lines) else len(lines)


def _dedented(lines: Sequence[str]) -> str:
    first = next(line for line in lines if line.lstrip().startswith("- "))
    width = len(first) - len(first.lstrip())
    shifted = [line[width:] if not line[:width].strip() else line for line in lines]
    return "\n".join(shifted).strip("\n") + "\n"


def _refuse_far_aliases(item: yaml.Node, shown: str) -> None:
    """Refuse a task that uses an anchor of another one, as the two may end up in different files."""
    first, last = item.start_mark.index, item.end_mark.index
    stack: list[yaml.Node] = [item]
    while stack:
        node = stack.pop()
        if not first <= node.start_mark.index < max(last, first + 1):
            raise refusal(
                f"{shown}:{item.start_mark.line + 1}",
                f"the task uses the anchor of line {node.start_mark.line + 1}, which another task has. Write it out.",
            )
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            stack.extend(part for pair in node.value for part in pair)
