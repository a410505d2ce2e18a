# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for changes by blocking queries: one connection for each folder, shared by all that wait in a process.

Consul continues a blocking query after the client has hung up, and counts its connection until then. It accepts 200
connections from one address (``limits.http_max_conns_per_client``). So a query is never abandoned here: it is sent again
when it has been answered.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from .._common import runtime
from .._common.errors import UpgradeError
from .client import ConsulClient
from .settings import Settings

# The longest that one blocking query of a long-lived process takes (seconds).
_LONGEST = 60.0
# The same in a process that soon ends, and so abandons its queries.
_LONGEST_OF_SHORT_LIVED = 5.0
_PAUSE = 1.0
# A write to any key answers the query of an empty folder. It is sent again after this time (seconds).
_PAUSE_IF_EMPTY = 0.25


class BlockingQueries:
    """The blocking queries of a process: a thread and a connection for each folder that any :class:`Watch` needs."""

    def __init__(
        self, settings: Settings, *, short_lived: bool = False, pauses: Mapping[str, float] | None = None
    ) -> None:
        """Keep the arguments.

        :param short_lived: whether the process ends soon.
        :param pauses: folder -> how long a query waits after each change before it is sent again (seconds), so that it is answered once for
            all changes meanwhile.
        """
        self._settings = settings
        self._pauses = pauses or {}
        self._longest = _LONGEST_OF_SHORT_LIVED if short_lived else _LONGEST
        self.changed = runtime.condition()
        self.index = 0
        self.error: UpgradeError | None = None
        self._counts: dict[str, int] = {}
        self._closed = runtime.event()

    def start(self, prefixes: Iterable[str], index: int = 0, empty: Container[str] = ()) -> None:
        """Query these folders too. Call it with ``changed`` held.

        :param index: the index of the caller's last read; 0 to count the first answers as changes.
        :param empty: folders that were empty in that read.
        """
        for prefix in prefixes:
            if prefix not in self._counts:
                self._counts[prefix] = 0
                arguments = (prefix, index, prefix not in empty)
                runtime.start_thread(self._query, *arguments)

    def count(self, prefixes: Iterable[str]) -> int:
        """Return the number of changes seen below some folders. Call it with ``changed`` held."""
        return sum(self._counts.get(prefix, 0) for prefix in prefixes)

    def wait_for_change(self, prefixes: Sequence[str], seconds: float) -> int:
        """Return the newest index once anything has changed below some folders, 0 after ``seconds``.

        :raises UpgradeError: of a query.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.count(prefixes), seconds)
            if self.error is not None:
                raise self.error
            return self.index

    def close(self) -> None:
        """Send no further query. Those that wait end with their answers, and their connections with them."""
        self._closed.set()

    def _query(self, prefix: str, index: int, filled: bool) -> None:
        client: ConsulClient | None = None
        while not self._closed.is_set():
            try:
                # A file with a certificate may be missing for a moment, such as while it is replaced.
                client = client or ConsulClient(self._settings)
                found, is_filled = client.wait_for_change_below(prefix, index, self._longest)
            except UpgradeError as error:
                client = None
                self._count_change(prefix, error=error)
                runtime.sleep(_PAUSE)
                continue
            # A folder that was empty and still is has not changed, whatever its index says.
            is_empty = not filled and not is_filled
            if found != index and not is_empty:
                self._count_change(prefix, found)
            runtime.sleep(_PAUSE_IF_EMPTY if is_empty and found != index else self._pauses.get(prefix, 0.0))
            # An index that went back is that of a restored Consul: the next query starts from zero.
            index, filled = (found if found >= index else 0), is_filled

    def _count_change(self, prefix: str, index: int = 0, error: UpgradeError | None = None) -> None:
        with self.changed:
            self._counts[prefix] += 1
            self.index = max(self.index, index)
            self.error = error
            self.changed.notify_all()


class Watch:
    """Waits for changes of folders and keys.

    :param prefixes: the folders and keys.
    :param queries: those of the process; None for queries of its own.
    """

    def __init__(self, settings: Settings, prefixes: Sequence[str], queries: BlockingQueries | None = None) -> None:
        """Keep the arguments."""
        self._prefixes = prefixes
        self._queries = queries or BlockingQueries(settings)
        self._is_own = queries is None
        self._woken = 0

    def mark(self) -> int:
        """Return the current position. Taken before a read, it makes sure that :meth:`wait` misses no later change."""
        with self._queries.changed:
            self._queries.start(self._prefixes)
            return self._count()

    def wait(self, mark: int, seconds: float) -> bool:
        """Return whether anything has changed since a mark, as soon as it has or after ``seconds``.

        An error from Consul counts as a change, so that the caller reads again and reports it.
        """
        with self._queries.changed:
            return self._queries.changed.wait_for(lambda: self._count() > mark, seconds)

    def wake(self) -> None:
        """End all waiting on this watch, as a change would."""
        with self._queries.changed:
            self._woken += 1
            self._queries.changed.notify_all()

    def close(self) -> None:
        """Send no further query of its own."""
        if self._is_own:
            self._queries.close()

    def _count(self) -> int:
        return self._woken + self._queries.count(self._prefixes)
