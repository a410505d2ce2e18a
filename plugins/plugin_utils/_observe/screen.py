# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a rollout at the bottom of a terminal: a row for each role, and the upgrading hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from ...module_utils._common.names import is_job
from ...module_utils._host_states.state_names import UPGRADING, state_text
from ...module_utils._observe.operator_needs import OperatorNeed
from ...module_utils._observe.progress import HostProgress, RoleProgress, RolloutProgress, segments
from ...module_utils._observe.stages import APPROVAL, CURRENT, DONE, SOAK, WAITING
from .wording import elapsed, headline, stage_texts, where

LIBRARY_ERROR: str | None = None
try:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    LIBRARY_ERROR = str(error)

_STYLES = ("green", "yellow", "red", "bright_black")
_STAGE_STYLES = {DONE: "green", CURRENT: "bold", SOAK: "bold", APPROVAL: "bold yellow", WAITING: "bright_black"}
_BLOCKS, _LETTERS = "█▓X░", "#>X."
_WIDEST_BAR = 40
# Rows for the headline and for how many roles and hosts are not shown, and free rows.
_OTHER_ROWS = 6

# Returns the command of a playbook with variables.
CommandFor = Callable[[str, Mapping[str, str]], str]


class Screen:
    """A drawing below all other output. The caller must hold Ansible's display lock.

    :param command: what :func:`drawing` takes.
    """

    def __init__(self, stream: TextIO, command: CommandFor | None = None) -> None:
        """Start a drawing on a terminal."""
        self._command = command
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
        # A process that is killed could not show the cursor again.
        self._console.show_cursor(True)

    def draw(self, progress: RolloutProgress, now: float, away: str = "") -> None:
        """Draw the progress of the rollout.

        :param now: unix seconds, to compute durations.
        :param away: why Consul can't be reached, empty if it can.
        """
        self._live.update(
            drawing(progress, now, self._console.width, self._console.height, self._signs, away, self._command)
        )
        self._live.refresh()

    def say(self, *lines: str) -> None:
        """Print lines above the drawing, and redraw it once. Of escape sequences, only colours are kept."""
        self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)

    def stop(self) -> None:
        """Remove the drawing."""
        self._live.stop()


def drawing(
    progress: RolloutProgress,
    now: float,
    width: int,
    height: int,
    signs: str = _BLOCKS,
    away: str = "",
    command: CommandFor | None = None,
) -> Any:
    """Return the drawing for a terminal with so many columns and rows.

    :param signs: the characters for upgraded, upgrading, failed and waiting hosts.
    :param command: returns the command that answers what an operator has to do; None to show none.
    """
    left = None if progress.left is None else max(0.0, progress.left - (now - progress.at))
    parts: list[Any] = [_line(headline(progress, left), "bold")]
    # The stages and what an operator has to do say the same in more words.
    notes = [note for note in progress.notes if not (progress.stages and note.startswith("Stage "))]
    needs = _need_lines(progress.needs, command)
    rows = max(4, height - _OTHER_ROWS - len(notes) - len(needs) - bool(progress.stages) - bool(away))
    if progress.stages:
        parts.append(_stages(progress))
    bars, hidden = _most_important(progress.bars, max(2, rows * 2 // 3 if progress.flights else rows))
    at_work = state_text(UPGRADING, of_job=is_job(progress.version))
    parts.append(_bars(bars, width, signs, at_work))
    if hidden:
        parts.append(_line(f"and {hidden} more roles", "bright_black"))
    hosts = progress.flights[: max(1, rows - len(bars))]
    if hosts:
        parts.append(_host_rows(hosts, now))
    others = len(progress.flights) - len(hosts) + progress.more
    if others:
        parts.append(_line(f"and {others} more on their way", "bright_black"))
    parts += [_line(note, "yellow") for note in notes]
    parts += needs
    if away:
        parts.append(_line(f"Shown as of {elapsed(now - progress.at)} ago: {away}", "red"))
    return Group(*parts)


def _stages(progress: RolloutProgress) -> Any:
    text = Text("stages: ", style="bright_black", no_wrap=True, overflow="ellipsis")
    for at, (state, name) in enumerate(stage_texts(progress)):
        text.append(" > " if at else "", style="bright_black")
        text.append(name, style=_STAGE_STYLES[state])
    return text


def _need_lines(needs: Sequence[OperatorNeed], command: CommandFor | None) -> list[Any]:
    lines: list[Any] = []
    # The first is the most important one. More would take the place of hosts.
    for need in needs[:1]:
        lines.append(_line(f"Needs an operator: {need.text}", "bold yellow"))
        if command is not None:
            lines.append(Text(f"  {command(need.playbook, need.variables)}", style="yellow", overflow="fold"))
    return lines


def _line(text: str, style: str) -> Any:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _most_important(bars: Sequence[RoleProgress], most: int) -> tuple[list[RoleProgress], int]:
    """Return the bars that fit, in their order, and how many are left out. Bars of finished roles are left out first."""
    if len(bars) <= most:
        return list(bars), 0
    chosen = {row.role for row in [*(one for one in bars if one.done < one.hosts), *bars][:most]}
    kept = [row for row in bars if row.role in chosen]
    return kept, len(bars) - len(kept)


def _bars(bars: Sequence[RoleProgress], width: int, signs: str, at_work: str) -> Any:
    cells = max(8, min(_WIDEST_BAR, width // 3))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(8, width // 4))
    grid.add_column(no_wrap=True, width=cells)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for row in bars:
        drawn = Text()
        for count, sign, style in zip(segments(row, cells), signs, _STYLES, strict=True):
            drawn.append(sign * count, style=style)
        grid.add_row(Text(row.role), drawn, _counts(row, at_work))
    return grid


def _counts(row: RoleProgress, at_work: str) -> Any:
    text = Text(f"{row.done}/{row.hosts}")
    for count, label, style in (
        (row.upgrading, at_work, "yellow"),
        (row.waiting, "waiting", "bright_black"),
        (row.failed, "failed", "bold red"),
    ):
        if count:
            text.append(f"  {count} {label}", style=style)
    return text


def _host_rows(hosts: Sequence[HostProgress], now: float) -> Any:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for one in hosts:
        grid.add_row(Text(one.host), Text("" if one.since is None else elapsed(now - one.since)), Text(where(one)))
    return grid


def reason_not_to_draw(stream: TextIO) -> str | None:
    """Return why a stream can't have a drawing: None if it can, empty if that needs no warning."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb" or not stream.isatty():
        return ""
    if LIBRARY_ERROR is not None:
        return (
            f"The live view needs the Python library 'rich', which is missing for {sys.executable}: install it there with "
            "'pip install rich'. Until then, the rollout is shown as lines."
        )
    return None
