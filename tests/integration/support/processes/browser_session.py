# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real browser that is driven: it opens pages, runs scripts in them, and its keys are pressed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devkit.child import start, stop
from integration.support.processes.browser import binary

_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


class BrowserSession:
    """A page in a browser, over the pipe of its debugger.

    :param home: a folder for its files.
    """

    def __init__(self, home: Path) -> None:
        """Start it with an empty page.

        :raises OSError: where there is no browser; it says why.
        """
        path = binary()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={home / 'profile'}", "about:blank"]
        # The browser reads from 3 and writes to 4.
        self._process = start(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
            pass_fds=[theirs_in, theirs_out],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def close(self) -> None:
        """End it."""
        stop(self._process)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the debugger's protocol; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive(60)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _receive(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _none, _nothing = select.select([self._in], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            received = os.read(self._in, 1 << 20)
            if not received:
                raise RuntimeError("the browser has ended")
            self._buffer += received
        text, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        # The page before it may still ask its server for something.
        self.call("Page.navigate", url="about:blank")
        self.wait_until("document.readyState === 'complete'")
        self.events = []
        self.call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; of a promise, what it ends with."""
        found = self.call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            # The policy of the page is not for this.
            allowUnsafeEvalBlockedByCSP=True,
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:200]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_until(self, condition: str, seconds: float = 20) -> None:
        """Wait until an expression in the page is true."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(RuntimeError):
                # The page may just be replaced.
                if self.run(f"Boolean({condition})"):
                    return
            assert time.monotonic() < until, f"{condition} is not true: {self.run('document.body.innerText')[:2000]}"
            time.sleep(0.05)

    def set_display(self, *, width: int, dark: bool) -> None:
        """Set the width of the page (CSS pixels), and ask for its dark or its light colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def press(self, key: str, count: int = 1) -> None:
        """Press a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        for _time in range(count):
            self.call("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": "\r"} if key == "Enter" else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, height: int | None = None) -> Path:
        """Take a picture of the page, or of so many pixels from its top, as a PNG."""
        size = self.run("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    @property
    def complaints(self) -> list[str]:
        """What the browser has reported since the page was opened: errors of scripts, and what a policy has kept from it."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found


@contextlib.contextmanager
def browser_session(home: Path) -> Iterator[BrowserSession]:
    """Give a browser, and end it."""
    session = BrowserSession(home)
    try:
        yield session
    finally:
        session.close()
