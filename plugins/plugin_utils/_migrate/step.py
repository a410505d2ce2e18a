# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a migration step from one layout to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...module_utils._common.sanitize import sanitize
from ...module_utils._consul.client import KVEntry, Operation
from ...module_utils._consul.operations import Change
from ...module_utils._state.keys import Keys


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The keys from one read.

    :param entries: key -> entry, in the order of the keys.
    :param begun: whether the step has begun. Then legacy and new keys may differ, because one was written later.
    :param switched: whether the layout is the new one already. Then legacy keys are those that old code still writes.
    """

    keys: Keys
    entries: Mapping[str, KVEntry]
    begun: bool = False
    switched: bool = False

    def below(self, folder: str) -> Iterable[KVEntry]:
        """Return the entries of a folder."""
        return [entry for key, entry in self.entries.items() if key.startswith(folder)]

    def index(self, key: str) -> int:
        """Return a key's ModifyIndex; 0 if it does not exist."""
        entry = self.entries.get(key)
        return entry.modify_index if entry is not None else 0


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """A key because of which a step can't run.

    :param why: what is wrong with the key.
    :param fix: a sentence that says how to fix it.
    """

    key: str
    why: str
    fix: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return sanitize(f"{self.key} {self.why}. {self.fix}")


@dataclass(frozen=True, slots=True)
class KeyMove:
    """Operations that are executed together, if their keys have not changed, and leave the keys consistent.

    :param what: the kind of move, such as ``reports copied``.
    :param example: a text for this move, such as ``a to b``.
    """

    what: str
    example: str
    operations: tuple[Operation, ...]
    changes: tuple[Change, ...]


class MigrationStep(ABC):
    """Migrates the keys from the layout before to its own layout.

    What is left to do follows from the keys alone, so a run continues where an earlier one was killed.
    """

    number: ClassVar[int]
    """The layout that it migrates to."""
    release: ClassVar[str]
    """The first release of convoy.upgrade with this layout."""
    title: ClassVar[str]
    """What changes, in a sentence."""

    @abstractmethod
    def folders(self, prefix: str) -> Sequence[str]:
        """Return the folders and keys that it reads, including the ``kv_prefix``."""

    @abstractmethod
    def problems(self, found: KeysFound) -> list[KeyProblem]:
        """Return the problems because of which it can't run, in the order of the keys."""

    @abstractmethod
    def moves(self, found: KeysFound) -> list[KeyMove]:
        """Return the moves that are left, in the order of the keys; empty if everything is in the new layout."""

    @abstractmethod
    def removals(self, found: KeysFound) -> list[KeyMove]:
        """Return the moves that remove the legacy keys, in the order of the keys."""

    @abstractmethod
    def waiting(self, found: KeysFound) -> list[str]:
        """Return the hosts for which legacy keys are kept, because they are not known to use the new layout."""
