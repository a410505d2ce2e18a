# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Empty an agent that several tests use in turn, so that their order does not matter."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from .kv import RawKV


def wipe(consul: RawKV) -> None:
    """Remove all keys, sessions, checks, services, and all nodes except the agent's own.

    Keys go first: a key whose session ends while it holds a lock cannot be locked for a while.

    :raises RuntimeError: Consul refused a part of it.
    """
    if not consul.delete("", tree=True):
        raise RuntimeError(f"{consul.url} did not delete its keys")
    for one in _get(consul, "session/list"):
        _put(consul, f"session/destroy/{one['ID']}")
    for kind in ("check", "service"):
        for name in _get(consul, f"agent/{kind}s"):
            _put(consul, f"agent/{kind}/deregister/{quote(name, safe='')}")
    nodes = {one["Node"] for one in _get(consul, "catalog/nodes?consistent")}
    if len(nodes) > 1:
        nodes.remove(_get(consul, "agent/self")["Config"]["NodeName"])
        for node in sorted(nodes):
            _put(consul, "catalog/deregister", {"Node": node})


def _get(consul: RawKV, path: str) -> Any:
    code, _headers, body = consul.call("GET", path)
    if code != 200:
        raise RuntimeError(f"{code} of {path}: {body!r}")
    return json.loads(body)


def _put(consul: RawKV, path: str, body: Any = None) -> None:
    code, _headers, answer = consul.call("PUT", path, body)
    if code != 200:
        raise RuntimeError(f"{code} of {path}: {answer!r}")
