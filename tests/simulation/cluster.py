# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three real servers on the loopback address that choose a leader among them."""

from __future__ import annotations

import json
import random
import signal
import time
from http.client import HTTPException

from devkit.agent import Agent
from devkit.kv import RawKV

_SECONDS = 30


class Cluster:
    """Three servers, each of which can be killed or stopped, and started again. It is used in place of an :class:`Agent`."""

    def __init__(self, chance: random.Random) -> None:
        """Choose ports and folders.

        :param chance: chooses which server gets a request; ``left_out`` gets none.
        """
        self.chance = chance
        self.left_out: Agent | None = None
        # Consul would remove a server that is dead for some seconds. Back, it would have no vote for ten seconds, and without the leader no other has one.
        config = {"bootstrap_expect": 3, "retry_interval": "1s", "autopilot": {"cleanup_dead_servers": False}}
        self.agents = [Agent(dict(config)) for _number in range(3)]
        for one in self.agents:
            one.config["retry_join"] = [other.lan_address for other in self.agents if other is not one]

    def __enter__(self) -> Cluster:
        for one in self.agents:
            one.launch()
        self.wait()
        return self

    def __exit__(self, *_exception: object) -> None:
        for one in self.agents:
            one.remove()

    @property
    def kv(self) -> RawKV:
        """The keys, by any of the servers that run."""
        return self.chance.choice(
            [one for one in self.agents if one.process is not None and one is not self.left_out]
        ).kv

    def restore(self) -> None:
        """Let all servers run again."""
        self.left_out = None
        for one in self.agents:
            if one.process is None:
                one.launch()
            else:
                self.signal(one, signal.SIGCONT)
        self.wait()

    def wait(self) -> None:
        """Wait until each server that runs knows a leader."""
        for one in self.agents:
            if one.process is not None:
                one.wait()

    def leader(self) -> Agent:
        """Return the server that leads, as soon as one does."""
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            found = self.leader_now()
            if found is not None:
                return found
            time.sleep(0.05)
        raise RuntimeError("no server leads")

    def leader_now(self) -> Agent | None:
        """Return the server that leads, None if none does."""
        for one in self.agents:
            if one.process is None or one is self.left_out:
                continue
            try:
                found = json.loads(one.kv.call("GET", "agent/self", timeout=2)[2])
            except (OSError, HTTPException, ValueError):
                continue
            if found["Stats"]["consul"]["leader"] == "true":
                return one
        return None

    def signal(self, one: Agent, number: signal.Signals) -> None:
        """Send a signal to a server, such as SIGSTOP."""
        assert one.process is not None
        one.process.send_signal(number)
