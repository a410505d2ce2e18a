# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make values safe to print: short, and without control characters that a terminal would act on. And variables of a command safe to paste."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_MOST = 200
# With this at its beginning, a text names delimiters of its own, which Ansible then uses instead of braces.
_HEADER = "#jinja2:"
# Values in which neither the shell nor Ansible interprets a character, between single quotes within double quotes.
_PLAIN = re.compile(r"[\w .,:;@%+=/()\[\]-]*", re.ASCII)


def truncated_repr(value: object) -> str:
    """Return the ``repr`` of a value, truncated."""
    try:
        return truncate(repr(value))
    except (RecursionError, ValueError):
        # Nested too deeply, or a number with more digits than Python converts to text.
        return f"a {type(value).__name__} that is too large to be shown"


def truncated_text(value: object) -> str:
    """Return printable text as it is, and other values as their ``repr``; both truncated."""
    return truncate(value) if isinstance(value, str) and value.isprintable() else truncated_repr(value)


def sanitize(text: str) -> str:
    """Return the text as one printable line: white space becomes a space, other characters that can't be printed a ``?``.

    Operators see what hosts report. Without this, a report could send escape sequences to their terminals, or add lines that
    look like those of this collection. The length stays the same, and a second call changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)


def truncate(text: str) -> str:
    """Return the text; of a text of more than 200 characters the beginning, and its length."""
    return text if len(text) <= _MOST else f"{text[:_MOST]}... ({len(text)} characters)"


def truncate_middle(text: str, most: int = 500) -> str:
    """Return the text; if it has more than ``most`` characters, without its middle. A second call changes nothing."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 5]} ... {text[-end:]}"


def may_be_template(text: str) -> bool:
    """Return whether Ansible may evaluate a text as a template."""
    return "{" in text or "}" in text or text.startswith(_HEADER)


def without_templates(value: Any) -> Any:
    """Return a value of JSON in which no text is a template: texts lose their braces, at any depth, and what names other delimiters."""
    if isinstance(value, str):
        return value.replace("{", "(").replace("}", ")").replace(_HEADER, "# jinja2:")
    if isinstance(value, dict):
        return {without_templates(name): without_templates(below) for name, below in value.items()}
    return [without_templates(below) for below in value] if isinstance(value, (list, tuple)) else value


def option(name: str, value: object) -> str:
    """Return a variable as the option ``-e`` of a command that people paste into a shell."""
    return as_option({name: str(value)})


def limit_to(hosts: Iterable[str]) -> str:
    """Return the option ``--limit`` of ``ansible-playbook`` for hosts, quoted for a shell."""
    return f"--limit {shlex.quote(','.join(hosts))}"


def as_option(values: Mapping[str, str]) -> str:
    """Return variables as one option ``-e``, quoted for a shell."""
    if all(_PLAIN.fullmatch(value) for value in values.values()):
        words = " ".join(
            f"{name}='{value}'" if re.search(r"[^\w.,:@%+/-]", value) or not value else f"{name}={value}"
            for name, value in values.items()
        )
        return f'-e "{words}"' if "'" in words else f"-e {words}" if " " not in words else f"-e '{words}'"
    return f"-e {shlex.quote(as_yaml(values))}"


def as_yaml(values: Mapping[str, str]) -> str:
    """Return variables as JSON, with the tag ``!unsafe`` of Ansible's YAML before values that it would take for templates.

    A host's name comes from Consul, where others may have written a template. Pasting a command must not run it.
    """
    found = [
        f"{json.dumps(name)}: {'!unsafe ' if may_be_template(value) else ''}{json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
    ]
    return f"{{{', '.join(found)}}}"
