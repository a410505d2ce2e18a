# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of convoy-node."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from . import agent_run, releases
from .bad_settings import forget_good, keep_good, report_bad_settings, start_again
from .decision import JOB, puppet_due
from .gate_reading import GateReading, keep_puppet_out
from .jobs.job_run import JobRun
from .jobs.node_commands import command_problems
from .jobs.refusals import Refused
from .jobs.signature import check_signers
from .machine import puppet
from .machine.errors import BadSettings, BadToken, ConsulError, InstallError, LockError
from .machine.lock_file import is_locked, open_lock_file, wait_for_lock
from .node.settings import FILE, NodeSettings, read_settings
from .node.state import node_version
from .releases import BAD_COMMANDS, BAD_SETTINGS, BAD_TOKEN, NO_CONSUL, TrialResult
from .resident import Resident

# How long the lock of an agent run may outlast it (seconds).
_LOCK_SECONDS = 2.0

HELP = """\
commands:
  agent            wait for the gate, and start agent runs; the unit convoy-node.service runs this
  once             read the gate, make an agent run if there is something to do, and end; for cron
  run [ARGUMENT]   make an agent run now; ARGUMENTs are for ansible-playbook, such as --check --diff
  job              run the job that the node is admitted to, and report it
  check            check the settings, the commands and signers of jobs, and that Consul can be read
  status           show release, version, gate, and when Puppet runs next
  leave            let in Puppet's own runs, which the agent keeps out, before this node is removed
  install FOLDER   install a release of convoy-node from a folder; with --stage, the next agent run tries it
"""


