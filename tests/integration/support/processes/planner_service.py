# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planner services as processes, and hosts that upgrade themselves when their gates open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.child import start
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates

MODULE = "ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service"


def until(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """Return what a condition returns as soon as that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


class Service:
    """A planner service, run by its own program."""

    def __init__(self, folder: Path, port: int, name: str = "one", **settings: Any) -> None:
        """Start it."""
        self.name = name
        self.log = folder / f"{name.replace('/', '-')}.log"
        file = folder / f"{self.log.stem}.json"
        file.write_text(json.dumps({"name": name, "consul": {"port": port}, **settings}))
        environ = {key: value for key, value in os.environ.items() if not key.startswith("CONSUL_")}
        with self.log.open("w") as out:
            self.process: subprocess.Popen[Any] = start(
                [sys.executable, "-m", MODULE, "--settings", str(file)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environ,
            )

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def messages(self, event: str) -> list[str]:
        """Return the messages of one kind of event."""
        return [one["message"] for one in self.events() if one["event"] == event]

    def admitted(self) -> list[str]:
        """Return the hosts that it has admitted."""
        return [one["host"] for one in self.events() if one["event"] == "admitted"]

    def says(self, event: str, text: str = "", seconds: float = 90) -> str:
        """Return a message of an event with a text, as soon as there is one."""
        try:
            found: str = until(lambda: next((one for one in self.messages(event) if text in one), ""), seconds)
        except AssertionError:
            raise AssertionError(f"no {event} with {text!r}: {self.log.read_text()}") from None
        return found

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def suspend(self) -> None:
        """Suspend it."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """End it as systemctl stop does; return its exit code."""
        self.process.terminate()
        return self.process.wait(20)


class Nodes:
    """Hosts that upgrade themselves within some hundredths of a second after they are admitted."""

    def __init__(self, store: Store, consul: RawKV, hosts: Mapping[str, str], version: str = "2") -> None:
        """Wait for nothing yet."""
        self._store, self._consul, self._hosts, self._version = Store(store.settings), consul, hosts, version
        self._over = threading.Event()
        self.done: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_rest: object) -> None:
        self._over.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for host in open_hosts(self._consul, self._hosts):
                if host not in self.done:
                    write_report(self._store, HostReport(host, self._version, "started", role=self._hosts[host]))
                    write_report(self._store, HostReport(host, self._version, "upgraded"))
                    self.done[host] = time.monotonic()


def open_hosts(consul: RawKV, hosts: Mapping[str, str]) -> list[str]:
    """Return the hosts whose own gate is open."""
    found = gates(consul)
    return [host for host in hosts if found.get(f"host/{host}", "").lower() == "true"]


def carried(consul: RawKV) -> bool:
    """Return whether a service says that it carries the rollout that was handed over."""
    handover = json.loads(consul.get("upgrade/handover") or b"{}")
    answers = [json.loads(text) for text in consul.texts("upgrade/planners/").values()]
    return any((one["handover"], one["refusal"]) == (handover.get("id"), "") for one in answers)


def running(consul: RawKV) -> list[str]:
    """Return the keys of the services that run."""
    return list(consul.texts("upgrade/planners/"))
