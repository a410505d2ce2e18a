# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of the agent on a node: installed as a whole or not at all, and removed when no one needs them."""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from pathlib import Path

import pytest
from convoy_node import releases
from convoy_node.agent_run import Release
from convoy_node.connection import Connection
from convoy_node.consul import ConsulKey
from convoy_node.errors import InstallError
from convoy_node.machine.processes import run_limited
from convoy_node.settings import NodeSettings
from convoy_node.state import is_rebooting


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "opt"


def source(folder: Path, name: str, python: str = "venv/bin/python") -> Path:
    found = folder / f"source-{name}"
    (found / "agent").mkdir(parents=True)
    (found / "agent/file").write_text(name)
    (found / "release.json").write_text(json.dumps({"name": name, "python": python}))
    return found


def names(home: Path) -> list[str]:
    return sorted(one.name for one in (home / "releases").iterdir())


def current(home: Path) -> str:
    found = releases.linked(home, releases.CURRENT)
    assert found is not None
    return found.name


def test_the_first_release_is_active_even_if_it_is_only_staged(home: Path, tmp_path: Path) -> None:
    folder, is_active = releases.install(source(tmp_path, "r1"), home, stage=True)
    assert (folder, is_active) == (home / "releases/r1", True)
    release = Release.at(folder)
    assert (release.name, release.home) == ("r1", home)
    assert release.python == str(folder / "venv/bin/python")
    assert releases.staged(release) is None


def test_a_staged_release_waits_until_it_is_tried(home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    _folder, is_active = releases.install(source(tmp_path, "r2"), home, stage=True)
    assert not is_active
    assert current(home) == "r1"
    staged = releases.staged(Release.at(home / "releases/r1"))
    assert staged is not None
    assert staged.name == "r2"
    (staged.folder / releases.REFUSED).write_text("it can't report")
    assert releases.staged(Release.at(home / "releases/r1")) is None
    # Installed again, it gets another chance.
    again = source(tmp_path / "again", "r2")
    releases.install(again, home, stage=True)
    assert releases.staged(Release.at(home / "releases/r1")) is not None


def test_the_release_before_stays_and_older_ones_go(home: Path, tmp_path: Path) -> None:
    for name in ("r1", "r2", "r3"):
        releases.install(source(tmp_path, name), home)
    assert (current(home), names(home)) == ("r3", ["r2", "r3"])
    # Going back is an installation too.
    releases.install(home / "releases/r2", home)
    assert (current(home), names(home)) == ("r2", ["r2", "r3"])


def test_a_release_that_a_run_is_made_with_stays(home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    with (home / "releases/r1/release.json").open("rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        for name in ("r2", "r3"):
            releases.install(source(tmp_path, name), home)
        assert names(home) == ["r1", "r2", "r3"]
    releases.install(source(tmp_path, "r4"), home)
    assert names(home) == ["r3", "r4"]


def test_what_an_interrupted_installation_left_is_replaced(home: Path, tmp_path: Path) -> None:
    releases.install(source(tmp_path, "r1"), home)
    for left in ("releases/.r2.new/agent", "releases/r2"):
        (home / left).mkdir(parents=True)
    (home / ".current.new").symlink_to("nowhere")
    releases.install(source(tmp_path, "r2"), home)
    assert (home / "releases/r2/agent/file").read_text() == "r2"
    assert names(home) == ["r1", "r2"]


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"name": ""}', '{"name": "a/b"}', '{"name": ".x"}', '{"python": 1}']
)
def test_what_is_no_release_is_refused_and_changes_nothing(text: str | None, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    if text is not None:
        (folder / "release.json").write_text(text)
    with pytest.raises(InstallError):
        releases.install(folder, home)
    assert not home.exists()


def test_two_installations_at_once_are_refused(home: Path, tmp_path: Path) -> None:
    with releases.alone(home), pytest.raises(InstallError, match="Another installation works"):
        releases.install(source(tmp_path, "r1"), home)


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"setsid sh -c 'sleep 2; touch {mark}' & sleep 60"
    with pytest.raises(subprocess.TimeoutExpired):
        run_limited(["sh", "-c", script], 0.5)
    time.sleep(2.5)
    assert not mark.exists()
    assert run_limited(["sh", "-c", "exit 3"], 5) == 3


class Record:
    """Consul, with the record of the host that the agent run of the new release has left."""

    found: dict[str, str] | None = None

    def __init__(self, _connection: Connection) -> None:
        pass

    def get(self, key: str) -> ConsulKey | None:
        assert key == "upgrade/hosts/compute7"
        return ConsulKey(json.dumps(self.found).encode(), 1) if self.found is not None else None


@pytest.mark.parametrize(
    ("record", "script", "reboots", "result"),
    [
        ({"release": "r2", "state": "upgraded"}, "", False, None),
        # Whether the upgrade succeeds does not count, only that the release can tell.
        ({"release": "r2", "state": "failed"}, "", False, None),
        ({"release": "r2", "state": "started"}, "", False, "left the record of compute7 started"),
        ({"release": "r1", "state": "upgraded"}, "", False, "without a report of it"),
        (None, "", False, "without a report of it"),
        ({"release": "r2", "state": "upgraded"}, "exit 3", False, "convoy-node check of it ended with 3"),
        ({"release": "r2", "state": "started"}, "", True, ""),
    ],
)
def test_a_release_becomes_active_only_if_it_has_reported(
    record: dict[str, str] | None,
    script: str,
    reboots: bool,
    result: str | None,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(releases, "Consul", Record)
    monkeypatch.setattr(Record, "found", record)
    releases.install(source(tmp_path, "r1"), home)
    new = source(tmp_path, "r2")
    (new / "bin").mkdir()
    (new / "bin/convoy-node").write_text(f"#!/bin/sh\n{script}\n")
    (new / "bin/convoy-node").chmod(0o755)
    releases.install(new, home, stage=True)
    version = tmp_path / "version"
    if reboots:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (tmp_path / "version.reboot").write_text(f"v2 {boot}")
    settings = NodeSettings("compute7", "compute", Connection(), {}, version_file=str(version))
    old, staged = Release.at(home / "releases/r1"), Release.at(home / "releases/r2")
    problem = releases.try_release(old, staged, settings, "/nonexistent")
    assert problem == result if not result else result in (problem or "")
    assert current(home) == ("r2" if result is None else "r1")
    assert (home / "releases/r2" / releases.REFUSED).exists() == bool(result)
    # After a reboot, it is tried again.
    assert (releases.staged(old) is not None) == (result == "")


def test_a_reboot_is_one_of_this_boot(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert not is_rebooting(str(version))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    for text, found in ((f"v2 {boot}", True), ("v2 another\n", False), ("", False), (boot, False)):
        (tmp_path / "version.reboot").write_text(text)
        assert is_rebooting(str(version)) == found
