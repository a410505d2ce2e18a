# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent witness: follows the keys through each server by raw blocking queries.

It sees states that any server shows, and not every one that there was: a blocking query that comes back late leaves out
what was between. So it is not what finds violations. It makes sure that the replay of the journal, which has every state,
is what the servers have: each view has to be the replay's state of the same index, to the last key.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.client import HTTPException

from devkit.kv import RawKV

from .replay import Entry, State, Step, entries_of, state_at


class Witness:
    """Keeps every state of the keys that any of the servers shows.

    A server that is down or cut off is asked again until it answers. Each shows a state of the past or the present, and
    never one that was not, so its own copy will do (``stale``), and a server in the minority is watched too.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._views: dict[int, State] = {}
        self.disagreements: list[tuple[int, str]] = []
        self._threads = [threading.Thread(target=self._follow, args=(url,), daemon=True) for url in urls]

    @property
    def indexes(self) -> list[int]:
        """The different moments that were seen."""
        return list(self._views)

    def __enter__(self) -> Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(15)

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Return every value of every key that was seen."""
        return ((key, entry) for (key, _index), entry in self._entries.items())

    def _follow(self, url: str) -> None:
        server, index = RawKV(url), 0
        while not self._over.is_set():
            try:
                code, headers, body = server.call("GET", f"kv/?recurse&stale&index={index}&wait=2s", timeout=10)
                now = int(headers["X-Consul-Index"])
                if now != index and code == 200:
                    self.saw(now, entries_of(json.loads(body)))
                index = now
            except (OSError, HTTPException, ValueError, TypeError):
                self._over.wait(0.1)

    def saw(self, index: int, view: State) -> None:
        """Keep a view; of the same index, all servers have to show the same."""
        with self._lock:
            # Few keys change from one view to the next, so each value is kept once.
            view = {key: self._entries.setdefault((key, entry.index), entry) for key, entry in view.items()}
            known = self._views.setdefault(index, view)
            if known != view:
                self.disagreements.append((index, f"two servers show different keys: {_difference(known, view)}"))

    def against(self, base: State, steps: Sequence[Step]) -> Iterator[tuple[int, str]]:
        """Yield each index at which servers showed other keys than the replay has."""
        yield from self.disagreements
        begin = max(entry.index for entry in base.values())
        for index, view in sorted(self._views.items()):
            if index < begin:
                # A server that is behind shows what was there before.
                continue
            then = state_at(base, steps, index)
            if view != then:
                yield index, f"the servers show other keys than were written: {_difference(then, view)}"


def _difference(one: State, other: State) -> str:
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
    return "; ".join(f"{key}: {one.get(key)} and {other.get(key)}" for key in keys[:3])
