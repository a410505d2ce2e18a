# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's playbooks that a run consists of, also if a playbook of an operator or of a composition imports them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .next_step import COMMAND, UPGRADES

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
_INTERNAL = PLAYBOOKS / "internal"
# The upgrade_part of upgrade.yml. Those of other playbooks are their names.
_ALL = "all"


def is_of_collection(file: str) -> bool:
    """Return whether a file is one of the collection's playbooks, or part of one."""
    return PLAYBOOKS in Path(file).resolve().parents


def file_of_play(play: Any) -> str:
    """Return the file of a play."""
    return str(play.get_path()).rpartition(":")[0]


def playbook_names(file: str, plays: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the collection's playbooks that a run consists of, such as ``upgrade``. The first one decides what comes next.

    :param file: the playbook of the command. If it belongs to the collection, or imports nothing of it, its own name is the only one.
    :param plays: its plays, with those of imported playbooks.
    """
    own = Path(file).stem
    if is_of_collection(file):
        return (own,)
    found: dict[str, None] = {}
    has_parts = False
    for play in plays:
        path = Path(file_of_play(play)).resolve()
        if path.parent == PLAYBOOKS:
            found[path.stem] = None
        elif path.parent == _INTERNAL:
            has_parts = True
            part = str(play.vars.get("upgrade_part"))
            name = "upgrade" if part == _ALL else part
            if name in UPGRADES:
                found[name] = None
    if has_parts and not any(name in (*UPGRADES, COMMAND) for name in found):
        found["upgrade"] = None
    upgrades = [name for name in found if name in UPGRADES]
    if "rollback" in upgrades:
        first = "rollback"
    else:
        first = upgrades[0] if len(upgrades) == 1 else "upgrade" if upgrades else next(iter(found), own)
    if not upgrades and COMMAND in found:
        first = COMMAND
    return tuple(dict.fromkeys((first, *found)))
