# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Standard output and standard error of a program that goes on without them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class OptionalOutput(io.TextIOWrapper):
    """A standard stream that goes to /dev/null from its first error on, such as that of a full disk or of a reader that has ended.

    The program goes on, and so does what it starts with the same stream. Otherwise an agent run could not report a full disk.
    """

    def write(self, text: str, /) -> int:
        """Write a text; return its length."""
        try:
            return super().write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            super().flush()
        except OSError:
            self._drop()
            # To /dev/null, so that the interpreter does not fail with it when it ends.
            super().flush()

    def _drop(self) -> None:
        mine = os.fstat(self.fileno())
        null = os.open(os.devnull, os.O_WRONLY)
        for one in (1, 2):
            if os.path.samestat(os.fstat(one), mine):
                os.dup2(null, one)
        os.close(null)


def make_output_optional() -> None:
    """Let no error of standard output and standard error end this program: no full disk, and no letter that the locale's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        # None if it was closed before the program started.
        if stream is not None:
            setattr(
                sys,
                name,
                OptionalOutput(
                    stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering
                ),
            )
