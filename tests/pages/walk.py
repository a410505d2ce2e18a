# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A walk along a page: its files are written and its commands typed, in order, and what these print is compared."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from devkit.agent import ROOT

from .page import Command, File, steps
from .shell import Shell

# What a reader has where this machine has something else.
_COLLECTION = "/home/ann/.ansible/collections/ansible_collections/convoy/upgrade"
_FOLDER = "/home/ann/fleet"


def walk(page: str, folder: Path) -> Iterator[tuple[Command, str]]:
    """Yield each command of a page with what it printed, once it has ended as the page says.

    :param folder: an empty one.
    """
    with Shell(folder) as shell:
        for step in steps(page):
            if isinstance(step, File):
                (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.name).write_text(step.text)
                continue
            code, printed = shell.type(step.typed)
            assert (code != 0) == step.fails, f"$ {step.typed}\nended with {code}:\n{printed}"
            yield step, _placed(printed, folder)


def _placed(printed: str, folder: Path) -> str:
    for here, there in ((_linked(), _COLLECTION), (str(ROOT), _COLLECTION), (str(folder), _FOLDER)):
        printed = printed.replace(here, there)
    return printed


def _linked() -> str:
    """Return where Ansible finds the checkout as a collection; tools/link-collection.sh put it there."""
    return str(Path(sysconfig.get_path("purelib"), "ansible_collections", "convoy", "upgrade"))
