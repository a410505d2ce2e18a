# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of locks: only root can hold one, and what another user has put in their place is neither followed nor changed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from convoy_node.machine.errors import InstallError, LockError
from convoy_node.machine.lock_file import open_lock_file
from convoy_node.releases import alone
from missing import give_away


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refusal(path: Path) -> str:
    before = open_files()
    with pytest.raises(LockError) as error:
        open_lock_file(path)
    assert open_files() == before
    return str(error.value)


def test_file_and_folder_are_created_and_the_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "run/convoy/node.lock"
    file = open_lock_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(file)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.write_text("the holder")
    other = open_lock_file(path)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_text() == "the holder"
    os.close(file)
    os.close(other)


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("its content")
    link = tmp_path / "node.lock"
    link.symlink_to(target)
    assert refusal(link) == f"The lock can't be opened: {link} is a symbolic link. Run rm {link}"
    link.unlink()
    link.symlink_to(tmp_path / "missing")
    refusal(link)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "real").mkdir()
    folder = tmp_path / "folder"
    folder.symlink_to(tmp_path / "real")
    assert refusal(folder / "node.lock") == f"The lock can't be opened: {folder} is a symbolic link. Run rm {folder}"
    assert target.read_text() == "its content"
    assert not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    message = refusal(folder / "node.lock")
    assert message.endswith(f"Run chmod go-w {folder}, or set puppet_gate_lock_file to a path in /run/convoy")
    assert not list(folder.iterdir())


def test_a_folder_for_all_users_is_not_to_be_changed(tmp_path: Path) -> None:
    folder = tmp_path / "lock"
    folder.mkdir()
    folder.chmod(0o1777)
    message = refusal(folder / "node.lock")
    assert "chmod" not in message and message.endswith("such as /run/convoy/node.lock")


def test_a_file_that_others_can_write_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    path.write_text("")
    path.chmod(0o666)
    assert refusal(path).endswith(f"(mode 0666). Run chmod go-w {path}")
    path.unlink()
    os.mkfifo(path, 0o600)
    assert refusal(path).endswith(f"{path} is not a regular file. Run rm {path}")
    path.unlink()
    path.mkdir()
    assert "Is a directory" in refusal(path)
    assert "Not a directory" in refusal(Path("/dev/null/node.lock"))


def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "node.lock"
    path.write_text("")
    give_away(path)
    assert refusal(path).endswith(f"{path} belongs to user 65534 and not to root. Run chown root {path}")
    give_away(folder)
    assert f"{folder} belongs to user 65534 and not to root. Run chown root {folder}, or set" in refusal(path)


def test_the_lock_of_installations_follows_no_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("its content")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(InstallError, match=rf"Run rm {tmp_path}/\.lock\."), alone(tmp_path):
        pass
    assert target.read_text() == "its content"
