# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys at every index: all writes of the journal, one after the other, on what was there before.

Of a write to which no answer came, later ones show whether it was done: each compares a key, and a process that writes that key
next names the index that it found. This is what makes the replay exact, where a blocking query may leave out states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .journal import Write, text


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and the index at which it was changed last."""

    value: str
    index: int
    flags: int = 0


State = Mapping[str, Entry]


@dataclass(frozen=True)
class Restore:
    """A snapshot that was put back.

    :param index: the first one after it.
    :param taken_at: the index of the snapshot.
    """

    index: int
    taken_at: int


@dataclass(frozen=True)
class Step:
    """One write, and the keys before and after it.

    :param write: None for a restore, and for what Consul does by itself.
    :param done_at: when a restore was done, if no write shows it (unix seconds).
    :param is_restore: whether a snapshot was put back.
    """

    index: int
    before: State
    after: State
    write: Write | None
    done_at: float = float("inf")
    is_restore: bool = False

    def changed(self) -> dict[str, tuple[Entry | None, Entry | None]]:
        """Return key -> before and after, for those that changed."""
        return self._changed

    @cached_property
    def _changed(self) -> dict[str, tuple[Entry | None, Entry | None]]:
        before, after = self.before, self.after
        # Of a key that is what it was, both mostly have the same object.
        found: dict[str, tuple[Entry | None, Entry | None]] = {
            key: (before.get(key), entry) for key, entry in after.items() if before.get(key) is not entry
        }
        found.update({key: (entry, None) for key, entry in before.items() if key not in after})
        return {key: both for key, both in sorted(found.items()) if both[0] != both[1]}


def entries_of(found: Iterable[Mapping[str, Any]]) -> dict[str, Entry]:
    """Return the keys in an answer of Consul."""
    return {one["Key"]: Entry(text(one["Value"]), one["ModifyIndex"], one["Flags"]) for one in found}


def replay(
    base: State,
    writes: Sequence[Write],
    restores: Sequence[Restore],
    seen: Iterable[tuple[str, Entry]],
    indexes: Iterable[int],
) -> tuple[list[Step], list[str]]:
    """Return the steps in the order of their indexes, and what the journal can't account for.

    :param seen: keys as servers showed them, and ``indexes`` those at which they did.
    """
    problems = _settle(base, writes, seen)
    _place(writes, sorted(indexes))
    marks: list[tuple[int, Write | Restore]] = [(one.index, one) for one in writes if one.index is not None]
    marks += [(one.index, one) for one in restores]
    state: dict[str, Entry] = dict(base)
    steps: list[Step] = []
    for index, one in sorted(marks, key=lambda mark: mark[0]):
        if isinstance(one, Restore):
            after = dict(state_at(base, steps, one.taken_at))
        else:
            after = dict(state)
            try:
                _apply(after, one.operations, index)
            except ValueError as error:
                problems.append(f"{one.who} wrote what Consul should have refused: {error}")
        write = one if isinstance(one, Write) else None
        steps.append(Step(index, state, after, write, is_restore=isinstance(one, Restore)))
        state = after
    return steps, problems


def state_at(base: State, steps: Sequence[Step], index: int) -> State:
    """Return the keys as they were at an index."""
    at = bisect_right(steps, index, key=lambda step: step.index)
    return steps[at - 1].after if at else base


def _apply(state: dict[str, Entry], operations: Iterable[Mapping[str, Any]], index: int) -> None:
    for one in operations:
        key, verb = one["Key"], one["Verb"]
        found = state.get(key)
        if verb in ("cas", "check-index") and one["Index"] != (found.index if found is not None else 0):
            raise ValueError(f"{key} is at {found}, and {verb} expects {one['Index']}")
        if verb == "check-not-exists" and found is not None:
            raise ValueError(f"{key} is there")
        if verb in ("set", "cas"):
            after = Entry(text(one.get("Value")), index, one.get("Flags", 0))
            # Consul takes what changes nothing for nothing: the key keeps its index.
            if found is None or (found.value, found.flags) != (after.value, after.flags):
                state[key] = after
        elif verb == "delete":
            state.pop(key, None)
        elif verb == "delete-tree":
            for name in [name for name in state if name.startswith(key)]:
                del state[name]


def _place(writes: Sequence[Write], indexes: Sequence[int]) -> None:
    """Find the index of writes that only deleted: none of their keys has it, but what the servers showed after them."""
    taken = {one.index for one in writes}
    for write in writes:
        if not write.was_done or write.index is not None:
            continue
        earlier = [one.index for one in writes if one.index is not None and one.answered_at < write.at]
        least = max(earlier, default=0)
        free = (index for index in indexes if index > least and index not in taken)
        write.index = next(free, least + 1)
        taken.add(write.index)


def _settle(base: State, writes: Sequence[Write], seen: Iterable[tuple[str, Entry]]) -> list[str]:
    """Find out which writes were done of those to which no answer came."""
    values: dict[int, dict[str, str | None]] = {}
    begin = max(entry.index for entry in base.values())
    for key, entry in seen:
        if entry.index <= begin:
            # A server that is behind shows what was there before.
            continue
        values.setdefault(entry.index, {})[key] = entry.value
    for one in writes:
        key, index = one.compared() or ("", 0)
        values.setdefault(index, {}).setdefault(key, None)
    known = {0, *(entry.index for entry in base.values()), *(one.index for one in writes if one.index is not None)}
    problems = []
    for index in sorted(values.keys() - known):
        fits = [one for one in writes if not one.is_known and one.index is None and _fits(one, index, values[index])]
        if fits:
            # Of two that fit, the later one: who sends the same again has seen that it was not done.
            fits[-1].index = index
        else:
            problems.append(f"no one knows who wrote {', '.join(values[index])} at index {index}")
    return problems


def _fits(write: Write, index: int, values: Mapping[str, str | None]) -> bool:
    """Return whether a write may be the one of an index at which these keys were seen."""
    compared = write.compared()
    if compared is not None and compared[1] >= index:
        return False
    ours = {one["Key"]: text(one.get("Value")) for one in write.operations if one["Verb"] in ("set", "cas")}
    return all(key in ours and value in (None, ours[key]) for key, value in values.items())
