# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's package: the locked requirements in it, and what its maintainer scripts enable and start, with and without a running systemd."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deb.locked_for import locked_for
from devkit.agent import ROOT

ENABLE = "--quiet enable convoy-node.service convoy-node.path"


class Host:
    """A root directory, and programs that note how they are called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "programs"
        self.programs.mkdir()
        self.calls = root / "calls"
        for name in ("systemctl", "deb-systemd-helper", "rm"):
            self.add(self.programs / name)
        self.home = root / "opt/convoy"
        self.home.mkdir(parents=True)
        self.add(root / "usr/share/convoy-node/release/bin/convoy-node", f': >>"{self.home}/current"\n')

    def add(self, program: Path, more: str = "") -> None:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>"{self.calls}"\n{more}')
        program.chmod(0o755)

    def boot(self) -> None:
        (self.root / "run/systemd/system").mkdir(parents=True)

    def configure(self) -> None:
        """Write the settings of the node."""
        (self.root / "etc/convoy").mkdir(parents=True)
        (self.root / "etc/convoy/node.json").touch()

    def run(self, script: str, *arguments: str) -> list[str]:
        """Run a script of the package with this root; return the calls of programs."""
        text = (ROOT / "tools/deb" / script).read_text()
        changed = self.root / script
        changed.write_text(re.sub(r"(?<![\w.])/(usr|opt|etc|run|var)/", rf"{self.root}/\1/", text))
        self.calls.write_text("")
        environ = {"PATH": str(self.programs)}
        subprocess.run(["/bin/sh", changed, *arguments], check=True, env=environ, capture_output=True, text=True)
        return [call.replace(f"{self.root}/", "/") for call in self.calls.read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


INSTALL = "convoy-node install --stage /usr/share/convoy-node/release"


def test_the_first_version_enables_and_starts_the_agent(host: Host) -> None:
    host.boot()
    host.configure()
    assert host.run("postinst", "configure", "") == [
        INSTALL,
        f"systemctl {ENABLE}",
        "systemctl daemon-reload",
        "systemctl start convoy-node.path",
        "systemctl start --no-block convoy-node.service",
    ]


@pytest.mark.parametrize(
    ("there", "program"),
    [
        (["systemctl", "deb-systemd-helper"], "systemctl"),
        # Without systemd.
        (["deb-systemd-helper"], "deb-systemd-helper"),
        ([], None),
    ],
)
def test_in_an_image_it_is_enabled_and_not_started(there: list[str], program: str | None, host: Host) -> None:
    host.configure()
    for name in {"systemctl", "deb-systemd-helper"} - {*there}:
        (host.programs / name).unlink()
    assert host.run("postinst", "configure", "") == [INSTALL, *([f"{program} {ENABLE}"] if program else [])]


def test_a_later_version_neither_enables_nor_starts_what_an_operator_disabled_or_stopped(host: Host) -> None:
    host.boot()
    host.configure()
    host.run("postinst", "configure", "")
    assert host.run("prerm", "upgrade", "2.0") == host.run("postrm", "upgrade", "2.0") == []
    assert host.run("postinst", "configure", "1.0") == [
        INSTALL,
        "systemctl daemon-reload",
        "systemctl try-restart --no-block convoy-node.path convoy-node.service",
    ]


def test_units_that_an_operator_masked_do_not_make_a_later_version_fail(host: Host) -> None:
    host.boot()
    host.run("postinst", "configure", "")
    host.add(host.programs / "systemctl", '[ "$1" != try-restart ] || exit 1\n')
    assert host.run("postinst", "configure", "1.0")[-1].startswith("systemctl try-restart")


def test_a_later_version_in_an_image_changes_no_unit(host: Host) -> None:
    host.run("postinst", "configure", "")
    assert host.run("postinst", "configure", "1.0") == [INSTALL]


@pytest.mark.parametrize("runs", [True, False])
def test_a_removal_leaves_no_unit_enabled_and_the_next_installation_enables_them_again(runs: bool, host: Host) -> None:
    if runs:
        host.boot()
    host.run("postinst", "configure", "")
    units = "convoy-node.path convoy-node.service"
    stopped, reloaded = [f"systemctl stop {units}"] * runs, ["systemctl daemon-reload"] * runs
    assert host.run("prerm", "remove") == [*stopped, f"systemctl --quiet disable {units}"]
    assert host.run("postrm", "remove") == ["rm -rf /opt/convoy", f"deb-systemd-helper purge {units}", *reloaded]
    (host.home / "current").unlink()
    # dpkg names the version that was removed.
    assert f"systemctl {ENABLE}" in host.run("postinst", "configure", "1.0")


@pytest.mark.parametrize("settings", ["", '{"puppet_gate_host": "a", "puppet_gate_lock_file": "%s"}'])
def test_the_package_is_not_removed_while_the_lock_of_the_node_is_held(settings: str, host: Host) -> None:
    for name in ("sed", "flock", "true"):
        found = shutil.which(name)
        assert found is not None
        (host.programs / name).symlink_to(found)
    lock = host.root / ("elsewhere/a.lock" if settings else "run/convoy/node.lock")
    lock.parent.mkdir(parents=True)
    host.configure()
    (host.root / "etc/convoy/node.json").write_text(settings and settings % lock)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(subprocess.CalledProcessError) as refused:
            host.run("prerm", "remove")
    assert host.calls.read_text() == ""
    assert f"holds {lock}, so the package is not removed" in refused.value.stderr
    assert host.run("prerm", "remove") == ["systemctl --quiet disable convoy-node.path convoy-node.service"]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_it_has_the_locked_requirements_of_its_python(python: str) -> None:
    text = (ROOT / "requirements/locked/runtime.txt").read_text(encoding="utf-8")
    lines = list(locked_for(python, text))
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len({*names})
    assert {"ansible-core", "py-consul", "cffi", "pycparser", "resolvelib"} <= {*names}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    # The oldest ansible-core is for Python 3.10, and the newest one does not run with 3.11.
    versions = dict(re.findall(r"ansible-core==([\w.]+) ; python_full_version (\S+ '[\w.*]+')", text))
    marker = {"3.10": "< '3.11'", "3.11": "== '3.11.*'"}.get(python, ">= '3.12'")
    (version,) = (version for version, one in versions.items() if one == marker)
    assert any(line.startswith(f"ansible-core=={version} ") for line in lines)
    assert ("typing-extensions" in names) == (python == "3.10")
