# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a step from one layout to the next is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...module_utils._consul.client import KVEntry, Operation
from ...module_utils._consul.operations import Change
from ...module_utils._state.keys import Keys


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The keys as they were read at one moment.

    :param entries: key -> entry, in the order of the keys.
    :param begun: whether the step has begun, so that old and new keys that differ are no contradiction: one was written later.
    :param switched: whether the layout is the new one already, so that old keys are what older code still writes.
    """

    keys: Keys
    entries: Mapping[str, KVEntry]
    begun: bool = False
    switched: bool = False

    def below(self, folder: str) -> Iterable[KVEntry]:
        """Return the entries of a folder."""
        return [entry for key, entry in self.entries.items() if key.startswith(folder)]

    def index(self, key: str) -> int:
        """Return a key's ModifyIndex, 0 where it is not there."""
        entry = self.entries.get(key)
        return entry.modify_index if entry is not None else 0


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """Something that stands in the way of a step.

    :param why: what is wrong with the key.
    :param fix: what to do about it.
    """

    key: str
    why: str
    mend: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{self.key} {self.why}. {self.mend}"


@dataclass(frozen=True, slots=True)
class KeyMove:
    """What belongs together and is safe by itself: it is carried out as a whole, if its keys are as they were read.

    :param what: which kind of move it is, alike for all of that kind, such as ``reports copied``.
    :param example: this one, for people.
    """

    what: str
    example: str
    operations: tuple[Operation, ...]
    changes: tuple[Change, ...]


class MigrationStep(ABC):
    """Leads from the layout before to its own.

    Nothing of it is remembered: whatever is still to be done is seen in the keys, so that whoever comes after a migrator
    that was killed goes on where that was.
    """

    number: ClassVar[int]
    """The layout that it leads to."""
    release: ClassVar[str]
    """The first release of convoy.upgrade that knows this layout."""
    title: ClassVar[str]
    """What changes, in a sentence."""

    @abstractmethod
    def folders(self, prefix: str) -> Sequence[str]:
        """Return the folders and keys that it looks at, below the ``kv_prefix``."""

    @abstractmethod
    def obstacles(self, found: KeysFound) -> list[KeyProblem]:
        """Return all that stands in the way, in the order of the keys."""

    @abstractmethod
    def moves(self, found: KeysFound) -> list[KeyMove]:
        """Return what is still to be copied or rewritten, in the order of the keys; nothing once all is as it should be."""

    @abstractmethod
    def removals(self, found: KeysFound) -> list[KeyMove]:
        """Return what removes the old keys, in the order of the keys."""

    @abstractmethod
    def waiting(self, found: KeysFound) -> list[str]:
        """Return the hosts that are not known to go by the new layout, so that the old keys are kept for them."""
