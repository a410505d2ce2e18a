# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether planner services carry on what this run waits for, if the run ends before it.

One of Ansible's workers waits, and an interrupt ends it without a result. So the memory in which it notes this is shared with
ansible-playbook, which forks its workers.
"""

from __future__ import annotations

import mmap

_NOTE = mmap.mmap(-1, 1)


def note_continuation(*, is_continued: bool) -> None:
    """Note whether planner services carry it on."""
    _NOTE[0] = is_continued


def is_continued() -> bool:
    """Return what was noted last; False if nothing was."""
    return bool(_NOTE[0])
