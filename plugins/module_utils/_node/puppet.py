# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of Puppet, with its lock, its time limit and the meaning of its exit code."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncate_middle, truncated_repr
from .lock_file import FOLDER, open_lock_file
from .packages import is_locked
from .process import FinishedProcess, last_lines, run_process

# Exit codes with --detailed-exitcodes, see `puppet help apply` and `puppet help agent`: whether the run changed anything.
_SUCCESS = {0: False, 2: True}
_FAILURES = {
    1: "the run itself failed",
    4: "some resources failed",
    6: "some resources were changed and others failed",
}

# The lock files of the agent in Debian's packages, in those of Puppet 7 and 8 and of OpenVox, and where OpenVox documents it.
_LOCKS = (
    "/var/lib/puppet/state/agent_catalog_run.lock",
    "/var/cache/puppet/state/agent_catalog_run.lock",
    "/opt/puppetlabs/puppet/cache/state/agent_catalog_run.lock",
    "/var/opt/puppetlabs/puppet/cache/state/agent_catalog_run.lock",
)
_LOCKED = "already in progress"
_REFUSED = "administratively disabled"
# The file in the same directories that `puppet agent --disable` writes.
_DISABLED = "agent_disabled.lock"

# `puppet apply` has no lock of its own. Without this one, a second run could begin while that of a killed caller goes on.
_OWN_LOCK = f"{FOLDER}/puppet.lock"
_USERS_LOCK = "{home}/.convoy/puppet.lock"
_PLACES = os.pathsep.join(("/opt/puppetlabs/bin", "/usr/local/bin", "/usr/bin"))
_SECONDS_BETWEEN_TRIES = 1
# Puppet does not wait for the locks of the package manager, which unattended upgrades hold for minutes. So it runs again after this time.
_SECONDS_BETWEEN_RUNS = 5
_SECONDS_OF_CONFIG = 120
# The most that is read of the file with the reason (bytes).
_MOST_REASON = 8192
# How the reason begins with which convoy-node keeps out Puppet's own runs. It is no hold of an operator. An operator may give such a reason too, so
# the whole text of the lock counts: Puppet writes its JSON without spaces.
_KEPT_OUT = "convoy.upgrade: "

# Stands for the version in the name of an environment.
_VERSION = "{version}"
# Puppet::Node::Environment.valid_name? accepts these names. The others are sections of puppet.conf.
_ENVIRONMENT = re.compile(r"\w+", re.ASCII)
_SECTIONS = ("main", "master", "server", "agent", "user")


@dataclass(frozen=True)
class PuppetOptions:
    """How to run Puppet.

    :param kind: apply or agent.
    :param manifest: file or folder, for apply; None for that of the environment, which Puppet itself knows.
    :param modulepath: folders, for apply; empty for Puppet's default.
    :param environment: may have ``{version}``, see :func:`environment_name`; empty for that of Puppet's configuration.
    :param version: the version that the run is for.
    :param seconds: how long the run may take.
    :param lock_seconds: how long to wait until another run has ended, and until no other process has a lock of the package manager.
    """

    kind: str = "apply"
    manifest: str | None = None
    modulepath: Sequence[str] = ()
    environment: str | None = None
    version: str | None = None
    arguments: Sequence[str] = ()
    executable: str = "puppet"
    noop: bool = False
    seconds: float = 3600
    lock_seconds: float = 600

    def command_line(self) -> list[str]:
        """Return the arguments of the command, without the executable.

        :raises UpgradeError: ``bad_environment``.
        """
        words = [self.kind, "--detailed-exitcodes", "--color=false"]
        if self.kind == "agent":
            words += ["--onetime", "--no-daemonize", "--no-splay", "--no-usecacheonfailure", "--verbose"]
        if self.environment:
            words.append(f"--environment={environment_name(self.environment, self.version)}")
            if self.kind == "agent" and _VERSION in self.environment:
                # A server that has another environment for the node would bring it to another version. Then the run fails.
                words.append("--strict_environment_mode")
        if self.modulepath:
            words.append(f"--modulepath={':'.join(self.modulepath)}")
        words += ["--noop"] if self.noop else []
        words += self.arguments
        return [*words, self.manifest] if self.manifest else words


@dataclass(frozen=True)
class PuppetRun:
    """A run that succeeded.

    :param changed: whether it changed anything; with noop, whether it would have.
    :param seconds: how long it ran.
    :param waited: for how many seconds it waited for another run.
    """

    command: list[str]
    code: int
    changed: bool
    output: str
    seconds: float
    waited: float


def run_puppet(options: PuppetOptions) -> PuppetRun:
    """Run Puppet, after waiting for a run that is under way.

    :raises UpgradeError: ``bad_environment``, ``not_runnable``, ``puppet_disabled``, ``bad_lock_file``; ``puppet_locked`` if another run, or
        a process with a lock of the package manager, has not ended in time; ``puppet_timeout`` and ``puppet_failed``. The details of a run that
        failed have ``exit_code`` and ``output``.
    """
    executable = _find(options.executable)
    refuse_disabled()
    if options.kind == "apply" and not options.manifest:
        options = replace(options, manifest=_manifest_of_environment(executable, options))
    command = [executable, *options.command_line()]
    with _alone(options.lock_seconds) as (lock, waited):
        return _run(options, command, lock, waited)


