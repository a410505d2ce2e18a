# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values as a sentence shows them, taken or not: never without end, and never as they would act on a terminal."""

from __future__ import annotations

_MOST = 200


def truncated_repr(value: object) -> str:
    """Return a value as Python writes it, cut where it is long."""
    try:
        return truncate(repr(value))
    except (RecursionError, ValueError):
        # Nested too deeply, or a number with more digits than Python writes.
        return f"a {type(value).__name__} that is too large to be shown"


def truncated_text(value: object) -> str:
    """Return a value likewise, but a plain text without quotes."""
    return truncate(value) if isinstance(value, str) and value.isprintable() else truncated_repr(value)


def sanitize(text: str) -> str:
    """Return a text as a line that does nothing on a terminal: white space is a space, what else can't be printed a ``?``.

    What a host says of itself is shown to operators, whose terminals would obey escape sequences, and who would take what
    comes after a line break for a line of ours. The length stays, and a second time changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


def truncate(text: str) -> str:
    """Return the beginning of a text that is too long."""
    return text if len(text) <= _MOST else f"{text[:_MOST]}... ({len(text)} characters)"


def truncate_middle(text: str, most: int = 500) -> str:
    """Return a text that is kept, without its middle where it is longer than that; a second time changes nothing."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 5]} ... {text[-end:]}"
