# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages to the daemon of a run. Each is a dataclass, and names the type of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer_co = TypeVar("Answer_co", covariant=True)


class Message(Generic[Answer_co]):
    """A message from a task or callback to the daemon."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer to a message that failed: the parts of an :class:`UpgradeError`."""

    code: Any
    message: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndRun(Message[tuple[str, ...]]):
    """Send the remaining notifications, remove the folder and end the daemon. Answered by the notifier's warnings."""