def environment_name(environment: str, version: str | None) -> str:
    """Return the name of an environment with ``{version}`` replaced, such as ``release_2_10`` for ``release_{version}`` and 2.10.

    Characters of the version that Puppet does not accept become ``_``, as in the environments that r10k makes of branches.

    :raises UpgradeError: ``bad_environment`` if Puppet does not accept the name, or there is no version.
    """
    if _VERSION in environment and not version:
        raise UpgradeError(
            "bad_environment",
            f"environment: {environment} depends on the version, and this host has none yet. Begin a rollout, or enroll the host with "
            "puppet_gate_version.",
        )
    name = environment.replace(_VERSION, re.sub(r"\W", "_", version or "", flags=re.ASCII))
    if not _ENVIRONMENT.fullmatch(name) or name in _SECTIONS:
        raise UpgradeError(
            "bad_environment",
            f"environment: Puppet accepts no environment {truncated_repr(name)}: a name has letters, digits and _, and is none of "
            f"{', '.join(_SECTIONS)}. Correct the setting.",
        )
    return name


def _manifest_of_environment(executable: str, options: PuppetOptions) -> str:
    """Return the manifests that a Puppet server would compile: where they are depends on the packages, the settings and the environment."""
    command = [executable, "config", "print", "manifest"]
    if options.environment:
        command.append(f"--environment={environment_name(options.environment, options.version)}")
    done = run_process(command, _SECONDS_OF_CONFIG)
    paths = [line for line in done.output.splitlines() if line.startswith("/")]
    if done.code != 0 or not paths:
        why = last_lines(done.output) or "it printed nothing"
        raise UpgradeError(
            "puppet_failed",
            f"manifest: puppet config print manifest does not say where the manifests are: {why}. Set it.",
            exit_code=done.code,
            output=done.output,
        )
    return paths[-1]


def refuse_disabled() -> None:
    """Raise an error if an operator has disabled Puppet, because ``puppet apply`` would run anyway.

    :raises UpgradeError: ``puppet_disabled``; the details have ``reason``.
    """
    reason = disabled_for()
    if reason is not None:
        raise UpgradeError(
            "puppet_disabled",
            f"Puppet is disabled on this host: {reason}. Nothing was run. When that is over, run 'puppet agent --enable' there.",
            reason=reason,
        )


def disabled_for() -> str | None:
    """Return the reason that an operator gave to ``puppet agent --disable``, None if no operator has disabled Puppet.

    A file that can't be read disables Puppet too, because Puppet only checks that it exists. The lock with which convoy-node keeps out
    Puppet's own runs does not count.
    """
    for lock in _LOCKS:
        path = Path(lock).with_name(_DISABLED)
        reason = _reason(path)
        if reason is not None and not _is_kept_out(path):
            return reason
    return None


def _has_own_lock() -> bool:
    return any(_is_kept_out(Path(lock).with_name(_DISABLED)) for lock in _LOCKS)


def _is_kept_out(path: Path) -> bool:
    """Return whether convoy-node wrote a lock file. One that can't be read is an operator's."""
    try:
        text = path.read_text(encoding="utf-8")
        reason = json.loads(text)["disabled_message"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    return str(reason).startswith(_KEPT_OUT) and text == json.dumps({"disabled_message": reason})


def _reason(path: Path) -> str | None:
    """Return the reason in a file of ``puppet agent --disable``, None if there is no such file."""
    if not os.path.lexists(path):
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_REASON).decode(errors="replace")
    except OSError as error:
        return f"{path} can't be read: {error.strerror}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    reason = found.get("disabled_message") if isinstance(found, dict) else found
    return truncate_middle(sanitize(str(reason or "").strip())) or "reason not specified"


@contextlib.contextmanager
def _let_in() -> Iterator[None]:
    """Enable Puppet for a run of ``puppet agent``, which refuses to run while convoy-node keeps out other runs; then keep them out again."""
    # Each lock is put back, also if another one can't be.
    with contextlib.ExitStack() as ended:
        for lock in _LOCKS:
            path = Path(lock).with_name(_DISABLED)
            # convoy-node removes it if this process is killed.
            aside = path.with_name(f".{_DISABLED}.{os.getpid()}")
            if _is_kept_out(path):
                with contextlib.suppress(FileNotFoundError):
                    path.rename(aside)
                    ended.callback(_put_back, aside, path)
        yield


