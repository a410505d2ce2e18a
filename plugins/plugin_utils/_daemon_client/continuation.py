# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether planner services carry on what this run waits for, if the run ends before it.

One of Ansible's workers waits, and an interrupt ends it without a result. So the memory in which it notes this is shared with
ansible-playbook, which forks its workers.
"""

from __future__ import annotations

import mmap
from enum import IntEnum


class Continuation(IntEnum):
    """Who carries on what this run waits for: no one; a service that has not said so, but has the handover; or one that has said so."""

    NONE = 0
    HANDED_OVER = 1
    CARRIED = 2


_NOTE = mmap.mmap(-1, 1)


def note_continuation(found: Continuation) -> None:
    """Note what is known now."""
    _NOTE[0] = found


def noted_continuation() -> Continuation:
    """Return what was noted last; ``NONE`` if nothing was."""
    return Continuation(_NOTE[0])
