# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's failures in one rollout, also those that it has recovered from. Reports show them; no plan depends on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

# In characters as stored: all failures of one rollout, and one error. Planners write 60 records at once, and Consul takes half a
# megabyte.
MOST_FAILURES = 1500
MOST_ERROR = 200


class Failure(NamedTuple):
    """A failure: its time (unix seconds, by the host's clock), attempt, service, step, and the end of its error."""

    at: int
    attempt: int = 1
    service: str = ""
    step: str = ""
    error: str = ""


def newest_failures(failures: Sequence[Failure], most: int = MOST_FAILURES) -> tuple[Failure, ...]:
    """Return as many of the last failures as fit into ``most`` characters."""
    kept, size = len(failures), 0
    while kept and (size := size + len(json.dumps(failures[kept - 1])) + 2) <= most:
        kept -= 1
    return tuple(failures[kept:])
