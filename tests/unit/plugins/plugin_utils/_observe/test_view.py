# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live view shows what the daemon sends. If it fails, the run continues."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

import pytest
from ansible import context
from ansible.executor.stats import AggregateStats
from ansible.utils.display import Display
from ansible_collections.convoy.upgrade.plugins.callback.rollout import CallbackModule
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import RoleProgress, RolloutProgress
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client import address
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.messages import EndRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view import RunView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import (
    IsShown,
    ViewEnd,
    ViewUpdate,
)

FOUND = RolloutProgress(
    "2", "1", "running", (RoleProgress("web", 2, 1, 1, 0, 0),), (), 0, (), 300.0, 1, 0.0, False, False
)
Sender = Callable[[Any], bool]
# If a connection were garbage-collected, the view would take it for the end of the daemon.
KEPT: list[Any] = []


def update(*lines: str, index: int = 7) -> ViewUpdate:
    return ViewUpdate(lines, "-- 2: web 1/2; 1 upgrading, 0 waiting", replace(FOUND, at=time.time()), index)


def sender_to(view: RunView) -> Sender:
    """Open a view, and return what sends it an update and returns whether it was shown."""
    daemons, views = Pipe()
    KEPT.append(daemons)
    view.open(views)

    def send(one: Any) -> bool:
        try:
            daemons.send(one)
            return bool(daemons.recv())
        except (OSError, EOFError):
            return False

    return send


class Screen(io.StringIO):
    """A terminal that keeps what is written, until it breaks."""

    encoding = "utf-8"
    breaks = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.breaks:
            raise OSError("the line was cut")
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can be drawn on."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def view(terminal: None) -> Iterator[RunView]:  # noqa: ARG001  it comes first
    made = RunView(Display(), io.StringIO())
    yield made
    made.close()
    KEPT.clear()


def test_lines_are_followed_by_the_count_and_the_remaining_time(
    view: RunView, capsys: pytest.CaptureFixture[str]
) -> None:
    send = sender_to(view)
    assert send(update("web1 upgraded"))
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "web1 upgraded",
        "-- 2: web 1/2; 1 upgrading, 0 waiting; about 5 min left",
    ]
    assert view.hint == ""


def test_the_end_of_the_rollout_is_a_line(view: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    send = sender_to(view)
    assert send(update())
    assert send(ViewEnd(replace(FOUND, state="complete")))
    # Post-upgrade tasks are shown again.
    assert send(update("web1 post_upgrade"))
    assert send(ViewEnd(why="The live view failed, but the rollout continues: no token"))
    shown = capsys.readouterr()
    assert "The rollout to 2 is complete." in shown.out
    assert "web1 post_upgrade" in shown.out
    assert "no token" in shown.err


def test_a_daemon_that_ends_early_is_a_warning(view: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    daemons, views = Pipe()
    view.open(views)
    daemons.send(update())
    assert daemons.recv()
    daemons.close()
    assert view._thread is not None
    view._thread.join(10)
    assert "The daemon of this run has ended, and with it the live view. The rollout continues." in " ".join(
        capsys.readouterr().err.split()
    )


def test_an_update_that_can_not_be_read_ends_the_view(view: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    daemons, views = Pipe()
    view.open(views)
    daemons.send(update())
    assert daemons.recv()
    daemons.send_bytes(b"no pickle")
    with pytest.raises(EOFError):
        daemons.recv()
    assert "The live view can't draw on this terminal" in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_the_end_of_a_drawing_restores_the_outputs() -> None:
    screen, before = Screen(), sys.stdout
    view = RunView(Display(), screen)
    send = sender_to(view)
    send(update())
    assert "█" in screen.getvalue()
    view.close()
    assert not send(update())
    assert sys.stdout is before


@pytest.mark.usefixtures("terminal")
def test_many_lines_cost_one_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    view = RunView(Display(), screen)
    send = sender_to(view)
    send(update())
    shown = len(screen.getvalue())
    view.say("\n".join(["first", "", *(f"line {number}" for number in range(100)), ""]))
    text = screen.getvalue()[shown:]
    assert text.count("1 of 2 hosts upgraded") == 1
    assert text.index("first\n\nline 0\n") < text.index("line 99\n") < text.index("1 of 2 hosts upgraded")
    view.close()


@pytest.mark.usefixtures("terminal")
def test_an_error_in_one_output_restores_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, out, err = Screen(), Screen(), Screen()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    view = RunView(Display(), screen)
    send = sender_to(view)
    send(update())
    # Nothing is drawn meanwhile.
    with view._lock:
        assert sys.stderr is not err
        sys.stdout.write("no end of line")
        screen.breaks = True
        with pytest.raises(OSError, match="the line was cut"):
            view.hold()
        assert (sys.stdout, sys.stderr) == (out, err)
    view.close()


@pytest.mark.usefixtures("terminal")
def test_nothing_is_drawn_over_a_question() -> None:
    screen = Screen()
    view = RunView(Display(), screen)
    send = sender_to(view)
    send(update())
    view.hold()
    shown = len(screen.getvalue())
    send(update())
    assert len(screen.getvalue()) == shown
    view.go_on()
    send(update())
    assert "█" in screen.getvalue()[shown:]
    view.close()


@pytest.mark.usefixtures("terminal")
def test_each_playbook_has_a_daemon_and_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    callback = CallbackModule()
    stats = AggregateStats()
    stats.increment("ok", "web1")
    folders = set()
    for step in (False, True):
        monkeypatch.setattr(context, "CLIARGS", {"step": step})
        callback.v2_playbook_on_start(None)
        folder = address.run_folder()
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        assert ask(IsShown()) is False
        callback.v2_playbook_on_stats(stats)
        assert ask(EndRun()) == ()
        assert not folder.exists()
        assert not address.is_started()
        address.forget()
        folders.add(folder)
    assert len(folders) == 2


@pytest.mark.usefixtures("terminal")
def test_with_step_the_view_prints_lines() -> None:
    screen = Screen()
    view = RunView(Display(), screen)
    view.draw_nothing()
    send = sender_to(view)
    assert send(update("web1 upgraded"))
    assert "█" not in screen.getvalue()
    view.close()


@pytest.mark.usefixtures("terminal")
def test_if_drawing_fails_the_view_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    view = RunView(Display(), screen)
    send = sender_to(view)
    assert send(update())
    screen.breaks = True
    assert send(update())
    assert send(update("web1 upgraded"))
    shown = capsys.readouterr()
    assert "the line was cut" in shown.err
    assert "web1 upgraded" in shown.out
    view.close()
