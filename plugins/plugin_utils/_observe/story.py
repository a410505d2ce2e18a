# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What those that follow a rollout tell a view of it, look by look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...module_utils._common.sanitize import sanitize
from ...module_utils._consul.errors import Unreachable
from ...module_utils._observe.progress import RolloutProgress
from ...module_utils._queries.follow import ProgressUpdate
from .progress_lines import PassProgress, running_count


class ViewMessages:
    """Turns what is found, look by look, into messages for a view. ``count`` is how far each role is by now."""

    def __init__(self, first: Mapping[str, Any] | None = None) -> None:
        """Begin.

        :param first: the result of a pass that was made before the first look, and that no one has told; None for none.
        """
        self._progress = PassProgress()
        self._untold = self._progress.lines(first)[:-1] if first is not None else []
        self._notes: tuple[str, ...] = ()
        self._warnings: set[str] = set()
        self._version = ""
        self._is_away = False
        self.count = ""

    def message(self, found: ProgressUpdate | Unreachable) -> dict[str, Any]:
        """Return ``lines`` that tell what has changed, the ``count``, and the ``progress`` as plain data.

        Of a Consul that is away it has the sentence in ``away``, and no standing.
        """
        if isinstance(found, Unreachable):
            lines = (
                [] if self._is_away else [f"{found.message} What is shown is of the time before; it is asked again."]
            )
            self._is_away = True
            return {"lines": list(map(sanitize, lines)), "away": sanitize(found.message)}
        lines = [*self._untold, *self._news_of(found)]
        self._untold = []
        hosts = {
            host: {"role": view.role, "state": view.state, "reason": view.reason} for host, view in found.hosts.items()
        }
        shown = {"version": found.progress.version, "hosts": hosts}
        changes = self._progress.lines(shown)
        self.count = sanitize(running_count(shown))
        # The count stands for itself here.
        return {
            "lines": [sanitize(line) for line in [*lines, *changes[:-1]]],
            "count": self.count,
            "progress": progress_as_data(found.progress),
            "index": found.index,
        }

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
                yield "It goes on."
            self._notes = found.progress.notes
        for warning in found.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                yield f"Warning: {warning}"


def progress_as_data(found: RolloutProgress) -> dict[str, Any]:
    """Return a standing as plain data, with texts that do nothing on a terminal."""
    data: dict[str, Any] = _harmless(asdict(found))
    return data


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {name: _harmless(below) for name, below in value.items()}
    return [_harmless(below) for below in value] if isinstance(value, (list, tuple)) else value
