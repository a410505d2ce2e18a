# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases of the agent on a node: which one is active, and the trial of a new one.

Each release is a folder below ``releases``, with all that an agent run needs. ``current`` links to the active one, ``next`` to one that an
upgrade of the node has brought and that has not been tried. ``trial`` is a file: the agent run that just ended has left its upgrade to
``next``. A new release becomes active when it has made an agent run and reported it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Optional

from . import agent_run
from .agent_run import Release
from .machine import puppet
from .machine.errors import BadSettings, ConsulError, InstallError, sanitize
from .machine.lock_file import is_locked, wait_for_lock
from .machine.processes import run_limited
from .node.consul import Consul
from .node.gate import NodeKeys, answer, read_keys
from .node.settings import NodeSettings, read_settings
from .node.state import is_rebooting

HOME = Path("/opt/convoy")
CURRENT, NEXT, PREVIOUS = "current", "next", "previous"
# A file with the name of a release and the ID of the run that leaves its upgrade to it. The role writes it, in tasks/run/release.yml.
TRIAL = "trial"
# A file in the folder of a release that could not report, with the reason.
REFUSED = "refused"
# Exit codes of convoy-node, as in sysexits.h: Consul or the token can't be read, the settings can't be used, or a command for jobs has a mistake.
NO_CONSUL = BAD_TOKEN = 75
BAD_SETTINGS = 78
BAD_COMMANDS = 65
# A release that hangs is given up after this time, besides the limits of Puppet, packages and validations (seconds).
_TRIAL_SECONDS = 1800.0
_CHECK_SECONDS = 60.0
# How long Consul may be away after a trial, and the pause between two tries to read the report (seconds).
_REPORT_SECONDS, _REPORT_AGAIN = 60.0, 2.0
# An agent run that was killed has freed its lock after this time (seconds).
_LOCK_SECONDS = 2.0
# How long the end of a trial, or a package that brings a release, waits for an installation that is under way (seconds).
_INSTALL_SECONDS = 120.0


class TrialResult(Enum):
    """How the trial of a release has ended."""

    ACTIVE = "it has reported, and is active"
    REBOOTS = "the node reboots first"
    REFUSED = "it could not report"
    REPORTED = "it has reported, but could not be activated"
    REPLACED = "it is not the next release any more"
    POSTPONED = "no release could have reported"


def linked(home: Path, link: str) -> Optional[Path]:
    """Return the folder of a release that a link names; None if there is none."""
    path = home / link
    try:
        return path.resolve(strict=True) if path.is_symlink() else None
    except (OSError, RuntimeError):
        return None


def next_release(release: Release) -> Optional[Release]:
    """Return the release that has to be tried; None if there is none, or if it was tried and could not report."""
    home = release.home
    folder = linked(home, NEXT) if home is not None else None
    if folder is None or folder == release.folder or (folder / REFUSED).exists():
        return None
    try:
        return Release.at(folder)
    except (OSError, ValueError, KeyError):
        # Its description can't be read, so it can't be tried, and _trial says so.
        return Release(folder, folder.name, "")


def link(home: Path, name: str, folder: Path) -> None:
    """Let a link name a release, atomically."""
    new = home / f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(os.path.relpath(folder, home))
    new.replace(home / name)


def activate(home: Path, folder: Path) -> None:
    """Make a release the active one, and remove all others but the one before."""
    before = linked(home, CURRENT)
    if before is not None and before != folder:
        link(home, PREVIOUS, before)
    link(home, CURRENT, folder)
    if linked(home, NEXT) == folder:
        (home / NEXT).unlink()
    kept = {linked(home, one) for one in (CURRENT, NEXT, PREVIOUS)}
    for other in (home / "releases").iterdir():
        if other.resolve() not in kept and not is_in_use(other):
            shutil.rmtree(other, ignore_errors=True)


def is_in_use(folder: Path) -> bool:
    """Return whether an agent run is made with a release. Each keeps a lock on a file in it that only root can open.

    Only a release from before that file is asked for the lock on its ``release.json``, which any user can hold.
    """
    names = (agent_run.RUN_LOCK, "release.json")
    try:
        file = next(folder / name for name in names if (folder / name).exists())
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, StopIteration):
        return False
    return False


def take_trial(release: Release, run: str) -> Optional[Release]:
    """Return the release to which an agent run that has ended left its upgrade; None for none. The file that says so is removed.

    What another run has left stays: it may not have read it yet.

    :param run: the ID of the run.
    """
    if release.home is None:
        return None
    file = release.home / TRIAL
    try:
        name, _space, of_run = file.read_text(encoding="utf-8").strip().rpartition(" ")
        if of_run != run:
            return None
        file.unlink()
    except (OSError, ValueError):
        return None
    new = next_release(release)
    return new if new is not None and new.folder.name == name else None


