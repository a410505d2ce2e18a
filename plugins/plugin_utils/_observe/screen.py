# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lower end of a terminal, where a rollout is drawn: a row for each role, and the hosts on their way."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from ...module_utils._observe.progress import HostProgress, RoleProgress, RolloutProgress, segments
from .wording import elapsed, headline, where

LIBRARY_ERROR: str | None = None
try:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    LIBRARY_ERROR = str(error)

_STYLES = ("green", "yellow", "red", "bright_black")
_BLOCKS, _LETTERS = "█▓X░", "#>X."
_WIDEST_BAR = 40
# What stands beside bars and hosts: the headline, notes, and how many are not shown.
_OTHER_ROWS = 6


class Screen:
    """Draws, and lets all that is printed meanwhile stand above. Its caller has Ansible's display lock."""

    def __init__(self, stream: TextIO) -> None:
        """Begin to draw on a terminal."""
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
        self._signs = _BLOCKS if encoding == "utf8" else _LETTERS
        self._console = Console(
            file=stream, force_terminal=True, markup=False, highlight=False, emoji=False, legacy_windows=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()
        # Whoever is killed can't show it again.
        self._console.show_cursor(True)

    def draw(self, found: RolloutProgress, now: float, away: str = "") -> None:
        """Draw a standing.

        :param now: unix seconds, for how long hosts take.
        :param away: why it is not what Consul has now, empty where it is.
        """
        self._live.update(drawing(found, now, self._console.width, self._console.height, self._signs, away))
        self._live.refresh()

    def say(self, *lines: str) -> None:
        """Print lines above the drawing, which is drawn once for all of them; of escape sequences only colours are left."""
        self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)

    def stop(self) -> None:
        """Take the drawing away."""
        self._live.stop()


def drawing(found: RolloutProgress, now: float, width: int, height: int, signs: str = _BLOCKS, away: str = "") -> Any:
    """Return what is drawn, for a terminal of so many columns and rows.

    :param signs: for cells that are done, upgrading, failed and waiting.
    """
    left = None if found.left is None else max(0.0, found.left - (now - found.at))
    parts: list[Any] = [_line(headline(found, left), "bold")]
    rows = max(4, height - _OTHER_ROWS - len(found.notes) - bool(away))
    bars, hidden = _most_wanted(found.bars, max(2, rows * 2 // 3 if found.flights else rows))
    parts.append(_bars(bars, width, signs))
    if hidden:
        parts.append(_line(f"and {hidden} more roles", "bright_black"))
    flights = found.flights[: max(1, rows - len(bars))]
    if flights:
        parts.append(_flights(flights, now))
    others = len(found.flights) - len(flights) + found.more
    if others:
        parts.append(_line(f"and {others} more on their way", "bright_black"))
    parts += [_line(note, "yellow") for note in found.notes]
    if away:
        parts.append(_line(f"Shown as of {elapsed(now - found.at)} ago: {away}", "red"))
    return Group(*parts)


def _line(text: str, style: str) -> Any:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _most_wanted(bars: Sequence[RoleProgress], most: int) -> tuple[list[RoleProgress], int]:
    """Return the bars that there is room for, in their order, and how many others there are; those that are done are left out first."""
    if len(bars) <= most:
        return list(bars), 0
    chosen = {row.role for row in [*(one for one in bars if one.done < one.hosts), *bars][:most]}
    kept = [row for row in bars if row.role in chosen]
    return kept, len(bars) - len(kept)


def _bars(bars: Sequence[RoleProgress], width: int, signs: str) -> Any:
    cells = max(8, min(_WIDEST_BAR, width // 3))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(8, width // 4))
    grid.add_column(no_wrap=True, width=cells)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for row in bars:
        drawn = Text()
        for count, sign, style in zip(segments(row, cells), signs, _STYLES, strict=True):
            drawn.append(sign * count, style=style)
        grid.add_row(Text(row.role), drawn, _counts(row))
    return grid


def _counts(row: RoleProgress) -> Any:
    text = Text(f"{row.done}/{row.hosts}")
    for count, word, style in (
        (row.upgrading, "upgrading", "yellow"),
        (row.waiting, "waiting", "bright_black"),
        (row.failed, "failed", "bold red"),
    ):
        if count:
            text.append(f"  {count} {word}", style=style)
    return text


def _flights(flights: Sequence[HostProgress], now: float) -> Any:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for one in flights:
        grid.add_row(Text(one.host), Text("" if one.since is None else elapsed(now - one.since)), Text(where(one)))
    return grid


def reason_not_to_draw(stream: TextIO) -> str | None:
    """Return why nothing can be drawn on a stream: empty where that is as it should be, None where it can."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not stream.isatty():
        return ""
    if LIBRARY_ERROR is not None:
        return (
            f"The live view needs the Python library 'rich', which is missing for {sys.executable}: install it there with "
            "'pip install rich'. Until then, the rollout is shown as lines."
        )
    return None
