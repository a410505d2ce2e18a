# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of ``ansible-playbook`` with one of the playbooks: checks of its command line before it begins, and ``Next:`` at its end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.inventory.manager import split_host_pattern
from ansible.plugins.loader import filter_loader

from ...module_utils._common import runtime
from ...module_utils._common.errors import TEMPORARY_CODES, UpgradeError
from ...module_utils._common.names import JOB, listing
from .._daemon_client.continuation import Continuation, noted_continuation
from .._services.steps import POST, STEPS
from .command import AnsibleCommand
from .extra_vars import refuse_leftovers
from .keepalives import keep_connections_alive, keep_connections_of_hosts_alive
from .known_variables import (
    VARIABLES,
    is_single_pass,
    own_variables,
    refuse_bad_booleans,
    refuse_bad_job,
    refuse_empty_names,
    refuse_unknown_variables,
)
from .limit import honours_limit, refuse_limit, refuse_no_nodes, refuse_planner_hosts
from .next_step import COMMAND, FOLLOW, UPGRADES, NextStep, after_failure, first_need, next_part, next_pass, next_run
from .output import call_when_closed
from .playbook_names import file_of_play, is_of_collection, playbook_names
from .task_options import TAG_OPTIONS, refuse_task_options

# Ansible's exit code for invalid options.
BAD_OPTIONS = 5
# Ansible's exit code after Ctrl-C.
_INTERRUPTED = 99
# How long Ansible may need to end after an interrupt (seconds), and how often it is interrupted. Python ignores an interrupt that comes
# within a fork or a destructor.
_SECONDS_TO_END, _INTERRUPTS = 10.0, 3
# How a run ends while its rollout goes on: by an interrupt, or by these failures; and while it goes on after what an operator does next.
_LEFT_EARLY = ("", "timeout", *TEMPORARY_CODES)
_WAITS_FOR_OPERATOR = ("stuck", "failure_budget", "role_budget", "approval", "paused", "hours")
_NODE = "node"
# What a rollout needs is the next step after these.
_SHOW_NEEDS = ("status", "resume", "approve", "retry")
# A timer or another run starts these playbooks, so they print no next step.
_UNATTENDED = (_NODE, "notification")


