# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The errors of Consul that callers handle; all others are plain :class:`UpgradeError`."""

from __future__ import annotations

from .._common.errors import UpgradeError


class Unreachable(UpgradeError):
    """Consul gave no answer. A write may or may not have been applied."""


class Conflict(UpgradeError):
    """A transaction was refused because a key that it compares has changed."""


class SessionEnded(UpgradeError):
    """A transaction was refused because it locks a key with a session that has ended."""
