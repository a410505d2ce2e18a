# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes and planners as processes of their own: they ask, upgrade for a moment and report; they plan until all is done."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.watch import Watch
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.child import die_with_parent
from integration.support.processes.writes import die_at_write

# Of those that fail, all get there in the end: an operator runs them again.
_FAILURES = 0.15


def be_nodes(
    settings: Settings,
    hosts: Mapping[str, str],
    version: str,
    seed: int,
    goes_on: Callable[[], bool] = lambda: True,
    failures: float = _FAILURES,
) -> None:
    """Be these hosts until all of them run the version: ask, start, fail now and then, be upgraded."""
    chance = random.Random(seed)
    store = Store(settings)
    left = dict(hosts)
    begun: list[str] = []
    index = 0
    while left and goes_on():
        try:
            # Before the rollout begins there is no gate, and these hosts are not to be ahead of it.
            answers = ask_gate(store, left, default=False)
            for host in [*begun, *(one for one in left if answers[one].value and one not in begun)]:
                state = "started" if host not in begun else "failed" if chance.random() < failures else "upgraded"
                write_report(store, HostReport(host, version, state))
                if state == "upgraded":
                    begun.remove(host)
                    del left[host]
                elif host not in begun:
                    begun.append(host)
                if chance.random() < 0.3:
                    break
            if left and not begun:
                index = store.client.wait_for_change_below(store.keys.gates, index, 0.5)[0]
        except Unreachable:
            time.sleep(0.1)


def be_planner(
    settings: Settings, version: str | None, rules: Mapping[str, Any], fleet: Mapping[str, str] | None
) -> None:
    """Plan until the rollout is complete."""
    store = Store(settings)
    request = PassRequest(version=version, rules=rules, fleet=fleet)
    # As a process that waits often does: with questions that are given up, several planners would soon be refused connections.
    watch = Watch(settings, (store.keys.upgrade, store.keys.reports, store.keys.gates, store.keys.current_version))
    mark = watch.mark()
    while not make_pass(store, request).plan.complete:
        watch.wait(mark, 0.5)
        mark = watch.mark()


def _run(act: Callable[..., None], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    die_with_parent()
    act(*arguments, **named)


def spawn(act: Callable[..., None], *arguments: Any, **named: Any) -> multiprocessing.process.BaseProcess:
    """Start a process that dies with this one."""
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(act, arguments, named), daemon=True)
    process.start()
    return process


def end_of(processes: Sequence[multiprocessing.process.BaseProcess], seconds: float) -> list[int | None]:
    """Wait until all have ended, one has failed or the time is up; return the exit codes, None for those left over."""
    until = time.monotonic() + seconds
    left = list(processes)
    while left and time.monotonic() < until and not any(one.exitcode for one in processes):
        multiprocessing.connection.wait([one.sentinel for one in left], until - time.monotonic())
        left = [one for one in left if one.is_alive()]
    codes = [one.exitcode for one in processes]
    for one in left:
        one.kill()
        one.join()
    return codes


@contextmanager
def living_nodes(
    settings: Settings, hosts: Mapping[str, str], version: str, failures: float = 0
) -> Iterator[threading.Thread]:
    """Have hosts that act on a thread while the block runs."""
    over = threading.Event()

    def live() -> None:
        be_nodes(settings, hosts, version, 0, lambda: not over.is_set(), failures)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join(10)


def open_and_die(settings: Settings, request: PassRequest, at: int, *, after: bool) -> None:
    """Make a pass, and be killed by SIGKILL right before or right after the transaction with this number."""
    store = Store(settings)
    die_at_write(store, at, after=after)
    make_pass(store, request)
    raise UpgradeError("test", f"it made fewer than {at} writes")