def try_release(old: Release, new: Release, settings: NodeSettings, path: str) -> tuple[TrialResult, str]:
    """Let a new release make an agent run; return the result, and a reason if the release is refused or the trial is postponed.

    Whether the upgrade itself succeeds does not count. What counts is that the record of the host in Consul is one that the new
    release wrote at the end of its run. A release is refused only if the old one could have reported at that time.
    """
    blocker = _blocker(settings, path)
    if blocker:
        return TrialResult.POSTPONED, blocker
    try:
        problem = _trial(new, settings, path)
    except ConsulError as error:
        return TrialResult.POSTPONED, str(error)
    home = old.home
    assert home is not None
    if problem is None:
        try:
            with alone(home, _INSTALL_SECONDS):
                if linked(home, CURRENT) == new.folder:
                    # An installation has activated it meanwhile.
                    return TrialResult.ACTIVE, ""
                if linked(home, NEXT) != new.folder:
                    return TrialResult.REPLACED, "it has reported"
                activate(home, new.folder)
        except InstallError as error:
            return TrialResult.REPORTED, str(error)
        return TrialResult.ACTIVE, ""
    if is_rebooting(settings.version_file):
        return TrialResult.REBOOTS, ""
    blocker = _blocker(settings, path)
    if blocker:
        return TrialResult.POSTPONED, blocker
    try:
        with alone(home, _INSTALL_SECONDS):
            if linked(home, CURRENT) == new.folder:
                # An operator has installed it meanwhile, whatever its trial says.
                return TrialResult.ACTIVE, problem
            if linked(home, NEXT) != new.folder:
                # An installation may have removed it meanwhile.
                return TrialResult.REPLACED, problem
            with contextlib.suppress(OSError):
                (new.folder / REFUSED).write_text(f"{problem}\n", encoding="utf-8")
    except InstallError as error:
        return TrialResult.POSTPONED, str(error)
    return TrialResult.REFUSED, problem


def _trial(new: Release, settings: NodeSettings, path: str) -> Optional[str]:
    """Return why a release can't report; None if it has.

    :raises ConsulError: if its report can't be read, or another agent run kept it from making one.
    """
    program = str(new.folder / "bin/convoy-node")
    run_seconds = _TRIAL_SECONDS + _limits(settings)
    # The run comes last, because a release whose agent does not work must not finish the upgrade.
    trials = ((["check"], _CHECK_SECONDS), (["agent", "--trial"], _CHECK_SECONDS), (["run", "--trial"], run_seconds))
    before = agent_run.last_run(settings)
    for words, seconds in trials:
        command = [program, "--settings", path, *words]
        try:
            code = run_limited(command, seconds)
            if code in (NO_CONSUL, BAD_SETTINGS):
                if blocker := _blocker(settings, path):
                    raise ConsulError(blocker)
                # Consul, the settings or the token could not be read for a moment, or only this release can't read them. Nothing has begun.
                code = run_limited(command, seconds)
        except subprocess.TimeoutExpired:
            return f"its convoy-node {words[0]} did not end within {seconds:.0f} s"
        except OSError as error:
            return f"{program} can't be run: {error.strerror}"
        # An upgrade may fail. A command for jobs that has a mistake is the operator's.
        if code and words[0] != "run" and (words[0], code) != ("check", BAD_COMMANDS):
            return f"its convoy-node {words[0]} ended with {code}"
    problem = _not_reported(new, settings)
    if problem is not None and agent_run.was_locked_out(settings, before):
        raise ConsulError("another agent run had the lock of this node")
    return problem


def _blocker(settings: NodeSettings, path: str) -> str:
    """Return why no release could make an agent run and report it now; empty if one could."""
    try:
        # Something else may be writing them, or the token.
        settings = read_settings(path)
    except BadSettings as error:
        return str(error)
    disabled = puppet.disabled_by_operator()
    if disabled is not None:
        return f"Puppet is disabled on this host: {disabled}"
    until = time.monotonic() + _LOCK_SECONDS
    while is_locked(agent_run.lock_file(settings)):
        if time.monotonic() > until:
            return "another agent run has the lock of this node"
        time.sleep(0.1)
    keys = NodeKeys(settings.host, settings.role, settings.prefix)
    try:
        read = read_keys(Consul(settings.connection), keys, bool(settings.connection.token))
        found = answer(keys, read, settings.default)
    except ConsulError as error:
        return str(error)
    return "" if found.is_open else found.reason


def _not_reported(new: Release, settings: NodeSettings) -> Optional[str]:
    """Return why the last report of this host is not one of a release; None if it is.

    :raises ConsulError: if the report can't be read, or if Consul was away when it may have been sent.
    """
    try:
        text, outage = _read_record(settings)
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is not known whether it has reported: {sanitize(str(error))}"
    reporter, state = (record.get(name) for name in ("release", "state")) if isinstance(record, dict) else (None, None)
    if reporter == new.name and state in ("upgraded", "failed"):
        return None
    if outage is not None:
        raise outage
    problem = f"its agent run wrote no report for {settings.host}"
    return f"{problem}, whose record still says started" if state == "started" else problem


