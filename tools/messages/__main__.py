# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make messages`: write docs/messages.md anew."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from messages.page import page  # noqa: E402  the path has to be set first

if __name__ == "__main__":
    (ROOT / "docs" / "messages.md").write_text(page(), encoding="utf-8")
