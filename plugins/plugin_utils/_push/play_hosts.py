# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a play in ``ansible-playbook`` itself: they begin once the daemon has decided on them, and are reported if they are lost or have
no tasks left.

Only callbacks see that a host became unreachable, or that a task took too long. Without a report, the run would wait for unreachable hosts, and a
service could rescue a task that may still run.
"""

from __future__ import annotations

import itertools
import os
import select
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ansible.plugins.loader import strategy_loader

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from .._daemon_client.address import is_started
from .._daemon_client.client import ask, connect
from .._daemon_client.messages import ErrorAnswer
from .._run.playbook_names import file_of_play, is_of_collection
from .messages import CloseHosts, FailHost, GetNextHosts, NoteTimeout

# The only plays of the collection with this strategy are those in which each host waits by itself.
_STRATEGY = "ansible.builtin.host_pinned"
# How long Ansible's main process waits for the daemon at a time if it has nothing else to do (milliseconds).
_LONGEST_WAIT = 500
# Process -> when its task began (monotonic seconds). Ansible runs each task of a host in a process of its own.
_BEGAN: dict[int, float] = {}


class PlayHosts:
    """Keeps hosts that wait for their admission out of Ansible's forks.

    Ansible's strategies get the hosts that they may work on from ``get_hosts_left``. In plays whose hosts wait, this leaves out those that the daemon
    has not decided on. A strategy of the collection would need the same method; since 2.19, ansible-core warns in each run that uses one.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """Begin outside of any play.

        :param say: prints a line.
        """
        self._say = say
        self._restore: Callable[[], None] = lambda: None

    def begin(self, play: Any) -> None:
        """Begin a play. Those before it are over."""
        self._restore()
        self._restore = lambda: None
        if play.strategy != _STRATEGY or not is_of_collection(file_of_play(play)) or not is_started():
            return
        strategy_class = strategy_loader.get(_STRATEGY, class_only=True)
        original = strategy_class.get_hosts_left
        waiting = _WaitingHosts(self._say)

        def get_hosts_left(strategy: Any, iterator: Any) -> Sequence[Any]:
            return waiting.leave_out(strategy, iterator, original(strategy, iterator))

        def restore() -> None:
            strategy_class.get_hosts_left = original
            waiting.close()

        strategy_class.get_hosts_left = get_hosts_left
        self._restore = restore


