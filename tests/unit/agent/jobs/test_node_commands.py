# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which commands a node has: only those that no other user than root can change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from convoy_node.jobs.node_commands import command_problems, find_command
from convoy_node.jobs.refusals import Refused
from convoy_node.machine import ownership

Install = Callable[..., Path]


def refusal(name: str, folder: Path) -> str:
    with pytest.raises(Refused) as error:
        find_command(name, str(folder))
    return str(error.value)


def test_a_command_is_found_with_its_schema(install: Install, trusted: Path) -> None:
    program = install("restart-nova", "true", timeout=5)
    found = find_command("restart-nova", str(trusted / "commands.d"))
    assert (found.program, found.schema.timeout) == (program, 5.0)


@pytest.mark.parametrize("name", ["../sh", "a/b", "", ".", "Restart", "a.json", "-x", "a\n", "x" * 65])
def test_a_name_can_t_lead_out_of_the_folder(name: str, install: Install, trusted: Path) -> None:
    install("a", "true")
    assert "can't be the name of a command" in refusal(name, trusted / "commands.d")


def test_a_node_without_the_command_says_so(install: Install, trusted: Path) -> None:
    install("a", "true")
    assert "This node has no command b" in refusal("b", trusted / "commands.d")
    assert "This node has no command b" in refusal("b", trusted / "none")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_what_others_can_write_is_refused(mode: int, install: Install, trusted: Path) -> None:
    program = install("a", "true")
    folder = program.parent
    for path in (program, folder / "a.json", folder, trusted):
        before = path.stat().st_mode
        path.chmod(mode)
        message = refusal("a", folder)
        assert (
            f"{path} can be written by other users than its owner (mode {mode:04o}). Run chmod go-w {path}" in message
        )
        path.chmod(before)
    assert find_command("a", str(folder)).name == "a"


def test_a_folder_above_may_be_one_in_which_others_can_replace_nothing(install: Install, trusted: Path) -> None:
    program = install("work", "exit 0")
    trusted.chmod(0o777)
    with pytest.raises(Refused, match="can be written by other users"):
        find_command("work", str(program.parent))
    # As /tmp is.
    trusted.chmod(0o1777)
    assert find_command("work", str(program.parent)).program == program
    program.parent.chmod(0o1777)
    with pytest.raises(Refused, match="can be written by other users"):
        find_command("work", str(program.parent))


def test_links_are_refused(install: Install, trusted: Path) -> None:
    program = install("a", "true")
    folder = program.parent
    target = trusted / "elsewhere"
    program.rename(target)
    program.symlink_to(target)
    assert f"{program} is a symbolic link" in refusal("a", folder)
    program.unlink()
    target.rename(program)
    schema = folder / "a.json"
    schema.rename(target)
    schema.symlink_to(target)
    assert f"{schema} is a symbolic link" in refusal("a", folder)


def test_the_target_folder_of_a_link_is_checked_too(install: Install, trusted: Path, tmp_path: Path) -> None:
    program = install("a", "true")
    moved = tmp_path / "commands.d"
    program.parent.rename(moved)
    (trusted / "commands.d").symlink_to(moved)
    tmp_path.chmod(0o757)
    assert "can be written by other users" in refusal("a", trusted / "commands.d")


@pytest.mark.parametrize("what", ["not executable", "a folder", "a fifo as schema", "a large schema"])
def test_other_files_are_refused(what: str, install: Install, trusted: Path) -> None:
    program = install("a", "true")
    schema = program.with_name("a.json")
    if what == "not executable":
        program.chmod(0o644)
    elif what == "a folder":
        program.unlink()
        program.mkdir(mode=0o755)
    elif what == "a fifo as schema":
        schema.unlink()
        os.mkfifo(schema, 0o644)
    else:
        schema.write_text(" " * 70000)
    messages = {
        "not executable": "is not executable",
        "a folder": "is not a regular file",
        "a fifo as schema": "is not a regular file",
        "a large schema": "has more than 65536 bytes",
    }
    assert messages[what] in refusal("a", trusted / "commands.d")


def test_files_of_other_users_are_refused(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    program = install("a", "true")
    if os.geteuid() == 0:
        os.chown(program, 12345, -1)
        assert f"{program} belongs to user 12345 and not to root. Run chown root {program}" in refusal(
            "a", program.parent
        )
        return
    # As root sees it.
    monkeypatch.setattr(ownership, "owners", lambda: (0,))
    assert f"belongs to user {os.geteuid()} and not to root" in refusal("a", program.parent)


def test_a_missing_schema_refuses_the_command(install: Install) -> None:
    program = install("a", "true")
    program.with_name("a.json").unlink()
    assert "a.json can't be read: No such file" in refusal("a", program.parent)


def test_all_that_is_wrong_with_the_commands_of_a_node_is_named(install: Install, trusted: Path) -> None:
    folder = str(trusted / "commands.d")
    assert command_problems(folder) == []
    install("fine", "true")
    assert command_problems(folder) == []
    install("unschemed", "true").with_name("unschemed.json").unlink()
    install("unprogrammed", "true").unlink()
    install("Upper", "true")
    # Neither is a command.
    (trusted / "commands.d/README").write_text("See the wiki.")
    (trusted / "commands.d/old").mkdir()
    upper, unprogrammed, unschemed = command_problems(folder)
    assert "'Upper' can't be the name of a command" in upper
    assert "This node has no command unprogrammed" in unprogrammed
    assert "unschemed.json can't be read: No such file" in unschemed
