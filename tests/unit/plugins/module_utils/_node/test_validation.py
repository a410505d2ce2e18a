# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validations, the operator's own checks of a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._node.validation import (
    HOOK,
    VALIDATION,
    check_validations,
    validate,
    validations,
)


def write(folder: Path, name: str, body: str = "exit 0", mode: int = 0o755) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(mode)


def test_all_executables_run_in_natural_order(tmp_path: Path) -> None:
    for name in ("10-b", "9-a", "100-c"):
        write(tmp_path, name, f"echo {name}")
    ends = "disabled bak orig dpkg-old dpkg-dist dpkg-new dpkg-tmp ucf-old ucf-dist ucf-new rpmnew rpmsave rpmorig"
    for name in ("README.md", "20-d~", *(f"20-d.{end}" for end in ends.split())):
        write(tmp_path, name, "exit 1")
        write(tmp_path, f".{name}", "exit 1", mode=0o644)
    (tmp_path / "folder").mkdir()
    passed = validate(str(tmp_path), 10)
    assert [(one.name, one.output) for one in passed] == [("9-a", "9-a\n"), ("10-b", "10-b\n"), ("100-c", "100-c\n")]
    assert all(one.seconds >= 0 for one in passed)
    assert validations(str(tmp_path)) == ["9-a", "10-b", "100-c"]
    check_validations(str(tmp_path))


def test_an_executable_runs_whose_name_only_has_a_part_like_what_package_managers_leave(tmp_path: Path) -> None:
    names = ["10-check.dpkg-lock.sh", "20-check.ucf-state", "50-check.rpmdb.sh"]
    for name in names:
        write(tmp_path, name)
    assert validations(str(tmp_path)) == names


def test_a_hook_gets_its_variables_and_none_of_the_agent_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PYTHONPATH", "ANSIBLE_HOME", "ANSIBLE_COLLECTIONS_PATH", "CONVOY_HOST", "PYTHONPATH_OF_ANOTHER")
    for name in names:
        monkeypatch.setenv(name, "/somewhere")
    write(tmp_path, "10-drain", "env")
    (passed,) = validate(str(tmp_path), 10, HOOK)
    found = {line.partition("=")[0] for line in passed.output.splitlines()}
    assert found.intersection(names) == {"CONVOY_HOST", "PYTHONPATH_OF_ANOTHER"}
    assert "PATH" in found


def test_the_first_failure_ends_the_validations_with_its_output(tmp_path: Path) -> None:
    write(tmp_path, "1-good")
    write(tmp_path, "2-bad", "echo all is lost; exit 7")
    write(tmp_path, "3-never", f"touch {tmp_path}/ran")
    with pytest.raises(UpgradeError) as caught:
        validate(str(tmp_path), 10)
    assert caught.value.code == "validation_failed"
    assert caught.value.message == (
        f"{tmp_path}/2-bad ended with 7: all is lost. Fix that on the host, and run the validation there: it has to exit with 0."
    )
    assert caught.value.details == {
        "name": "2-bad",
        "exit_code": 7,
        "output": "all is lost\n",
        "passed": ["1-good"],
    }
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("kind", "code"), [(VALIDATION, "validation_failed"), (HOOK, "hook_failed")])
def test_a_program_that_is_not_executable_is_refused_before_an_upgrade_and_skipped_later(
    kind: str, code: str, tmp_path: Path
) -> None:
    write(tmp_path, "1-good")
    write(tmp_path, "2 bad", mode=0o644)
    with pytest.raises(UpgradeError) as caught:
        check_validations(str(tmp_path), kind)
    assert (caught.value.code, caught.value.details) == (code, {"name": "2 bad"})
    assert caught.value.message == (
        f"'{tmp_path}/2 bad' begins with #! and is not executable, so this {kind} can't run. Run chmod +x '{tmp_path}/2 bad' on the host, or "
        f"mv '{tmp_path}/2 bad' '{tmp_path}/2 bad.disabled'"
    )
    # Otherwise each agent run would fail, and the check of the node with it.
    assert [one.name for one in validate(str(tmp_path), 10, kind)] == ["1-good"]


def test_a_link_to_nothing_is_refused_before_an_upgrade_and_skipped_later(tmp_path: Path) -> None:
    path = tmp_path / "1-check"
    # The other one is in a circle.
    for target in ("nowhere", "1-check"):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(UpgradeError, match=r"is a link to nothing, so .* Run ln -sf PROGRAM .*1-check on the"):
            check_validations(str(tmp_path))
        assert validate(str(tmp_path), 10) == []


def test_data_beside_the_validations_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, "1-good")
    for name, text in (
        ("lib.sh", "fail() { exit 1; }\n"),
        ("checks.conf", "# most\n"),
        ("NOTES.md", "# Notes\n"),
        ("empty", ""),
    ):
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    check_validations(str(tmp_path))
    assert [one.name for one in validate(str(tmp_path), 10)] == ["1-good"]


def test_a_file_that_can_be_neither_run_nor_read_may_be_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> None:
        raise PermissionError

    write(tmp_path, "1-check", mode=0o644)
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(UpgradeError, match="1-check begins with"):
        check_validations(str(tmp_path))


def test_hooks_fail_with_a_code_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "1-bad", "echo instances are left; exit 7")
    with pytest.raises(
        UpgradeError, match=r"1-bad ended with 7: instances are left\. Fix that on the host; the next try"
    ) as caught:
        validate(str(tmp_path), 10, HOOK)
    assert caught.value.code == "hook_failed"


def test_a_validation_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    write(tmp_path, "1-slow", "echo begun; exec sleep 60")
    with pytest.raises(UpgradeError, match=r"1-slow took longer than 0.3 s and was ended: begun\. Fix that") as caught:
        validate(str(tmp_path), 0.3)
    assert caught.value.details["exit_code"] is None


def test_a_silent_failure_and_one_that_cannot_be_run_are_errors(tmp_path: Path) -> None:
    write(tmp_path, "1-silent", "exit 1")
    with pytest.raises(UpgradeError, match="1-silent ended with 1: it printed nothing"):
        validate(str(tmp_path), 10)
    (tmp_path / "1-silent").write_text("#!/no/such/shell\n")
    with pytest.raises(UpgradeError, match=r"1-silent can't be run: No such file"):
        validate(str(tmp_path), 10)


def test_no_folder_and_an_empty_one_fail_nothing(tmp_path: Path) -> None:
    assert validate(str(tmp_path), 10) == []
    assert validate(str(tmp_path / "nowhere"), 10) == []


def test_a_path_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "file")
    with pytest.raises(UpgradeError, match=rf"^path: {tmp_path}/file can't be read: Not a directory\.$"):
        validations(str(tmp_path / "file"))
    with pytest.raises(UpgradeError, match=r"Not a directory\.$"):
        check_validations(str(tmp_path / "file"))
