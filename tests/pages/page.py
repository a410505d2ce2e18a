# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page that is walked: its blocks are files to be written and commands to be typed, with what these print.

A block of YAML, or one of INI, whose first line is a comment with the name of a file, ``# roles/shop/tasks/main.yml``, is that file. In a block
``console``, each line after ``$ `` is a command, and the lines below it, up to the next one, are what it printed. ``console fails``
says that the last command of the block ends with a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(?P<kind>\w+)(?P<more>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class File:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What the reader types.

    :param shown: what the page says that it prints.
    :param fails: whether it is to end with a failure.
    """

    typed: str
    shown: str
    fails: bool = False


def steps(page: str) -> list[File | Command]:
    """Return what the reader of a page does, in order. Other blocks are only read."""
    found: list[File | Command] = []
    for block in _BLOCK.finditer(page):
        if block["kind"] == "console":
            found += _commands(block)
        elif block["kind"] in ("yaml", "ini") and (name := _NAME.match(block["text"])):
            found.append(File(name[1], block["text"]))
    return found


def rewritten(page: str, printed: Iterable[str]) -> str:
    """Return a page that shows what its commands have printed, which is given in their order."""
    coming = iter(printed)

    def shown(block: re.Match[str]) -> str:
        if block["kind"] != "console":
            return block[0]
        lines = "".join(f"{_PROMPT}{one.typed}\n{next(coming)}" for one in _commands(block))
        return f"```console{block['more']}\n{lines}```"

    return _BLOCK.sub(shown, page)


def _commands(block: re.Match[str]) -> list[Command]:
    found = [
        Command(typed, shown)
        for part in re.split(rf"^{re.escape(_PROMPT)}", block["text"], flags=re.M)[1:]
        for typed, _newline, shown in [part.partition("\n")]
    ]
    if block["more"].strip() == "fails":
        found[-1] = Command(found[-1].typed, found[-1].shown, fails=True)
    return found
