# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the role of a service: in the operator's roles first, then in collections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.utils.collection_loader._collection_finder import _get_collection_role_path

_OURS = "convoy.upgrade"


def operators_roles(task_vars: Mapping[str, Any]) -> list[Path]:
    """Return where roles of the operator are searched: beside the inventory, in the current folder, beside the playbook."""
    sources = [Path(source) for source in task_vars.get("ansible_inventory_sources") or () if "," not in str(source)]
    folders = [source if source.is_dir() else source.parent for source in sources]
    playbook = task_vars.get("playbook_dir")
    return [folder / "roles" for folder in (*folders, Path.cwd(), *([Path(playbook)] if playbook else []))]


class RoleFinder:
    """Finds the folder of an Ansible role by its name.

    :param folders: folders with roles, in the order of the search.
    """

    def __init__(self, folders: Iterable[str | Path]) -> None:
        """Add the roles path of Ansible's configuration to the folders."""
        every = [Path(folder).expanduser() for folder in (*folders, *constants.DEFAULT_ROLES_PATH)]
        self._folders = [folder for folder in dict.fromkeys(every) if folder.is_dir()]

    @property
    def places(self) -> list[str]:
        """The places that are searched, for messages."""
        return [*map(str, self._folders), f"the collection {_OURS}"]

    def __call__(self, name: str) -> Path | None:
        """Return a role's folder; None if there is none."""
        if name.count(".") < 2:
            for folder in self._folders:
                if (folder / name).is_dir():
                    return folder / name
        found = _get_collection_role_path(name, [_OURS])
        return Path(found[1]) if found else None
