# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services for tests: roles in a temporary folder, given as the texts of their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.composition import Composition, compose

TASKS, POST, META = "tasks/upgrade_tasks.yml", "tasks/post_upgrade_tasks.yml", "meta/upgrade.yml"


class Roles:
    """A folder of roles, which finds them by their names as the real finder does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> Path | None:
        """Return a role's folder."""
        found = self.folder / name.rpartition(".")[2]
        return found if found.is_dir() else None

    def add(self, name: str, files: str | Mapping[str, str]) -> Path:
        """Write a role; a text alone is its upgrade tasks."""
        folder = self.folder / name
        for path, text in ({TASKS: files} if isinstance(files, str) else files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(dedent(text), encoding="utf-8")
        return folder

    def simple(self, name: str, *steps: str, requires: str = "", once: str = "") -> Path:
        """Write a role with a task of its own for each step."""
        tasks = "".join(f"- name: {step} {name}\n  command: {step}-{name}\n  tags: {step}\n" for step in steps)
        meta = f"requires: [{requires}]\n" * bool(requires) + f"once: [{once}]\n" * bool(once)
        return self.add(name, {TASKS: tasks, **({META: meta} if meta else {})})

    def compose(self, upgrade_roles: Mapping[str, Any], hosts: Mapping[str, int] | None = None) -> Composition:
        """Compose roles that are given as in ``upgrade_roles``, or by the list of their services."""
        roles = {role: {"services": what} if isinstance(what, list) else what for role, what in upgrade_roles.items()}
        return compose(roles, self, [str(self.folder)], hosts)
