# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts, roles and versions: which are allowed, in which order they stand, which was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from .errors import UpgradeError
from .sanitize import truncated_repr

_DIGITS = re.compile(r"(\d+)")
# No host is called by more, and a key of Consul may not be much longer.
_LONGEST = 255
# A version stands in commands, paths and templates of services. Nothing in it means anything to a shell, wherever it stands.
_PLAIN_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~:@%^=,-]*")
# What is said of a version that is no text.
UNQUOTED = "is not text but a number or the like, and YAML may have changed it (2.10 is read as 2.1). Put it in quotes."


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``compute2`` before ``compute10``, and ``compute`` before both.

    The digits themselves are the last word, so that ``node1`` and ``node01`` keep one order.
    """
    parts = _DIGITS.split(name)
    key = [_number_key(part) if at % 2 else (0, 0, part) for at, part in enumerate(parts)]
    return (*key, (-1, 0, name))


def _number_key(digits: str) -> tuple[int, int, str]:
    # Python makes no number of thousands of digits.
    return (1, int(digits), "") if len(digits) < 1000 else (2, len(digits), digits)


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in natural order."""
    return sorted(names, key=natural_key)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name most like this one, else nothing."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def listing(names: Sequence[str], most: int = 5) -> str:
    """Return the names as prose, cut after ``most``: ``a, b and 7 more``."""
    truncated_repr = ", ".join(names[:most])
    left = len(names) - most
    return f"{truncated_repr} and {left} more" if left > 0 else truncated_repr


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 host`` or ``3 hosts``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def check_name(kind: str, name: object, where: str) -> str:
    """Return a name that can be one part of a Consul key.

    :param kind: what it names, for the message: host, role.
    :param where: the option or key that brought it.
    :raises UpgradeError: ``bad_name`` for anything but text without ``/``, control characters or outer spaces, and for what
        is too long. It tells ``where``.
    """
    if not isinstance(name, str) or not name:
        raise UpgradeError(
            "bad_name", f"{where}: a {kind} must be a text that is not empty, not {truncated_repr(name)}.", where=where
        )
    if "/" in name or not name.isprintable() or name != name.strip():
        raise UpgradeError(
            "bad_name",
            f"{where}: the {kind} {truncated_repr(name)} has a '/', a control character or a space at its ends, "
            "so it can't be part of a Consul key. Give its plain name.",
            where=where,
        )
    if len(name) > _LONGEST:
        raise UpgradeError(
            "bad_name",
            f"{where}: the {kind} {truncated_repr(name)} is longer than {_LONGEST} characters. Give its plain name.",
            where=where,
        )
    return name


def is_valid_name(text: str) -> bool:
    """Return whether a part of a key is a name that :func:`check_name` takes."""
    try:
        return bool(check_name("name", text, "key"))
    except UpgradeError:
        return False


def is_valid_version(text: object) -> bool:
    """Return whether something that was read is a version that :func:`check_version` takes."""
    try:
        return bool(check_version(text, "version"))
    except UpgradeError:
        return False


def check_version(version: object, where: str) -> str:
    """Return a version that can be part of a key and can't be mistaken for a gate value.

    :raises UpgradeError: ``bad_name``.
    """
    text = check_name("version", version, where)
    if text.lower() in ("true", "false"):
        raise UpgradeError(
            "bad_name", f"{where}: the version can't be {text!r}, because a gate with that value means open or closed."
        )
    return text


def is_plain_version(version: str) -> bool:
    """Return whether a version may go where a shell would act on others: it is short, and letters, digits and ``._+~:@%^=,-``."""
    return len(version) <= _LONGEST and _PLAIN_VERSION.fullmatch(version) is not None


def check_new_version(version: object, where: str) -> str:
    """Return a version that a fleet may go to: what older tools have stored is read, and nothing begins to go there.

    :raises UpgradeError: ``bad_name``.
    """
    text = check_version(version, where)
    if not is_plain_version(text):
        raise UpgradeError(
            "bad_name",
            f"{where}: the version {truncated_repr(text)} has a character that is none of A-Z, a-z, 0-9 and ._+~:@%^=,- or begins with none of the "
            "former, and services put versions into commands. Give it another name.",
            where=where,
        )
    return text
