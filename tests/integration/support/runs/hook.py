# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hook that is called with what happens to a rollout: the example of docs/watching.md, and a server that it posts to."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from devkit.agent import ROOT

PAGE = (ROOT / "docs/watching.md").read_text()


class Listener:
    """What was posted, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._posted: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def add(self, body: dict[str, Any]) -> None:
        """Take note of what was posted."""
        with self._changed:
            self._posted.append(body)
            self._changed.notify_all()

    @property
    def posted(self) -> list[dict[str, Any]]:
        """All that was posted so far."""
        with self._changed:
            return list(self._posted)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the hook was given so far."""
        return [body["event"] for body in self.posted]

    @property
    def names(self) -> list[str]:
        """The names of these events."""
        return [event["event"] for event in self.events]

    def wait_for(self, name: str, seconds: float = 90) -> dict[str, Any]:
        """Return the first event of this name, as soon as it is there."""
        with self._changed:
            found = self._changed.wait_for(lambda: name in [one["event"]["event"] for one in self._posted], seconds)
        assert found, f"{name} did not come within {seconds} s: {self.names}"
        return next(event for event in self.events if event["event"] == name)


@contextmanager
def listening() -> Iterator[Listener]:
    """Have a little HTTP server that takes JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()
            listener.add(body)

        def log_message(self, *_words: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        listener = Listener(f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            server.shutdown()
            thread.join(10)


def example(folder: Path) -> Path:
    """Write the hook that the page shows into a folder."""
    found = re.search(r"```yaml\n(# notify\.yml.*?)```", PAGE, re.S)
    assert found is not None
    hook = folder / "notify.yml"
    hook.write_text("---\n" + found[1])
    return hook
