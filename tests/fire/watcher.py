# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent witness: follows the keys through each server by raw blocking queries, and checks what it sees."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence

from devkit.kv import RawKV

from .fleet import openings_under_a_hold, violations


class Witness:
    """Checks every state of the keys that any of the servers shows.

    A server that is down or cut off is asked again until it answers. Each shows a state of the past or the present, and
    never one that was not, so its own copy will do (``stale``), and a server in the minority is watched too.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._follow, args=(url,), daemon=True) for url in urls]

    @property
    def views(self) -> int:
        """How many different moments were seen."""
        return len(self._seen)

    def __enter__(self) -> Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(15)

    def _follow(self, url: str) -> None:
        server, index = RawKV(url), 0
        before: Mapping[str, str] = {}
        while not self._over.is_set():
            try:
                code, headers, body = server.call("GET", f"kv/?recurse&stale&index={index}&wait=2s", timeout=10)
                found = json.loads(body) if code == 200 else []
                now = int(headers["X-Consul-Index"])
            except (OSError, ValueError, TypeError):
                self._over.wait(0.1)
                continue
            if now < index:
                before = {}
            elif now > index:
                view = {one["Key"]: base64.b64decode(one["Value"] or "").decode() for one in found}
                self._check(now, before, view)
                before = view
            index = now

    def _check(self, index: int, before: Mapping[str, str], view: Mapping[str, str]) -> None:
        found = violations(view) + (openings_under_a_hold(before, view) if before else [])
        with self._lock:
            self._seen.add(index)
            self.failures += [f"at index {index}: {sentence}" for sentence in found]
