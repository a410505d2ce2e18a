# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that are computed when they are used first, for results of which most callers use only a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence that is computed when it is used first. It equals any sequence with the same items.

    :param compute: returns the items. It must return the same ones at any time.
    """

    def __init__(self, compute: Callable[[], Sequence[T]]) -> None:
        """Keep the function."""
        self._compute = compute
        self._found: Sequence[T] | None = None

    @property
    def _items(self) -> Sequence[T]:
        if self._found is None:
            self._found = self._compute()
        return self._found

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._items[at]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(self._items)


class LazyMapping(Mapping[str, T], Generic[T]):
    """A mapping whose values are computed one by one, when they are used first. It equals any mapping with the same items.

    :param names: the keys, in order.
    :param compute: returns the value of a key. It must return the same one at any time.
    """

    def __init__(self, names: Mapping[str, Any], compute: Callable[[str], T]) -> None:
        """Keep the arguments."""
        self._names = names
        self._compute = compute
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        try:
            return self._found[name]
        except KeyError:
            if name not in self._names:
                raise
        self._found[name] = self._compute(name)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))
