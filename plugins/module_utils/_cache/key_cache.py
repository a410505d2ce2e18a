# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys that a process keeps in memory: a refresh reads only what has changed in Consul.

Consul tells no one what has changed below a prefix, but for any prefix the highest index at which a key below it was set or deleted. So
a large folder is divided into partitions. If the index of one is not what it was, that partition is read again. All that is read in a
refresh comes from one atomic read. Afterwards the indexes of the folders must still be what they were before it, so that partitions that
were not read again belong to the same moment.

An index is compared for equality. After a restore of an older snapshot, indexes go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .._common import runtime
from .._consul.client import MOST_OPERATIONS, ConsulClient, KVEntry
from .._consul.errors import Conflict
from .partitions import LEAST_TO_DIVIDE, Partition, divide, outside

# Consul forgets after a quarter of an hour that a key was deleted. So everything is read again after this time (seconds).
_LONGEST = 300.0
# How often a refresh is tried again if keys change or disappear while it reads.
_TRIES = 3
# A refresh makes many requests. If they take longer (seconds), such as with a slow network, one request reads everything.
_PATIENCE = 1.0
# Each partition takes a request, and a key that fits none gets one. With so many of these, the folder is divided again.
_MOST_ADDED = 32


@dataclass
class Changes:
    """What has changed since the refresh before.

    :param set: keys that are new or have other indexes.
    :param removed: keys that are gone.
    :param known: single keys that were asked for besides.
    """

    set: list[KVEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    known: list[KVEntry] = field(default_factory=list)


class _Folder:
    """A folder, or a single key, as it was read last.

    :param parts: partition -> key -> ModifyIndex.
    :param indexes: partition -> the index that Consul told of it.
    :param top: the index that Consul told of the folder; 0 if it was not asked.
    :param is_new: whether its partitions are new, so that ``indexes`` are those of their keys, and not what Consul told.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.parts: dict[Partition, dict[str, int]] = {Partition(prefix): {}}
        self.indexes: dict[Partition, int] = {}
        self.top = 0
        self.is_new = False
        self.divided_into = 1

    @property
    def is_divided(self) -> bool:
        return next(iter(self.parts)) != Partition(self.prefix)

    def divide(self) -> None:
        """Choose partitions for the current keys."""
        found = {key: index for keys in self.parts.values() for key, index in keys.items()}
        keys = sorted(found)
        self.parts = {part: {} for part in divide(self.prefix, keys)}
        # In the order of their prefixes; a partition of one key comes before those that begin with it.
        for part, of_part in self.parts.items():
            of_part.update({key: found[key] for key in _of(part, keys)})
        self.indexes = {part: max(of_part.values(), default=0) for part, of_part in self.parts.items()}
        self.top, self.is_new, self.divided_into = 0, True, len(self.parts)

    @property
    def should_be_divided(self) -> bool:
        """Whether a partition has become much too large, the partitions many, or the folder small."""
        sizes = [len(keys) for keys in self.parts.values()]
        if not self.is_divided:
            return sizes[0] >= LEAST_TO_DIVIDE
        if len(self.parts) > self.divided_into + _MOST_ADDED:
            return True
        return max(sizes) > max(LEAST_TO_DIVIDE, sum(sizes) // 3) or sum(sizes) < LEAST_TO_DIVIDE // 2


def _of(part: Partition, keys: Sequence[str]) -> Iterable[str]:
    return [key for key in keys if part.holds(key)]


def _new_partition(folder: _Folder, key: str) -> Partition:
    """Return a partition for a key that fits none: the first folder around it without a partition, or the key alone."""
    at = key.find("/", len(folder.prefix))
    while at >= 0:
        around = key[: at + 1]
        if not any(part.prefix.startswith(around) for part in folder.parts):
            return Partition(around)
        at = key.find("/", at + 1)
    return Partition(key, is_key=True)


class KeyCache:
    """The keys of some folders.

    :param folders: prefixes; those that may become large are divided then.
    """

    def __init__(self, client: ConsulClient, folders: Sequence[str]) -> None:
        """Keep the arguments."""
        self._client = client
        self._prefixes = tuple(folders)
        self._folders: dict[str, _Folder] = {}
        self._read_at = 0.0

    def is_empty(self, folder: str) -> bool:
        """Return whether a folder had no key in the last refresh."""
        return not any(self._folders[folder].parts.values()) if folder in self._folders else True

    @property
    def is_nothing(self) -> bool:
        """Whether there was no key at all in the last refresh."""
        return all(map(self.is_empty, self._prefixes))

    def forget(self) -> None:
        """Read everything again in the next refresh."""
        self._folders = {}

    def refresh(self, known: Sequence[str] = ()) -> Changes:
        """Return what has changed: one request, two for each large folder, and for one that has changed its names and one for each partition.

        :param known: single keys that must exist, read in the same request.
        :raises Conflict: if one of these does not exist.
        :raises UpgradeError: what :meth:`ConsulClient.read` raises. The next refresh reads everything again.
        """
        try:
            began = runtime.monotonic()
            for _try in range(_TRIES):
                now = runtime.monotonic()
                if not self._folders or now - self._read_at > _LONGEST or now - began > _PATIENCE:
                    break
                found = self._refresh(known, began + _PATIENCE)
                if found is not None:
                    return found
            return self._read_all(known)
        except Conflict:
            # Nothing was read.
            raise
        except Exception:
            self.forget()
            raise

    def _read_all(self, known: Sequence[str]) -> Changes:
        read_at = runtime.monotonic()
        before = {
            key: at for folder in self._folders.values() for keys in folder.parts.values() for key, at in keys.items()
        }
        entries = self._client.read(self._prefixes, known)
        folders = {prefix: _Folder(prefix) for prefix in self._prefixes}
        changes = Changes(known=[entry for entry in entries if entry.key in known])
        for entry in entries:
            folder = next((one for one in folders.values() if entry.key.startswith(one.prefix)), None)
            if folder is not None:
                next(iter(folder.parts.values()))[entry.key] = entry.modify_index
                if before.pop(entry.key, None) != entry.modify_index:
                    changes.set.append(entry)
        changes.removed = [*before]
        for folder in folders.values():
            folder.divide()
        self._folders, self._read_at = folders, read_at
        return changes

    def _refresh(self, known: Sequence[str], deadline: float) -> Changes | None:
        """Return what has changed; None if keys of large folders changed or disappeared meanwhile, or if it takes too long."""
        due: dict[Partition, tuple[_Folder, int]] = {}
        tops: dict[str, int] = {}
        for folder in self._folders.values():
            if runtime.monotonic() > deadline:
                return None
            if folder.is_divided:
                top = self._find_changed(folder, due)
                if top is None:
                    return self._read_all(known)
                tops[folder.prefix] = top
            else:
                due[Partition(folder.prefix)] = (folder, 0)
        single = [part.prefix for part, (_folder, index) in due.items() if part.is_key and index]
        trees = [part.prefix for part in due if not part.is_key]
        if len(single) + len(trees) + len(known) > MOST_OPERATIONS:
            return self._read_all(known)
        try:
            entries = self._client.read(trees, [*single, *known])
        except Conflict:
            if not single:
                raise
            return None
        if any(self._top(prefix) != top for prefix, top in tops.items()):
            return None
        changes = Changes(known=[entry for entry in entries if entry.key in known])
        self._take(due, entries, changes)
        for folder in self._folders.values():
            folder.top, folder.is_new = tops.get(folder.prefix, 0), False
            if folder.should_be_divided:
                folder.divide()
        return changes

    def _top(self, prefix: str) -> int:
        """Return the index of a folder."""
        # Without the slash at its end, this lists one name.
        return self._client.keys_below(prefix.rstrip("/"))[1]

    def _find_changed(self, folder: _Folder, due: dict[Partition, tuple[_Folder, int]]) -> int | None:
        """Find the partitions of a folder that have changed; return the index of the folder, None if it has to be divided again."""
        top = self._top(folder.prefix)
        if top != folder.top:
            if not self._add_partitions(folder):
                return None
            due.update({part: (folder, index) for part, index in self._changed(folder).items()})
        return top

    def _add_partitions(self, folder: _Folder) -> bool:
        """Add partitions for keys that fit none, such as those of hosts that are new in the folder. Return False if these are too many."""
        added = 0
        for key in outside(folder.parts, sorted(self._client.keys(folder.prefix))):
            if not any(part.holds(key) for part in folder.parts):
                folder.parts[_new_partition(folder, key)] = {}
                added += 1
            if added > _MOST_ADDED:
                return False
        return True

    def _changed(self, folder: _Folder) -> dict[Partition, int]:
        """Return the partitions whose index is not what it was, and that index."""
        found = {}
        for part in folder.parts:
            if part.is_key:
                entry = self._client.get(part.prefix)
                index = entry.modify_index if entry is not None else 0
            else:
                keys, index = self._client.keys_below(part.prefix, None if folder.is_new else "/")
                # The keys that were read do not tell what had been deleted. A restore may bring such a key back with the same highest index.
                if folder.is_new and folder.parts[part].keys() != set(keys):
                    found[part] = index
            if index != folder.indexes.get(part):
                found[part] = index
        return found

    def _take(self, due: dict[Partition, tuple[_Folder, int]], entries: Iterable[KVEntry], changes: Changes) -> None:
        of_part: dict[Partition, dict[str, KVEntry]] = {part: {} for part in due}
        # A key belongs to the partition with the longest prefix.
        parts = sorted(due, key=lambda part: (part.is_key, len(part.prefix)), reverse=True)
        # Keys are sorted, so the next one mostly belongs to the same partition, unless that has others within.
        has_others = {part for part in parts if any(one.prefix.startswith(part.prefix) for one in parts if one != part)}
        last: Partition | None = None
        for entry in entries:
            if last is None or last in has_others or not last.holds(entry.key):
                last = next((one for one in parts if one.holds(entry.key)), None)
            if last is not None:
                of_part[last][entry.key] = entry
        for part, found in of_part.items():
            folder, index = due[part]
            before = folder.parts[part]
            changes.set += [entry for key, entry in found.items() if before.get(key) != entry.modify_index]
            changes.removed += [key for key in before if key not in found]
            folder.parts[part] = {key: entry.modify_index for key, entry in found.items()}
            folder.indexes[part] = max(index, *folder.parts[part].values(), 0) if found else index
