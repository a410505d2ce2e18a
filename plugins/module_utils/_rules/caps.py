# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Caps: how many hosts of a role, a group or the fleet may be down at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._common.sanitize import truncated_repr, truncated_text
from .._common.strict_values import parse_number_text

# No fleet has so many hosts, and Python reads no number of thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,12}")
_PERCENT = re.compile(r"([0-9]{1,12})\s*%")
# What asks for no cap, in so many words.
_UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Cap:
    """A number of hosts, or a percent of the members.

    :param is_unlimited: whether any number may be down at once; ``amount`` means nothing then.
    """

    amount: int
    is_percent: bool = False
    is_unlimited: bool = False

    def limit(self, members: int) -> int:
        """Return how many hosts out of ``members`` may be down at once.

        A percent is rounded down, but never below one host unless it is 0%.
        """
        if not self.is_percent:
            return self.amount
        return max(1, members * self.amount // 100) if self.amount else 0

    def plain(self) -> int | str:
        """Return the form that is stored: 3, ``25%`` or ``unlimited``."""
        if self.is_unlimited:
            return _UNLIMITED
        return f"{self.amount}%" if self.is_percent else self.amount


def parse_cap(value: object, key: str, *, may_be_unlimited: bool = False) -> Cap:
    """Return the cap that a value of the instructions means.

    :param value: an integer, digits as text, or a percent as text.
    :param key: where it stands, such as ``rolling_rules.roles.compute``.
    :param may_be_unlimited: whether ``unlimited`` is a cap too.
    :raises UpgradeError: ``bad_instructions``.
    """
    text = parse_number_text(value)
    if may_be_unlimited and text.lower() == _UNLIMITED:
        return Cap(0, is_unlimited=True)
    if _NUMBER.fullmatch(text):
        return Cap(int(text))
    percent = _PERCENT.fullmatch(text)
    if percent and int(percent[1]) <= 100:
        return Cap(int(percent[1]), is_percent=True)
    raise UpgradeError(
        "bad_instructions",
        f"{truncated_text(key)}: {truncated_repr(value)} is no cap. Give a number of hosts (0 holds them all) or a percent from 0% to 100%, whole "
        f"and not negative{', or unlimited for no cap' if may_be_unlimited else '; leave the key out for no cap'}.",
        key=key,
        value=truncated_text(value),
    )
