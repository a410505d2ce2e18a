# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds identical tasks of two services of a role. If no other task is between them, they run once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .._services.service import Service, ServiceEntry
from .._services.task_file import TaskPiece

# Identical tasks with these keys may differ in effect: their arguments may name files or handlers of the role, or they control Ansible
# itself, such as to run handlers.
_OWN = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "ansible.builtin.", "ansible.legacy.")
    for name in (
        *("copy", "template", "script", "unarchive", "assemble", "include_vars", "meta", "notify"),
        *("include_tasks", "import_tasks", "include_role", "import_role", "action", "local_action"),
    )
)

_WORD = re.compile(r"[^\W\d]\w*")
_TOP_KEY = re.compile(r"^[\"']?([^\W\d]\w*)[\"']?\s*:", re.MULTILINE)

# One use of a service, and a task of it.
Use = tuple[ServiceEntry, Service, TaskPiece]


def are_duplicates(one: Use, other: Use) -> bool:
    """Return whether two tasks do the same, judged by their text and the variables of their services."""
    content = _content(one[2].data)
    if content != _content(other[2].data) or one[2].once != other[2].once:
        return False
    if one[1].path == other[1].path and one[0].vars == other[0].vars:
        return True
    # With variables or files of two services, the same text may mean different things.
    if "{{" in content or "{%" in content or _names_own(one[2].data):
        return False
    words = set(_WORD.findall(content))
    return not any(words & _variables(*use[:2]) for use in (one, other))


def _variables(entry: ServiceEntry, service: Service) -> set[str]:
    """Return the names of a service's variables. Conditions use them without braces."""
    files = (file for name in ("defaults", "vars") for file in (service.path / name).rglob("*.y*ml"))
    found = {name for file in files for name in _TOP_KEY.findall(file.read_text(encoding="utf-8", errors="replace"))}
    return found | set(entry.vars)


def _content(data: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in data.items() if key != "tags"}, sort_keys=True, default=str)


def _names_own(data: object) -> bool:
    if isinstance(data, Mapping):
        return any(
            key in _OWN
            or str(key).startswith("with_")
            or (key == "src" and not str(value).startswith("/"))
            or _names_own(value)
            for key, value in data.items()
        )
    return isinstance(data, list) and any(map(_names_own, data))
