# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of Puppet, and what its exit code means."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._common.errors import UpgradeError
from .._common.sanitize import sanitize, truncate_middle
from .lock_file import FOLDER, open_lock_file
from .process import FinishedProcess, last_lines, run_process

# With --detailed-exitcodes: what `puppet help apply` and `puppet help agent` say.
_SUCCESS = {0: False, 2: True}
_FAILURES = {
    1: "the run itself failed",
    4: "some resources failed",
    6: "some resources were changed and others failed",
}

# Where Debian's and Puppet's own packages have the lock of an agent's run.
_LOCKS = (
    "/var/lib/puppet/state/agent_catalog_run.lock",
    "/var/cache/puppet/state/agent_catalog_run.lock",
    "/opt/puppetlabs/puppet/cache/state/agent_catalog_run.lock",
)
_LOCKED = "already in progress"
# Beside them, what `puppet agent --disable` writes.
_DISABLED = "agent_disabled.lock"

# The lock that `puppet apply` does not have: without it, a run whose caller was killed would have company.
_OWN_LOCK = f"{FOLDER}/puppet.lock"
_USERS_LOCK = "{home}/.convoy/puppet.lock"
_PLACES = os.pathsep.join(("/opt/puppetlabs/bin", "/usr/local/bin", "/usr/bin"))
_SECONDS_BETWEEN_LOOKS = 1
# In bytes, of what was given to Puppet.
_MOST_REASON = 8192


@dataclass(frozen=True)
class PuppetOptions:
    """How Puppet is to be run.

    :param kind: apply or agent.
    :param manifest: file or folder, for apply.
    :param modulepath: folders, for apply; none for Puppet's own.
    :param seconds: how long the run may take.
    :param lock_seconds: how long to wait for another run to end.
    """

    kind: str = "apply"
    manifest: str | None = None
    modulepath: Sequence[str] = ()
    environment: str | None = None
    arguments: Sequence[str] = ()
    executable: str = "puppet"
    noop: bool = False
    seconds: float = 3600
    lock_seconds: float = 600

    def words(self) -> list[str]:
        """Return the words of the command, without the executable."""
        words = [self.kind, "--detailed-exitcodes", "--color=false"]
        if self.kind == "agent":
            words += ["--onetime", "--no-daemonize", "--no-splay", "--no-usecacheonfailure", "--verbose"]
        if self.environment:
            words.append(f"--environment={self.environment}")
        if self.modulepath:
            words.append(f"--modulepath={':'.join(self.modulepath)}")
        words += ["--noop"] if self.noop else []
        words += self.arguments
        return [*words, self.manifest] if self.manifest else words


@dataclass(frozen=True)
class PuppetRun:
    """A run that went well.

    :param changed: whether it changed something, or would have, with noop.
    :param waited: for how many seconds another run was waited for.
    """

    command: list[str]
    code: int
    changed: bool
    output: str
    seconds: float
    waited: float


def run_puppet(wish: PuppetOptions) -> PuppetRun:
    """Run Puppet; a run that is under way is waited for.

    :raises UpgradeError: ``not_runnable``, ``puppet_disabled``, ``bad_lock_file``, ``puppet_locked``, ``puppet_timeout``, ``puppet_failed``; the details have
        ``exit_code`` and ``output``.
    """
    command = [_find(wish.executable), *wish.words()]
    refuse_disabled()
    with _alone(wish.lock_seconds) as (lock, waited):
        return _run(wish, command, lock, waited)


def refuse_disabled() -> None:
    """Refuse to run Puppet where an operator has disabled it. `puppet apply` would run all the same.

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
    """Return the reason that was given to ``puppet agent --disable``, None where Puppet is not disabled.

    A file that can't be read disables too: Puppet itself looks only at whether it is there.
    """
    for lock in _LOCKS:
        path = Path(lock).with_name(_DISABLED)
        if not os.path.lexists(path):
            continue
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
    return None


def _run(wish: PuppetOptions, command: list[str], lock: int, waited_already: float) -> PuppetRun:
    began = time.monotonic() - waited_already
    waited = waited_already
    if wish.kind == "apply" and _wait_for_agent(wish.lock_seconds):
        waited = time.monotonic() - began
    while True:
        # Puppet has the lock open as well, so that it lasts as long as Puppet does, whatever becomes of this process.
        ended = run_process(command, wish.seconds, keep=[lock])
        if not (wish.kind == "agent" and ended.code not in _SUCCESS and _LOCKED in ended.output):
            break
        # The agent tells it with exit code 1, like a failure.
        if waited >= wish.lock_seconds:
            raise _locked(wish.lock_seconds, last_lines(ended.output, 1))
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        waited = time.monotonic() - began
    if ended.code not in _SUCCESS:
        raise _failure(command, wish.seconds, ended)
    changed = _SUCCESS[ended.code]
    if wish.noop:
        changed = any(line.rstrip().endswith("(noop)") for line in ended.output.splitlines())
    return PuppetRun(command, ended.code, changed, ended.output, ended.seconds, waited)


@contextlib.contextmanager
def _alone(seconds: float) -> Iterator[tuple[int, float]]:
    """Wait for other runs that this module has started; give the open lock, and how long that took, 0 where none was."""
    uid = os.getuid()
    path = _USERS_LOCK.format(home=pwd.getpwuid(uid).pw_dir) if uid else _OWN_LOCK
    began = time.monotonic()
    waited = 0.0
    with open_lock_file(path) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began >= seconds:
                    raise _locked(seconds, f"{path} is locked") from None
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            waited = time.monotonic() - began
        yield lock, waited


def _find(executable: str) -> str:
    found = shutil.which(executable) or shutil.which(executable, path=_PLACES)
    if found is None:
        raise UpgradeError(
            "not_runnable", f"executable: {executable!r} is neither on PATH nor in {_PLACES}. Is Puppet installed?"
        )
    return found


def _wait_for_agent(seconds: float) -> bool:
    """Wait for an agent's run to end; unlike another agent, `puppet apply` would run beside it. Return whether there was one."""
    until = time.monotonic() + seconds
    found = False
    while (number := _agent_at_work()) is not None:
        if time.monotonic() >= until:
            raise _locked(seconds, f"process {number} has it")
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        found = True
    return found


def _agent_at_work() -> int | None:
    for path in _LOCKS:
        try:
            number = int(Path(path).read_text(encoding="ascii"))
            # A lock that a dead process left behind locks nothing; Puppet itself sees it in the same way.
            if b"puppet" in Path(f"/proc/{number}/cmdline").read_bytes():
                return number
        except (OSError, ValueError):
            continue
    return None


def _locked(seconds: float, what: str) -> UpgradeError:
    return UpgradeError(
        "puppet_locked",
        f"Another run of Puppet has not ended within {seconds:g} s ({what}). See what it hangs at, or raise "
        "lock_timeout.",
    )


def _failure(command: Sequence[str], seconds: float, ended: FinishedProcess) -> UpgradeError:
    shown = f"puppet {command[1]}"
    details = {"exit_code": ended.code, "output": ended.output}
    if ended.code is None:
        return UpgradeError(
            "puppet_timeout",
            f"{shown} took longer than {seconds:g} s and was ended; its last lines: {last_lines(ended.output)}",
            **details,
        )
    errors = [line for line in ended.output.splitlines() if line.startswith("Error:")]
    why = "\n".join(errors[-10:]) or last_lines(ended.output) or "it printed nothing"
    meaning = _FAILURES.get(ended.code, "no code that Puppet documents")
    return UpgradeError("puppet_failed", f"{shown} ended with {ended.code}, {meaning}: {why}", **details)
