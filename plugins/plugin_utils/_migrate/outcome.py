# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a migration, or of its preview, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils._codecs.migration import encode_migration
from ...module_utils._common.names import listing, plural
from ...module_utils._common.sanitize import sanitize
from ...module_utils._consul.operations import Change, net_changes
from ...module_utils._fleet.migration import KEPT, Migration
from .status import MigrationStatus
from .step import KeyMove, MigrationStep

# How many moves of each kind are shown.
_MOST_EXAMPLES = 3


@dataclass(slots=True)
class StepResult:
    """The moves of one step, made or in check mode planned.

    :param moves: kind -> number of moves.
    :param examples: kind -> some of the moves.
    """

    step: MigrationStep
    moves: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, moves: Iterable[KeyMove]) -> None:
        """Count moves."""
        for move in moves:
            self.moves[move.what] = self.moves.get(move.what, 0) + 1
            examples = self.examples.setdefault(move.what, [])
            if len(examples) < _MOST_EXAMPLES:
                examples.append(sanitize(move.example))

    def plain(self) -> dict[str, Any]:
        """Return it in the form of the module's result."""
        moves = [{"what": what, "count": count, "examples": self.examples[what]} for what, count in self.moves.items()]
        return {"schema": self.step.number, "title": self.step.title, "moves": moves}


@dataclass(slots=True)
class MigrationResult:
    """The result of a migration.

    :param origin: the layout before.
    :param schema: the layout after.
    :param newest: the newest layout of this release.
    :param kept: how many legacy keys are kept.
    :param waiting: the hosts for which they are kept.
    :param left: hosts that kept writing legacy keys while these were removed.
    :param gave_up: whether the removal stopped because legacy keys that belong to no host kept being written.
    :param nothing: a sentence on where no key of a fleet was found; empty if there are keys.
    """

    origin: int
    schema: int
    newest: int
    steps: list[StepResult] = field(default_factory=list)
    removed: list[StepResult] = field(default_factory=list)
    kept: int = 0
    waiting: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    gave_up: bool = False
    nothing: str = ""
    changes: list[Change] = field(default_factory=list)

    def plain(self, *, dry: bool) -> dict[str, Any]:
        """Return the module's result, without ``changed`` and ``diff``."""
        return {
            "from": self.origin,
            "schema": self.schema,
            "steps": [one.plain() for one in self.steps],
            "removed": [one.plain() for one in self.removed if one.moves],
            "kept": self.kept,
            "waiting_for": self.waiting,
            "summary": self.summary(dry=dry),
        }

    def add(self, done: StepResult, moves: Sequence[KeyMove]) -> None:
        """Count executed moves and add their changes."""
        done.add(moves)
        self.changes += [change for move in moves for change in move.changes]

    def keep(self, before: MigrationStatus, after: MigrationStatus) -> None:
        """Set the legacy keys that are kept at the end, and the hosts that need them."""
        key, was = before.found.keys.migration, before.migration
        if self.gave_up or not any(one.moves for one in self.removed):
            self.kept = after.legacy_keys(self.schema)
            self.waiting = after.waiting() if self.kept else []
        now = Migration(KEPT, before.origin, self.schema) if self.kept else None
        texts = [None if one is None else encode_migration(one) for one in (was, now)]
        self.changes.append(Change(key, *texts))

    def net_changes(self) -> list[Change]:
        """Return the changes from the beginning to the end of the run."""
        return net_changes(self.changes)

    def summary(self, *, dry: bool) -> list[str]:
        """Return lines for the operator."""
        if not self.steps and not any(one.moves for one in self.removed):
            which = "which is the newest" if self.schema == self.newest else "as asked for"
            line = f"The keys have layout {self.schema}, {which}. {self._kept()}".strip()
            return [line, *filter(None, [self.nothing])]
        lines = []
        for done in self.steps:
            verb = "Would migrate" if dry else "Migrated"
            lines.append(f"{verb} from layout {done.step.number - 1} to {done.step.number}: {done.step.title}.")
            lines += _lines(done.moves, done.examples)
        for done in self.removed:
            if done.moves:
                lines.append(f"{'Would remove' if dry else 'Removed'} the keys of layout {done.step.number - 1}:")
                lines += _lines(done.moves, done.examples)
        if self.kept:
            lines.append(self._kept())
        if self.left:
            lines.append(
                f"{listing(self.left)} still wrote legacy keys while these were removed. They run old code, and their reports are no "
                "longer read until you install convoy.upgrade there (ansible-playbook convoy.upgrade.enroll)."
            )
        return [*lines, *filter(None, [self.nothing])]

    def _kept(self) -> str:
        if not self.kept:
            return ""
        if self.gave_up:
            return (
                f"{plural(self.kept, 'legacy key')} are kept, because something kept writing them while they were removed. Stop it, "
                "then run this again with remove_legacy=true."
            )
        if not self.waiting:
            return (
                f"{plural(self.kept, 'legacy key')} are kept, because no host has reported through convoy.upgrade yet, so it is unknown "
                "which hosts need them. Run this again when hosts have reported, or with remove_legacy=true to remove them now."
            )
        return (
            f"{plural(self.kept, 'legacy key')} are kept until {plural(len(self.waiting), 'host')} ({listing(self.waiting)}) "
            "reported through convoy.upgrade. Run this again then, or with remove_legacy=true to remove them now. Also use that if one "
            "of them runs convoy.upgrade already: a report that changes nothing is not written."
        )


def _lines(moves: Mapping[str, int], examples: Mapping[str, Sequence[str]]) -> list[str]:
    if not moves:
        return ["  nothing had to be moved"]
    lines = []
    for what, count in moves.items():
        more = f"; and {count - len(examples[what])} more" if count > len(examples[what]) else ""
        lines.append(f"  {count} {what}: {'; '.join(examples[what])}{more}")
    return lines
