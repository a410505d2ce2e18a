# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse values of ``-e`` with lost quotes: Ansible reads ``-e reason='two words'`` as "two" and ignores "words"."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from ansible.parsing.quoting import unquote
from ansible.parsing.splitter import split_args

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import as_option, sanitize

# Ansible does not split files, YAML and JSON at spaces.
_WHOLE = ("@", "{", "[", "/", ".")
# Variables with sentences, in which a word with an equals sign may be part of the sentence.
_SENTENCES = ("reason",)


def refuse_leftovers(given: Iterable[str], known: Collection[str]) -> None:
    """Raise an error for words that belong to no variable, because the shell removed their quotes.

    After ``-e reason=...`` without quotes, a variable that is not known is taken for such words: ``-e reason='disk ticket=7'``.

    :param given: the values of ``-e``, in their order.
    :param known: the variables of the playbooks.
    :raises UpgradeError: ``leftover_arguments``. If there is a variable, ``instead`` in its details has the intended option.
    """
    for option in given:
        if not option or option.startswith(_WHOLE):
            continue
        name, values, leftovers = read_option(option, known)
        if not leftovers:
            continue
        words = sanitize(" ".join(leftovers))
        if not name:
            raise UpgradeError(
                "leftover_arguments",
                f"-e {sanitize(shlex.quote(option))}: {words!r} belongs to no variable. Nothing was done: write -e name=value.",
                words=leftovers,
            )
        own = "give each variable a -e of its own, or " if any("=" in word for word in leftovers) else ""
        raise UpgradeError(
            "leftover_arguments",
            f"-e {sanitize(shlex.quote(option))}: the value of {sanitize(name)} ends before {words!r}, because the shell removes "
            f"quotes before Ansible sees them. Nothing was done: {own}write {sanitize(as_option(values))}",
            name=name,
            words=leftovers,
            instead={option: as_option(values)},
        )


def read_option(option: str, known: Collection[str] | None = None) -> tuple[str, dict[str, str], list[str]]:
    """Return the first variable that lost words, all variables with the lost words added to their values, and the lost words.

    :param known: the variables that may follow a sentence without quotes; None for any.
    """
    values: dict[str, str] = {}
    leftovers: list[str] = []
    name = last = ""
    is_open = False
    for word in split_args(option):
        key, equals, value = word.partition("=")
        if equals and key and not (is_open and known is not None and not _is_known(key.strip(), known)):
            last = key.strip()
            is_open = last in _SENTENCES and not value.strip().startswith(("'", '"'))
            values[last] = unquote(value.strip())
            continue
        leftovers.append(word.strip())
        if last:
            name = name or last
            values[last] += f" {word.strip()}"
    return name, values, leftovers


def _is_known(name: str, known: Collection[str]) -> bool:
    return name in known or name.startswith("ansible_")
