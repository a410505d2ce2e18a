# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of an ansible.builtin.debug task, without what Ansible adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ADDED = ("changed", "failed", "skipped", "failed_when_result", "warnings", "deprecations", "ansible_loop_var")
_LOOP = ("ansible_loop", "ansible_index_var")


def debug_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a debug task, of a loop for each item.

    :param result: the result as callbacks get it, without what ``no_log`` hides.
    """
    items = result.get("results")
    if isinstance(items, list) and "msg" in result and all(isinstance(one, Mapping) for one in items):
        for one in items:
            if not one.get("skipped"):
                yield from _of_one(one)
    else:
        yield from _of_one(result)


def _of_one(result: Mapping[str, Any]) -> Iterator[str]:
    if "msg" in result:
        yield str(result["msg"])
        return
    item = {result.get("ansible_loop_var"), result.get("ansible_index_var")}
    own = [name for name in result if not name.startswith("_") and name not in (*_ADDED, *_LOOP)]
    # If the result has only the item, the task prints the item.
    for name in [name for name in own if name not in item] or own:
        yield f"{name}: {result[name]}"