def _put_back(aside: Path, path: Path) -> None:
    """Put a lock back that was put aside. A copy could be interrupted, or find a full disk, and an incomplete lock would count as an operator's."""
    try:
        # An operator may have disabled Puppet meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def _run(options: PuppetOptions, command: list[str], lock: int, waited_already: float) -> PuppetRun:
    began = runtime.monotonic() - waited_already
    waited = waited_already
    if options.kind == "apply" and _wait_for_agent(options.lock_seconds):
        waited = runtime.monotonic() - began
    was_refused = False
    while True:
        # An operator may have disabled it while this run waited.
        refuse_disabled()
        with _let_in() if options.kind == "agent" else contextlib.nullcontext():
            # Puppet inherits the lock, so that it lasts as long as Puppet runs, even if this process is killed.
            ended = run_process(command, options.seconds, keep=[lock])
            # convoy-node has disabled it just before it began. It leaves a lock alone that is put aside, as it is in the second try.
            is_refused = not was_refused and ended.code == 1 and _REFUSED in ended.output and _has_own_lock()
        if is_refused:
            was_refused = True
            continue
        has_failed = ended.code is not None and ended.code not in _SUCCESS
        # The agent was locked, which has the same exit code 1 as a failure.
        is_agent_locked = options.kind == "agent" and has_failed and _LOCKED in ended.output
        if not is_agent_locked and not (has_failed and is_locked(ended.output)):
            break
        if waited >= options.lock_seconds:
            if is_agent_locked:
                raise _locked(options.lock_seconds, last_lines(ended.output, 1))
            # Other resources may have failed too, so this says all of it.
            raise _failure(command, options.seconds, ended, "puppet_locked")
        runtime.sleep(_SECONDS_BETWEEN_TRIES if is_agent_locked else _SECONDS_BETWEEN_RUNS)
        waited = runtime.monotonic() - began
    if ended.code not in _SUCCESS:
        raise _failure(command, options.seconds, ended)
    changed = _SUCCESS[ended.code]
    if options.noop:
        changed = any(line.rstrip().endswith("(noop)") for line in ended.output.splitlines())
    return PuppetRun(command, ended.code, changed, ended.output, ended.seconds, waited)


@contextlib.contextmanager
def _alone(seconds: float) -> Iterator[tuple[int, float]]:
    """Wait for other runs of this module; yield the open lock, and the seconds that it took, 0 if there was no other run."""
    uid = os.getuid()
    path = _USERS_LOCK.format(home=pwd.getpwuid(uid).pw_dir) if uid else _OWN_LOCK
    began = runtime.monotonic()
    waited = 0.0
    with open_lock_file(path) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if runtime.monotonic() - began >= seconds:
                    raise _locked(seconds, f"{path} is locked") from None
            runtime.sleep(_SECONDS_BETWEEN_TRIES)
            waited = runtime.monotonic() - began
        yield lock, waited


def _find(executable: str) -> str:
    found = shutil.which(executable) or shutil.which(executable, path=_PLACES)
    if found is None:
        raise UpgradeError(
            "not_runnable",
            f"executable: {executable!r} is neither on PATH nor in {_PLACES}. Install Puppet, or set executable.",
        )
    return found


def _wait_for_agent(seconds: float) -> bool:
    """Wait until an agent's run has ended, for which `puppet apply` itself does not wait; return whether there was one."""
    until = runtime.monotonic() + seconds
    found = False
    while (number := _agent_at_work()) is not None:
        if runtime.monotonic() >= until:
            raise _locked(seconds, f"process {number} has the lock")
        runtime.sleep(_SECONDS_BETWEEN_TRIES)
        found = True
    return found


def _agent_at_work() -> int | None:
    for path in _LOCKS:
        try:
            number = int(Path(path).read_text(encoding="ascii"))
            # Like Puppet, ignore the lock of a process that has ended.
            if b"puppet" in Path(f"/proc/{number}/cmdline").read_bytes():
                return number
        except (OSError, ValueError):
            continue
    return None


def _locked(seconds: float, what: str) -> UpgradeError:
    since = f"has not ended within {seconds:g} s" if seconds else "is under way"
    return UpgradeError(
        "puppet_locked",
        f"Another run of Puppet {since} ({what}). Find out why it does not end, or raise lock_timeout (on a pull host "
        "puppet_gate_lock_timeout).",
    )


def _failure(
    command: Sequence[str],
    seconds: float,
    ended: FinishedProcess,
    failed: Literal["puppet_failed", "puppet_locked"] = "puppet_failed",
) -> UpgradeError:
    name = f"puppet {command[1]}"
    details = {"exit_code": ended.code, "output": ended.output}
    if ended.code is None:
        return UpgradeError(
            "puppet_timeout",
            f"{name} took longer than {seconds:g} s and was ended; its last lines: {last_lines(ended.output).rstrip('.')}. Find out what hangs, or raise "
            "puppet_timeout (on a pull host puppet_gate_puppet_timeout).",
            **details,
        )
    errors = [line for line in ended.output.splitlines() if line.startswith("Error:")]
    why = "\n".join(errors[-10:]) or last_lines(ended.output) or "it printed nothing"
    meaning = _FAILURES.get(ended.code, "an exit code that Puppet does not document")
    remedy = "Fix that in the manifests or on the host, then let the host try again."
    return UpgradeError(failed, f"{name} ended with {ended.code}, {meaning}: {why.rstrip('.')}. {remedy}", **details)
