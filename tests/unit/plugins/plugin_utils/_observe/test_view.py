# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The view and the line to it: what it is told is shown, and whatever breaks, those that tell it are not held up."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ansible import context
from ansible.executor.stats import AggregateStats
from ansible.utils.display import Display
from ansible_collections.convoy.upgrade.plugins.callback.rollout import CallbackModule
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import RoleProgress, RolloutProgress
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view import RunView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_socket import (
    SIGN,
    ViewSender,
    folder_of,
    is_fed,
    is_unfed,
    wait_for_view,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.feeder import feed, settings_from

FOUND = RolloutProgress(
    "2", "1", "running", (RoleProgress("web", 2, 1, 1, 0, 0),), (), 0, (), 300.0, 1, 0.0, False, False
)
ME = os.getpid()


def told(*lines: str, index: int = 7) -> dict[str, Any]:
    progress = {**asdict(FOUND), "at": time.time()}
    return {
        "lines": list(lines),
        "count": "-- 2: web 1/2; 1 upgrading, 0 waiting",
        "progress": progress,
        "index": index,
    }


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
def sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the environment back as it was, with a terminal that can be drawn on."""
    monkeypatch.setenv(SIGN, "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def view(sign: None, tmp_path: Path) -> Iterator[RunView]:  # noqa: ARG001  it comes first
    made = RunView(Display(), io.StringIO())
    made.open(str(tmp_path))
    yield made
    made.close()


def gone(condition: Any) -> None:
    until = time.monotonic() + 10
    while condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_lines_come_with_the_count_and_what_is_left(
    view: RunView, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = ViewSender(tmp_path)
    assert not is_fed(ME)
    assert is_unfed(ME)
    assert sender.tell(told("web1 upgrading -> upgraded"))
    assert is_fed(ME)
    assert not is_unfed(ME)
    assert not is_fed(ME + 1)
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "web1 upgrading -> upgraded",
        "-- 2: web 1/2; 1 upgrading, 0 waiting; about 5 min left",
    ]
    assert view.hint == ""


@pytest.mark.usefixtures("view")
def test_when_it_was_told_to_the_end_nobody_tells_it_again_by_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = ViewSender(tmp_path)
    sender.tell(told())
    sender.tell({"end": True, "progress": {**asdict(FOUND), "state": "complete"}})
    sender.close()
    # Another one that comes may tell it, as of the tasks after the upgrade.
    another = ViewSender(tmp_path)
    assert another.tell(told(index=9))
    assert is_fed(ME)
    another.close()
    assert "The rollout to 2 is complete." in capsys.readouterr().out


@pytest.mark.usefixtures("view")
def test_who_comes_after_its_end_and_fails_leaves_the_lines_to_others(tmp_path: Path) -> None:
    sender = ViewSender(tmp_path)
    sender.tell(told())
    sender.tell({"end": True, "progress": {**asdict(FOUND), "state": "complete"}})
    sender.close()
    assert is_fed(ME)
    assert not feed(ME, lambda: settings_from({"port": "none"}), None, "2")
    assert not is_fed(ME)


@pytest.mark.usefixtures("view")
def test_when_who_tells_it_is_gone_others_show_their_lines_again(tmp_path: Path) -> None:
    sender = ViewSender(tmp_path)
    sender.tell(told())
    sender.close()
    gone(lambda: is_fed(ME))
    assert is_unfed(ME)


@pytest.mark.usefixtures("view")
def test_one_can_wait_until_something_is_shown(tmp_path: Path) -> None:
    sender = ViewSender(tmp_path)
    sender.tell(told(index=7))
    waiting = threading.Thread(target=wait_for_view, args=(ME, 8, 20))
    began = time.monotonic()
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive()
    sender.tell(told(index=8))
    waiting.join(10)
    assert time.monotonic() - began < 10
    # And not for ever.
    wait_for_view(ME, 99, 0.1)


@pytest.mark.usefixtures("view")
def test_what_makes_no_sense_ends_the_view_and_holds_nobody_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = ViewSender(tmp_path), ViewSender(tmp_path)
    good.tell(told())
    bad.line.sendall(b"no JSON\n")
    gone(lambda: good.tell(told()))
    gone(lambda: is_fed(ME))
    with pytest.raises(OSError, match="refused"):
        ViewSender(tmp_path)
    assert "█" not in capsys.readouterr().out


@pytest.mark.usefixtures("sign")
def test_a_drawing_gives_the_outputs_back(tmp_path: Path) -> None:
    screen, before = Screen(), sys.stdout
    view = RunView(Display(), screen)
    view.open(str(tmp_path))
    sender = ViewSender(tmp_path)
    sender.tell(told())
    assert "█" in screen.getvalue()
    view.close()
    assert not sender.tell(told())
    assert sys.stdout is before


@pytest.mark.usefixtures("sign")
def test_many_lines_cost_one_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    view = RunView(Display(), screen)
    view.open(str(tmp_path))
    sender = ViewSender(tmp_path)
    sender.tell(told())
    shown = len(screen.getvalue())
    view.say("\n".join(["first", "", *(f"line {number}" for number in range(100)), ""]))
    text = screen.getvalue()[shown:]
    assert text.count("1 of 2 hosts upgraded") == 1
    assert text.index("first\n\nline 0\n") < text.index("line 99\n") < text.index("1 of 2 hosts upgraded")
    view.close()


@pytest.mark.usefixtures("sign")
def test_what_breaks_in_one_output_gives_back_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, out, err = Screen(), Screen(), Screen()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    view = RunView(Display(), screen)
    view.open(str(tmp_path))
    sender = ViewSender(tmp_path)
    sender.tell(told())
    # No one draws meanwhile.
    with view._lock:
        assert sys.stderr is not err
        sys.stdout.write("no end of line")
        screen.breaks = True
        with pytest.raises(OSError, match="the line was cut"):
            view.hold()
        assert (sys.stdout, sys.stderr) == (out, err)
    view.close()


@pytest.mark.usefixtures("sign")
def test_nothing_is_drawn_over_a_question(tmp_path: Path) -> None:
    screen = Screen()
    view = RunView(Display(), screen)
    view.open(str(tmp_path))
    sender = ViewSender(tmp_path)
    sender.tell(told())
    view.hold()
    shown = len(screen.getvalue())
    sender.tell(told())
    assert len(screen.getvalue()) == shown
    view.go_on()
    sender.tell(told())
    assert "█" in screen.getvalue()[shown:]
    view.close()


@pytest.mark.usefixtures("sign")
def test_each_playbook_has_a_view_and_with_step_it_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    callback = CallbackModule()
    stats = AggregateStats()
    stats.increment("ok", "web1")
    for step in (False, False, True):
        monkeypatch.setattr(context, "CLIARGS", {"step": step})
        before = len(screen.getvalue())
        callback.v2_playbook_on_start(None)
        folder = folder_of(ME)
        assert folder is not None
        assert ViewSender(folder).tell(told("web1 upgrading -> upgraded"))
        callback.v2_playbook_on_stats(stats)
        shown = screen.getvalue()[before:]
        assert "web1 upgrading -> upgraded" in shown
        assert ("█" in shown) is not step


@pytest.mark.usefixtures("sign")
def test_a_terminal_that_breaks_is_left_alone_and_lines_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    view = RunView(Display(), screen)
    view.open(str(tmp_path))
    sender = ViewSender(tmp_path)
    assert sender.tell(told())
    screen.breaks = True
    assert sender.tell(told())
    assert sender.tell(told("web1 upgrading -> upgraded"))
    shown = capsys.readouterr()
    assert "the line was cut" in shown.err
    assert "web1 upgrading -> upgraded" in shown.out
    view.close()


def test_the_view_of_another_run_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SIGN, f"{ME + 1}:{tmp_path}")
    assert folder_of(ME) is None
    assert not is_unfed(ME)
    monkeypatch.delenv(SIGN)
    assert folder_of(ME) is None
    wait_for_view(ME, 1, 60)
