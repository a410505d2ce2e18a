# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Executes moves, some at a time, until no move is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._fleet.migration import Migration
from .lock import MOST_MOVED, MigrationLock
from .outcome import MigrationResult, StepResult
from .step import KeyMove

# How many rounds in a row may fail to make a single move.
_MOST_IDLE = 20


def carry_out(
    lock: MigrationLock,
    migration: Migration,
    done: StepResult,
    outcome: MigrationResult,
    left: Callable[[], list[KeyMove]],
    most: int = 0,
) -> bool:
    """Execute moves. A move whose keys were written meanwhile is made again in the next round.

    :param migration: stored with the progress in each write.
    :param done: the executed moves are added here.
    :param left: reads the keys, and returns the moves that are left.
    :param most: the number of rounds; 0 for as many as needed.
    :returns: whether nothing is left.
    :raises UpgradeError: ``busy``, ``lost_lock``, and what reading and writing raise.
    """
    unsure: list[KeyMove] = []
    idle = rounds = 0
    while True:
        moves = left()
        # The reply to these moves was lost. Those that are not left any more were made.
        outcome.add(done, _without(unsure, moves))
        unsure = []
        if not moves or (most and rounds == most):
            return not moves
        rounds += 1
        count = 0
        waiting = list(chunks(moves))[::-1]
        while waiting:
            chunk = waiting.pop()
            try:
                noted = replace(migration, done=count, total=len(moves))
                lock.write(noted, [operation for move in chunk for operation in move.operations])
            except Conflict:
                # Split the chunk, so that only the move of the changed key has to wait.
                if len(chunk) > 1:
                    middle = len(chunk) // 2
                    waiting += [chunk[middle:], chunk[:middle]]
                continue
            except Unreachable:
                unsure = chunk
                # A round that was cut off does not count.
                rounds -= 1
                break
            outcome.add(done, chunk)
            count += len(chunk)
        idle = 0 if count else idle + 1
        if idle == _MOST_IDLE:
            raise UpgradeError(
                "busy",
                f"None of {len(moves)} moves, such as {moves[0].example}, could be made in {_MOST_IDLE} rounds: the keys keep changing, "
                "or replies are lost. What was done stays. Run the same command again.",
            )


def _without(moves: Sequence[KeyMove], left: Sequence[KeyMove]) -> list[KeyMove]:
    still = {(move.what, move.example) for move in left}
    return [move for move in moves if (move.what, move.example) not in still]


def chunks(moves: Sequence[KeyMove]) -> Iterator[list[KeyMove]]:
    """Yield lists of moves that fit into one transaction each."""
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
