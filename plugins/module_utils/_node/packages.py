# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a node's packages to what its sources offer: with apt or dnf, without questions, and with a time limit for all of it.

No task of Ansible does that: its modules have no limit for a maintainer script that hangs, and dnf's knows no ``distro-sync``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .._common import runtime
from .._common.errors import UpgradeError
from .process import FinishedProcess, last_lines, run_process

APT, DNF, DNF5 = "apt", "dnf", "dnf5"

# Neither debconf, nor ucf, nor needrestart, nor apt-listchanges asks. Messages are in English, because they are read.
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "UCF_FORCE_CONFFOLD": "1",
    "NEEDRESTART_MODE": "l",
    "APT_LISTCHANGES_FRONTEND": "none",
    "LC_ALL": "C",
}
_KEEP_CHANGED = ("--force-confdef", "--force-confold")
_APT = ("-q", "-y", "-o", "Dpkg::Use-Pty=0", *(f"-oDpkg::Options::={option}" for option in _KEEP_CHANGED))
_SUBCOMMANDS = ("update", "dist-upgrade", "install", "distro-sync")
_SECONDS_BETWEEN_TRIES = 5.0
_TRIES_OF_UPDATE = 3
# Without the option, dnf waits for its locks without a limit.
_EXIT_ON_LOCK = "--setopt=exit_on_lock=1"
# The exit code of dnf if another process has one of its locks.
_DNF_LOCKED = 200
# What apt-get and dpkg say if another process has one of their locks.
_LOCKED = re.compile(
    r"[Cc]ould not get lock|(?:is|was) locked by another process|Unable to acquire the dpkg frontend lock"
    # dnf5. dnf has an exit code for it.
    r"|Failed to obtain rpm transaction lock|can't create transaction lock on .*Resource temporarily unavailable"
)
# apt-get update treats a source that can't be reached as a warning.
_NOT_FETCHED = re.compile(r"(?m)^(?:W: (?:Failed to fetch|Some index files failed)|E: )")
_APT_COUNTS = re.compile(
    r"(?m)^(\d+) upgraded, (\d+) newly installed, (?:(\d+) reinstalled, )?(?:(\d+) downgraded, )?(\d+) to remove"
)
_DPKG = ("dpkg: error", "dpkg: unrecoverable")
_INTERRUPTED = "dpkg was interrupted"
_NOTHING = "Nothing to do."
# dnf --assumeno ends like that if there is something to do.
_WOULD_CHANGE = "Operation aborted"


def is_locked(output: str) -> bool:
    """Return whether a command failed because another process has a lock of the package manager."""
    return bool(_LOCKED.search(output))


@dataclass(frozen=True)
class PackageOptions:
    """What to do.

    :param manager: apt, dnf or dnf5.
    :param packages: names that have to be installed.
    :param seconds: how long all of it may take.
    :param lock_seconds: how long to wait for the locks of the package manager.
    :param dry: check mode: change nothing.
    """

    manager: str
    packages: Sequence[str] = ()
    seconds: float = 3600
    lock_seconds: float = 600
    dry: bool = False


@dataclass
class PackageRun:
    """What was done.

    :param changed: whether a package was installed, upgraded, downgraded or removed; in check mode, whether one would be.
    :param output: the output of all commands.
    """

    changed: bool = False
    output: str = ""
    commands: list[list[str]] = field(default_factory=list)


def upgrade_packages(options: PackageOptions) -> PackageRun:
    """Bring all packages to the versions of the sources, downwards too, and install those that are missing.

    An interrupted run of dpkg is finished first. Configuration files that were changed on the node stay.

    :raises UpgradeError: ``packages_failed``; the details have ``exit_code`` and ``output``; ``not_runnable``.
    """
    work = _Work(options)
    if options.manager == APT:
        work.apt()
    else:
        work.dnf()
    return work.run


