# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon of a run: how it starts, what it answers, and that it leaves no files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.server import RunDaemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client import address
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask, connect
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.messages import EndRun, ErrorAnswer
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import (
    AttachView,
    FollowProgress,
    IsShown,
    WaitForEnd,
    WaitUntilShown,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    Admit,
    GetRun,
    GetValidation,
    KeepRun,
    ReportValidation,
    StartPush,
    StopPush,
    Validation,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.play_hosts import report_lost_host
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import PreparedRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import PushRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import CONTROL, DATA, FIRST, RunScope
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import Routes

NOWHERE = Settings(port=1, timeout=0.1)


@pytest.fixture
def announced() -> Iterator[Path]:
    """A run with its callback, before its daemon has started."""
    address.announce(watched=True)
    folder = address.run_folder()
    assert folder is not None
    yield folder
    if address.is_started():
        ask(EndRun())
    address.forget()


def test_a_daemon_starts_once_answers_and_leaves_no_files(announced: Path) -> None:
    assert not announced.exists()
    assert ensure_daemon() == ensure_daemon() == announced
    # The daemon creates its log before it answers.
    assert ask(StopPush()) is None
    assert sorted(one.name for one in announced.iterdir()) == ["log", "socket"]
    assert announced.stat().st_mode & 0o777 == 0o700
    assert ask(EndRun()) == ()
    assert not announced.exists()


@pytest.mark.usefixtures("announced")
def test_a_failure_arrives_as_an_error() -> None:
    ensure_daemon()
    with pytest.raises(UpgradeError) as caught:
        ask(Admit("web1"))
    assert caught.value.code == "no_push"
    run = PushRun(NOWHERE, "2", "upgrade", {"web1": "web"}, {}, ("web1",))
    with pytest.raises(UpgradeError) as caught:
        ask(StartPush(run))
    assert caught.value.code == "unreachable"
    # If a host becomes unreachable before the push run begins, nothing is recorded.
    assert report_lost_host("web1", {"msg": "Task failed: no route"}) == (False, None)


@pytest.mark.usefixtures("announced")
def test_without_a_view_nothing_is_followed_or_waited_for() -> None:
    ensure_daemon()
    assert ask(FollowProgress(NOWHERE)) is False
    assert ask(IsShown()) is False
    assert ask(WaitUntilShown(7, 60)) is None
    assert ask(WaitForEnd()) is None


@pytest.mark.usefixtures("announced")
def test_a_view_is_attached_before_any_later_connection_is_answered() -> None:
    ensure_daemon()
    # It has started.
    assert ask(WaitForEnd()) is None
    with connect() as view, connect() as task:
        task.send(IsShown())
        assert not task.poll(0.5)
        view.send(AttachView())
        assert task.poll(60)
        assert task.recv() is False


def test_an_unexpected_error_is_a_failure_and_does_not_end_the_daemon(tmp_path: Path) -> None:
    found = RunDaemon(tmp_path).answer("no message")  # type: ignore[arg-type]  as from a client of another release
    assert isinstance(found, ErrorAnswer)
    assert found.code == "daemon_fault"
    assert re.search(
        r"failed at server\.py:\d+: KeyError\(<class 'str'>\)\. .* Run the same command again", found.message
    )
    assert found.details["traceback"].startswith("Traceback (most recent call last):\n")
    assert found.details["traceback"].endswith("KeyError: <class 'str'>\n")


@pytest.mark.usefixtures("announced")
def test_a_newly_prepared_run_has_no_validations_of_an_earlier_one() -> None:
    """A playbook may import two upgrades. A host that can't be reached in the second one reports nothing."""
    ensure_daemon()
    plays: dict[str, tuple[str, ...]] = {FIRST: (), CONTROL: (), DATA: ("web1",)}
    scope = RunScope(plays, (), ("web1",), plays)
    run = PreparedRun("2", "", {"web1": "web"}, {}, scope, Routes({}, {}, {}, {}, {}, ()), (), retry_failed=False)
    ask(KeepRun(run, is_new=True))
    ask(ReportValidation("web1", Validation("", goes_last=True)))
    # As it starts, and with its post-upgrade tasks.
    ask(KeepRun(replace(run, complete=True)))
    assert ask(GetValidation()) == {"web1": Validation("", goes_last=True)}
    ask(KeepRun(replace(run, version="3"), is_new=True))
    assert ask(GetRun()).version == "3"
    assert ask(GetValidation()) == {}


def test_without_a_callback_no_daemon_starts() -> None:
    address.forget()
    with pytest.raises(UpgradeError) as caught:
        ensure_daemon()
    assert caught.value.code == "no_watch"
    assert report_lost_host("web1", {}) == (False, None)
    address.announce()
    with pytest.raises(UpgradeError, match="only callbacks get the event"):
        address.require_watch()
    # The other callback adds itself to the same daemon.
    folder = address.run_folder()
    address.announce(watched=True)
    address.require_watch()
    assert address.run_folder() == folder
    address.forget()


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (None, ". Its results are stored"),
        (" \n", ". Its results are stored"),
        (
            "Traceback:\nOSError: no space\x1b left\n",
            ". The last line of its log: OSError: no space? left. Its results",
        ),
    ],
)
def test_if_no_daemon_answers_the_message_has_the_end_of_its_log(announced: Path, log: str | None, shown: str) -> None:
    announced.mkdir()
    (announced / "socket").touch()
    if log is not None:
        (announced / "log").write_text(log)
    with pytest.raises(UpgradeError) as caught:
        ask(IsShown())
    assert caught.value.code == "no_daemon"
    assert f"does not answer: Connection refused{shown}" in caught.value.message
    # The folder is removed when the run ends.
    assert str(announced) not in caught.value.message
    assert caught.value.details == ({"log": log} if log and log.strip() else {})
    shutil.rmtree(announced)


def test_the_daemon_ends_with_a_run_that_is_killed() -> None:
    code = (
        "import os, signal, sys\n"
        "from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon.start import ensure_daemon\n"
        "from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client import address\n"
        "address.announce(watched=True)\n"
        "print(ensure_daemon(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("convoy-")
    until = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < until, list(folder.iterdir())
        time.sleep(0.05)


def test_the_end_of_the_run_waits_for_a_task_that_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the daemon would exit while the notifier still sends what happened last."""
    daemon, sent, is_sending = RunDaemon(tmp_path / "run"), threading.Event(), threading.Event()

    class SlowNotifier:
        def finish(self) -> tuple[str, ...]:
            is_sending.set()
            assert sent.wait(20)
            return ("a warning",)

    monkeypatch.setattr(daemon, "_notifier", SlowNotifier())
    with ThreadPoolExecutor() as threads:
        by_task = threads.submit(daemon.end)
        assert is_sending.wait(20)
        with_run = threads.submit(daemon.end)
        time.sleep(0.2)
        assert not with_run.done()
        sent.set()
        assert (by_task.result(20), with_run.result(20)) == (("a warning",), ())
