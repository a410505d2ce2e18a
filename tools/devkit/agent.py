# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A throw-away Consul agent on free ports of the loopback address."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .child import start, stop
from .kv import RawKV

ROOT = Path(__file__).resolve().parents[2]
_TRIES = 3
_START_SECONDS = 30


def consul_binary() -> str:
    """Return the path of the Consul binary, as tools/consul.sh prints it."""
    return subprocess.run([ROOT / "tools" / "consul.sh"], check=True, capture_output=True, text=True).stdout.strip()


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.socket() for _each in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Agent:
    """A Consul server with its data in a temporary folder, so that it can be stopped and started again.

    :param config: further configuration of the agent, such as ``acl``.
    :param ca, cert, key: paths; with them the agent speaks HTTPS on ``https_port`` too.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        """Choose ports and a folder, without starting the agent."""
        self.folder = Path(tempfile.mkdtemp(prefix="convoy-consul-"))
        self.config = dict(config or {})
        self.http_port, self._server, self._lan, self.https_port = free_ports(4)
        self.process: subprocess.Popen[Any] | None = None
        self.address = f"127.0.0.1:{self.http_port}"
        tokens = self.config.get("acl", {}).get("tokens", {})
        self.kv = RawKV(f"http://{self.address}", tokens.get(self.management_token_name()))

    def __enter__(self) -> Agent:
        for attempt in range(_TRIES):
            try:
                return self.start()
            except RuntimeError:
                if attempt == _TRIES - 1:
                    self.remove()
                    raise
                self.http_port, self._server, self._lan, self.https_port = free_ports(4)
                self.address = f"127.0.0.1:{self.http_port}"
                self.kv = RawKV(f"http://{self.address}", self.kv.token)
        raise AssertionError("not reached")

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    @staticmethod
    def management_token_name() -> str:
        """Return what the configuration calls the first token with all rights: it was renamed in Consul 1.11."""
        shown = subprocess.run([consul_binary(), "version"], check=True, capture_output=True, text=True).stdout
        found = re.search(r"v(\d+)\.(\d+)", shown)
        old = found is not None and (int(found[1]), int(found[2])) < (1, 11)
        return "master" if old else "initial_management"

    @property
    def environ(self) -> dict[str, str]:
        """What Consul's tools and the collection read to reach it."""
        return {"CONSUL_HTTP_ADDR": self.address}

    @property
    def lan_address(self) -> str:
        """Where other agents join it."""
        return f"127.0.0.1:{self._lan}"

    def start(self) -> Agent:
        """Start it, on the data of last time, and wait until there is a leader."""
        self.launch()
        self.wait()
        return self

    def launch(self) -> None:
        """Start it, on the data of last time."""
        ports = {"http": self.http_port, "server": self._server, "serf_lan": self._lan}
        if self.config.get("key_file"):
            ports["https"] = self.https_port
        config = {
            "server": True,
            "bootstrap_expect": 1,
            "bind_addr": "127.0.0.1",
            "data_dir": str(self.folder / "data"),
            "node_name": f"throwaway-{self.http_port}",
            "performance": {"raft_multiplier": 1},
            "leave_on_terminate": False,
            "disable_update_check": True,
            "log_level": "warn",
            "ports": {"dns": -1, "serf_wan": -1, "grpc": -1, **ports},
            **self.config,
        }
        (self.folder / "agent.json").write_text(json.dumps(config))
        with (self.folder / "log").open("ab") as log:
            self.process = start(
                [consul_binary(), "agent", f"-config-file={self.folder / 'agent.json'}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until there is a leader.

        :raises RuntimeError: if it ends before, or takes too long.
        """
        process = self.process
        assert process is not None
        until = time.monotonic() + _START_SECONDS
        while not self.kv.has_leader():
            if process.poll() is not None or time.monotonic() > until:
                stop(process)
                raise RuntimeError(f"Consul did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Stop it and keep its data."""
        if self.process is not None:
            stop(self.process, number)
            self.process = None

    def remove(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
