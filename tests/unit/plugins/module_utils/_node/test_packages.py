# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module makes of the outputs of apt-get and dnf. The lab's tests run the real ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._node import packages
from ansible_collections.convoy.upgrade.plugins.module_utils._node.packages import PackageOptions, upgrade_packages
from ansible_collections.convoy.upgrade.plugins.module_utils._node.process import FinishedProcess

NOTHING = "0 upgraded, 0 newly installed, 0 to remove and 3 not upgraded.\n"
LOCKED = (
    "dpkg: error: dpkg frontend lock was locked by another process with pid 349\n",
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 365 (python3)\n",
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 12 (apt-get)\n",
)


class Commands:
    """Commands and how they end: the first argument that fits one of the keys decides, each answer is used once, the last again and again."""

    def __init__(self, **answers: Sequence[tuple[int | None, str]]) -> None:
        self.answers = {name.replace("_", "-"): list(found) for name, found in answers.items()}
        self.ran: list[str] = []

    def __call__(self, command: Sequence[str], seconds: float) -> FinishedProcess:
        assert seconds > 0
        self.ran.append(" ".join(command))
        for name, answers in self.answers.items():
            if name in command:
                code, output = answers.pop(0) if len(answers) > 1 else answers[0]
                return FinishedProcess(code, output, 0.1)
        return FinishedProcess(0, NOTHING, 0.1)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only in sleeps."""
    found: list[float] = []
    monkeypatch.setattr(packages.runtime, "sleep", found.append)
    monkeypatch.setattr(packages.runtime, "monotonic", lambda: 100.0 + sum(found))
    return found


def upgrade(
    monkeypatch: pytest.MonkeyPatch,
    commands: Commands,
    manager: str = "apt",
    names: Sequence[str] = (),
    dry: bool = False,
) -> packages.PackageRun:
    monkeypatch.setattr(packages, "run_process", commands)
    return upgrade_packages(PackageOptions(manager, names, 60, 12, dry))


@pytest.mark.parametrize(
    ("summary", "changed"),
    [
        (NOTHING, False),
        ("1 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.", True),
        ("0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.", True),
        ("0 upgraded, 0 newly installed, 1 downgraded, 0 to remove and 0 not upgraded.", True),
        ("0 upgraded, 0 newly installed, 1 reinstalled, 0 to remove and 0 not upgraded.", True),
        ("0 upgraded, 0 newly installed, 1 to remove and 0 not upgraded.", True),
    ],
)
def test_what_apt_counts_is_a_change(summary: str, changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert upgrade(monkeypatch, Commands(dist_upgrade=[(0, summary)])).changed == changed


def test_apt_is_asked_once_and_installs_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    done = upgrade(monkeypatch, commands, names=["nginx", "-x"])
    assert [line.split()[0] for line in commands.ran] == ["apt-get"] * 3
    assert commands.ran[0] == "apt-get -q update"
    assert commands.ran[1].endswith("--allow-downgrades dist-upgrade")
    assert commands.ran[2].endswith("--no-upgrade install -- nginx -x")
    assert all("--force-confold" in line for line in commands.ran[1:])
    assert [" ".join(one) for one in done.commands] == commands.ran


def test_check_mode_only_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    upgrade(monkeypatch, commands, names=["nginx"], dry=True)
    assert len(commands.ran) == 2
    assert all(line.startswith("apt-get -s ") for line in commands.ran)


@pytest.mark.parametrize("message", LOCKED)
def test_a_lock_is_waited_for_but_not_for_ever(
    message: str, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    commands = Commands(dist_upgrade=[(100, message), (100, message), (0, NOTHING)])
    assert not upgrade(monkeypatch, commands).changed
    assert slept == [5.0, 5.0]
    with pytest.raises(UpgradeError, match="because another process had a lock for more than 12 s") as caught:
        upgrade(monkeypatch, Commands(dist_upgrade=[(100, message)]))
    assert caught.value.code == "packages_failed"


def test_the_wait_for_a_lock_ends_with_the_time_for_packages(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    monkeypatch.setattr(packages, "run_process", Commands(dist_upgrade=[(100, LOCKED[0])]))
    with pytest.raises(UpgradeError) as caught:
        upgrade_packages(PackageOptions("apt", (), 60, 600))
    assert sum(slept) == 60
    assert caught.value.message == (
        f"apt-get dist-upgrade was not started, as 60 s were over: {LOCKED[0].strip()}. Fix that on the host; the next try goes on from there."
    )


def test_nothing_is_started_when_the_time_for_packages_is_over(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    commands = Commands()

    def run(command: Sequence[str], seconds: float) -> FinishedProcess:
        slept.append(60.0)
        return commands(command, seconds)

    monkeypatch.setattr(packages, "run_process", run)
    with pytest.raises(UpgradeError, match=r"^apt-get dist-upgrade was not started, as 60 s were over: ") as caught:
        upgrade_packages(PackageOptions("apt", (), 60, 12))
    assert caught.value.code == "packages_failed"
    assert commands.ran == ["apt-get -q update"]


@pytest.mark.parametrize(
    "message",
    [
        "Transaction failed: Failed to obtain rpm transaction lock. Another transaction is in progress.\n",
        "error: can't create transaction lock on /usr/lib/sysimage/rpm/.rpm.lock (Resource temporarily unavailable)\n",
    ],
)
def test_dnf5_is_started_again_as_it_does_not_wait(
    message: str, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    commands = Commands(distro_sync=[(1, message), (0, "Upgraded:\n shop-2\nComplete!\n")])
    assert upgrade(monkeypatch, commands, "dnf5").changed
    assert slept == [5.0]
    with pytest.raises(UpgradeError, match="because another process had a lock for more than 12 s"):
        upgrade(monkeypatch, Commands(distro_sync=[(1, message)]), "dnf5")
    slept.clear()
    full = "error: can't create transaction lock on /usr/lib/sysimage/rpm/.rpm.lock (Read-only file system)\n"
    with pytest.raises(UpgradeError, match="Read-only file system"):
        upgrade(monkeypatch, Commands(distro_sync=[(1, full)]), "dnf5")
    assert not slept


def test_the_wait_for_a_lock_of_dnf_has_a_limit(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    locked = (200, "Error: Failed to obtain the metadata lock\n")
    commands = Commands(distro_sync=[locked, (0, "Upgraded:\n shop-2\nComplete!\n")])
    assert upgrade(monkeypatch, commands, "dnf").changed
    assert slept == [5.0]
    with pytest.raises(
        UpgradeError, match="because another process had a lock for more than 12 s: Error: Failed to obtain"
    ):
        upgrade(monkeypatch, Commands(distro_sync=[locked]), "dnf")


def test_a_source_that_can_t_be_read_is_tried_again_and_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    bad = (0, "Err:1 file:/srv\nW: Failed to fetch file:/srv/Packages\nW: Some index files failed to download.\n")
    assert not upgrade(monkeypatch, Commands(update=[bad, bad, (0, "Hit:1\n")])).changed
    assert len(slept) == 2
    commands = Commands(update=[bad])
    with pytest.raises(UpgradeError) as caught:
        upgrade(monkeypatch, commands)
    assert "apt-get update ended with 0, because a package source can't be read" in caught.value.message
    assert "W: Failed to fetch file:/srv/Packages" in caught.value.message
    assert commands.ran == ["apt-get -q update"] * 3


def test_an_interrupted_dpkg_is_taken_over_without_running_its_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = (
        100,
        "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n",
    )
    commands = Commands(dist_upgrade=[interrupted, (0, "1 upgraded, 0 newly installed, 0 to remove")])
    assert upgrade(monkeypatch, commands).changed
    assert [line.split()[0] for line in commands.ran] == ["apt-get", "apt-get", "dpkg", "apt-get"]
    assert commands.ran[2] == "dpkg --set-selections"
    with pytest.raises(UpgradeError, match="dpkg was interrupted"):
        upgrade(monkeypatch, Commands(dist_upgrade=[interrupted]))


def test_what_takes_too_long_fails_with_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UpgradeError) as caught:
        upgrade(monkeypatch, Commands(dist_upgrade=[(None, "Setting up shop (2.10) ...\nwaiting for a human\n")]))
    assert caught.value.message == (
        "apt-get dist-upgrade took longer than 60 s and was ended with all that it had started: Setting up shop (2.10) ...\n"
        "waiting for a human. Fix that on the host; the next try goes on from there."
    )
    assert caught.value.details["exit_code"] is None
    assert "waiting for a human" in caught.value.details["output"]


@pytest.mark.parametrize("manager", ["dnf", "dnf5"])
def test_dnf_synchronizes_and_installs(manager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of = "--setopt=*.skip_if_unavailable=False --setopt=exit_on_lock=1"
    nothing = "Dependencies resolved.\nNothing to do.\nComplete!\n"
    commands = Commands(distro_sync=[(0, nothing)], install=[(0, nothing)])
    assert not upgrade(monkeypatch, commands, manager, ["nginx"]).changed
    assert commands.ran == [f"{manager} -y {all_of} --refresh distro-sync", f"{manager} -y {all_of} install -- nginx"]
    assert upgrade(monkeypatch, Commands(distro_sync=[(0, "Upgraded:\n shop-2\nComplete!\n")]), manager).changed
    with pytest.raises(UpgradeError, match=rf"^{manager} distro-sync ended with 1: Error: Failed to download metadata"):
        upgrade(monkeypatch, Commands(distro_sync=[(1, "Error: Failed to download metadata for repo 'x'\n")]), manager)


def test_the_errors_of_dnf_come_with_what_explains_them(monkeypatch: pytest.MonkeyPatch) -> None:
    output = "Last metadata check\nError: \n Problem: conflicting requests\n  - nothing provides /bin/sh needed by x\n"
    with pytest.raises(UpgradeError) as caught:
        upgrade(monkeypatch, Commands(distro_sync=[(1, output)]), "dnf")
    assert caught.value.message == (
        "dnf distro-sync ended with 1: Error:\n Problem: conflicting requests\n  - nothing provides /bin/sh needed by x. Fix that on the host; the "
        "next try goes on from there."
    )


def test_the_errors_of_dpkg_explain_those_of_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    output = (
        "Setting up shop (2.10) ...\n"
        "dpkg: error processing package shop (--configure):\n"
        " installed shop package post-installation script subprocess returned error exit status 3\n"
        "Errors were encountered while processing:\n shop\n"
        "dpkg: unrecoverable fatal error, aborting:\n unable to flush updated status: No space left on device\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (2)\n"
    )
    with pytest.raises(UpgradeError) as caught:
        upgrade(monkeypatch, Commands(dist_upgrade=[(100, output)]))
    assert caught.value.message == (
        "apt-get dist-upgrade ended with 100: dpkg: error processing package shop (--configure):\n"
        " installed shop package post-installation script subprocess returned error exit status 3\n"
        "dpkg: unrecoverable fatal error, aborting:\n unable to flush updated status: No space left on device\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (2). Fix that on the host; the next try goes on from there."
    )


def test_in_check_mode_dnf_ends_with_an_error_if_there_is_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = (1, "Transaction Summary\nUpgrade  1 Package\nOperation aborted.\n")
    commands = Commands(distro_sync=[aborted])
    assert upgrade(monkeypatch, commands, "dnf", dry=True).changed
    assert commands.ran == [
        "dnf --assumeno --setopt=*.skip_if_unavailable=False --setopt=exit_on_lock=1 --refresh distro-sync"
    ]
