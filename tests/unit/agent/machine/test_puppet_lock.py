# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puppet's lock against its own runs: an operator's is respected, the agent's own is removed again and holds nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._node import puppet as collection
from convoy_node.machine import puppet

LOCK = "agent_disabled.lock"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of two kinds of packages, of which one is installed; the collection looks there too."""
    found = [str(tmp_path / "none/state"), str(tmp_path / "puppet/state")]
    Path(found[1]).mkdir(parents=True)
    monkeypatch.setattr(collection, "_LOCKS", tuple(f"{folder}/agent_catalog_run.lock" for folder in found))
    return found


def disable(folders: list[str], text: str) -> Path:
    path = Path(folders[1]) / LOCK
    path.write_text(text)
    return path


def names(folder: str) -> list[str]:
    return sorted(one.name for one in Path(folder).iterdir())


def test_the_folders_are_those_of_the_collection() -> None:
    assert tuple(f"{folder}/agent_catalog_run.lock" for folder in puppet.FOLDERS) == collection._LOCKS
    assert puppet.OWN == collection._KEPT_OUT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"disabled_message": "its disk"}), "its disk"),
        ("{}", "reason not specified"),
        ("", "reason not specified"),
        ("not JSON", "not JSON"),
        (json.dumps({"disabled_message": "a\nb"}), "a b"),
        # As puppet agent --disable writes it.
        ('{"disabled_message":"convoy.upgrade: its disk"}', "convoy.upgrade: its disk"),
        ("convoy.upgrade: by hand", "convoy.upgrade: by hand"),
    ],
)
def test_an_operator_s_lock_is_seen_and_never_touched(text: str, reason: str, folders: list[str]) -> None:
    path = disable(folders, text)
    assert puppet.disabled_by_operator(folders) == reason
    assert not puppet.keep_out("closed", folders)
    assert not puppet.let_in(folders)
    assert path.read_text() == text
    assert collection.disabled_for() is not None


def test_the_agent_s_own_lock_keeps_puppet_out_and_holds_no_one(folders: list[str]) -> None:
    assert not puppet.let_in(folders)
    assert puppet.keep_out("closed: a gate", folders)
    reason = (
        "convoy.upgrade: closed: a gate. This is no hold. To hold the host, use ansible-playbook convoy.upgrade.hold"
    )
    assert json.loads((Path(folders[1]) / LOCK).read_text()) == {"disabled_message": reason}
    # The second time changes nothing.
    assert not puppet.keep_out("closed: another gate", folders)
    assert puppet.disabled_by_operator(folders) is None
    assert collection.disabled_for() is None
    assert puppet.let_in(folders)
    assert not (Path(folders[1]) / LOCK).exists()


def test_an_agent_run_does_not_enable_puppet_that_an_operator_disabled_with_a_similar_reason(
    folders: list[str],
) -> None:
    path = disable(folders, '{"disabled_message":"convoy.upgrade: its disk"}')
    with collection._let_in():
        assert path.exists()


@pytest.mark.parametrize("reason", ["closed: Bär's gate", "closed: a\nb", "closed: " + "x" * 5000])
def test_the_agent_s_own_lock_is_recognized_whatever_its_reason_is(reason: str, folders: list[str]) -> None:
    assert puppet.keep_out(reason, folders)
    assert puppet.disabled_by_operator(folders) is None
    assert collection.disabled_for() is None
    assert puppet.let_in(folders)


def test_an_agent_run_lets_its_own_puppet_in_and_keeps_others_out_again(folders: list[str]) -> None:
    puppet.keep_out("closed", folders)
    path = Path(folders[1]) / LOCK
    before = path.read_bytes()
    with collection._let_in():
        assert not path.exists()
    assert path.read_bytes() == before
    # An operator who disables Puppet meanwhile wins.
    with collection._let_in():
        path.write_text("mine")
    assert path.read_text() == "mine"
    with collection._let_in():
        assert path.read_text() == "mine"


def test_a_lock_that_an_agent_run_has_put_aside_is_not_set_again_meanwhile(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puppet, "RUN_LOCK", str(tmp_path / "puppet.lock"))
    puppet.keep_out("closed", folders)
    path = Path(folders[1]) / LOCK
    with (tmp_path / "puppet.lock").open("w") as lock:
        with collection._let_in():
            # The agent is another process.
            monkeypatch.setattr(os, "getpid", lambda: 1)
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert not puppet.keep_out("closed", folders)
            assert not path.exists()
            # It had no lock to put aside, because the gate was open.
            fcntl.flock(lock, fcntl.LOCK_UN)
            (aside,) = path.parent.glob(f".{LOCK}.*")
            aside.rename(tmp_path / "aside")
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert puppet.keep_out("closed", folders)
            (tmp_path / "aside").rename(aside)
        assert path.exists()
    # Another process has the PID of a run that was killed, and nothing will put it back.
    path.rename(aside)
    assert puppet.keep_out("closed", folders)


def test_a_lock_that_does_not_fit_on_the_disk_is_no_hold(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.fdopen

    def on_full_disk(file: int, *more: Any, **named: Any) -> IO[Any]:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file)
        os.close(full)
        return real_open(file, *more, **named)

    monkeypatch.setattr(os, "fdopen", on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        puppet.keep_out("closed", folders)
    assert names(folders[1]) == []
    monkeypatch.undo()
    assert puppet.keep_out("closed", folders)
    assert names(folders[1]) == [LOCK]


def test_a_lock_has_its_name_only_when_it_is_complete(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk: list[bytes] = []
    real_sync, real_link = os.fsync, os.link

    def sync(file: int) -> None:
        assert not (Path(folders[1]) / LOCK).exists()
        real_sync(file)
        on_disk.append(Path(f"/proc/self/fd/{file}").read_bytes())

    def link(new: Path, path: Path) -> None:
        assert new.read_bytes() == on_disk[0]
        real_link(new, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    assert puppet.keep_out("closed", folders)
    assert [(Path(folders[1]) / LOCK).read_bytes()] == on_disk


def test_an_operator_who_disables_puppet_while_the_agent_writes_its_lock_wins(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(folders[1]) / LOCK
    monkeypatch.setattr(os, "fsync", lambda _file: path.write_text("mine"))
    assert not puppet.keep_out("closed", folders)
    assert path.read_text() == "mine"
    assert names(folders[1]) == [LOCK]


def test_what_a_killed_process_left_of_a_lock_does_no_harm(folders: list[str]) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for number in (ended.pid, os.getpid()):
        (Path(folders[1]) / f".{LOCK}.{number}").touch()
    # This process may be about to create or put back its own.
    other = Path(folders[1]) / f".{LOCK}.{os.getppid()}"
    other.touch()
    assert puppet.disabled_by_operator(folders) is None
    assert collection.disabled_for() is None
    assert puppet.keep_out("closed", folders)
    assert puppet.disabled_by_operator(folders) is None
    assert names(folders[1]) == [other.name, LOCK]


def test_an_agent_run_puts_the_same_lock_back_as_a_copy_needs_room_on_the_disk(folders: list[str]) -> None:
    puppet.keep_out("closed", folders)
    path = Path(folders[1]) / LOCK
    before = path.stat().st_ino
    (Path(folders[1]) / f".{LOCK}.{os.getpid()}").touch()
    with collection._let_in():
        assert [int(one.rpartition(".")[2]) for one in names(folders[1])] == [os.getpid()]
    assert path.stat().st_ino == before
    assert names(folders[1]) == [LOCK]


def test_a_lock_that_can_t_be_put_back_keeps_no_other_one_from_it(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(folders[0]).mkdir(parents=True)
    puppet.keep_out("closed", folders)
    real_link = os.link

    def link(aside: Path, path: Path) -> None:
        if path.parent == Path(folders[1]):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        real_link(aside, path)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Read-only"), collection._let_in():
        pass
    assert [names(one) for one in folders] == [[LOCK], []]


def test_a_first_run_is_kept_out_too(folders: list[str]) -> None:
    Path(folders[1]).rmdir()
    assert puppet.keep_out("closed", folders)
    assert (Path(folders[1]) / LOCK).exists()
    assert not Path(folders[0]).exists()


def test_a_lock_that_is_removed_is_noticed(folders: list[str]) -> None:
    assert puppet.is_enabled(folders)
    puppet.keep_out("closed", folders)
    assert not puppet.is_enabled(folders)
    (Path(folders[1]) / LOCK).unlink()
    assert puppet.is_enabled(folders)


def test_without_puppet_nothing_is_created(tmp_path: Path) -> None:
    nowhere = [str(tmp_path / "none/state")]
    assert not puppet.is_enabled(nowhere)
    assert not puppet.keep_out("closed", nowhere)
    assert puppet.disabled_by_operator(nowhere) is None
    assert not (tmp_path / "none").exists()


def test_a_folder_that_can_t_be_changed_keeps_no_other_one_from_its_lock(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(folders[0]).mkdir(parents=True)
    locks = [Path(folder) / LOCK for folder in folders]
    real_open, real_unlink = os.open, Path.unlink

    def fail(path: object) -> None:
        if Path(str(path)).parent == locks[0].parent:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    # A user who may change everything can only be stopped by a file system, so the calls fail here.
    monkeypatch.setattr(puppet.os, "open", lambda path, *more: fail(path) or real_open(path, *more))
    with pytest.raises(OSError, match="Read-only"):
        puppet.keep_out("closed", folders)
    assert [lock.exists() for lock in locks] == [False, True]
    monkeypatch.undo()
    puppet.keep_out("closed", folders)
    monkeypatch.setattr(Path, "unlink", lambda path: fail(path) or real_unlink(path))
    with pytest.raises(OSError, match="Read-only"):
        puppet.let_in(folders)
    assert [lock.exists() for lock in locks] == [True, False]


@pytest.mark.parametrize(
    ("is_strict", "has_mount", "is_outside"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_a_folder_that_came_after_the_service_needs_another_start(
    is_strict: bool,
    has_mount: bool,
    is_outside: bool,
    folders: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounts = tmp_path / "mountinfo"
    lines = ["65 44 254:0 / / ro,relatime - ext4 /dev/vda rw"]
    if has_mount:
        parent = Path(folders[1]).parent
        lines.append(f"66 65 254:0 {parent} {parent} rw,relatime - ext4 /dev/vda rw")
    mounts.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(puppet.os, "statvfs", lambda _path: SimpleNamespace(f_flag=os.ST_RDONLY if is_strict else 0))
    assert puppet.is_outside_service(folders, str(mounts)) == is_outside
    assert not puppet.is_outside_service([str(tmp_path / "none/state")], str(mounts))
    assert not puppet.is_outside_service(folders, str(tmp_path / "missing"))
