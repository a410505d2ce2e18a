# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the six states of a host, and what people read for them."""

from __future__ import annotations

UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING = "upgraded", "failed", "lost", "upgrading", "held", "pending"
# In the order in which they are tested.
STATES = (UPGRADED, FAILED, LOST, UPGRADING, HELD, PENDING)
# The states in which a host is down, or may be: it takes a slot of every cap over it.
TAKES_A_SLOT = frozenset((FAILED, LOST, UPGRADING))
# The states that an operator has to deal with.
BROKEN = frozenset((FAILED, LOST))
# Of hosts on which a retry changes nothing.
NOT_AGAIN = "The command does not run there again in this job, because it is not repeatable or has run there"
_IN_JOBS = {UPGRADING: "running", UPGRADED: "done"}


def state_text(state: str, *, of_job: bool) -> str:
    """Return what people read for a state, or a phase of a report: a host runs a job, and is upgraded to a version.

    :param of_job: whether it is the state in a job.
    """
    return _IN_JOBS.get(state, state) if of_job else state
