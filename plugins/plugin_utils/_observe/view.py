# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The view of a run of ansible-playbook: it is told how the rollout goes, and shows it.

Nothing here asks Consul: who follows the rollout is another process (:mod:`feeder`, or the task that follows). Ansible forks
its workers while the thread here is at work, so whatever that does to the terminal it does under Ansible's display lock,
under which Ansible forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from ...module_utils._observe.progress import RolloutProgress
from .screen import Screen, reason_not_to_draw
from .view_socket import FED, OVER, SOCKET, announce
from .wording import about_minutes, ending, with_time

# Seconds between two drawings, as hosts' times go on.
_TICK = 1.0
# Lines are repeated after so many seconds without any, so that no one has to wonder.
_SHOW_EVERY = 30.0


class RunView:
    """Shows what it is told: on a terminal as a drawing below everything else, elsewhere as lines.

    :param display: Ansible's.
    """

    def __init__(self, display: Any, stream: TextIO) -> None:
        """Show nothing yet."""
        self._display = display
        self._lock: threading.RLock = getattr(display, "_lock", None) or threading.RLock()
        self._stream = stream
        reason = reason_not_to_draw(stream)
        self.hint = reason or ""
        self._draws = reason is None
        self._is_held = False
        self._screen: Screen | None = None
        self._above: list[_Above] = []
        self._progress: RolloutProgress | None = None
        self._count, self._away = "", ""
        self._said_at = 0.0
        self._folder: Path | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._waker: socket.socket | None = None
        # Who tells how it goes, up to which of Consul's indexes, and who waits for which.
        self._feeder: socket.socket | None = None
        self._index = 0
        self._waiting: dict[socket.socket, int] = {}

    def open(self, folder: str) -> None:
        """Listen, in a folder that is this run's own."""
        self._folder = Path(folder)
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        ear.bind(str(self._folder / SOCKET))
        ear.listen()
        self._waker, woken = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, args=(ear, woken), daemon=True)
        self._thread.start()
        announce(folder)

    def close(self) -> None:
        """Show no more; what was drawn is taken away."""
        self._over.set()
        if self._waker is not None:
            with contextlib.suppress(OSError):
                self._waker.send(b"!")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._end_drawing()

    def draw_nothing(self) -> None:
        """Tell all in lines."""
        self._draws = False

    def hold(self) -> None:
        """Draw nothing until it may go on; what was drawn is taken away."""
        with self._lock:
            self._is_held = True
            self._end_drawing()

    def go_on(self) -> None:
        """Draw again what there is."""
        with self._lock:
            self._is_held = False

    def say(self, line: str, color: str | None = None) -> None:
        """Print a line, or several at once, as Ansible prints."""
        self._display.display(line, color=color)

    def _listen(self, ear: socket.socket, woken: socket.socket) -> None:
        """Take in what comes, and draw again when nothing does."""
        senders: dict[socket.socket, bytes] = {}
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ear, selectors.EVENT_READ)
                selector.register(woken, selectors.EVENT_READ)
                while not self._over.is_set():
                    found = selector.select(_TICK)
                    for one in [key.fileobj for key, _events in found]:
                        if one is ear:
                            line, _address = ear.accept()
                            selector.register(line, selectors.EVENT_READ)
                            senders[line] = b""
                        elif isinstance(one, socket.socket) and one in senders and not self._hear(one, senders):
                            selector.unregister(one)
                            one.close()
                            del senders[one]
                            self._waiting.pop(one, None)
                            if one is self._feeder:
                                self._tell_no_more()
                    if not found:
                        self._act(self._tick)
        except Exception as error:
            self._give_up(error)
        finally:
            # However this ends, whoever tells is to know that no one listens any more.
            for one in (ear, woken, *senders):
                one.close()
            if not self._over.is_set():
                self._tell_no_more()

    def _hear(self, line: socket.socket, senders: dict[socket.socket, bytes]) -> bool:
        """Take in what a teller says; return whether it may have more to say."""
        try:
            updates = line.recv(1 << 20)
        except OSError:
            return False
        *messages, senders[line] = (senders[line] + updates).split(b"\n")
        for text in messages:
            message = json.loads(text)
            if "until" in message:
                self._waiting[line] = message["until"]
                continue
            self._feeder = line
            self._act(lambda found=message: self._take(found))
            self._index = max(self._index, message.get("index", 0))
            _answer(line)
        for one in [one for one, index in self._waiting.items() if index <= self._index]:
            del self._waiting[one]
            _answer(one)
        return bool(updates)

    def _act(self, work: Any) -> None:
        """Do something under the lock; where it can't be done, go on in lines."""
        try:
            with self._lock:
                work()
        except Exception as error:
            if self._draws:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._draws = False
        with contextlib.suppress(Exception):
            self._end_drawing()
        with contextlib.suppress(Exception), self._lock:
            self._display.warning(f"Nothing can be drawn on this terminal, so it is told in lines: {error!r}.")

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("end"):
            self._end_drawing()
            self._progress = None
            self._say_ending(message)
            return
        if message.get("lines"):
            self.say("\n".join(map(with_time, message["lines"])))
            self._said_at = time.monotonic()
        self._away = message.get("away", "")
        if "progress" in message:
            self._progress = RolloutProgress.from_plain(message["progress"])
            self._count = message["count"]
            if self._folder is not None:
                (self._folder / FED).write_text("")
        if self._progress is None:
            return
        if self._draws:
            self._draw()
        elif message.get("lines"):
            self._say_count()

    def _say_ending(self, message: dict[str, Any]) -> None:
        if message.get("why"):
            self._display.warning(message["why"])
        elif "progress" in message:
            self.say(with_time(ending(RolloutProgress.from_plain(message["progress"]))))
            if self._folder is not None:
                (self._folder / FED).write_text(OVER)

    def _tell_no_more(self) -> None:
        """Whoever told it is gone, and the lines of others are shown again."""
        self._feeder = None
        for one in self._waiting:
            _answer(one)
        self._waiting = {}
        with contextlib.suppress(FileNotFoundError):
            # Who tells it next removes it too.
            if self._folder is not None and (self._folder / FED).read_text() != OVER:
                (self._folder / FED).unlink()
        is_cut_off = self._progress is not None
        self._progress = None
        self._act(self._end_drawing)
        if is_cut_off:
            self._act(
                lambda: self._display.warning("Who follows the rollout for the live view is gone; the rollout goes on.")
            )

    def _tick(self) -> None:
        if self._progress is None:
            return
        if self._draws:
            self._draw()
        elif time.monotonic() - self._said_at >= _SHOW_EVERY:
            self._say_count()

    def _say_count(self) -> None:
        found = self._progress
        left = (
            ""
            if found is None or found.left is None
            else f"; {about_minutes(max(0.0, found.left - (time.time() - found.at)))} left"
        )
        self.say(with_time(f"{self._count}{left}" + ("; Consul can't be reached" if self._away else "")))
        self._said_at = time.monotonic()

    def _draw(self) -> None:
        if self._progress is None:
            raise AssertionError("there is something to draw once something was told")
        if self._is_held:
            return
        if self._screen is None:
            self._stream.flush()
            self._screen = Screen(self._stream)
            self._above = [_Above(self, self._screen, name) for name in ("stdout", "stderr")]
        self._screen.draw(self._progress, time.time(), self._away)

    def _end_drawing(self) -> None:
        with self._lock:
            screen, self._screen = self._screen, None
            if screen is None:
                return
            with contextlib.ExitStack() as stack:
                # Each, whatever breaks in another.
                stack.callback(screen.stop)
                for one in reversed(self._above):
                    stack.callback(one.leave)
                self._above = []


def _answer(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.send(b".")


class _Above:
    """Takes the place of an output while there is a drawing: lines stand above it."""

    def __init__(self, view: RunView, screen: Screen, name: str) -> None:
        self._view, self._screen, self._name = view, screen, name
        self._instead_of: Any = getattr(sys, name)
        self._process = os.getpid()
        self._part = ""
        # Elsewhere it goes where it went.
        if self._instead_of.isatty():
            setattr(sys, name, self)

    def leave(self) -> None:
        """Give the place back."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._instead_of)
        part, self._part = self._part, ""
        if part:
            self._screen.say(part)

    def write(self, text: str) -> int:
        """Print the lines that are whole."""
        if os.getpid() != self._process:
            # A worker has no part in the drawing.
            return int(self._instead_of.write(text))
        with self._view._lock:
            *lines, self._part = (self._part + text).split("\n")
            try:
                if lines:
                    self._screen.say(*lines)
            except Exception as error:
                # Ansible itself prints here, and is not to fail for it.
                self._view._give_up(error)
                self._instead_of.write(text)
        return len(text)

    def flush(self) -> None:
        """Do what it would do."""
        self._instead_of.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instead_of, name)
