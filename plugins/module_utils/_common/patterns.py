# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Regular expressions that operators write."""

from __future__ import annotations

import re


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the compiled regular expression.

    :raises ValueError: if it is not valid, with the reason.
    """
    try:
        return re.compile(pattern)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from error
