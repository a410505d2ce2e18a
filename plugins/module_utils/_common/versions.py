# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of versions: 2.10 after 2.9, 2.10rc1 before 2.10, v673 before v674. Versions without an order are an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from .errors import UpgradeError
from .names import listing
from .sanitize import truncated_repr

# Digits without leading zeros, after their count. They sort like numbers, and Python refuses to convert very many digits to one.
Number = tuple[int, str]

# Words for what precedes a release, with their ranks: those of PEP 440, Debian and Maven.
_BEFORE = {
    **dict.fromkeys(("dev", "snapshot", "nightly"), -6),
    **dict.fromkeys(("a", "alpha"), -5),
    **dict.fromkeys(("b", "beta"), -4),
    **dict.fromkeys(("m", "milestone"), -3),
    **dict.fromkeys(("c", "rc", "pre", "preview", "cr"), -2),
}
# Single letters mean a pre-release only with a number: OpenSSL's 1.0.2a is the release after 1.0.2.
_NEED_NUMBER = frozenset("abcm")
_TILDE, _END, _REVISION, _AFTER, _BUILD = -7, 0, 1, 2, 3
# Words for what follows a release. Two different ones have no order, except single letters.
_SAME = {**dict.fromkeys(("post", "p", "pl", "patch", "patchlevel", "r", "rev"), "post")}
_KNOWN_AFTER = frozenset((*_SAME, "sp", "hotfix", "u", "deb", "ubuntu", "el", "fc", "bpo", "build"))
_NO_MARK = frozenset(("final", "ga", "release"))

