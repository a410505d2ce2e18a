# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes into pages what their commands print, where this is another thing than they show.

python tests/pages docs/first_upgrade.md ...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tools", "tests")]

from pages.page import rewritten
from pages.patterns import is_shown
from pages.walk import walk


def main() -> None:
    """Rewrite the pages that are named."""
    for name in sys.argv[1:]:
        path = Path(name)
        text = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            new = rewritten(
                text,
                [one.shown if is_shown(one.shown, printed) else printed for one, printed in walk(text, Path(folder))],
            )
        path.write_text(new)
        print(f"{name}: {'rewritten' if new != text else 'shows what is printed'}")


if __name__ == "__main__":
    main()
