# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compose the task files that the hosts of each role run, before an upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.service_variables import refuse_templates_of_hosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.composition import compose
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.files import files_of, plain
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.folder import (
    Difference,
    compare,
    read_composition,
    write,
    write_new,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.tag_selection import refuse_empty
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.role_finder import RoleFinder, operators_roles

_OPTIONS: dict[str, dict[str, Any]] = {
    "upgrade_roles": {"type": "dict", "required": True},
    "folder": {"type": "path", "required": True},
    "roles_path": {"type": "list", "elements": "path", "default": []},
    "hosts": {"type": "dict"},
    "for_run": {"type": "bool", "default": False},
    "composed": {"type": "path"},
}


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Compose the task files and write them to the folder."""
        if options["composed"]:
            return read_composition(Path(options["composed"]).absolute())
        if not options["upgrade_roles"]:
            raise UpgradeError(
                "bad_upgrade_roles",
                "upgrade_roles: no role is given, so there is nothing to compose. Give the inventory that sets it with -i.",
            )
        refuse_templates_of_hosts(task_vars)
        folder = Path(options["folder"]).absolute()
        finder = RoleFinder([*options["roles_path"], *operators_roles(task_vars)])
        hosts = options["hosts"]
        counts = None if hosts is None else {role: len(names or ()) for role, names in hosts.items()}
        composition = compose(options["upgrade_roles"], finder, finder.places, counts)
        refuse_empty(composition, task_vars.get("ansible_run_tags") or (), task_vars.get("ansible_skip_tags") or ())
        files = files_of(composition, str(folder))
        differences = compare(folder, files)
        if not self._task.check_mode:
            write(folder, differences)
        run_folder = ensure_daemon() / "composed" if options["for_run"] else None
        if run_folder is not None:
            write_new(run_folder, files)
        return {
            **plain(composition, files),
            "run_folder": str(run_folder or ""),
            "changed": bool(differences),
            "folder": str(folder),
            "files": sorted(files),
            "diff": [_as_diff(folder, one) for one in differences],
        }


def _as_diff(folder: Path, one: Difference) -> dict[str, str]:
    def side(content: bytes | None) -> str:
        return "" if content is None else content.decode(errors="replace")

    path = str(folder / one.path)
    return {
        "before_header": path if one.before is not None else f"{path} (new)",
        "after_header": path if one.after is not None else f"{path} (deleted)",
        "before": side(one.before),
        "after": side(one.after),
    }
