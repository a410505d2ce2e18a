# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster of three servers as it is now: who leads, and whether it is whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import TypeVar

from devkit.kv import RawKV
from lab.lab import Lab
from lab.node import Node

from .replay import State, entries_of

_Found = TypeVar("_Found")


def url_of(node: Node) -> str:
    """Return where a server answers."""
    return f"http://{node.address}:8500"


def is_well(node: Node) -> bool:
    """Return whether a server answers, and has a leader."""
    try:
        return RawKV(url_of(node)).has_leader()
    except (OSError, HTTPException):
        return False


def becomes_whole(lab: Lab, seconds: float = 30) -> bool:
    """Wait until all servers are well, and return whether that came to be."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(is_well(node) for node in lab.servers.values()):
            return True
        time.sleep(0.1)
    return False


def all_keys(url: str) -> tuple[int, State]:
    """Return what a server says there is, and at which index; it is asked again while the servers choose a leader."""

    def ask() -> tuple[int, State]:
        code, headers, body = RawKV(url).call("GET", "kv/?recurse&consistent")
        if code != 200:
            raise RuntimeError(f"{url} answered {code}: {body.decode(errors='replace')}")
        return int(headers["X-Consul-Index"]), entries_of(json.loads(body))

    return once_led(ask)


def once_led(act: Callable[[], _Found], seconds: float = 30) -> _Found:
    """Return what an act of :class:`RawKV` does, tried again while the servers choose a leader and refuse it."""
    until = time.monotonic() + seconds
    while True:
        try:
            return act()
        except RuntimeError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


def leader_of(lab: Lab) -> Node | None:
    """Return the server that leads, None where no one knows."""
    for node in lab.servers.values():
        try:
            code, _headers, body = RawKV(url_of(node)).call("GET", "status/leader", timeout=2)
        except (OSError, HTTPException):
            continue
        address = body.decode().strip().strip('"').partition(":")[0] if code == 200 else ""
        for one in lab.servers.values():
            if one.address == address:
                return one
    return None
