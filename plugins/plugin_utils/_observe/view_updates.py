# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn each read of the rollout into what the live view shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...module_utils._common.sanitize import sanitize
from ...module_utils._consul.errors import Unreachable
from ...module_utils._observe.progress import RolloutProgress
from ...module_utils._queries.follow import ProgressUpdate
from .progress_lines import PassProgress, running_count
from .view_messages import ViewUpdate


class ViewUpdates:
    """Turns successive reads into updates. ``count`` is the running count of the last one."""

    def __init__(self, first: Mapping[str, Any] | None = None) -> None:
        """Begin.

        :param first: the result of a pass that no one has shown yet; None for none.
        """
        self._progress = PassProgress()
        self._untold = self._progress.lines(first)[:-1] if first is not None else []
        self._notes: tuple[str, ...] = ()
        self._warnings: set[str] = set()
        self._version = ""
        self._is_away = False
        self.count = ""

    def update(self, found: ProgressUpdate | Unreachable) -> ViewUpdate:
        """Return what to show of a read."""
        if isinstance(found, Unreachable):
            lines = [] if self._is_away else [f"{found.message} The view shows the last known state, and retries."]
            self._is_away = True
            return ViewUpdate(tuple(map(sanitize, lines)), away=sanitize(found.message))
        lines = [*self._untold, *self._news_of(found)]
        self._untold = []
        hosts = {
            host: {"role": view.role, "state": view.state, "reason": view.reason} for host, view in found.hosts.items()
        }
        shown = {"version": found.progress.version, "hosts": hosts}
        changes = self._progress.lines(shown)
        self.count = sanitize(running_count(shown))
        # The count stands for itself here.
        return ViewUpdate(
            tuple(sanitize(line) for line in [*lines, *changes[:-1]]),
            self.count,
            sanitized_progress(found.progress),
            found.index,
        )

    def _news_of(self, found: ProgressUpdate) -> Iterator[str]:
        if self._is_away:
            self._is_away = False
            yield "Consul is back."
        if self._version and self._version != found.progress.version:
            yield f"Another rollout has begun: the fleet goes to {found.progress.version} now."
        self._version = found.progress.version
        if self._notes != found.progress.notes:
            gone = any(note.startswith("No host is admitted") for note in self._notes)
            stays = any(note.startswith("No host is admitted") for note in found.progress.notes)
            yield from (note for note in found.progress.notes if note not in self._notes)
            if gone and not stays and not found.progress.over:
                yield "It continues."
            self._notes = found.progress.notes
        for warning in found.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                yield f"Warning: {warning}"


def sanitized_progress(found: RolloutProgress) -> RolloutProgress:
    """Return the same progress with all texts sanitized, as hosts' names and errors may hold control characters."""
    return RolloutProgress.from_plain(_sanitized(asdict(found)))


def _sanitized(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {name: _sanitized(below) for name, below in value.items()}
    return [_sanitized(below) for below in value] if isinstance(value, (list, tuple)) else value
