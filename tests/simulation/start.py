# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start of a night of any kind: a world for the real code to run in, and a Consul with a fleet."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator

from ansible_collections.convoy.upgrade.plugins.module_utils._consul import transport
from fire.facts import CURRENT, GATES, REPORTS
from fire.fleet import OLD

from . import caches, caught, stand_ins
from .consul.keys import Entry
from .consul.server import Server
from .network import Adapter, HTTPClient, Network, networks
from .world import World


@contextlib.contextmanager
def simulated(name: str, *, is_shared: bool = True) -> Iterator[World]:
    """Let the code of the collection run in a world of its own, in place of time, threads and the HTTP library.

    :param name: the seed of the world.
    :param is_shared: whether processes share what they have decoded.
    """
    world = World(name)
    stand_ins.enter(world)
    transport.HTTPClient, transport._WithDeadline = HTTPClient, Adapter
    stand_ins.install()
    caught.install()
    try:
        with caches.night(is_shared=is_shared):
            yield world
    finally:
        world.end()
        networks.pop(world, None)
        stand_ins.leave()


def network_with(world: World, hosts: Iterable[str]) -> Network:
    """Return a network with a Consul, in which these hosts have reported the old version."""
    server = Server(new_id=lambda: f"{world.chance.getrandbits(128):032x}")
    values = {f"{REPORTS}{OLD}/{host}": "1700000000" for host in hosts}
    for key, value in {**values, CURRENT: OLD, f"{GATES}global": "True"}.items():
        server.index += 1
        server.keys.put(key, Entry(base64.b64encode(value.encode()).decode(), server.index, 0))
    networks[world] = Network(world, server)
    return networks[world]
