# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a Consul server: transactions, indexes, and the graves of deleted keys, as in Consul 1.8."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The verbs that write. A transaction without any of them is a read.
WRITES = frozenset({"set", "cas", "lock", "unlock", "delete", "delete-cas", "delete-tree"})


class Entry(NamedTuple):
    """A key.

    :param value: as in Consul's JSON, in base64; None if it is empty.
    :param session: the session that has locked it, empty if none has.
    """

    value: str | None
    modified: int
    created: int
    flags: int = 0
    locks: int = 0
    session: str = ""

    def shown(self, key: str, *, with_value: bool = True) -> dict[str, Any]:
        """Return the entry as Consul's JSON has it."""
        found: dict[str, Any] = {"LockIndex": self.locks, "Key": key, "Flags": self.flags}
        found["Value"] = self.value if with_value else None
        if self.session:
            found["Session"] = self.session
        return {**found, "CreateIndex": self.created, "ModifyIndex": self.modified}


class Result(NamedTuple):
    """A result of an operation.

    :param text: the entry as Consul's JSON has it.
    """

    key: str
    text: str


class Refused(Exception):
    """An operation that a transaction can't do; the text is Consul's."""


@dataclass
class Keys:
    """All keys, by their names, and the index of the last change.

    :param graves: deleted key -> the index at which it was deleted. Consul forgets them after some time.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    graves: dict[str, int] = field(default_factory=dict)
    index: int = 0
    _sorted: list[str] | None = None
    # Prefix -> its index, None if there never was a key below it. Each change keeps it right.
    _indexes: dict[str, int | None] = field(default_factory=dict)
    # Key -> an entry and its JSON.
    _texts: dict[str, tuple[Entry, str]] = field(default_factory=dict)
    # Request -> its answer, as long as no key changes.
    answers: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> Keys:
        """Return an independent copy."""
        names = None if self._sorted is None else [*self._sorted]
        # Texts are of entries, whichever keys have them.
        return Keys(dict(self.entries), dict(self.graves), self.index, names, dict(self._indexes), self._texts)

    def below(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix, sorted."""
        if self._sorted is None:
            self._sorted = sorted(self.entries)
        names = self._sorted
        first = bisect_left(names, prefix)
        return names[first : bisect_left(names, prefix + _LAST, first)]

    def index_of(self, key: str) -> int:
        """Return the index that an answer on one key has: that of the key, or of all keys if it is missing."""
        found = self.entries.get(key)
        return found.modified if found is not None else self.index

    def index_below(self, prefix: str) -> int:
        """Return the index that an answer on a prefix has: that of the last change below it, or of all keys if there is none."""
        if not prefix:
            return self.index
        if prefix not in self._indexes:
            changes = [self.entries[name].modified for name in self.below(prefix)]
            changes += [index for name, index in self.graves.items() if name.startswith(prefix)]
            self._indexes[prefix] = max(changes, default=None)
        found = self._indexes[prefix]
        return self.index if found is None else found

    def apply(
        self, operations: Sequence[Mapping[str, Any]], index: int, is_session: Callable[[str], bool]
    ) -> tuple[list[Result], list[dict[str, Any]]]:
        """Carry out a transaction; return results and errors. With any error, nothing is changed.

        :param index: the index of what it writes.
        """
        before = self.copy() if any(one["KV"]["Verb"] in WRITES for one in operations) else None
        results: list[Result] = []
        errors: list[dict[str, Any]] = []
        for number, operation in enumerate(operations):
            try:
                results += self._do(operation["KV"], index, is_session)
            except Refused as error:
                errors.append({"OpIndex": number, "What": str(error)})
        if errors:
            if before is not None:
                self.entries, self.graves, self.index = before.entries, before.graves, before.index
                self._sorted, self._indexes = before._sorted, before._indexes
            return [], errors
        return results, []

    def _do(self, facts: Mapping[str, Any], index: int, is_session: Callable[[str], bool]) -> list[Result]:
        key, verb = facts["Key"], facts["Verb"]
        found = self.entries.get(key)
        if verb == "get-tree":
            return [Result(name, self.text(name)) for name in self.below(key)]
        if verb == "delete-tree":
            for name in self.below(key):
                self.delete(name, index)
            return []
        if verb == "delete":
            self.delete(key, index)
            return []
        if verb == "delete-cas":
            # A missing key is deleted already.
            if found is not None and found.modified != facts.get("Index", 0):
                raise Refused(f'failed to delete key "{key}", index is stale')
            self.delete(key, index)
            return []
        if verb == "check-not-exists":
            if found is not None:
                raise Refused(f'key "{key}" exists')
            return []
        check = _CHECKS.get(verb)
        if check is not None:
            entry = check(key, found, facts)
            return [Result(key, self.text(key) if verb == "get" else _text(entry, key, with_value=False))]
        if verb not in WRITES:
            raise Refused(f'unknown KV verb "{verb}"')
        entry = self._set(key, verb, found, facts, index, is_session)
        return [Result(key, _text(entry, key, with_value=False))]

    def text(self, key: str) -> str:
        """Return an entry with its value as Consul's JSON has it."""
        entry = self.entries[key]
        known = self._texts.get(key)
        if known is None or known[0] is not entry:
            known = self._texts[key] = entry, _text(entry, key, with_value=True)
        return known[1]

    def _set(
        self,
        key: str,
        verb: str,
        found: Entry | None,
        facts: Mapping[str, Any],
        index: int,
        is_session: Callable[[str], bool],
    ) -> Entry:
        expected = facts.get("Index", 0)
        if verb == "cas" and (found.modified if found is not None else 0) != expected:
            raise Refused(f'failed to set key "{key}", index is stale')
        session = found.session if found is not None else ""
        # Only locks count; a plain write of a locked key sets the count back.
        locks = found.locks if found is not None and verb in ("lock", "unlock") else 0
        given = facts.get("Session", "")
        if verb == "lock":
            if not given:
                raise Refused("missing session")
            if not is_session(given):
                raise Refused(f'invalid session "{given}"')
            if session not in ("", given):
                raise Refused(f'failed to lock key "{key}", lock is already held')
            locks += session != given
            session = given
        elif verb == "unlock":
            if found is None or not session or session != given:
                raise Refused(f'failed to unlock key "{key}", lock isn\'t held, or is held by another session')
            session = ""
        value = facts.get("Value") or None
        return self.put(key, Entry(value, index, 0, facts.get("Flags", 0), locks, session))

    def put(self, key: str, entry: Entry) -> Entry:
        """Set a key. What changes nothing keeps its index."""
        found = self.entries.get(key)
        entry = entry._replace(created=found.created if found is not None else entry.modified)
        if found is not None and found._replace(modified=0) == entry._replace(modified=0):
            return found
        if found is None and self._sorted is not None:
            insort(self._sorted, key)
        self.entries[key] = entry
        self._note(key, entry.modified)
        return entry

    def delete(self, key: str, index: int) -> None:
        """Delete a key, if it is there."""
        if self.entries.pop(key, None) is not None:
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, key)]
            self.graves[key] = index
            self._note(key, index)

    def _note(self, key: str, index: int) -> None:
        self.index = index
        self.answers.clear()
        for prefix in self._indexes:
            if key.startswith(prefix):
                self._indexes[prefix] = index


# Sorts after every character of a key.
_LAST = "\U0010ffff"


def _text(entry: Entry, key: str, *, with_value: bool) -> str:
    return json.dumps(entry.shown(key, with_value=with_value))


def _get(key: str, found: Entry | None, _facts: Mapping[str, Any]) -> Entry:
    if found is None:
        raise Refused(f'key "{key}" doesn\'t exist')
    return found


def _check_index(key: str, found: Entry | None, facts: Mapping[str, Any]) -> Entry:
    if found is None:
        raise Refused(f'failed to check index, key "{key}" doesn\'t exist')
    if found.modified != facts.get("Index", 0):
        raise Refused(
            f'failed index check for key "{key}", current modify index {found.modified} != {facts.get("Index", 0)}'
        )
    return found


def _check_session(key: str, found: Entry | None, facts: Mapping[str, Any]) -> Entry:
    if found is None:
        raise Refused(f'failed to check session, key "{key}" doesn\'t exist')
    if found.session != facts.get("Session", ""):
        raise Refused(
            f'failed session check for key "{key}", current session "{found.session}" != "{facts.get("Session", "")}"'
        )
    return found


_CHECKS = {"get": _get, "check-index": _check_index, "check-session": _check_session}
