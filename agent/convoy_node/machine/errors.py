# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The errors of the agent. Each is one sentence for people, with what is wrong, why, and what fixes it."""

from __future__ import annotations


class BadSettings(Exception):
    """The settings file or the token can't be used."""


class BadToken(BadSettings):
    """The token can't be read. It may be a file that is written elsewhere, and later."""


class ConsulError(Exception):
    """Consul gave no answer, or one that can't be used. The agent treats it as a closed gate."""


class Denied(ConsulError):
    """Consul refused the request: the token is unknown, or may not read the keys."""


class LockError(Exception):
    """A lock of this node can't be used, because another user could write or replace its file."""


class InstallError(Exception):
    """A release can't be installed or activated."""


def sanitize(text: str, most: int = 500) -> str:
    """Return a text as one printable line of at most ``most`` characters, whatever its source is."""
    line = "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)
    return line if len(line) <= most else line[: most - 4] + " ..."
