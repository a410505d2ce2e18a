# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view of a run of ansible-playbook.

The daemon of the run follows the rollout in Consul and sends each change to the view. Ansible forks its workers while the view's
thread runs. So the thread uses the terminal only while it holds Ansible's display lock, which Ansible holds while it forks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from multiprocessing.connection import Connection, wait
from typing import Any, TextIO

from ...module_utils._common import runtime
from ...module_utils._observe.progress import RolloutProgress
from .screen import CommandFor, Screen, reason_not_to_draw
from .view_messages import ViewEnd, ViewUpdate
from .wording import about_minutes, ending, with_time

# Seconds between two drawings, which show durations.
_TICK = 1.0
# Without a drawing, the running count is printed after so many seconds without a line.
_SHOW_EVERY = 30.0


class RunView:
    """Shows updates of the rollout: on a terminal as a drawing below all other output, else as lines.

    :param display: Ansible's display.
    :param command: returns the command of another playbook for the same fleet; None to show no commands.
    """

    def __init__(self, display: Any, stream: TextIO, command: CommandFor | None = None) -> None:
        """Keep the arguments."""
        self._display = display
        self._command = command
        # Ansible's own lock where it has one, which Display does not declare.
        self._lock = getattr(display, "_lock", None) or runtime.rlock()
        self._stream = stream
        reason = reason_not_to_draw(stream)
        self.hint = reason or ""
        self._draws = reason is None
        self._is_held = False
        self._screen: Screen | None = None
        self._outputs: list[_OutputAbove] = []
        self._progress: RolloutProgress | None = None
        self._count, self._away = "", ""
        self._printed_at = 0.0
        self._over = runtime.event()
        self._thread: runtime.Thread | None = None
        self._waker: socket.socket | None = None

    def open(self, daemon: Connection) -> None:
        """Show the updates that arrive over a connection to the daemon of this run."""
        self._waker, woken = socket.socketpair()
        self._thread = runtime.start_thread(self._listen, daemon, woken)

    def close(self) -> None:
        """Stop showing updates, and remove the drawing."""
        self._over.set()
        if self._waker is not None:
            with contextlib.suppress(OSError):
                self._waker.send(b"!")
        if self._thread is not None and self._thread is not runtime.current_thread():
            self._thread.join(5)
        self._end_drawing()

    def draw_nothing(self) -> None:
        """Show everything as lines."""
        self._draws = False

    def hold(self) -> None:
        """Remove the drawing until :meth:`go_on`."""
        with self._lock:
            self._is_held = True
            self._end_drawing()

    def go_on(self) -> None:
        """Draw again."""
        with self._lock:
            self._is_held = False

    def say(self, line: str, color: str | None = None) -> None:
        """Print one or several lines as Ansible does."""
        self._display.display(line, color=color)

    def _listen(self, daemon: Connection, woken: socket.socket) -> None:
        """Show each update when it arrives, and redraw every second without one, for the durations."""
        try:
            while not self._over.is_set():
                if daemon not in wait([daemon, woken], _TICK):
                    self._act(self._tick)
                    continue
                update = daemon.recv()
                self._act(lambda update=update: self._take(update))
                daemon.send(True)
        except (OSError, EOFError):
            self._end_without_daemon()
        except Exception as error:
            self._give_up(error)
        finally:
            # The closed connection shows the daemon that the view has ended.
            daemon.close()
            woken.close()

    def _act(self, work: Any) -> None:
        """Call a function under the lock. If drawing fails, continue with lines."""
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
            self._printed_at = runtime.monotonic()
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
        elif runtime.monotonic() - self._printed_at >= _SHOW_EVERY:
            self._say_count()

    def _say_count(self) -> None:
        progress = self._progress
        left = (
            ""
            if progress is None or progress.left is None
            else f"; {about_minutes(max(0.0, progress.left - (runtime.now() - progress.at)))} left"
        )
        self.say(with_time(f"{self._count}{left}" + ("; Consul can't be reached" if self._away else "")))
        self._printed_at = runtime.monotonic()

    def _draw(self) -> None:
        if self._progress is None:
            raise AssertionError("the view draws only after an update")
        if self._is_held:
            return
        if self._screen is None:
            self._stream.flush()
            self._screen = Screen(self._stream, self._command)
            self._outputs = [_OutputAbove(self, self._screen, name) for name in ("stdout", "stderr")]
        self._screen.draw(self._progress, runtime.now(), self._away)

    def _end_drawing(self) -> None:
        with self._lock:
            screen, self._screen = self._screen, None
            if screen is None:
                return
            with contextlib.ExitStack() as stack:
                # Each callback runs even if another one fails.
                stack.callback(screen.stop)
                for output in reversed(self._outputs):
                    stack.callback(output.leave)
                self._outputs = []


class _OutputAbove:
    """Replaces an output while there is a drawing, and prints its lines above the drawing."""

    def __init__(self, view: RunView, screen: Screen, name: str) -> None:
        self._view, self._screen, self._name = view, screen, name
        self._original: Any = getattr(sys, name)
        self._process = os.getpid()
        self._part = ""
        # An output that is not a terminal is not replaced.
        if self._original.isatty():
            setattr(sys, name, self)

    def leave(self) -> None:
        """Restore the output."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._original)
        part, self._part = self._part, ""
        if part:
            self._screen.say(part)

    def write(self, text: str) -> int:
        """Print the complete lines of a text."""
        if os.getpid() != self._process:
            # A worker does not print above the drawing.
            return int(self._original.write(text))
        with self._view._lock:
            *lines, self._part = (self._part + text).split("\n")
            try:
                if lines:
                    self._screen.say(*lines)
            except Exception as error:
                # Ansible prints here, and must not fail because of the view.
                self._view._give_up(error)
                self._original.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the replaced output."""
        self._original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
