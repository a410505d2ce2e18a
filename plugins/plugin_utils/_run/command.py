# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command of this run, and similar commands that an operator can paste. None of them shows a secret."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ...module_utils._common.sanitize import as_option, sanitize
from .extra_vars import read_option

_SECRET = re.compile(
    r"token|passw|passphrase|(?<!by)pass\d*\b|pwd\b|secret|credential|private|api_?key|(?<![^\W_])(pw|key)\b",
    re.IGNORECASE,
)
# Options that select tasks, hosts or a mode of this playbook. Commands of other playbooks leave them out.
_WITH_VALUE = ("--limit", "--tags", "--skip-tags", "--start-at-task")
_SHORT = {"--limit": "-l", "--tags": "-t"}
_FLAGS = ("--check", "--diff", "--step", "--force-handlers", "-C", "-D", "-CD", "-DC")
_EXTRA = ("--extra-vars", "-e")
# The long options of ansible-playbook without a value, and its short ones that may stand before one with a value in the same word.
_WITHOUT_VALUE = [
    "--ask-become-pass",
    "--ask-pass",
    "--ask-vault-pass",
    "--ask-vault-password",
    "--become",
    "--check",
    "--diff",
    "--flush-cache",
    "--force-handlers",
    "--help",
    "--list-hosts",
    "--list-tags",
    "--list-tasks",
    "--step",
    "--syntax-check",
    "--verbose",
    "--version",
]
_VALUE_FOLLOWS = re.compile(r"-[CDJKbhkv]*[MTcefiltu]")
# Short options in one word, the last of which may have a value.
_IN_ONE_WORD = re.compile(r"-([CDJKbhkv]+)([elt].*)?", re.DOTALL)
# Variables that describe the fleet. Commands of other playbooks keep them.
_FLEET_VARIABLES = re.compile(r"(upgrade_consul_|ansible_).*|upgrade_(planner_host|roles|roles_path|notify)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AnsibleCommand:
    """A call of ``ansible-playbook``.

    :param words: the arguments as the shell passed them, the program first.
    :param playbook: the file of the playbook.
    :param imports: whether it is no playbook of the collection and imports one, so that the others are not beside it.
    """

    words: tuple[str, ...]
    playbook: str
    imports: bool = False

    @property
    def name(self) -> str:
        """Return the playbook's name, such as ``upgrade``."""
        return Path(self.playbook).stem

    def again(
        self,
        variables: Mapping[str, Any] | None = None,
        *,
        without: Collection[str] = (),
        instead: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
        playbook: str = "",
    ) -> str:
        """Return the same command with further variables.

        :param without: long options to leave out, such as ``--limit``.
        :param instead: a value of ``-e`` -> the whole option that replaces it.
        :param renamed: variable -> its new name, empty to leave it out.
        :param playbook: another playbook of the collection that takes the same variables, empty for the same one.
        """
        long = [one for one in _WITH_VALUE if one in without]
        short = [option for name, option in _SHORT.items() if name in without]
        words = []
        for kind, text in self._kept(long, short, set(without) & set(_FLAGS)):
            if kind == "playbook" and playbook:
                words += self._with_playbook(text, playbook)
            elif kind != "extra":
                words.append(shlex.quote(text))
            elif text in (instead or {}):
                words.append((instead or {})[text])
            elif not text.startswith("@") and any(name in (renamed or {}) for name in _values(text)):
                named = {(renamed or {}).get(name, name): value for name, value in _values(text).items()}
                words += _options(
                    {name: value for name, value in named.items() if name and name not in (variables or {})}
                )
            else:
                words += _given_again(text, frozenset(variables or ()))
        return sanitize(" ".join([self._program(), *words, *_options(variables or {})]))

    def other(self, name: str, variables: Mapping[str, Any] | None = None) -> str:
        """Return the command of another playbook of the collection, for the same fleet."""
        words: list[str] = []
        for kind, text in self._kept(_WITH_VALUE, [*_SHORT.values()], _FLAGS):
            if kind == "playbook":
                words += self._with_playbook(text, name)
            elif kind == "extra":
                if text.startswith("@"):
                    words.append(f"-e {shlex.quote(text)}")
                    continue
                words += _options(
                    {one: value for one, value in _values(text).items() if _FLEET_VARIABLES.fullmatch(one)}
                )
            else:
                words.append(shlex.quote(text))
        return sanitize(" ".join([self._program(), *words, *_options(variables or {})]))

    def _kept(self, long: Collection[str], short: Collection[str], flags: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the words without some options: each as a ``word``, the ``playbook``, or the value of ``-e`` as ``extra``."""
        words: Iterator[str] = iter(self.words[1:])
        while (word := next(words, None)) is not None:
            if parts := _separate(word):
                words = chain(parts, words)
                continue
            name, equals, value = word.partition("=")
            if word in flags:
                continue
            if name.startswith("--") and _is(name, long):
                if not equals:
                    next(words, "")
            elif word[:2] in short and not word.startswith("--"):
                if len(word) == 2:
                    next(words, "")
            elif name in ("--e", "--ex") or (name.startswith("--") and _is(name, _EXTRA)):
                yield "extra", value if equals else next(words, "")
            elif word.startswith("-e"):
                yield "extra", word[2:] or next(words, "")
            elif _is_before_value(word):
                # An inventory may be named like a playbook.
                yield "word", word
                yield "word", next(words, "")
            else:
                yield "playbook" if word == self._given() or _is_playbook(word) else "word", word

    def _with_playbook(self, word: str, name: str) -> list[str]:
        """Return what replaces a playbook of this command in the command of another one: nothing if this run is not one of it."""
        if word != self._given():
            return []
        return [shlex.quote(f"convoy.upgrade.{name}" if self.imports else _beside(word, name))]

    def _given(self) -> str:
        """Return the playbook as the command names it."""
        words = iter(self.words[1:])
        for word in words:
            if _is_before_value(word):
                next(words, "")
            elif _is_playbook(word) and (Path(word).stem == self.name or word.rpartition(".")[2] == self.name):
                return word
        return self.playbook

    def _program(self) -> str:
        first = self.words[0]
        return Path(first).name if shutil.which(Path(first).name) == first else shlex.quote(first)


def _separate(word: str) -> list[str]:
    """Return short options that stand in one word as words of their own, if one of them may be left out; empty for any other word."""
    found = _IN_ONE_WORD.fullmatch(word)
    if found is None or word in _FLAGS:
        return []
    flags, last = found[1], found[2]
    modes = [f"-{one}" for one in flags if one in "CD"]
    others = "".join(one for one in flags if one not in "CD")
    return [*([f"-{others}"] if others else []), *modes, *([f"-{last}"] if last else [])] if modes or last else []


def _is(name: str, options: Sequence[str] | Collection[str]) -> bool:
    # argparse accepts abbreviations of long options.
    return len(name) > 4 and any(one.startswith(name) for one in options)


def _is_before_value(word: str) -> bool:
    """Return whether the next word is the value of this one."""
    if word.startswith("--"):
        # argparse accepts abbreviations of long options.
        return len(word) > 2 and "=" not in word and not any(one.startswith(word) for one in _WITHOUT_VALUE)
    return _VALUE_FOLLOWS.fullmatch(word) is not None


def _is_playbook(word: str) -> bool:
    return not word.startswith("-") and (
        word.endswith((".yml", ".yaml")) or re.fullmatch(r"\w+\.\w+(\.\w+)+", word) is not None
    )


def _beside(given: str, name: str) -> str:
    if given.endswith((".yml", ".yaml")):
        return str(Path(given).parent / f"{name}.yml") if "/" in given else f"{name}.yml"
    return f"{given.rpartition('.')[0]}.{name}"


def _given_again(option: str, instead_of: Collection[str]) -> list[str]:
    """Return options for the value of ``-e``, without the variables that get another value."""
    if option.startswith("@"):
        return [f"-e {shlex.quote(option)}"]
    values = _values(option)
    if not values:
        return [] if _SECRET.search(option) else [f"-e {_quoted(option)}"]
    if any(name in instead_of or _is_secret(name, value) for name, value in values.items()):
        return _options({name: value for name, value in values.items() if name not in instead_of})
    return [f"-e {_quoted(option)}"]


def _is_secret(name: str, value: Any) -> bool:
    return _SECRET.search(name if isinstance(value, str) else f"{name} {json.dumps(value)}") is not None


def _values(option: str) -> dict[str, Any]:
    if option[:1] not in "{[":
        return dict(read_option(option)[1])
    try:
        found = json.loads(option)
    except ValueError:
        # YAML is left out, to avoid its parser here. The operator adds it again.
        return {}
    return found if isinstance(found, dict) else {}


def _options(values: Mapping[str, Any]) -> list[str]:
    """Return variables as options ``-e``. The values of secrets are variables of the shell."""
    found = []
    for name, value in values.items():
        if _is_secret(name, value):
            # PWD is the folder of the shell.
            variable = {"upgrade_consul_token": "CONSUL_HTTP_TOKEN", "pwd": "PASSWORD"}.get(name, name.upper())
            found.append(f'-e {name}="${variable}"')
        elif isinstance(value, str):
            found.append(as_option({name: value}))
        else:
            found.append(f"-e {shlex.quote(json.dumps({name: value}))}")
    return found


def _quoted(text: str) -> str:
    if "'" in text and not re.search(r'["$`\\!]', text):
        return f'"{text}"'
    return shlex.quote(text)