class PlaybookRun:
    """One run of a playbook.

    :param playbook: the file of the playbook.
    :param say: prints a line to the standard error.
    :param plays: its plays, with those of imported playbooks.
    """

    def __init__(self, playbook: str, say: Callable[[str], None], plays: Sequence[Any] = ()) -> None:
        """Read the command from ``sys.argv``."""
        self._names = playbook_names(playbook, plays)
        self._name = self._names[0]
        imports = not is_of_collection(playbook) and any(is_of_collection(file_of_play(play)) for play in plays)
        self._command = AnsibleCommand(tuple(sys.argv), playbook, imports=imports)
        self._say = say
        self._is_over = self._has_succeeded = self._pushes = self._is_limited = self._is_exiting = False
        self._is_single_pass = self._has_planner_host = False
        self._process = os.getpid()
        # Until then, further signals to end are ignored: a terminal that is closed sends several.
        self._ends_until = 0.0
        # Whether the output was closed, and whether the run ends even if Ansible hangs.
        self._is_closed = self._ends_in_time = False
        self._has_lost_host = False
        # The longest that a task of a host may take (seconds); 0 for no limit.
        self.task_timeout = 0
        self._pushed: set[str] = set()
        # Hosts whose connections have keepalives.
        self._kept_alive: set[str] = set()
        self._code = self._job = ""
        # What the failure itself names.
        self._fix: NextStep | None = None
        self._without: Sequence[str] = ()
        self._partial: dict[str, Sequence[str]] = {}
        self._info: Mapping[str, Any] = {}
        self._is_handed_over = self._begins_no_job = False

    def begin(self) -> None:
        """Make sure that the run ends when its output is closed, and prints the next step when it ends."""
        if self._name in _UNATTENDED:
            # These continue if their output is closed.
            call_when_closed(lambda: None)
            if self._name == _NODE and context.CLIARGS.get("subset"):
                # An operator makes an agent run over SSH. On a node, there is no limit.
                atexit.register(self._say_next, os.getpid())
            return
        if self._may_push:
            keep_connections_alive()
            # Each task on a host has its limit by this filter, and would load it in a process of its own.
            filter_loader.get("convoy.upgrade.time_left")
        call_when_closed(self._end_without_output)
        for number in (signal.SIGTERM, signal.SIGHUP):
            # nohup ignores one of them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._end_as_by_ctrl_c)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            signal.signal(signal.SIGINT, functools.partial(self._end_by_ctrl_c, interrupt))
        # At exit, so that it is the last line, however the run ends.
        atexit.register(self._say_next, os.getpid())

    @property
    def _may_push(self) -> bool:
        return any(name in (*UPGRADES, COMMAND) for name in self._names)

    def keep_connections_alive(self, play: Any) -> None:
        """Add keepalives to the arguments for ``ssh`` of the hosts of a play, and of all others if it has hosts besides the planner host.

        Their tasks may be delegated to hosts of no play, such as a balancer.
        """
        if not self._may_push:
            return
        variables = play.get_variable_manager()
        inventory = variables._inventory
        hosts = inventory.get_hosts(play.hosts)
        if len(hosts) > 1:
            everyone = inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True)
            hosts = [*dict.fromkeys([*hosts, *everyone])]
        hosts = [host for host in hosts if host.name not in self._kept_alive]
        self._kept_alive.update(host.name for host in hosts)
        keep_connections_of_hosts_alive(variables, hosts)

    def remember(self, result: Mapping[str, Any]) -> None:
        """Keep what the next step depends on from a task's result: the failure and the states of the hosts."""
        if "pushes" in result and isinstance(result.get("task_timeout"), int):
            self.task_timeout = result["task_timeout"]
        # Only results of push_run have this key.
        if "tasks_folder" in result:
            self._pushes = True
            self._pushed.update(result.get("hosts") or ())
        failure = result.get("failure")
        if isinstance(failure, Mapping) and isinstance(failure.get("code"), str):
            self._code = failure["code"]
            details = failure.get("details")
            details = details if isinstance(details, Mapping) else {}
            playbook, variables = details.get("playbook") or "", details.get("variables") or {}
            self._fix = NextStep(playbook, variables, then_again=bool(playbook)) if playbook or variables else None
            self._without = details.get("without") or ()
        self._is_handed_over = self._is_handed_over or bool(result.get("planners"))
        if isinstance(result.get("partial"), Mapping):
            self._partial |= result["partial"]
        if isinstance(result.get("counts"), Mapping) and "can_move" in result:
            self._info = result
        # Only push_job returns this.
        job = result.get("job") if "pushes" in result and not self._begins_no_job else None
        if isinstance(job, Mapping) and job.get("id"):
            self._job = f"{JOB}{job['id']}"
            if result["pushes"] and not self._info:
                # The job has begun, so the next command continues it.
                self._info = {"version": self._job}

    def remember_lost_host(self) -> None:
        """Keep that an unreachable host was recorded as failed. If no other host is left in its play, Ansible runs nothing after it."""
        self._has_lost_host = True

    def end(self, *, has_succeeded: bool) -> None:
        """Record that the run has ended without an interrupt.

        :param has_succeeded: whether nothing failed.
        """
        self._is_over, self._has_succeeded = True, has_succeeded

    def _say_next(self, process: int) -> None:
        if os.getpid() != process:
            return
        name = self._name
        if self._has_succeeded and self._partial:
            steps = [step for step in (*STEPS, POST) if any(step in found for found in self._partial.values())]
            self._say(f"Between two steps, and still in their slots: {listing(list(self._partial), 5)}.")
            self._say(f"Next: {self._command.again(without=TAG_OPTIONS)} --tags {','.join(steps)}")
            return
        if self._has_succeeded:
            step = None
            if self._is_handed_over and not context.CLIARGS.get("check"):
                step = FOLLOW
            elif found := next_run(name, self._info):
                why, step = found
                self._say(why)
            elif not context.CLIARGS.get("check"):
                step = next_part(name, self._info, is_limited=self._is_limited)
                if step is None and self._is_single_pass:
                    step = next_pass(name, self._info)
                need = first_need(self._info) if step is None and name in _SHOW_NEEDS else None
                if need is not None:
                    self._say(f"Needs an operator: {need['text']}")
                    step = NextStep(need["playbook"], need["variables"])
            if step is not None:
                self._say(f"Next: {self._line(step)}")
            return
        code = self._code if self._is_over else ""
        # It has begun, and planner services do what a second run would do.
        continuation = noted_continuation()
        is_carried = continuation is Continuation.CARRIED
        continued = code in _LEFT_EARLY and is_carried
        if self._job and not self._is_over and not self._info and not continued:
            # It has probably begun, and a second one must not begin.
            self._info = {"version": self._job}
            if continuation is Continuation.NONE:
                self._say(f"If the next command says unknown_job, the job had not begun: {self._command.again()}")
        if code and self._without:
            # Names of variables, or long options.
            names = dict.fromkeys(self._without, "")
            self._say(f"Next: {self._command.again(without=self._without, renamed=names)}")
            return
        fix = self._fix if code else None
        step = fix or after_failure(
            name,
            code,
            # A job that check mode has shown does not exist.
            {} if self._begins_no_job else self._info,
            pushes=self._pushes,
            pushed=self._pushed,
            has_lost_host=self._has_lost_host,
            is_limited=self._is_limited,
        )
        if continued:
            self._say(f"Planner services continue it. To stop admissions: {self._command.other('pause')}")
            if not step.playbook:
                step = FOLLOW
        elif code in _LEFT_EARLY and continuation is Continuation.HANDED_OVER:
            self._say(
                "It was handed over to planner services, but it is not known that one carries it. "
                f"To see whether one does, or why not: {self._command.other('status')}"
            )
        self._say(f"Next: {self._line(step)}")
        if step.then_again and code in (*_LEFT_EARLY, *_WAITS_FOR_OPERATOR) and is_carried:
            self._say(f"Then: {self._line(FOLLOW)}")
        elif step.then_again:
            self._say(f"Then: {self._command.again(step.then_with, renamed=dict.fromkeys(step.without, ''))}")

    def _line(self, step: NextStep) -> str:
        if step.playbook and not step.keeps_variables:
            return self._command.other(step.playbook, step.variables)
        return self._command.again(
            step.variables,
            # They select services of this run.
            without=TAG_OPTIONS if step.playbook else (),
            renamed=dict.fromkeys(step.without, ""),
            playbook=step.playbook,
        )

    def _end_without_output(self) -> None:
        if not self._is_over:
            self._is_closed = True
            self._say("The output was closed, as by head or a pager, so this run ends as with Ctrl-C.")
            # A terminal interrupts the workers too. One that Ansible has just started would be waited for at exit.
            atexit.register(self._end_workers)
            for _number in range(_INTERRUPTS):
                os.kill(os.getpid(), signal.SIGINT)
                runtime.sleep(_SECONDS_TO_END)
                if self._is_exiting:
                    return
            self._end_now()

    def _end_by_ctrl_c(
        self, interrupt: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None
    ) -> None:
        """End the run as Ansible does, by its handler."""
        self._end_if_it_hangs()
        interrupt(number, frame)

    def _end_if_it_hangs(self) -> None:
        """Let the run end even if Ansible does not: a worker that is ended while it prints leaves a lock for which Ansible waits forever."""

        def end() -> None:
            runtime.sleep(_SECONDS_TO_END)
            self._say(
                f"Ansible has not ended within {_SECONDS_TO_END:.0f} s after the interrupt, so this run was ended without it."
            )
            self._end_now()

        if os.getpid() == self._process and not (self._ends_in_time or self._is_closed):
            self._ends_in_time = True
            runtime.start_thread(end)

    def _end_now(self) -> None:
        self._end_workers()
        self._say_next(os.getpid())
        os._exit(_INTERRUPTED)

    def _end_as_by_ctrl_c(self, number: int, frame: FrameType | None) -> None:
        """End the run as an interrupt does: its tasks are ended, and what is registered for its exit is called."""
        if os.getpid() != self._process:
            # A worker, which Ansible ends by this signal.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        now = runtime.monotonic()
        if now < self._ends_until:
            return
        self._ends_until = now + _SECONDS_TO_END
        self._end_if_it_hangs()
        # Ansible's own handler tells its workers. In a background job, an interrupt would be ignored.
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        raise KeyboardInterrupt

    def _end_workers(self) -> None:
        self._is_exiting = True
        for worker in multiprocessing.active_children():
            worker.terminate()

    def check_options(self, extra_vars: Mapping[str, Any]) -> None:
        """Exit if ``-e`` has a word without a variable, or a variable that the playbook does not have, or for refused options.

        :param extra_vars: the extra variables as Ansible reads them.
        """
        self._is_limited = "upgrade_limit" in extra_vars
        self._begins_no_job = bool(context.CLIARGS.get("check")) and self._name == COMMAND and "job" not in extra_vars
        try:
            refuse_leftovers(context.CLIARGS.get("extra_vars") or (), VARIABLES | own_variables(extra_vars))
            for name in self._names:
                if name not in _UNATTENDED:
                    refuse_task_options(name, context.CLIARGS, is_imported=not is_of_collection(self._command.playbook))
            if self._name not in _UNATTENDED:
                # A playbook that imports others may have variables of its own.
                refuse_unknown_variables(self._command.name, extra_vars)
                refuse_empty_names(extra_vars)
                refuse_bad_booleans(extra_vars)
                refuse_bad_job(self._name, extra_vars)
                self._is_single_pass = is_single_pass(extra_vars)
        except UpgradeError as error:
            details = error.details
            without = (details["option"],) if "option" in details else ()
            again = self._command.again(
                details.get("variables"),
                instead=details.get("instead"),
                renamed=details.get("renamed"),
                without=without,
            )
            self._refuse(error, self._command.other(details["next"]) if details.get("next") else again)

    def check_hosts(self, play: Any) -> None:
        """Exit if ``--limit`` leaves out hosts that a play of the collection needs, or if no node is left for one that runs on nodes."""
        limit = context.CLIARGS.get("subset")
        file = file_of_play(play)
        if not is_of_collection(file):
            return
        inventory = play.get_variable_manager()._inventory
        if honours_limit(file):
            if not inventory.get_hosts(play.hosts):
                self._exit_without_limit(refuse_no_nodes, file, ",".join(play.hosts), limit or "")
            return
        needed = inventory.get_hosts(play.hosts, ignore_limits=True, ignore_restrictions=True)
        if not self._has_planner_host:
            # The first play of each playbook runs on the planner host. Later ones may have no host.
            self._has_planner_host = True
            try:
                everybody = inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True)
                refuse_planner_hosts(
                    self._command.playbook,
                    ",".join(play.hosts),
                    [host.name for host in needed],
                    [host.name for host in everybody],
                )
            except UpgradeError as error:
                self._refuse(error, self._command.again(error.details["variables"]))
        if not limit:
            return
        reached = {host.name for host in inventory.get_hosts(play.hosts, ignore_restrictions=True)}
        named = [host.name for host in inventory.get_hosts("all", ignore_restrictions=True)]
        left_out = [host.name for host in needed if host.name not in reached]
        if self._name in (*UPGRADES, COMMAND):
            # A later play may need any host, and then the first play has begun the rollout already.
            everybody = [host.name for host in inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True)]
            kept = reached.union(named)
            left_out = list(dict.fromkeys([*left_out, *(name for name in everybody if name not in kept)]))
        if not left_out:
            return
        chosen = [name for name in named if name not in reached]
        given = {one: _hosts_of(inventory, one) for one in split_host_pattern(limit) if one not in reached}
        fleet = _fleet_of_roles(play, needed[0] if needed else None)
        self._exit_without_limit(
            refuse_limit, self._command.playbook, self._name, limit, left_out, chosen, given, fleet
        )

    def _exit_without_limit(self, check: Callable[..., None], *given: Any) -> None:
        """Exit if a check raises an error, with the command to run instead, which has no ``--limit``."""
        try:
            check(*given)
        except UpgradeError as error:
            self._refuse(error, self._command.again(error.details["variables"], without=("--limit",)))

    def _refuse(self, error: UpgradeError, command: str) -> None:
        self._say(error.as_text())
        self._say(f"Next: {command}")
        atexit.unregister(self._say_next)
        # Ansible only warns about other exceptions in a callback.
        sys.exit(BAD_OPTIONS)


def _hosts_of(inventory: Any, pattern: str) -> list[str]:
    """Return the hosts of the inventory that a pattern fits, without its sign; none for a file with patterns."""
    plain = pattern.lstrip("!&")
    if plain.startswith("@"):
        return []
    return [host.name for host in inventory.get_hosts(plain, ignore_limits=True, ignore_restrictions=True)]


def _fleet_of_roles(play: Any, planner: Any) -> frozenset[str] | None:
    """Return the hosts in roles of ``upgrade_roles``; None if that is not given, or is a template.

    :param planner: the host that reads it; None if there is none.
    """
    variables, roles = play.get_variable_manager(), None
    with contextlib.suppress(AnsibleError):
        # Such as a file with variables that is missing. Ansible says so itself.
        roles = variables.get_vars(play=play, host=planner).get("upgrade_roles")
    if not isinstance(roles, Mapping) or not roles:
        return None
    groups: Mapping[str, Sequence[str]] = variables._inventory.get_groups_dict()
    return frozenset(host for role in roles for host in groups.get(role, ()))
