# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real browser without a screen, and what is seen in it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from devkit.agent import ROOT
from PIL import Image

Colour = tuple[int, int, int]


def binary() -> str:
    """Return the path of a browser.

    :raises OSError: where there is none and none can be had; it says why.
    """
    found = subprocess.run([ROOT / "tools/browser.sh"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise OSError(found.stderr.strip())
    return found.stdout.strip()


class Browser:
    """A browser of its own for one test.

    :param home: a folder for its files.
    """

    def __init__(self, home: Path) -> None:
        """Find it; nothing is started yet."""
        self._binary = binary()
        self._home = home

    def dom(self, page: Path) -> str:
        """Return a page as it is after it was loaded."""
        return self._run(page, "--dump-dom")

    def picture(self, page: Path, *, dark: bool) -> Path:
        """Return a picture of the page, 800 by 1500 pixels, as a PNG. ``dark`` asks for the dark or the light colours."""
        picture = self._home / f"{page.stem}-{'dark' if dark else 'light'}.png"
        self._run(
            page,
            f"--screenshot={picture}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--window-size=800,1500",
        )
        return picture

    def _run(self, page: Path, *arguments: str) -> str:
        command = [self._binary, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        profile = f"--user-data-dir={self._home / 'profile'}"
        done = subprocess.run(
            [*command, profile, *arguments, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout


def colours(picture: Path) -> Counter[Colour]:
    """Return how many pixels of a picture have which colour."""
    with Image.open(picture) as opened:
        return Counter(
            {colour: count for count, colour in opened.convert("RGB").getcolors(opened.width * opened.height)}
        )


def lightness(colour: Colour) -> float:
    """Return how light a colour is for an eye that sees no colours: L* of CIELAB, 0 for black and 100 for white."""
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (part / 255 for part in colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return float(116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance)
