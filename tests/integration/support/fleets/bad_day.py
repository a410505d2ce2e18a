# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small fleet in the middle of a rollout, put into Consul again for each example, and what every call on it has to obey."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from devkit.agent import Agent
from integration.support.fleets.fleet import GATES
from integration.support.runs.in_process import call

NOW = int(time.time())
CAP = 2
INSTRUCTIONS = {
    "rolling_rules": {"global": 1, "roles": {"compute": CAP}, "fleet": 4},
    "health": {"soak": 600, "progress_deadline": "2h"},
    "stages": [{"name": "canary", "hosts": ["controller1"], "approve": True}, {"name": "most"}],
}
LEDGER = {
    "epoch": 7, "version": "2", "previous_version": "1", "state": "running", "instructions": INSTRUCTIONS,
    "role_pattern": "([a-z]+)", "members": {"compute": 5}, "who": "ann@control", "since": NOW - 9000,
    "command": {"by": "ann", "at": NOW - 9000, "reason": "go"}, "stage": {"number": 0, "done_at": NOW - 1000},
}  # fmt: skip
RECORD = {
    "version": "2", "state": "started", "service": "nova", "step": "stop", "attempt": 2, "error": "no space left",
    "times": {"started": NOW - 60, "failed": NOW - 600}, "reported": "1", "done": ["upgrade/nova"], "post": "open",
}  # fmt: skip
HOLD = {"reason": "its disk is being replaced", "by": "ann", "at": "2026-10-01 12:00:00 +0000"}
MARK = {"version": "2", "since": NOW - 5000, "upgraded": True}
APPROVAL = {"by": "ann", "at": NOW - 900, "reason": "looks well"}

# compute1 is on its way, compute5 is held, controller1 is done, and the others wait; the next pass opens compute2.
# Consul takes requests up to half a mebibyte.
LARGE = 10_000
DONE, HELD = "controller1", "compute5"
WAITING = ("compute2", "compute3", "compute4", "controller2")
HOSTS = ("compute1", *WAITING, HELD, DONE)
FLEET = {host: host.rstrip("0123456789") for host in HOSTS}
SITE: dict[str, bytes] = {
    "current_version": b"2",
    "running/versions/2/controller1": str(NOW - 5000).encode(),
    **{f"running/versions/1/{host}": b"1700000000" for host in HOSTS if host != DONE},
    f"{GATES}/global": b"False",
    f"{GATES}/host/compute1": b"True",
    "upgrade/ledger": json.dumps(LEDGER).encode(),
    "upgrade/hosts/compute1": json.dumps({**RECORD, "error": None}).encode(),
    f"upgrade/hold/host/{HELD}": json.dumps(HOLD).encode(),
    f"upgrade/health/{DONE}": json.dumps(MARK).encode(),
    "upgrade/approval/canary": json.dumps(APPROVAL).encode(),
}
# What a pass opens on this site.
OPENED = {"compute2", "controller2"}


class Site:
    """The fleet of this file in a Consul, and calls on it."""

    def __init__(self, agent: Agent) -> None:
        """Remember where; nothing is written yet."""
        self._kv = agent.kv
        self._options = {"host": "127.0.0.1", "port": agent.http_port}

    def restore(self, *without: str) -> None:
        """Put everything back, but for the keys that are named."""
        self.lay({key: value for key, value in SITE.items() if key not in without})

    def lay(self, keys: Mapping[str, bytes]) -> None:
        """Make these the only keys there are: all of them in one write, and after it those of more than ``LARGE`` bytes."""
        operations: list[Any] = [{"KV": {"Verb": "delete-tree", "Key": ""}}]
        large = {key for key, value in keys.items() if len(value) > LARGE}
        for key, value in keys.items():
            if key in large:
                continue
            operations.append({"KV": {"Verb": "set", "Key": key, "Value": base64.b64encode(value).decode()}})
        code, _headers, body = self._kv.call("PUT", "txn", operations)
        assert code == 200, body
        for key in large:
            self._kv.put(key, keys[key])

    def found(self) -> dict[str, tuple[Any, ...]]:
        """Return every key with its value, its flags, and when it was written last."""
        code, _headers, body = self._kv.call("GET", "kv/?recurse&consistent")
        entries = json.loads(body) if code == 200 else []
        return {one["Key"]: (one["Value"], one["Flags"], one["ModifyIndex"]) for one in entries}

    def call(self, module: str, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """Call a module; make sure that it ends as it should.

        It succeeds, or fails with a sentence and a code and without having written anything. A held host is let
        through in neither case.
        """
        before = self.found()
        result = call(module, {**self._options, **options}, check=check)
        after = self.found()
        if result["failed"]:
            assert_readable(result)
        if result["failed"] or check or module == "consul_upgrade_info":
            assert after == before
        opened = {one["host"] for one in result.get("transitions", ())}
        held = {key.rpartition("/")[2] for key in before if key.startswith("upgrade/hold/host/")}
        assert not opened & held
        return result


def assert_readable(result: Mapping[str, Any]) -> None:
    """Make sure that a failure is a sentence for people and a code for programs."""
    failure = result["failure"]
    message = failure["message"]
    assert result["msg"] == f"[{failure['code']}] {message}"
    assert failure["code"].replace("_", "").isalpha()
    assert message.rstrip().endswith((".", "?", ")")), message
    assert "Traceback" not in message
    assert len(message) < 4000, f"{len(message)} characters: {message[:200]}"
