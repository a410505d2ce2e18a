# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out moves, some at a time, until the keys show that nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._fleet.migration import Migration
from .lock import MOST_MOVED, MigrationLock
from .outcome import MigrationResult, StepResult
from .step import KeyMove

# So often the keys may be read and nothing be done of what is left to do.
_MOST_IDLE = 20


def carry_out(
    lock: MigrationLock,
    migration: Migration,
    done: StepResult,
    outcome: MigrationResult,
    left: Callable[[], list[KeyMove]],
    most: int = 0,
) -> bool:
    """Carry out moves; what others wrote in between of is taken up in the next turn.

    :param migration: what is written down, with the progress, along with each chunk.
    :param done: gets the moves that were made.
    :param left: reads the keys, and returns the moves that are left.
    :param most: so many turns are made, 0 for as many as it takes.
    :returns: whether nothing is left.
    :raises UpgradeError: ``busy``, ``lost_lock``, and what reading and writing raise.
    """
    unsure: list[KeyMove] = []
    idle = turns = 0
    while True:
        moves = left()
        # The reply to these was lost: what was to be moved then and is not now, was done.
        outcome.add(done, _without(unsure, moves))
        unsure = []
        if not moves or (most and turns == most):
            return not moves
        turns += 1
        count = 0
        waiting = list(chunks(moves))[::-1]
        while waiting:
            chunk = waiting.pop()
            try:
                noted = replace(migration, done=count, total=len(moves))
                lock.write(noted, [operation for move in chunk for operation in move.operations])
            except Conflict:
                # Of one key that somebody else wrote, nothing but that has to wait.
                if len(chunk) > 1:
                    middle = len(chunk) // 2
                    waiting += [chunk[middle:], chunk[:middle]]
                continue
            except Unreachable:
                unsure = chunk
                # What was not carried through is no turn of those that wait for others to stop writing.
                turns -= 1
                break
            outcome.add(done, chunk)
            count += len(chunk)
        idle = 0 if count else idle + 1
        if idle == _MOST_IDLE:
            raise UpgradeError(
                "busy",
                f"Of {len(moves)} moves none could be made in {_MOST_IDLE} turns, such as {moves[0].example}: other writes come "
                "in between, or replies are lost. What was done stays. Run the same command again.",
            )


def _without(moves: Sequence[KeyMove], left: Sequence[KeyMove]) -> list[KeyMove]:
    still = {(move.what, move.example) for move in left}
    return [move for move in moves if (move.what, move.example) not in still]


def chunks(moves: Sequence[KeyMove]) -> Iterator[list[KeyMove]]:
    """Yield moves, as many at once as a transaction takes."""
    chunk: list[KeyMove] = []
    size = 0
    for move in moves:
        if chunk and size + len(move.operations) > MOST_MOVED:
            yield chunk
            chunk, size = [], 0
        chunk.append(move)
        size += len(move.operations)
    if chunk:
        yield chunk
