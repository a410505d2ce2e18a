# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A failed task in full: its name, its file and line, and its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...module_utils._common.sanitize import sanitize

# Only so many lines of each output are shown, the last ones.
_MOST_LINES = 400


def failure_lines(
    host: str, task: str, path: str, result: Mapping[str, Any], *, unreachable: bool = False
) -> list[str]:
    """Return a failure as sanitized lines.

    :param path: file and line of the task, empty if not known.
    :param result: the result as callbacks get it, without what ``no_log`` hides.
    """
    what = "can't be reached" if unreachable else "failed"
    head = f"{host} {what} at {task!r}" + (f" ({path})" if path else "")
    return [sanitize(f"{head}:"), *(f"  {sanitize(line.rstrip())}" for line in _output_lines(result))]


def _output_lines(result: Mapping[str, Any]) -> Iterator[str]:
    items = result.get("results")
    if isinstance(items, list):
        broken = [one for one in items if isinstance(one, Mapping) and (one.get("failed") or one.get("unreachable"))]
        for one in broken:
            label = one.get("_ansible_item_label", one.get(one.get("ansible_loop_var", "item"), ""))
            yield f"item {label}:"
            yield from (f"  {line}" for line in _of_one(one))
        if broken:
            return
    yield from _of_one(result)


def _of_one(result: Mapping[str, Any]) -> Iterator[str]:
    text = str(result.get("msg") or result.get("censored") or "it failed without a message").strip()
    yield from text.splitlines()
    for name in ("stderr", "stdout", "module_stderr", "module_stdout"):
        lines = [line for line in str(result.get(name) or "").splitlines() if line.strip()]
        if not lines or "\n".join(lines) in text:
            continue
        yield f"{name}:"
        if len(lines) > _MOST_LINES:
            yield f"  [the first {len(lines) - _MOST_LINES} lines are left out]"
        yield from (f"  {line}" for line in lines[-_MOST_LINES:])
