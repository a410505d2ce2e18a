# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make picture`: a picture of the live view of `make demo`, from a real terminal during the upgrade.

python tools/picture [FILE]

writes it as SVG, by default to docs/pictures/upgrade.svg.
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
_TRIES, _DEMONSTRATIONS = 20, 3
# What stays on the screen after the demonstration.
_OVER = "The state of the fleet:"
# Some computes are upgraded, and at least one of the next ones is in the step upgrade.
_WANTED = re.compile(r"^compute .* [3-6]/9 +[23] upgrading  \d waiting.*step upgrade", re.DOTALL | re.MULTILINE)
# Rich's default format has a window frame and downloads a font. This one needs no external resource.
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
    """Run the demonstration on a terminal until the screen matches, and return its cells by row.

    :raises RuntimeError: the screen was not seen in any of several demonstrations.
    """
    for _demonstration in range(_DEMONSTRATIONS):
        found = _screen_of_one()
        if found is not None:
            return found
    raise RuntimeError(
        f"The screen was not seen in {_DEMONSTRATIONS} demonstrations. Is this machine very busy? Run it again."
    )


def _screen_of_one() -> list[list[Char]] | None:
    others = ("CONSUL_", "ANSIBLE_", "NO_COLOR")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environ["ANSIBLE_CONFIG"] = str(ROOT / "tools" / "demo" / "ansible.cfg")
    command = [sys.executable, ROOT / "tools" / "demo"]
    with closing(Terminal(command, cwd=ROOT, env=environ, rows=_ROWS, columns=_COLUMNS)) as terminal:
        for _try in range(_TRIES):
            # A busy machine may draw the computes before and after that, and not in between.
            seen = terminal.wait_for(lambda screen: _WANTED.search(screen) or _OVER in screen)
            cells = terminal.cells
            # The screen may have changed between the two reads.
            if _WANTED.search(text_of(cells).plain):
                return cells
            if _OVER in seen:
                return None
    return None


def text_of(cells: Sequence[Sequence[Char]]) -> Text:
    """Return a screen as a text of rich."""
    text = Text(no_wrap=True)
    for row in cells:
        line = Text()
        for (color, bold), same in groupby(row, lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in same), Style(color=_color(color), bold=bold))
        line.rstrip()
        text.append_text(line).append("\n")
    return text


def _color(name: str) -> str | None:
    # pyte's brown is yellow in rich, and pyte gives colours with 24 bits as hexadecimal digits.
    if name == "default":
        return None
    named = {"brown": "yellow"}.get(name, re.sub("^bright", "bright_", name))
    return f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else named


def svg(text: Text) -> str:
    """Return the text as SVG."""
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
