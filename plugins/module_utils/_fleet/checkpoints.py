# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints: versions on a service's upgrade path at which tasks have to run."""

from __future__ import annotations

_SIGN = "@"

# How many characters the names of the finished task groups in a record or a provider's key may have together. A planner reads the
# records of all hosts at once.
MOST_DONE = 20_000


def checkpoint_name(service: str, version: str) -> str:
    """Return the name of a checkpoint, such as ``nginx@2.4``; names of services can't have an ``@``."""
    return f"{service}{_SIGN}{version}"


def is_checkpoint_group(task_group: str) -> bool:
    """Return whether a task group, such as ``upgrade/nginx@2.4``, belongs to a checkpoint."""
    return _SIGN in task_group