_WHOLE = re.compile(r"(?:(\d+):)?([A-Za-z]?[A-Za-z._-]*?)[._-]*(\d+(?:\.\d+)*)(.*)", re.ASCII)
# A commit of `git describe`, such as g1a2b3c4, is one word although it has digits.
_PART = re.compile(r"([.+~_-]*)(?:(g[0-9a-f]{7,40}(?![0-9a-z])|[a-z](?![a-z])|[a-z]+\.?))?(\d+(?:\.\d+)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of what follows the numbers of a version: a word, and the word's own numbers.

    :param rank: its place in the order of parts; None for an unknown word.
    """

    rank: int | None
    word: str
    numbers: tuple[Number, ...]


_NOTHING = _Part(_END, "", ())


@dataclass(frozen=True, slots=True)
class _Version:
    """A parsed version.

    :param kind: what precedes the first number, such as ``v``. Only versions of the same kind have an order.
    """

    kind: str
    epoch: Number
    numbers: tuple[Number, ...]
    parts: tuple[_Part, ...]


class VersionOrder:
    """The order of versions.

    Without a list, the order follows from the names. Numbers between dots compare as numbers, and an epoch compares first.
    ``2.10~rc1``, ``2.10-rc1``, ``2.10rc1`` and ``2.10.dev1`` come before ``2.10``; revisions (``2.10-1``), patches and builds come
    after it. ``2.10`` and ``2.10.0`` are equal, and so are ``2.10-rc1`` and ``2.10~rc1``. See PEP 440 and deb-version(7).

    :param explicit: all versions in their order, where the names do not show it. Other versions can't be compared then.
    :param where: file and line of that list, for messages.
    """

    def __init__(self, explicit: Sequence[str] | None = None, where: str = "versions") -> None:
        """Store the list."""
        self._places = None if explicit is None else {version: at for at, version in enumerate(explicit)}
        self._where = where
        self._read: dict[str, _Version | None] = {}

    def compare(self, a: str, b: str) -> int:
        """Return -1 if the first version comes before the second, 1 if it comes after it, and 0 if they are equal.

        :raises UpgradeError: ``incomparable_versions``, which names both.
        """
        if a == b:
            return 0
        if self._places is not None:
            missing = [version for version in dict.fromkeys((a, b)) if version not in self._places]
            if missing:
                raise self._unlisted(a, b, missing)
            return _sign(self._places[a], self._places[b])
        one, other = self._version(a), self._version(b)
        if one is None or other is None:
            unread = " and ".join(truncated_repr(text) for text, found in ((a, one), (b, other)) if found is None)
            raise _incomparable(a, b, f"{unread} can't be read as a version with numbers")
        if one.kind != other.kind:
            kinds = " and ".join(
                f"{truncated_repr(text)} begins with {truncated_repr(found.kind) if found.kind else 'a number'}"
                for text, found in ((a, one), (b, other))
            )
            raise _incomparable(a, b, kinds)
        first = _sign((one.epoch, one.numbers), (other.epoch, other.numbers))
        return first or _compare_parts(a, b, one.parts, other.parts)

    def in_order(self, versions: Iterable[str]) -> list[str]:
        """Return the versions in order, the first one first.

        :raises UpgradeError: ``incomparable_versions``.
        """
        return sorted(versions, key=cmp_to_key(self.compare))

    def between(self, start: str, end: str, checkpoints: Iterable[str]) -> list[str]:
        """Return the checkpoints after ``start`` and up to ``end``, in order.

        :raises UpgradeError: ``incomparable_versions``.
        """
        return self.in_order(one for one in checkpoints if self.compare(start, one) < 0 and self.compare(one, end) <= 0)

    def _version(self, text: str) -> _Version | None:
        if text not in self._read:
            self._read[text] = _read(text)
        return self._read[text]

    def _unlisted(self, a: str, b: str, missing: Sequence[str]) -> UpgradeError:
        names = " and ".join(map(truncated_repr, missing))
        known = listing([*(self._places or ())], 20) or "none"
        return UpgradeError(
            "incomparable_versions",
            f"{truncated_repr(a)} and {truncated_repr(b)} can't be compared, as {names} {'is' if len(missing) == 1 else 'are'} not in the list "
            f"of {self._where}. It has {known}. Add the missing versions in their order.",
            versions=[a, b],
        )


def _sign(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


def _incomparable(a: str, b: str, why: str) -> UpgradeError:
    return UpgradeError(
        "incomparable_versions",
        f"{truncated_repr(a)} and {truncated_repr(b)} can't be compared as versions: {why}. List all versions in their order under "
        "'versions' in the service's meta/upgrade.yml.",
        versions=[a, b],
    )


def _compare_parts(a: str, b: str, ones: Sequence[_Part], others: Sequence[_Part]) -> int:
    for at in range(max(len(ones), len(others))):
        one = ones[at] if at < len(ones) else _NOTHING
        other = others[at] if at < len(others) else _NOTHING
        if one.rank == other.rank and one.word == other.word:
            if one.numbers != other.numbers:
                return _sign(one.numbers, other.numbers)
        elif one.rank is not None and other.rank is not None and one.rank != other.rank:
            return _sign(one.rank, other.rank)
        elif one.rank == _AFTER and len(one.word) == len(other.word) == 1:
            return _sign(one.word, other.word)
        else:
            words = " and ".join(truncated_repr(part.word) for part in (one, other) if part.word)
            raise _incomparable(a, b, f"after the same numbers, the order of {words} is not known")
    return 0


def _read(text: str) -> _Version | None:
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    parts = _parts(found[4].lower())
    if parts is None:
        return None
    return _Version(found[2].lower(), _number(found[1] or ""), _numbers(found[3]), parts)


def _parts(text: str) -> tuple[_Part, ...] | None:
    parts: list[_Part] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        # An x is a placeholder for any number, as in 2.x, so there is no order.
        if found is None or not (found[2] or found[3]) or (found[2] == "x" and not found[3]):
            return None
        at = found.end()
        part = _part(found[1], (found[2] or "").rstrip("."), found[3] or "")
        if part is not None:
            parts.append(part)
    return tuple(parts)


def _part(separator: str, word: str, digits: str) -> _Part | None:
    numbers = _numbers(digits)
    if word in _BEFORE and (digits or word not in _NEED_NUMBER):
        rank = _BEFORE[word]
        return _Part(rank, str(rank), numbers)
    if "~" in separator:
        return _Part(_TILDE, word, numbers)
    if "+" in separator:
        return _Part(_BUILD, word, numbers)
    if word in _NO_MARK and not digits:
        return None
    if not word:
        return _Part(_REVISION, "", numbers)
    if len(word) == 1 and not separator and not digits:
        return _Part(_AFTER, word, ())
    if word in _KNOWN_AFTER:
        return _Part(_AFTER, _SAME.get(word, word), numbers)
    return _Part(None, word, numbers)


def _numbers(text: str) -> tuple[Number, ...]:
    found = [_number(digits) for digits in text.split(".")] if text else []
    while found and not found[-1][0]:
        found.pop()
    return tuple(found)


def _number(digits: str) -> Number:
    short = digits.lstrip("0")
    return len(short), short
