# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a node, with real processes as runs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import processes
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import ssh_connection_pid, start_ticks
from ansible_collections.convoy.upgrade.plugins.module_utils._node.lock import (
    LockHolder,
    LockRequest,
    acquire_lock,
    release_lock,
)
from missing import give_away

Process = subprocess.Popen[bytes]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


@pytest.fixture
def run() -> Iterator[Process]:
    """A process in the place of a run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def lock_request(name: str, process: Process | None, lease: float = 0) -> LockRequest:
    return LockRequest(run=name, who=f"the run {name}", process=process.pid if process else None, lease=lease)


def is_free(path: str) -> bool:
    with Path(path).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def gets_free(path: str, seconds: float = 1) -> bool:
    until = time.monotonic() + seconds
    while not is_free(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_lock_lasts_until_it_is_released_and_leaves_no_process(path: str, run: Process) -> None:
    before = int(time.time())
    acquired, holder = acquire_lock(path, lock_request("a", run))
    assert acquired
    assert holder is not None
    assert (holder.who, holder.run) == ("the run a", "a")
    assert before <= holder.since <= time.time()
    assert start_ticks(holder.pid) == holder.started
    assert not is_free(path)
    assert oct(Path(path).stat().st_mode & 0o777) == "0o600"
    assert release_lock(path, "a") is True
    assert is_free(path)
    until = time.monotonic() + 1
    while start_ticks(holder.pid) is not None:
        assert time.monotonic() < until
    with pytest.raises(ChildProcessError):
        os.waitpid(-1 if run.poll() is not None else holder.pid, os.WNOHANG)


def test_another_run_learns_the_holder_and_cannot_release_the_lock(path: str, run: Process) -> None:
    _acquired, first = acquire_lock(path, lock_request("a", run))
    acquired, holder = acquire_lock(path, lock_request("b", run))
    assert not acquired
    assert holder == first
    assert release_lock(path, "b") is False
    assert not is_free(path)
    release_lock(path, "a")
    assert acquire_lock(path, lock_request("b", run))[0]
    release_lock(path, "b")


def test_the_same_run_has_it_already(path: str, run: Process) -> None:
    first = acquire_lock(path, lock_request("a", run))
    assert acquire_lock(path, lock_request("a", run)) == first
    release_lock(path, "a")
    assert release_lock(path, "a") is False


def test_the_lock_ends_with_the_run_however_that_ends(path: str, run: Process) -> None:
    acquire_lock(path, lock_request("a", run))
    run.kill()
    run.wait()
    assert gets_free(path)


def test_the_lock_ends_with_the_run_without_pidfd_too(path: str, run: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.setattr(processes, "_SECONDS_BETWEEN_CHECKS", 0.05)
    acquire_lock(path, lock_request("a", run))
    assert not is_free(path)
    run.kill()
    run.wait()
    assert gets_free(path)


def test_a_lease_begins_where_the_process_ends(path: str, run: Process) -> None:
    acquire_lock(path, lock_request("a", run, lease=0.5))
    run.kill()
    run.wait()
    assert not gets_free(path, seconds=0.2)
    assert gets_free(path)


def test_without_a_process_to_watch_the_lease_begins_at_once(path: str) -> None:
    acquire_lock(path, lock_request("a", None, lease=0.3))
    assert not is_free(path)
    assert gets_free(path)


def test_a_process_that_is_gone_already_holds_nothing(path: str, run: Process) -> None:
    run.kill()
    run.wait()
    acquire_lock(path, lock_request("a", run))
    assert gets_free(path)


def test_check_mode_takes_nothing(path: str, run: Process) -> None:
    assert acquire_lock(path, lock_request("a", run), dry=True) == (True, None)
    assert not Path(path).exists()
    _acquired, holder = acquire_lock(path, lock_request("a", run))
    assert acquire_lock(path, lock_request("b", run), dry=True) == (False, holder)
    assert acquire_lock(path, lock_request("a", run), dry=True) == (True, holder)
    release_lock(path, "a")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"who": "a"}', "\xff"])
def test_an_unreadable_file_counts_as_an_empty_one(text: str, path: str, run: Process) -> None:
    Path(path).write_text(text, encoding="latin-1")
    with Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert acquire_lock(path, lock_request("a", run)) == (False, None)
        assert release_lock(path, "a") is False
    assert acquire_lock(path, lock_request("a", run))[0]
    assert json.loads(Path(path).read_text())["run"] == "a"
    release_lock(path, "a")


def test_a_dead_holder_does_not_count(path: str, run: Process) -> None:
    stale: dict[str, Any] = {"who": "a", "since": 1, "pid": run.pid, "started": 1, "run": "a"}
    Path(path).write_text(json.dumps(stale))
    assert not LockHolder(**stale).lives
    with Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert acquire_lock(path, lock_request("a", run)) == (False, None)
        assert release_lock(path, "a") is False
    assert run.poll() is None


def test_a_link_and_a_missing_folder_are_refused(tmp_path: Path, run: Process) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "other").symlink_to(tmp_path)
    for name in ("link", "other/lock", "no/where/lock"):
        with pytest.raises(UpgradeError, match=rf"path: {tmp_path / name} can't be opened: .*not a link\.") as caught:
            acquire_lock(str(tmp_path / name), lock_request("a", run))
        assert caught.value.code == "bad_lock_file"
    assert not (tmp_path / "target").exists()


def test_its_directory_is_made_and_only_its_owner_can_write_it(tmp_path: Path, run: Process) -> None:
    path = tmp_path / "convoy/lock"
    assert acquire_lock(str(path), lock_request("a", run), dry=True) == (True, None)
    assert not path.parent.exists()
    assert acquire_lock(str(path), lock_request("a", run))[0]
    assert path.parent.stat().st_mode & 0o777 == 0o755
    release_lock(str(path), "a")


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775, 0o757])
def test_a_directory_that_others_can_write_is_refused(mode: int, tmp_path: Path, run: Process) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UpgradeError, match=rf"its directory {folder} \(owner \d+, mode {mode:04o}\)") as caught:
        acquire_lock(str(folder / "lock"), lock_request("a", run))
    assert caught.value.code == "bad_lock_file"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "lock"])
def test_what_belongs_to_another_user_is_refused(name: str, tmp_path: Path, run: Process) -> None:
    (tmp_path / "lock").touch(0o600)
    give_away(tmp_path / name)
    with pytest.raises(UpgradeError, match="owner 65534"):
        acquire_lock(str(tmp_path / "lock"), lock_request("a", run))


def test_a_file_that_others_can_write_and_a_pipe_are_refused(tmp_path: Path, run: Process) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "lock").chmod(0o666)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (("lock", "mode 0666"), ("pipe", "is not a regular file")):
        with pytest.raises(UpgradeError, match=why):
            acquire_lock(str(tmp_path / name), lock_request("a", run))


def test_the_holder_in_the_file_is_sanitized_and_checked(path: str, run: Process) -> None:
    content: dict[str, Any] = {
        "who": "\x1b[2Jann\n",
        "since": 1,
        "pid": run.pid,
        "started": start_ticks(run.pid),
        "run": "a",
    }
    with Path(path).open("w") as file:
        Path(path).chmod(0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(path).write_text(json.dumps(content))
        _acquired, holder = acquire_lock(path, lock_request("b", run))
        assert holder is not None
        assert holder.who == "?[2Jann "
        for wrong in ({"pid": "1/../self"}, {"pid": -1}, {"pid": True}, {"who": ["a"]}, {"since": None}, {"run": 1}):
            Path(path).write_text(json.dumps({**content, **wrong}))
            assert acquire_lock(path, lock_request("b", run)) == (False, None)
            assert release_lock(path, "a") is False
    assert run.poll() is None


def test_a_lock_that_is_not_there_is_none_to_release(path: str) -> None:
    assert release_lock(path, "a") is False
    assert not Path(path).exists()


def test_a_process_that_was_not_started_over_ssh_has_no_connection() -> None:
    assert ssh_connection_pid() is None


def test_the_connection_is_the_nearest_sshd_above(tmp_path: Path) -> None:
    sshd = tmp_path / "sshd"
    sshd.symlink_to("/bin/sh")
    code = (
        "import os; from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import ssh_connection_pid; "
        "print(ssh_connection_pid())"
    )
    script = f"echo $$; sh -c '\"{sys.executable}\" -c \"$0\"; :' '{code}'; :"
    done = subprocess.run([sshd, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    mine, found = done.stdout.split()
    assert mine == found
