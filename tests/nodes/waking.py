# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that take their turn when there is something for them to do, besides those of their timers.

A turn is seconds of work, Puppet's run alone two. Timers that are quick enough for a test let all nodes work all the time,
and leave the test nothing to work with.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from devkit.kv import RawKV
from lab.node import Node

from .fleet import Fleet

_GATES = "config_state/enable_puppet/"
_LOOK = 0.5
# Between two turns of a node (seconds).
_PAUSE = 20.0


@contextmanager
def waking(fleet: Fleet, but: Collection[str] = ()) -> Iterator[None]:
    """Let nodes whose gate is open, and which have not reported the fleet's version, take their turn.

    :param but: those that are left to their timers.
    """
    over = threading.Event()
    nodes = {name: node for name, node in fleet.lab.nodes.items() if name not in but}
    thread = threading.Thread(target=_wake, args=(fleet.consul, nodes, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wake(consul: RawKV, nodes: dict[str, Node], over: threading.Event) -> None:
    woken: dict[str, float] = {}
    while not over.wait(_LOOK):
        for node in _with_something_to_do(consul, nodes):
            now = time.monotonic()
            if node.is_up and now - woken.get(node.name, -_PAUSE) >= _PAUSE:
                woken[node.name] = now
                # Where it is at it already, this does nothing, as a timer does. It may go down meanwhile.
                with contextlib.suppress(RuntimeError):
                    node.run("systemctl", "start", "--no-block", "convoy-node", check=False)


def _with_something_to_do(consul: RawKV, nodes: dict[str, Node]) -> list[Node]:
    version = (consul.get("current_version") or b"").decode()
    done, gates = consul.tree(f"running/versions/{version}/"), consul.texts(_GATES)

    def is_open(name: str) -> bool:
        return gates.get(f"{_GATES}host/{name}", gates.get(f"{_GATES}global")) == "True"

    return [node for name, node in nodes.items() if f"running/versions/{version}/{name}" not in done and is_open(name)]
