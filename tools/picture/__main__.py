# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make picture`: what `make demo` shows with the live view, taken from a real terminal in the middle of the upgrade.

python tools/picture [FILE]

writes it as SVG, to docs/pictures/upgrade.svg where no file is named.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text
from terminal import Terminal

PICTURE = ROOT / "docs" / "pictures" / "upgrade.svg"
_ROWS, _COLUMNS = 22, 124
_TRIES = 20
# Some computes are done, and of the next ones one has begun.
_WANTED = re.compile(r"^compute .* [3-6]/9 +[23] upgrading  \d waiting.*step upgrade", re.DOTALL | re.MULTILINE)
# Rich's own format has a window around it and fetches a font from elsewhere; a picture in a repository stands by itself.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>An upgrade with the live view of convoy.upgrade</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" rx="8" fill="#292929"/>
<g transform="translate(16, 24)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def screen() -> list[list[Char]]:
    """Run the demonstration on a terminal until it is where the picture is taken; return the screen, cell by cell.

    :raises RuntimeError: where the screen never stood still.
    """
    others = ("CONSUL_", "ANSIBLE_", "NO_COLOR")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environ["ANSIBLE_CONFIG"] = str(ROOT / "tools" / "demo" / "ansible.cfg")
    command = [sys.executable, ROOT / "tools" / "demo"]
    with closing(Terminal(command, cwd=ROOT, env=environ, rows=_ROWS, columns=_COLUMNS)) as terminal:
        for _try in range(_TRIES):
            terminal.wait_for(_WANTED.search)
            cells = terminal.cells
            # It may be drawn again between the two.
            if _WANTED.search(text_of(cells).plain):
                return cells
    raise RuntimeError(f"The screen changed under each of {_TRIES} tries. Is this machine very busy? Run it again.")


def text_of(cells: Sequence[Sequence[Char]]) -> Text:
    """Return a screen as rich's text."""
    text = Text(no_wrap=True)
    for row in cells:
        line = Text()
        for (color, bold), same in groupby(row, lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in same), Style(color=_color(color), bold=bold))
        line.rstrip()
        text.append_text(line).append("\n")
    return text


def _color(name: str) -> str | None:
    # What pyte calls brown is what everybody else calls yellow, and colours of 24 bits have no name.
    if name == "default":
        return None
    named = {"brown": "yellow"}.get(name, re.sub("^bright", "bright_", name))
    return f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else named


def svg(text: Text) -> str:
    """Return the text of a terminal as a picture."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, end="")
    return console.export_svg(title="", code_format=_FORMAT, unique_id="convoy")


def main() -> None:
    """Take the picture."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    path.write_text(svg(text_of(screen())))
    print(f"{path} shows the upgrade.")


if __name__ == "__main__":
    main()
