# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a rollout report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .csv import csv_text
from .report_page import html_page


def report_files(found: Mapping[str, Any], folder: str = "") -> dict[str, str]:
    """Return path -> text of the report's files: an HTML page, the data as JSON, and a line for each host as CSV."""
    name = "rollout-" + re.sub(r"[^A-Za-z0-9._-]", "_", found["version"])
    texts = {
        "html": html_page(found),
        "json": json.dumps(found, indent=1, ensure_ascii=False) + "\n",
        "csv": csv_text(found),
    }
    return {str(Path(folder) / f"{name}.{end}"): text for end, text in texts.items()}
