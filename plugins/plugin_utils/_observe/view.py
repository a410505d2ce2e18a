# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view of a run of ansible-playbook.

Nothing here asks Consul: the daemon of the run follows the rollout and sends each change. Ansible forks its workers while the
thread here runs, so it uses the terminal only under Ansible's display lock, under which Ansible forks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection, wait
from typing import Any, TextIO

from ...module_utils._observe.progress import RolloutProgress
from .screen import Screen, reason_not_to_draw
from .view_messages import ViewEnd, ViewUpdate
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
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._waker: socket.socket | None = None

    def open(self, line: Connection) -> None:
        """Show what arrives over a connection to the daemon of this run."""
        self._waker, woken = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, args=(line, woken), daemon=True)
        self._thread.start()

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

    def _listen(self, line: Connection, woken: socket.socket) -> None:
        """Show each update when it arrives, and draw again every second without one, as times go on."""
        try:
            while not self._over.is_set():
                if line not in wait([line, woken], _TICK):
                    self._act(self._tick)
                    continue
                update = line.recv()
                self._act(lambda found=update: self._take(found))
                line.send(True)
        except (OSError, EOFError):
            self._end_without_daemon()
        except Exception as error:
            self._give_up(error)
        finally:
            # However this ends, the daemon learns that no one shows anything any more.
            line.close()
            woken.close()

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
            self._display.warning(
                f"The live view can't draw on this terminal, so the rollout is shown as lines: {error!r}."
            )

    def _take(self, update: ViewUpdate | ViewEnd) -> None:
        if isinstance(update, ViewEnd):
            self._end_drawing()
            self._progress = None
            if update.why:
                self._display.warning(update.why)
            elif update.progress is not None:
                self.say(with_time(ending(update.progress)))
            return
        if update.lines:
            self.say("\n".join(map(with_time, update.lines)))
            self._said_at = time.monotonic()
        self._away = update.away
        if update.progress is not None:
            self._progress = update.progress
            self._count = update.count
        if self._progress is None:
            return
        if self._draws:
            self._draw()
        elif update.lines:
            self._say_count()

    def _end_without_daemon(self) -> None:
        """End the drawing; tasks show their lines again."""
        is_cut_off = self._progress is not None and not self._over.is_set()
        self._progress = None
        self._act(self._end_drawing)
        if is_cut_off:
            self._act(
                lambda: self._display.warning(
                    "The daemon of this run has ended, and with it the live view. The rollout continues."
                )
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