class _WaitingHosts:
    """The hosts of one play on which the daemon has not decided."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        # None before the play has begun.
        self._names: dict[str, None] | None = None
        # The hosts that have begun and have tasks left, in the order in which they began.
        self._at_work: dict[str, Any] = {}
        # The hosts that have no tasks left, or became unreachable.
        self._ended: dict[str, Any] = {}
        # How many the strategy has got at most.
        self._most_shown = 1
        self._connection: Connection | None = None
        self._answers = select.poll()

    def leave_out(self, strategy: Any, iterator: Any, hosts: Sequence[Any]) -> Sequence[Any]:
        """Return the hosts to work on. Without any that has a task, wait for an answer of the daemon; once no host waits, return all."""

        def has_task(host: Any) -> bool:
            # A strategy blocks a host while a task of it runs.
            is_at_work = strategy._blocked_hosts.get(host.name, False)
            return is_at_work or iterator.get_next_task_for_host(host, peek=True)[1] is not None

        if self._names is None:
            # Ansible runs nothing on hosts that failed in earlier plays.
            self._names = dict.fromkeys(host.name for host in hosts if has_task(host))
            self._ended = {host.name: host for host in hosts if host.name not in self._names}
            self._ask()
        self._read(0)
        while True:
            first = next((host for host in hosts if host.name in self._names), None)
            if first is not None and not has_task(first):
                # A meta task has ended the play for all hosts.
                self._close_hosts(self._names)
                self._ended.update((host.name, host) for host in hosts if host.name in self._names)
                self._names = {}
            if not hosts:
                # Without reachable hosts, the play ends.
                return hosts
            reachable = {host.name: host for host in hosts}
            begun = {name: host for name, host in reachable.items() if name not in self._names}
            self._at_work.update((name, host) for name, host in begun.items() if name not in self._ended)
            self._end({name: host for name, host in self._at_work.items() if name not in reachable})
            over = {name: host for name, host in self._at_work.items() if not has_task(host)}
            self._end(over)
            self._close_hosts(over)
            if self._at_work or not self._names:
                return self._to_show()
            self._read(_LONGEST_WAIT)

    def _end(self, hosts: Mapping[str, Any]) -> None:
        for name, host in hosts.items():
            del self._at_work[name]
            self._ended[name] = host

    def _to_show(self) -> Sequence[Any]:
        """Return the hosts at work, and as few others as possible.

        A strategy looks for the next task of each host that it gets, a thousand times a second. After a task with ``throttle``, it goes on at the place
        of that host, so there must not be fewer than before.
        """
        missing = max(0, self._most_shown - len(self._at_work))
        shown = [*self._at_work.values(), *itertools.islice(self._ended.values(), missing)]
        self._most_shown = max(self._most_shown, len(shown))
        return shown

    def close(self) -> None:
        """Close the connection to the daemon."""
        if self._connection is not None:
            self._answers.unregister(self._connection.fileno())
            self._connection.close()
            self._connection = None

    def _close_hosts(self, hosts: Collection[str]) -> None:
        """Let the daemon record hosts whose tasks have ended without a report. Others wait for their slots."""
        if not hosts:
            return
        try:
            ask(CloseHosts(tuple(hosts)))
        except UpgradeError as error:
            self._say(
                f"The tasks of {listing(list(hosts), 5)} are over, but that can't be recorded, so they may keep their slots: {error.message}"
            )

    def _ask(self) -> None:
        if not self._names:
            self.close()
            return
        try:
            if self._connection is None:
                self._connection = connect()
                self._answers.register(self._connection.fileno(), select.POLLIN)
            self._connection.send(GetNextHosts(tuple(self._names)))
        except (OSError, UpgradeError):
            self._let_all_ask()

    def _read(self, milliseconds: int) -> None:
        if self._connection is None or not self._answers.poll(milliseconds):
            return
        try:
            answer = self._connection.recv()
        except (OSError, EOFError):
            answer = None
        if answer is None or isinstance(answer, ErrorAnswer):
            self._let_all_ask()
            return
        for line in answer.lines:
            self._say(line)
        self._names = {host: None for host in self._names or () if host not in answer.hosts}
        self._ask()

    def _let_all_ask(self) -> None:
        """Let each host ask by itself. Its task fails with the error of the daemon."""
        self._names = {}
        self.close()


def time_left(seconds: object) -> int:
    """Return how many seconds a task may still take, at least 1; 0 for no limit.

    Ansible counts the keyword ``timeout`` for each item of a loop separately, and asks for its value before each of them.

    :param seconds: how long the task may take, with all items of its loop; 0 for no limit.
    """
    limit = int(str(seconds))
    if limit <= 0:
        return 0
    now = runtime.monotonic()
    return max(1, limit - int(now - _BEGAN.setdefault(os.getpid(), now)))


def took_too_long(result: Mapping[str, Any], seconds: float, limit: float) -> bool:
    """Return whether a task was ended because of its limit, and not because of a shorter one that the service gave it.

    :param result: of the task, or of all items of its loop.
    :param seconds: how long it took, with its start.
    :param limit: 0 for no limit.
    """
    items = result.get("results")
    each = [result, *(items if isinstance(items, list) else ())]
    return 0 < limit <= seconds and any(isinstance(one, Mapping) and one.get("timedout") for one in each)


def report_timeout(host: str) -> str | None:
    """Report that a task of a host took too long; return a warning if that was not possible."""
    if not is_started():
        return None
    try:
        ask(NoteTimeout(host))
    except UpgradeError as error:
        # The validation admits no host.
        return (
            None
            if error.code == "no_push"
            else f"A task took too long on {host}, but that can't be noted: {error.message}"
        )
    return None


def report_lost_host(host: str, result: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Report that a host is unreachable; return whether it is recorded as lost, and a warning if that was not possible."""
    if not is_started():
        return False, None
    text = " ".join(str(result.get("msg") or "").split())
    text = text.removeprefix("Task failed: ")
    try:
        ask(FailHost(host, f"unreachable: {text or 'Ansible lost the connection to it'}", is_lost=True))
    except UpgradeError as error:
        # Before the first host is admitted, there is nothing to record.
        is_early = error.code == "no_push"
        return False, None if is_early else f"{host} is unreachable, but that can't be recorded: {error.message}"
    return True, None
