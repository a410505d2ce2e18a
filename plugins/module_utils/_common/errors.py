# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception of the collection: a sentence for people and a code for programs."""

from __future__ import annotations

from typing import Any


class UpgradeError(Exception):
    """Something that stops a call, told so that an operator can act on it.

    :param code: a stable word a caller can test for, such as ``bad_instructions``.
    :param message: what is wrong, where (host, key, file), why, and what to do next.
    :param details: the same facts as plain data.
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        """Keep the sentence, and what it is made of."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def as_failure(self) -> dict[str, Any]:
        """Return the ``failure`` value of a module: code, message and details."""
        return {"code": self.code, "message": self.message, "details": self.details}
