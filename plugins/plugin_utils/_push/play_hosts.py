# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a play in ``ansible-playbook`` itself begin once the daemon has decided on them."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ansible.plugins.loader import strategy_loader

from ...module_utils._common.errors import UpgradeError
from .._daemon_client.address import is_started
from .._daemon_client.client import connect
from .._daemon_client.messages import ErrorAnswer
from .._run.playbook_names import file_of_play, is_of_collection
from .messages import GetNextHosts

# The only plays of the collection with this strategy are those in which each host waits by itself.
_STRATEGY = "ansible.builtin.host_pinned"
# How long Ansible's main process waits for the daemon at a time if it has nothing else to do (milliseconds).
_LONGEST_WAIT = 500


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
        self._ended: set[str] = set()
        self._connection: Connection | None = None
        self._answers = select.poll()

    def leave_out(self, strategy: Any, iterator: Any, hosts: Sequence[Any]) -> Sequence[Any]:
        """Return the hosts to work on. Without any, wait for an answer of the daemon; once no host waits, return all, which ends the play."""

        def has_task(host: Any) -> bool:
            # A strategy blocks a host while a task of it runs.
            is_at_work = strategy._blocked_hosts.get(host.name, False)
            return is_at_work or iterator.get_next_task_for_host(host, peek=True)[1] is not None

        if self._names is None:
            # Ansible runs nothing on hosts that failed in earlier plays.
            self._names = dict.fromkeys(host.name for host in hosts if has_task(host))
            self._ask()
        self._read(0)
        while True:
            begun = [host for host in hosts if host.name not in self._names and host.name not in self._ended]
            found = [host for host in begun if has_task(host)]
            self._ended.update(host.name for host in begun if host not in found)
            if found or not self._names:
                return found or hosts
            self._read(_LONGEST_WAIT)

    def close(self) -> None:
        """Close the connection to the daemon."""
        if self._connection is not None:
            self._answers.unregister(self._connection.fileno())
            self._connection.close()
            self._connection = None

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
