# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The templates of pages. They escape every text, and allow no style and no script but their own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...module_utils._common.names import plural, target_text
from ...module_utils._rule_checks.rule_text import value_text
from ...module_utils._rule_checks.sources import leaves
from .._observe.wording import about_minutes
from .charts import clock_text, duration_text, iso_text, time_text

# What people read for entries of the history whose own words are not those of the pages. The JSON has those of the history.
_ENTRIES = {
    "open": "admitted",
    "after": "admitted to post-upgrade tasks",
    "publish": "upgraded",
    "converge": "complete",
    "close": "gates closed",
    "unhold": "hold ended",
}
_FOLDER = Path(__file__).parent / "templates"


def render(name: str, **values: Any) -> str:
    """Return a page.

    :param name: the file of its template.
    """
    return _environment().get_template(name).render(**values)


@cache
def own_text(*names: str) -> Markup:
    """Return files of the folder of templates as one text, which is not escaped."""
    return Markup("".join((_FOLDER / name).read_text(encoding="utf-8") for name in names))


@cache
def text_hash(text: str) -> str:
    """Return the hash of an inline style or script for the policy of its page."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"


def rules_table(rules: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rules as rows: the key that messages name, and its value."""
    return [(key, value_text(key, value)) for key, value in leaves(rules)]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        time=time_text,
        clock=clock_text,
        iso=iso_text,
        duration=duration_text,
        about=lambda seconds: about_minutes(seconds).removeprefix("about ").replace("less than a minute", "<1 min"),
        sentence=lambda text: text[:1].upper() + text[1:],
        px="{:.2f}".format,
        target=target_text,
        hash=text_hash,
        entry=lambda what: _ENTRIES.get(what, what),
    )
    environment.globals.update(plural=plural)
    return environment
