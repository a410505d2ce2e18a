# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""node_validate through Ansible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.support.runs.playbook import Runner, Task


def validate(path: Path, **options: Any) -> Task:
    return {"convoy.upgrade.node_validate": {"path": str(path), **options}}


def test_checks_run_in_order_and_the_first_failure_fails_the_task(run: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "validation.d"
    folder.mkdir()
    for name, body in (("2-second", "echo two"), ("10-third", "echo three")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    played = run([validate(folder), validate(folder, timeout=5)])
    for result in played:
        assert result["changed"] is False
        assert [(one["name"], one["output"]) for one in result["validations"]] == [
            ("2-second", "two\n"),
            ("10-third", "three\n"),
        ]
    (folder / "2-second").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nsleep 60\n")
    result = run([validate(folder, timeout=0.5)])[0]
    assert result["failed"]
    assert result["failure"]["code"] == "validation_failed"
    message = f"{folder}/2-second took longer than 0.5 s and was ended: it printed nothing. Fix that on the host"
    assert result["failure"]["message"].startswith(message)
    assert (tmp_path / "ran").exists()


@pytest.mark.thorough
def test_hooks_are_changes_and_fail_with_a_code_of_their_own(run: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "drain.d"
    folder.mkdir()
    (folder / "10-drain").write_text("#!/bin/sh\necho drained\n")
    (folder / "10-drain").chmod(0o755)
    task = validate(folder, kind="hook")
    (shown,) = run([task], check=True)
    assert (shown["changed"], shown["validations"][0]["output"]) == (True, None)
    done, nothing = run([task, validate(tmp_path / "missing", kind="hook")])
    assert (done["changed"], done["validations"][0]["output"]) == (True, "drained\n")
    assert nothing["changed"] is False
    (folder / "10-drain").write_text("#!/bin/sh\nexit 3\n")
    assert run([task])[0]["failure"]["code"] == "hook_failed"


@pytest.mark.thorough
def test_check_mode_names_the_checks_and_runs_none(run: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "validation.d"
    folder.mkdir()
    (folder / "check").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (folder / "check").chmod(0o755)
    result = run([validate(folder)], check=True)[0]
    assert result["validations"] == [{"name": "check", "seconds": None, "output": None}]
    assert not (tmp_path / "ran").exists()
    assert run([validate(tmp_path / "nowhere")])[0]["validations"] == []
    (folder / "check").chmod(0o644)
    # In the runs between upgrades, it fails nothing.
    assert run([validate(folder)])[0]["validations"] == []
    failure = run([validate(folder, kind="hook")], check=True)[0]["failure"]
    assert failure["code"] == "hook_failed"
    assert f"Run chmod +x {folder}/check on the host" in failure["message"]
