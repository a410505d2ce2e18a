# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn each read of the rollout into what the live view shows of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...module_utils._common.sanitize import sanitize
from ...module_utils._consul.errors import Unreachable
from ...module_utils._observe.progress import RolloutProgress
from ...module_utils._queries.follow import ProgressUpdate
from .progress_lines import PassProgress, running_count, states_of_views
from .view_messages import ViewUpdate


class ViewUpdates:
    """Turns successive reads into updates. ``count`` is the running count of the last read."""

    def __init__(self, lines: Iterable[str] = (), states: Mapping[str, str] | None = None) -> None:
        """Keep the arguments.

        :param lines: changes that were not shown yet.
        :param states: host -> state after these changes.
        """
        self._progress = PassProgress(states)
        self._first_lines = list(lines)
        self._notes: tuple[str, ...] = ()
        self._warnings: set[str] = set()
        self._version = ""
        self._is_away = False
        self.count = ""

    def update(self, read: ProgressUpdate | Unreachable) -> ViewUpdate:
        """Return the update for a read."""
        if isinstance(read, Unreachable):
            lines = [] if self._is_away else [f"{read.message} The view shows the last known state, and retries."]
            self._is_away = True
            return ViewUpdate(tuple(map(sanitize, lines)), away=sanitize(read.message))
        lines = [*self._first_lines, *self._notes_of(read)]
        self._first_lines = []
        states = states_of_views(read.progress.version, read.hosts)
        changes = self._progress.lines(states)
        self.count = sanitize(running_count(states))
        # Without the running count, which the update has separately.
        return ViewUpdate(
            tuple(sanitize(line) for line in [*lines, *changes[:-1]]),
            self.count,
            sanitized_progress(read.progress),
            read.index,
        )

    def _notes_of(self, read: ProgressUpdate) -> Iterator[str]:
        if self._is_away:
            self._is_away = False
            yield "Consul is back."
        if self._version and self._version != read.progress.version:
            yield f"Another rollout has begun: the fleet goes to {read.progress.version} now."
        self._version = read.progress.version
        if self._notes != read.progress.notes:
            was_blocked = any(note.startswith("No host is admitted") for note in self._notes)
            is_blocked = any(note.startswith("No host is admitted") for note in read.progress.notes)
            yield from (note for note in read.progress.notes if note not in self._notes)
            if was_blocked and not is_blocked and not read.progress.over:
                yield "It continues."
            self._notes = read.progress.notes
        for warning in read.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                yield f"Warning: {warning}"


def sanitized_progress(progress: RolloutProgress) -> RolloutProgress:
    """Return the same progress with all texts sanitized, because names and errors of hosts may have control characters."""
    return RolloutProgress.from_plain(_sanitized(asdict(progress)))


def _sanitized(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {name: _sanitized(below) for name, below in value.items()}
    return [_sanitized(below) for below in value] if isinstance(value, (list, tuple)) else value
