# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts of a play Ansible may work on, how long a task may take, with all items of its loop, and when it took too long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.messages import ErrorAnswer
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push import play_hosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import CloseHosts, GetNextHosts, NextHosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.play_hosts import time_left, took_too_long


class Clock(runtime.Runtime):
    """A clock that only the test moves."""

    seconds = 1234.567

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(play_hosts, "_BEGAN", {})
    found = Clock()
    before = runtime.use(found)
    yield found
    runtime.use(before)


def test_all_items_of_a_loop_have_the_time_of_one_task(clock: Clock) -> None:
    assert time_left("8") == 8
    clock.seconds += 5
    assert time_left(8) == 3
    clock.seconds += 5
    # Without a limit, an item that hangs would hang the run.
    assert time_left(8) == 1
    assert time_left(0) == 0


def test_each_task_has_a_process_of_its_own_and_its_time_begins_there(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_left(8)
    clock.seconds += 5
    monkeypatch.setattr(os, "getpid", lambda: 7)
    assert time_left(8) == 8


TIMED_OUT = {"failed": True, "timedout": {"period": 3}}


@pytest.mark.parametrize(
    ("result", "seconds", "limit", "expected"),
    [
        (TIMED_OUT, 8.2, 8, True),
        ({"failed": True, "results": [{"rc": 0}, TIMED_OUT]}, 8.2, 8, True),
        # A time limit of the service's own.
        (TIMED_OUT, 5.0, 8, False),
        (TIMED_OUT, 900.0, 0, False),
        ({"failed": True, "rc": 1}, 9.0, 8, False),
        ({"failed": True, "results": [{"failed": True}]}, 9.0, 8, False),
        ({"failed": True, "results": "none"}, 9.0, 8, False),
    ],
)
def test_a_task_took_too_long_if_its_limit_ended_it(
    result: dict[str, Any], seconds: float, limit: int, *, expected: bool
) -> None:
    assert took_too_long(result, seconds, limit) is expected


@dataclass(frozen=True)
class Host:
    """What Ansible's strategies and iterators say of a host is asked by its name."""

    name: str


@dataclass
class Play:
    """A strategy that works on the hosts of a play, and the iterator over their tasks."""

    hosts: list[Host]
    ended: set[str] = field(default_factory=set)
    _blocked_hosts: dict[str, bool] = field(default_factory=dict)

    def get_next_task_for_host(self, host: Host, *, peek: bool) -> tuple[None, str | None]:
        assert peek
        return None, None if host.name in self.ended else "a task"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """The daemon's end of the connection."""
    mine, theirs = Pipe()
    monkeypatch.setattr(play_hosts, "connect", lambda: mine)
    with theirs:
        yield theirs


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[CloseHosts]:
    """What the daemon is told of hosts that have no tasks left."""
    found: list[CloseHosts] = []
    monkeypatch.setattr(play_hosts, "ask", found.append)
    return found


def test_the_hosts_to_work_on_are_those_at_work_and_never_become_fewer(
    daemon: Connection, closed: list[CloseHosts]
) -> None:
    said: list[str] = []
    waiting = play_hosts._WaitingHosts(said.append)
    play = Play([Host(f"web{at}") for at in range(1, 5)], ended={"web4"})

    def shown() -> list[str]:
        return [host.name for host in waiting.leave_out(play, play, play.hosts)]

    daemon.send(NextHosts(("web2", "web3"), ("web1 waits.",)))
    # The host that failed in an earlier play does not wait.
    assert shown() == ["web2", "web3"]
    assert (daemon.recv(), daemon.recv()) == (GetNextHosts(("web1", "web2", "web3")), GetNextHosts(("web1",)))
    assert said == ["web1 waits."]
    # After a task with throttle, Ansible goes on at the place of the last host, so another one has to be there.
    play.ended.add("web2")
    play.hosts.remove(Host("web3"))
    play._blocked_hosts["web2"] = True
    assert shown() == ["web2", "web4"]
    # The host that can't be reached has tasks, but they don't keep the play from waiting for the next host.
    assert not closed
    play._blocked_hosts.clear()
    daemon.send(NextHosts(("web1",)))
    assert shown() == ["web1", "web4"]
    # The one that failed in an earlier play, and the one that can't be reached, are known to the daemon.
    assert closed == [CloseHosts(("web2",))]
    play.ended.add("web1")
    assert len(shown()) == 2
    play.hosts.clear()
    assert shown() == []


def test_a_play_that_a_task_ends_for_all_hosts_waits_for_none(daemon: Connection, closed: list[CloseHosts]) -> None:
    waiting = play_hosts._WaitingHosts(print)
    play = Play([Host("web1"), Host("web2"), Host("web3")])
    daemon.send(NextHosts(("web1",)))
    assert [host.name for host in waiting.leave_out(play, play, play.hosts)] == ["web1"]
    play.ended.update(("web1", "web2", "web3"))
    assert waiting.leave_out(play, play, play.hosts) == [Host("web2")]
    assert closed == [CloseHosts(("web2", "web3")), CloseHosts(("web1",))]


def test_what_ansible_looks_at_does_not_grow_with_the_hosts_that_are_done(
    daemon: Connection, closed: list[CloseHosts]
) -> None:
    waiting = play_hosts._WaitingHosts(print)
    play = Play([Host(f"web{at}") for at in range(1, 101)])
    for at in range(1, 101):
        daemon.send(NextHosts((f"web{at}",)))
        assert waiting.leave_out(play, play, play.hosts) == [Host(f"web{at}")]
        play.ended.add(f"web{at}")
    assert len(waiting.leave_out(play, play, play.hosts)) == 1
    assert len(closed) == 100


def test_what_can_t_be_recorded_of_ended_hosts_is_said(daemon: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_message: CloseHosts) -> None:
        raise UpgradeError("unreachable", "Consul gives no answer.")

    monkeypatch.setattr(play_hosts, "ask", fail)
    said: list[str] = []
    waiting = play_hosts._WaitingHosts(said.append)
    play = Play([Host("web1"), Host("web2")])
    daemon.send(NextHosts(("web1",)))
    waiting.leave_out(play, play, play.hosts)
    play.ended.add("web1")
    daemon.send(NextHosts(("web2",)))
    waiting.leave_out(play, play, play.hosts)
    assert said == [
        "The tasks of web1 are over, but that can't be recorded, so they may keep their slots: Consul gives no answer."
    ]


@pytest.mark.parametrize("answer", [None, ErrorAnswer("no_push", "No run.", {})])
def test_each_host_asks_by_itself_if_the_daemon_does_not_answer_for_all(
    daemon: Connection, answer: ErrorAnswer | None
) -> None:
    waiting = play_hosts._WaitingHosts(print)
    play = Play([Host("web1"), Host("web2")])
    if answer is None:
        daemon.close()
    else:
        daemon.send(answer)
    assert waiting.leave_out(play, play, play.hosts) == play.hosts
