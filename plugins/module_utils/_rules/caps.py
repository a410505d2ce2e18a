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

# More digits than any fleet needs; Python refuses to convert thousands of them.
_NUMBER = re.compile(r"[0-9]{1,12}")
_PERCENT = re.compile(r"([0-9]{1,12})\s*%")
# The value for no cap.
_UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Cap:
    """A number of hosts, or a percentage of the members.

    :param amount: the number or the percentage; ignored if the cap is unlimited.
    :param is_unlimited: whether any number of hosts may be down at once.
    """

    amount: int
    is_percent: bool = False
    is_unlimited: bool = False

    def hosts_of(self, members: int) -> int:
        """Return how many hosts out of ``members`` may be down at once.

        A percentage is rounded down, but to at least one host unless it is 0%. Do not call it for an unlimited cap.
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

    :param value: an integer, digits as text, or a percentage as text.
    :param key: the key of the value, such as ``rolling_rules.roles.compute``.
    :param may_be_unlimited: whether ``unlimited`` is valid too.
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
        f"{truncated_text(key)}: {truncated_repr(value)} is not a cap. Give a whole number of hosts (0 admits none) or a percentage from 0% to "
        f"100%{', or unlimited for no cap' if may_be_unlimited else '; leave the key out for no cap'}.",
        key=key,
        value=truncated_text(value),
    )
