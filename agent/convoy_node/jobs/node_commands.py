# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that a node allows: a program NAME and its schema NAME.json, both in one folder that only root can change."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..machine.errors import sanitize
from .command_schema import CommandSchema, parse_schema
from .refusals import Refused
from .trusted_files import read_trusted, refuse_untrusted_folder, refuse_untrusted_program

FOLDER = "/etc/convoy/commands.d"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_MOST_BYTES = 65536


@dataclass(frozen=True)
class NodeCommand:
    """A command of this node."""

    name: str
    program: Path
    schema: CommandSchema


def is_command_name(name: str) -> bool:
    """Return whether a command may have this name. It has no dot and no slash, so that it can't lead out of the folder."""
    return _NAME.fullmatch(name) is not None


def find_command(name: str, folder: str = FOLDER) -> NodeCommand:
    """Return a command of this node.

    :raises Refused: if there is none with this name, or if another user than root could have changed what would run.
    """
    if not is_command_name(name):
        raise Refused(
            f"{sanitize(repr(name), 100)} can't be the name of a command. Give lowercase letters, digits, - and _."
        )
    program, schema = Path(folder, name), Path(folder, f"{name}.json")
    if not Path(folder).is_dir() or not (program.is_symlink() or program.exists()):
        raise Refused(
            f"This node has no command {name}: {program} is missing. Install it and {schema.name} there, or begin a job for other hosts."
        )
    refuse_untrusted_folder(Path(folder))
    refuse_untrusted_program(program)
    return NodeCommand(name, program, parse_schema(str(schema), read_trusted(schema, _MOST_BYTES)))


def command_problems(folder: str = FOLDER) -> list[str]:
    """Return what is wrong with the commands of this node, as sentences. Each schema and each program with the name of a command is one."""
    try:
        paths = sorted(Path(folder).iterdir())
    except OSError:
        # A node without the folder has no commands.
        return []
    names = {path.stem for path in paths if path.suffix == ".json"}
    names |= {
        path.name for path in paths if is_command_name(path.name) and os.access(path, os.X_OK) and not path.is_dir()
    }
    problems = []
    for name in sorted(names):
        try:
            find_command(name, folder)
        except Refused as error:
            problems.append(str(error))
    return problems
