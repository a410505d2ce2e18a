# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts, roles and versions: which are valid, how they sort, and which known name is closest to a typo."""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable, Sequence

from .errors import UpgradeError
from .sanitize import truncated_repr

_DIGITS = re.compile(r"(\d+)")
_MOST_COMPARED = 1000
# Host names have at most 255 characters, and Consul's keys can't be much longer.
_LONGEST = 255
# Services put versions into commands, paths and templates. None of these characters is special to a shell.
# The targets of rollouts that are jobs. No version has a slash, so that no reader takes a job for a version.
JOB = "job/"
_JOB_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,95}")
_COMMAND = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PLAIN_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~:@%^=,-]*")
# The end of a message on a version that YAML has not read as text.
UNQUOTED = "is not text but a number or the like, and YAML may have changed it (2.10 is read as 2.1). Put it in quotes."


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``compute2`` before ``compute10``, and ``compute`` before both.

    Names that differ only in leading zeros, such as ``node1`` and ``node01``, sort by their text.
    """
    parts = _DIGITS.split(name)
    key = [_number_key(part) if at % 2 else (0, 0, part) for at, part in enumerate(parts)]
    return (*key, (-1, 0, name))


def _number_key(digits: str) -> tuple[int, int, str]:
    # Python refuses to convert thousands of digits to a number.
    return (1, int(digits), "") if len(digits) < 1000 else (2, len(digits), digits)


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in natural order."""
    return sorted(names, key=natural_key)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the known name that is closest to this one; empty if none is close.

    Of very many names, only those are compared that are sorted near it: planners call this in each pass, and the comparison takes long.
    """
    names = sorted(known)
    if len(names) > _MOST_COMPARED:
        first = max(0, bisect.bisect(names, name) - _MOST_COMPARED // 2)
        names = names[first : first + _MOST_COMPARED]
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def listing(names: Sequence[str], most: int = 5) -> str:
    """Return the first ``most`` names, with commas, and how many more there are: ``a, b and 7 more``."""
    text = ", ".join(names[:most])
    left = len(names) - most
    return f"{text} and {left} more" if left > 0 else text


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 host`` or ``3 hosts``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def check_name(kind: str, name: object, where: str) -> str:
    """Return the name if it can be one part of a Consul key.

    :param kind: what it names, for the message: host, role.
    :param where: the option or key that it comes from, for the message.
    :raises UpgradeError: ``bad_name`` if it is not text, is empty or too long, has a ``/`` or a control character, or begins or
        ends with a space.
    """
    if not isinstance(name, str) or not name:
        raise UpgradeError(
            "bad_name", f"{where}: a {kind} must be text that is not empty, not {truncated_repr(name)}.", where=where
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
    """Return whether :func:`check_name` accepts a name."""
    try:
        return bool(check_name("name", text, "key"))
    except UpgradeError:
        return False


def is_valid_version(text: object) -> bool:
    """Return whether :func:`check_version` accepts a decoded value."""
    try:
        return bool(check_version(text, "version"))
    except UpgradeError:
        return False


def is_job(target: object) -> bool:
    """Return whether the target of a rollout is a job: ``job/`` and its ID."""
    return isinstance(target, str) and target.startswith(JOB) and _JOB_ID.fullmatch(target[len(JOB) :]) is not None


def job_id(target: str) -> str:
    """Return the ID of the job that is the target of a rollout."""
    return target[len(JOB) :]


def target_text(target: str) -> str:
    """Return the target of a rollout for messages: the version, or ``job`` and its ID."""
    return f"job {job_id(target)}" if is_job(target) else target


def rollout_text(target: str) -> str:
    """Return a rollout for messages, within a sentence: ``the rollout to 2.0``, or ``the job`` and its ID."""
    return f"the {target_text(target)}" if is_job(target) else f"the rollout to {target}"


def rollout_title(target: str) -> str:
    """Return the title of a rollout: ``Rollout to 2.0``, or ``Job`` and its ID."""
    return f"Job {job_id(target)}" if is_job(target) else f"Rollout to {target}"


def is_command_name(name: object) -> bool:
    """Return whether a command of nodes may have a name: at most 64 lowercase letters, digits, ``-`` and ``_``."""
    return isinstance(name, str) and _COMMAND.fullmatch(name) is not None


def is_valid_target(text: object) -> bool:
    """Return whether a decoded value can be the target of a rollout: a version or a job."""
    return is_job(text) or is_valid_version(text)


def check_version(version: object, where: str) -> str:
    """Return the version if it can be part of a key and can't be mistaken for a gate value.

    :raises UpgradeError: ``bad_name``.
    """
    text = check_name("version", version, where)
    if text.lower() in ("true", "false"):
        raise UpgradeError(
            "bad_name", f"{where}: the version can't be {text!r}, because a gate with that value means open or closed."
        )
    return text


def is_plain_version(version: str) -> bool:
    """Return whether a version is safe in a shell: at most 255 letters, digits and ``._+~:@%^=,-``, a letter or digit first."""
    return len(version) <= _LONGEST and _PLAIN_VERSION.fullmatch(version) is not None


def check_new_version(version: object, where: str) -> str:
    """Return the version if a rollout to it may begin.

    It is stricter than :func:`check_version`, which also accepts what older tools have stored.

    :raises UpgradeError: ``bad_name``.
    """
    text = check_version(version, where)
    if not is_plain_version(text):
        raise UpgradeError(
            "bad_name",
            f"{where}: the version {truncated_repr(text)} is not safe in a command, and services put versions into commands. Use only A-Z, a-z, 0-9 "
            "and ._+~:@%^=,- and begin with a letter or digit.",
            where=where,
        )
    return text
