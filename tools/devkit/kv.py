# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Consul's keys over plain HTTP with only the standard library, to check independently what the collection wrote."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any

_BATCH = 60


class RawKV:
    """The key-value store of one agent.

    :param url: such as ``http://127.0.0.1:8500``.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        """Remember where it is."""
        self.url = url
        self.token = token

    def call(self, method: str, path: str, body: Any = None, timeout: float = 60) -> tuple[int, Any, bytes]:
        """Return code, headers and body of one request; an error code is no exception."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"X-Consul-Token": self.token} if self.token else {}
        request = urllib.request.Request(f"{self.url}/v1/{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def has_leader(self) -> bool:
        """Return whether it has a leader, without which a consistent read is refused."""
        try:
            return self.call("GET", "kv/convoy?consistent", timeout=2)[0] in (200, 404)
        except OSError:
            return False

    def tree(self, prefix: str = "") -> dict[str, bytes]:
        """Return key -> value of all keys under a prefix."""
        return {one["Key"]: base64.b64decode(one["Value"] or "") for one in self.entries(prefix)}

    def entries(self, prefix: str = "") -> list[dict[str, Any]]:
        """Return all keys under a prefix as Consul tells them: ``Key``, ``Value``, ``Flags``, ``ModifyIndex``, ``Session``."""
        code, _headers, body = self.call("GET", f"kv/{urllib.parse.quote(prefix)}?recurse&consistent")
        if code == 404:
            return []
        if code != 200:
            raise RuntimeError(f"{code}: {body!r}")
        found: list[dict[str, Any]] = json.loads(body)
        return found

    def texts(self, prefix: str = "") -> dict[str, str]:
        """Return key -> value as text of all keys under a prefix."""
        return {key: value.decode() for key, value in self.tree(prefix).items()}

    def get(self, key: str) -> bytes | None:
        """Return one value, None where there is none."""
        code, _headers, body = self.call("GET", f"kv/{urllib.parse.quote(key)}?raw&consistent")
        return body if code == 200 else None

    def put(self, key: str, value: str | bytes) -> None:
        """Set one key."""
        data = value.encode() if isinstance(value, str) else value
        code, _headers, body = self.call("PUT", f"kv/{urllib.parse.quote(key)}", data)
        if code != 200:
            raise RuntimeError(f"{code}: {body!r}")

    def delete(self, key: str, *, tree: bool = False) -> bool:
        """Delete one key, or all under it."""
        code, _headers, _body = self.call("DELETE", f"kv/{urllib.parse.quote(key)}{'?recurse' if tree else ''}")
        return code == 200

    def load(self, values: Iterable[tuple[str, str]]) -> None:
        """Set many keys, some at a time."""
        batch: list[Any] = []
        for key, value in values:
            encoded = base64.b64encode(value.encode()).decode()
            batch.append({"KV": {"Verb": "set", "Key": key, "Value": encoded}})
            if len(batch) == _BATCH:
                self._transact(batch)
                batch = []
        if batch:
            self._transact(batch)

    def _transact(self, batch: list[Any]) -> None:
        code, _headers, body = self.call("PUT", "txn", batch)
        if code != 200:
            raise RuntimeError(f"{code}: {body!r}")