class _Work:
    def __init__(self, options: PackageOptions) -> None:
        self._options = options
        self._began = runtime.monotonic()
        self.run = PackageRun()

    def apt(self) -> None:
        dry = self._options.dry
        if not dry:
            self._update()
        simulate = ["-s"] if dry else []
        # Pins may prefer older versions, as in a rollback. Packages that an operator has held stay.
        self._apt_get([*simulate, *_APT, "--allow-downgrades", "dist-upgrade"])
        if self._options.packages:
            self._apt_get([*simulate, *_APT, "--no-upgrade", "install", "--", *self._options.packages])

    def _update(self) -> None:
        for left in range(_TRIES_OF_UPDATE - 1, -1, -1):
            ended = self._locked(["apt-get", "-q", "update"], may_fail=left > 0)
            if ended.code == 0 and not _NOT_FETCHED.search(ended.output):
                return
            if not left:
                raise self._failure(["apt-get", "update"], ended, "a package source can't be read")
            self._sleep()

    def _apt_get(self, words: list[str]) -> None:
        ended = self._locked(["apt-get", *words], may_fail=not self._options.dry)
        if ended.code != 0 and _INTERRUPTED in ended.output:
            # It takes over what the interrupted dpkg has noted, and runs no script of a package, which may be what had hung. What is left
            # to configure, apt-get configures, in the newest version.
            self._locked(["dpkg", "--set-selections"])
            ended = self._locked(["apt-get", *words], may_fail=True)
        if ended.code != 0:
            raise self._failure(["apt-get", *words], ended)
        counts = _APT_COUNTS.search(ended.output)
        self.run.changed |= counts is None or any(int(one or 0) for one in counts.groups())

    def dnf(self) -> None:
        dry = self._options.dry
        # By default, dnf goes on without a source that can't be reached.
        answer = ["--assumeno" if dry else "-y", "--setopt=*.skip_if_unavailable=False", _EXIT_ON_LOCK]
        # It goes down too, so that a rollback does. The versionlock plugin is respected.
        self._dnf([*answer, "--refresh", "distro-sync"])
        if self._options.packages:
            self._dnf([*answer, "install", "--", *self._options.packages])

    def _dnf(self, words: list[str]) -> None:
        command = [self._options.manager, *words]
        ended = self._locked(command, may_fail=True)
        would_change = self._options.dry and _WOULD_CHANGE in ended.output
        if ended.code != 0 and not would_change:
            raise self._failure(command, ended)
        self.run.changed |= _NOTHING not in ended.output

    def _locked(self, command: list[str], *, may_fail: bool = False) -> FinishedProcess:
        """Run a command again and again while another process has a lock that it needs."""
        until = runtime.monotonic() + self._options.lock_seconds
        while True:
            ended = self._start(command)
            if ended.code == 0 or not (ended.code == _DNF_LOCKED or is_locked(ended.output)):
                break
            if runtime.monotonic() >= until:
                raise self._failure(
                    command, ended, f"another process had a lock for more than {self._options.lock_seconds:g} s"
                )
            self._sleep()
        if ended.code != 0 and not may_fail:
            raise self._failure(command, ended)
        return ended

    def _start(self, command: list[str]) -> FinishedProcess:
        left = self._left()
        if left <= 0:
            # An upgrade of packages that is ended at once may leave some of them half installed.
            before = FinishedProcess(None, last_lines(self.run.output, 1), 0.0)
            raise self._failure(command, before, how=f"was not started, as {self._options.seconds:g} s were over")
        self.run.commands.append(command)
        ended = run_process(command, left)
        self.run.output += ended.output
        if ended.code is None:
            raise self._failure(command, ended)
        return ended

    def _sleep(self) -> None:
        runtime.sleep(min(_SECONDS_BETWEEN_TRIES, max(0.0, self._left())))

    def _left(self) -> float:
        return self._options.seconds - (runtime.monotonic() - self._began)

    def _failure(self, command: Sequence[str], ended: FinishedProcess, reason: str = "", how: str = "") -> UpgradeError:
        how = how or (
            f"took longer than {self._options.seconds:g} s and was ended with all that it had started"
            if ended.code is None
            else f"ended with {ended.code}"
        )
        output = last_lines(ended.output) if ended.code is None else _reason(ended.output)
        name = " ".join([command[0], *(word for word in command[1:] if word in _SUBCOMMANDS)])
        return UpgradeError(
            "packages_failed",
            f"{name} {how}{f', because {reason}' if reason else ''}: {(output or 'it printed nothing').rstrip('.')}. Fix that on the host; the next "
            "try goes on from there.",
            exit_code=ended.code,
            output=self.run.output,
        )


def _reason(output: str) -> str:
    """Return the errors of apt-get and dpkg, or those of dnf with the lines that explain them; the last lines if there are none."""
    lines = output.splitlines()
    # dpkg explains an error in the next line, which is indented.
    errors = [
        line
        for number, line in enumerate(lines)
        if line.startswith(("E: ", "W: Failed", *_DPKG))
        or (line.startswith(" ") and lines[number - 1].startswith(_DPKG))
    ]
    if errors:
        return "\n".join(errors[-10:])
    began = next((number for number, line in enumerate(lines) if line.startswith("Error:")), 0)
    return last_lines("\n".join(lines[began:]))