def main(words: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="convoy-node",
        description="Upgrades this node and runs Puppet when its gate in Consul is open.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--settings", default=FILE, help="the settings of the node; %(default)s by default")
    parser.add_argument(
        "command",
        choices=["agent", "once", "run", "job", "check", "status", "leave", "install"],
        metavar="COMMAND",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    options = parser.parse_args(words)
    # As a trial, the agent reads once, waits for a moment, and ends. A new release has to be able to do that.
    is_trial = options.command == "agent" and options.arguments == ["--trial"]
    if options.arguments and options.command not in ("run", "install", "once") and not is_trial:
        parser.error(f"{options.command} takes no arguments")
    # systemd sets it; the agent takes it from the environment.
    is_service = "NOTIFY_SOCKET" in os.environ
    try:
        if options.command == "install":
            return _install(options.arguments)
        if options.command == "leave":
            return _leave()
        if options.command == "agent":
            return _agent(options.settings, is_trial)
        settings = read_settings(options.settings)
        if options.command == "run":
            return _run(settings, options.settings, options.arguments)
        if options.command == "once":
            return _once(settings, options.settings, options.arguments)
        if options.command == "job":
            return _job(settings)
        return _check(settings) if options.command == "check" else _status(settings)
    except BadSettings as error:
        print(f"convoy-node: {error}", file=sys.stderr, flush=True)
        if options.command in ("agent", "once", "run"):
            keep_puppet_out(options.settings, str(error), say)
            with contextlib.suppress(OSError, LockError):
                report_bad_settings(error, options.settings)
        if options.command != "agent":
            return BAD_SETTINGS
        code = _agent_code(options.settings)
        if code == BAD_SETTINGS and is_service:
            start_again()
        return code
    except (InstallError, LockError) as error:
        print(f"convoy-node: {error}", file=sys.stderr, flush=True)
        if options.command == "once":
            keep_puppet_out(options.settings, str(error), say)
        if options.command in ("once", "run") and isinstance(error, LockError):
            with contextlib.suppress(OSError, LockError):
                report_bad_settings(error, options.settings)
        return 1


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def _agent(path: str, is_trial: bool) -> int:
    try:
        resident = Resident(path, say)
    except BadSettings as error:
        if not is_trial:
            raise
        # The release before finds out whether it can read them.
        print(f"convoy-node: {error}", file=sys.stderr, flush=True)
        return BAD_TOKEN if isinstance(error, BadToken) else BAD_SETTINGS
    return resident.try_once() if is_trial else resident.run()


def _agent_code(path: str) -> int:
    """Return 78 if the settings still can't be used: then the unit has failed. Another code lets systemd start it again at once."""
    try:
        # They may have changed while the mistake was reported. Then convoy-node.path found an agent that was running.
        read_settings(path)
    except BadSettings:
        return BAD_SETTINGS
    return 1


def _run(settings: NodeSettings, path: str, arguments: Sequence[str]) -> int:
    """Make an agent run; if it has brought another release of the agent, let that one go on."""
    release = agent_run.own_release()
    problem = agent_run.runtime_problem(release, settings)
    if problem is not None:
        print(f"convoy-node: {problem}", file=sys.stderr, flush=True)
        return 1
    is_trial, run = arguments[:1] == ["--trial"], agent_run.new_id()
    if not arguments:
        code, was_cut_short = _run_to_end(release, settings, path, run)
        if was_cut_short:
            return code or 1
    else:
        more = [*_AS_TRIAL, *arguments[1:]] if is_trial else arguments
        code = agent_run.start(release, settings, path, more).wait()
        agent_run.note_end(settings)
    # An empty version file means an upgrade that has not ended. A new release is tried only then, while the node has a slot.
    is_unfinished = code == 0 and not arguments and node_version(settings.version_file) == ""
    new = releases.take_trial(release, run) if is_unfinished else None
    if new is None:
        return code
    say(f"{settings.host}: the release {new.name} of convoy-node goes on")
    result, reason = releases.try_release(release, new, settings, path)
    if result is TrialResult.REBOOTS:
        say(f"{settings.host}: the node reboots, and the release {new.name} is tried again after the boot")
        return 0
    if result is TrialResult.ACTIVE:
        what = (
            f"was activated by an installation, though its trial failed: {reason}"
            if reason
            else "has reported, and is active now"
        )
        say(f"{settings.host}: the release {new.name} {what}")
        return 0
    if result is TrialResult.REPLACED:
        say(
            f"{settings.host}: the release {new.name} does not become active, because {release.home}/next does not name it any more: "
            f"{reason.rstrip('.')}"
        )
        return 0
    if result is TrialResult.REPORTED:
        say(
            f"{settings.host}: the release {new.name} has reported, but is not active: {reason.rstrip('.')}. The next agent run of an upgrade of "
            "this node tries it again"
        )
        return 0
    if result is TrialResult.POSTPONED:
        say(
            f"{settings.host}: no release can report now: {reason.rstrip('.')}. The next agent run of the upgrade tries {new.name} again"
        )
        return 1
    say(f"{settings.host}: the release {new.name} can't report: {reason.rstrip('.')}. The node stays at {release.name}")
    # This run finds the refused release, and so fails and reports it.
    code, _was_cut_short = _run_to_end(release, settings, path, agent_run.new_id())
    return code or 1


def _run_to_end(release: agent_run.Release, settings: NodeSettings, path: str, run: str) -> tuple[int, bool]:
    """Make an agent run; return its exit code, and whether Ansible cut it short, which is reported then.

    Nothing in the run itself could report that. The node would keep its slot, and each further agent run would end in the same way.

    :param run: the ID of the run.
    """
    code = agent_run.start(release, settings, path, ["-e", agent_run.as_variables(puppet_gate_run=run)]).wait()
    was_cut_short = agent_run.was_cut_short(settings, run, code)
    agent_run.note_end(settings)
    # Its lock ends with it. If there is one, another run works already, and reports.
    if was_cut_short and not _is_locked(agent_run.lock_file(settings)):
        where = f"journalctl -u {agent_run.UNIT}" if agent_run.has_unit() else "the output of convoy-node"
        why = f"Ansible ended the agent run (exit code {code}) without a report. {where} says why."
        say(f"{settings.host}: {why}")
        more = ["-e", agent_run.as_variables(puppet_gate_cut_short=why)]
        agent_run.start(release, settings, path, more).wait()
        agent_run.note_end(settings)
    return code, was_cut_short


def _is_locked(path: Path) -> bool:
    """Return whether a run has the lock of the node, also after the moment that the lock of one that has just ended may last."""
    until = time.monotonic() + _LOCK_SECONDS
    while is_locked(path):
        if time.monotonic() > until:
            return True
        time.sleep(0.05)
    return False


# The role reports first then, so that a release that can't report leaves the upgrade unfinished.
_AS_TRIAL = ["-e", '{"puppet_gate_trial": true}']


def _job(settings: NodeSettings) -> int:
    """Run the job that the node is admitted to, if there is one, and report jobs that have ended."""
    run = JobRun(settings, agent_run.lock_file(settings), agent_run.own_release().name, say=say)
    try:
        return run.run()
    except ConsulError as error:
        print(f"convoy-node: {error}", file=sys.stderr, flush=True)
        return NO_CONSUL


def _once(settings: NodeSettings, path: str, arguments: Sequence[str]) -> int:
    """Read the gate once, as cron does every minute or so.

    :param arguments: ``--delay SECONDS`` for a random delay at most.
    """
    if arguments[:1] == ["--delay"] and len(arguments) == 2 and arguments[1].isdecimal():
        time.sleep(random.uniform(0, int(arguments[1])))
    elif arguments:
        print("convoy-node: once takes --delay SECONDS", file=sys.stderr)
        return 2
    with alone(settings) as is_alone:
        # After its lock, which may be what was reported.
        keep_good(settings, path)
        if not is_alone:
            say(f"{settings.host}: convoy-node runs already")
            # What the other one started may take longer than the checks of the node last.
            GateReading(settings, say=say).renew_checks()
            return 0
        return _read_once(settings, path)


def _read_once(settings: NodeSettings, path: str) -> int:
    reading = GateReading(settings, say=say, is_single=True)
    code = _read_and_act(reading, path, with_job=True)
    with contextlib.suppress(ConsulError):
        reading.ensure_wake_key()
    return code


def _read_and_act(reading: GateReading, path: str, with_job: bool) -> int:
    """Read the gate, and do what there is to do; return its exit code.

    :param with_job: whether it may be a job, after which the gate is read again. Puppet does not wait for a job that can't begin each time.
    """
    settings, decision = reading.settings, reading.read()
    is_job = decision.run is not None and decision.run.startswith(f"{JOB} ")
    if is_job and not with_job:
        return 0
    say(f"{settings.host}: {decision.reason}" + (f" (agent run: {decision.run})" if decision.run else ""))
    if decision.run is None:
        return 0
    before = agent_run.last_run(settings)
    code = _job(settings) if is_job else _run(settings, path, [])
    reading.ended(decision.run, agent_run.has_worked(settings, before, code))
    return (_read_and_act(reading, path, with_job=False) or code) if is_job else code


@contextlib.contextmanager
def alone(settings: NodeSettings) -> Iterator[bool]:
    """Hold the lock of ``convoy-node once`` meanwhile; yield False if another one has it, such as the one that cron started before.

    :raises LockError: if the file can't be trusted.
    """
    file = open_lock_file(agent_run.lock_file(settings).with_name("agent.lock"))
    try:
        yield wait_for_lock(file)
    finally:
        os.close(file)


def _leave() -> int:
    """Remove the agent's own lock of Puppet. It needs no settings, which may be gone. Ansible reads from the output whether it did anything.

    Without the copies of the last settings, a job of cron that was left does not set the lock again.
    """
    try:
        forget_good()
        if puppet.let_in(puppet.FOLDERS):
            say("Puppet's own runs are let in again")
    except OSError as error:
        print(f"convoy-node: the lock of Puppet's own runs can't be removed: {error}", file=sys.stderr)
        return 1
    return 0


def _check(settings: NodeSettings) -> int:
    problem = agent_run.runtime_problem(agent_run.own_release(), settings)
    if problem is not None:
        print(f"convoy-node: {problem}", file=sys.stderr)
        return 1
    os.close(open_lock_file(agent_run.lock_file(settings)))
    reading = GateReading(settings, say=lambda _text: None)
    try:
        reading.read_keys()
    except ConsulError as error:
        print(f"convoy-node: {error}", file=sys.stderr)
        return NO_CONSUL
    problems = command_problems(settings.commands_dir)
    if settings.require_signed_jobs or os.path.lexists(settings.allowed_signers):
        try:
            check_signers(settings.allowed_signers)
        except Refused as error:
            problems.append(str(error))
    for problem in problems:
        print(f"convoy-node: {problem}", file=sys.stderr)
    if problems:
        return BAD_COMMANDS
    say(
        f"{settings.host} (role {settings.role}): the settings can be used, and Consul at {settings.connection.url} can be read"
    )
    return 0


def _status(settings: NodeSettings) -> int:
    reading = GateReading(settings, say=lambda _text: None, is_single=True)
    decision = reading.read(only=True)
    facts = reading.facts
    release = agent_run.own_release()
    version = facts.version if facts.version else ("an upgrade has not ended" if facts.version == "" else "none yet")
    say(f"host:     {settings.host} (role {settings.role})")
    say(f"release:  {release.name}")
    home = release.home
    new: Optional[Path] = releases.linked(home, releases.NEXT) if home is not None else None
    if new is not None:
        say(f"next:     {new.name}" + (", refused" if (new / releases.REFUSED).exists() else ""))
    say(f"version:  {version}")
    say(f"gate:     {decision.reason}")
    if settings.puppet_interval is not None and facts.puppet_at is None:
        say(f"puppet:   has not run yet; the first run is spread over {settings.puppet_splay} s")
    elif settings.puppet_interval is not None:
        say(f"puppet:   due in {max(0, round(puppet_due(settings, facts) - facts.now))} s, if the gate is open")
    else:
        say("puppet:   something else runs it")
    return 0


def _install(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="convoy-node install")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, default=releases.HOME)
    parser.add_argument("--stage", action="store_true")
    options = parser.parse_args(arguments)
    folder, is_active = releases.install(options.folder, options.home, options.stage)
    say(f"{folder.name} is {'active' if is_active else 'tried at the next upgrade of this node'}")
    if is_active and agent_run.has_systemd():
        # A resident agent notices by itself after its next agent run; this is sooner.
        restart = ["systemctl", "--no-block", "try-restart", "convoy-node.service"]
        subprocess.run(restart, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return 0
