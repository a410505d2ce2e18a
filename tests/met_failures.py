# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The failures that tests meet, against docs/messages.md."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from devkit.agent import ROOT
from messages.shapes import pattern

# Of one place, hypothesis may meet very many.
_MOST = 20
# What is wrong with rules that come from a file is told with its name.
_FROM_A_FILE = r"( \((in|inline and) [^()]+\))?"
_PLUGINS = ROOT / "plugins"


class Met:
    """Notes what failures are made with, by each place of the plugins that makes them."""

    def __init__(self) -> None:
        self.messages: defaultdict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note all that are made meanwhile."""
        make = UpgradeError.__init__

        def note(error: UpgradeError, code: str, message: str, **details: Any) -> None:
            place = sys._getframe(1)
            if Path(place.f_code.co_filename).resolve().is_relative_to(_PLUGINS):
                of_place = self.messages[place.f_code.co_filename, place.f_lineno]
                if len(of_place) < _MOST:
                    of_place.add((code, message))
            make(error, code, message, **details)

        with patch.object(UpgradeError, "__init__", note):
            yield

    def strangers(self) -> list[str]:
        """Return the messages that do not stand on the page under their code, and where they were made."""
        return [
            f"{file}:{line}: {code}: {message}"
            for (file, line), found in self.messages.items()
            for code, message in sorted(found)
            if not stands_there(code, message)
        ]


def stands_there(code: str, message: str) -> bool:
    """Return whether a message stands on the page under its code."""
    return any(one.fullmatch(" ".join(message.split())) for one in _sections().get(code, ()))


@cache
def _sections() -> dict[str, list[re.Pattern[str]]]:
    found: dict[str, list[re.Pattern[str]]] = {}
    code = ""
    for line in (ROOT / "docs/messages.md").read_text().splitlines():
        if line.startswith("#"):
            code = "".join(re.findall(r"^### \[`(\w+)`", line))
        elif line.startswith("- "):
            text = line[2:].strip("`").strip()
            found.setdefault(code, []).append(re.compile(pattern(text) + _FROM_A_FILE, re.S))
    return found
