# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra variables as they were given with ``-e``: Ansible reads ``-e reason='two words'`` as "two", and says nothing of "words"."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

from ansible.parsing.quoting import unquote
from ansible.parsing.splitter import split_args

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import sanitize

# What stands between single quotes within double quotes means itself, to the shell and to Ansible.
_PLAIN = re.compile(r"[\w .,:;@%+=/()\[\]-]*", re.ASCII)
# Files, YAML and JSON are read whole.
_WHOLE = ("@", "{", "[", "/", ".")


def refuse_leftovers(given: Iterable[str]) -> None:
    """Refuse words that belong to no variable, because their quotes were the shell's.

    :param given: the values of ``-e``, in their order.
    :raises UpgradeError: ``leftover_words``, with the option as it was meant.
    """
    for option in given:
        if not option or option.startswith(_WHOLE):
            continue
        name, values, leftovers = read_option(option)
        if not leftovers:
            continue
        words = sanitize(" ".join(leftovers))
        if not name:
            raise UpgradeError(
                "leftover_words",
                f"-e {sanitize(shlex.quote(option))}: {words!r} belongs to no variable. Nothing was done: write -e name=value.",
                words=leftovers,
            )
        raise UpgradeError(
            "leftover_words",
            f"-e {sanitize(shlex.quote(option))}: the value of {sanitize(name)} ends before {words!r}, as the shell takes quotes away "
            f"before Ansible sees them. Nothing is done: write {sanitize(as_option(values))}",
            name=name,
            words=leftovers,
            instead={option: as_option(values)},
        )


def as_option(values: Mapping[str, str]) -> str:
    """Return variables as an option ``-e`` that can be pasted into a shell."""
    if all(_PLAIN.fullmatch(value) for value in values.values()):
        words = " ".join(
            f"{name}='{value}'" if re.search(r"[^\w.,:@%+/-]", value) or not value else f"{name}={value}"
            for name, value in values.items()
        )
        return f'-e "{words}"' if "'" in words else f"-e {words}" if " " not in words else f"-e '{words}'"
    return f"-e {shlex.quote(json.dumps(dict(values), ensure_ascii=False))}"


def read_option(option: str) -> tuple[str, dict[str, str], list[str]]:
    """Return the first name with leftovers after it, all variables with these as part of their values, and the leftovers."""
    values: dict[str, str] = {}
    leftovers: list[str] = []
    name = last = ""
    for word in split_args(option):
        key, equals, value = word.partition("=")
        if equals and key:
            last = key.strip()
            values[last] = unquote(value.strip())
            continue
        leftovers.append(word.strip())
        if last:
            name = name or last
            values[last] += f" {word.strip()}"
    return name, values, leftovers