def _read_record(settings: NodeSettings) -> tuple[bytes, Optional[ConsulError]]:
    """Return the host's record, an empty object if there is none; and the error of a first try that failed, as Consul was away for a moment.

    :raises ConsulError: if it can't be read.
    """
    keys = NodeKeys(settings.host, settings.role, settings.prefix)
    until = time.monotonic() + _REPORT_SECONDS
    outage: Optional[ConsulError] = None
    while True:
        try:
            entry = Consul(settings.connection).get(keys.record)
        except ConsulError as error:
            if time.monotonic() > until:
                raise
            outage = error
            time.sleep(_REPORT_AGAIN)
        else:
            return (entry.value if entry is not None else b"{}"), outage


def _limits(settings: NodeSettings) -> float:
    """Return how long a trial may take for what it runs (seconds)."""
    names = {
        "puppet_gate_puppet_timeout": 3600.0,
        "puppet_gate_lock_timeout": 600.0,
        "puppet_gate_package_timeout": 3600.0,
        "puppet_gate_package_lock_timeout": 600.0,
    }
    if settings.services:
        names["puppet_gate_services_timeout"] = 3600.0
    seconds = sum(float(settings.data.get(name, default)) for name, default in names.items())
    # These limits are those of each file.
    for path, pattern, name, default in (
        (settings.data.get("puppet_gate_hooks_dir") or "/etc/convoy/hooks", "*.d/*", "hooks", 600.0),
        (settings.data.get("puppet_gate_validation_dir") or "/etc/convoy/validation.d", "*", "validation", 60.0),
    ):
        limit = float(settings.data.get(f"puppet_gate_{name}_timeout", default))
        seconds += limit * sum(1 for _file in Path(path).glob(pattern))
    return seconds


@contextlib.contextmanager
def alone(home: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of installations meanwhile.

    :param seconds: how long to wait for another installation.
    :raises InstallError: if another installation has it, or it can't be opened.
    """
    path = home / ".lock"
    try:
        home.mkdir(mode=0o755, parents=True, exist_ok=True)
        # What is there is neither followed nor emptied.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        remedy = (
            f"Run rm {path}"
            if path.is_symlink()
            else "Run convoy-node as root, and make room on the disk if it is full"
        )
        raise InstallError(f"The lock {path} can't be opened: {error.strerror}. {remedy}.") from error
    try:
        if not wait_for_lock(file, seconds):
            raise InstallError(
                f"Another installation works in {home}. Wait until it ends, then run the same command again."
            )
        yield
    finally:
        os.close(file)


def install(source: Path, home: Path = HOME, stage: bool = False) -> tuple[Path, bool]:
    """Install a release from a folder; return its folder, and whether it is active.

    It is copied beside the others and complete before a link names it. A release that is the first of a node becomes active at once. Any
    other one is only staged with ``stage``; the next agent run tries it.

    :raises InstallError: if the source is no release, or can't be copied.
    """
    try:
        name = str(json.loads((source / "release.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InstallError(
            f"{source} is not a release of convoy-node: {sanitize(str(error))}. Install the package or enroll the host again."
        ) from error
    if not name or "/" in name or name.startswith("."):
        raise InstallError(
            f"{source}: {sanitize(name, 100)!r} can't be the name of a release. Install the package or enroll the host again."
        )
    folder = home / "releases" / name
    # A package that is configured must not fail because a trial ends at that moment.
    with alone(home, _INSTALL_SECONDS if stage else 0.0):
        if not (folder / "release.json").exists() or (folder / REFUSED).exists():
            new = home / "releases" / f".{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            try:
                shutil.copytree(source, new, symlinks=True, ignore=shutil.ignore_patterns(REFUSED, agent_run.RUN_LOCK))
                os.close(os.open(new / agent_run.RUN_LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except (OSError, shutil.Error) as error:
                shutil.rmtree(new, ignore_errors=True)
                raise InstallError(
                    f"{source} can't be copied to {folder}: {sanitize(str(error))}. Make room there, then run the same command again."
                ) from error
            # A power cut after the rename must not leave empty files.
            os.sync()
            shutil.rmtree(folder, ignore_errors=True)
            new.replace(folder)
        if stage and linked(home, CURRENT) not in (None, folder):
            link(home, NEXT, folder)
            return folder, False
        # What was staged before is not tried after this one: a package that goes back would bring the release that it replaces.
        with contextlib.suppress(FileNotFoundError):
            (home / NEXT).unlink()
        activate(home, folder)
        return folder, True
