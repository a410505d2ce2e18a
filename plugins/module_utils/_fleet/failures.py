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
    """A failure: its time (unix seconds, by the host's clock), attempt, service, step, and the end of its error.

    :param total: 1, or for how many failures it stands: itself and those before it.
    """

    at: int
    attempt: int = 1
    service: str = ""
    step: str = ""
    error: str = ""
    total: int = 1


def newest_failures(failures: Sequence[Failure], most: int = MOST_FAILURES) -> tuple[Failure, ...]:
    """Return the failures in ``most`` characters.

    The first errors are left out for that, then the first failures: the next one counts them.
    """
    kept = [*failures]
    size, first = sum(map(_size, kept)), 0
    for number, one in enumerate(kept[:-1]):
        if size > most and one.error:
            kept[number] = one._replace(error="")
            size += _size(kept[number]) - _size(one)
    while size > most and first < len(kept) - 1:
        left_out, one = kept[first], kept[first + 1]
        first += 1
        kept[first] = one._replace(total=one.total + left_out.total)
        size += _size(kept[first]) - _size(one) - _size(left_out)
    if size > most and kept:
        kept[-1] = _shortened(kept[-1], most)
    return tuple(kept[first:])


def _shortened(failure: Failure, most: int) -> Failure:
    """Return a failure in ``most`` characters: with the end of its error, else without texts."""
    while failure.error and _size(failure) > most:
        failure = failure._replace(error=failure.error[(len(failure.error) + 1) // 2 :])
    return failure if _size(failure) <= most else failure._replace(service="", step="")


def _size(failure: Failure) -> int:
    """Return how many characters a failure takes in a list of them."""
    return len(json.dumps(failure)) + 2
