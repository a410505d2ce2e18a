# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node of the lab: boot it, kill it, cut it off, look into it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .network import Network
from .processes import Group

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# What runs as the first process of a node.
INITS = {
    "systemd": "/lib/systemd/systemd --unit=lab.target --show-status=0 --log-target=journal",
    "plain": "/usr/local/sbin/lab-init",
    "server": "/usr/local/sbin/lab-server",
}
SERVER = "server"

_NAMESPACES = ("--cgroup", "--mount", "--uts", "--ipc", "--pid")
_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node is to be.

    :param number: its place in the network.
    :param init: ``systemd``, ``plain`` (a shell that starts cron, sshd and Consul) or ``server`` (Consul alone).
    """

    name: str
    role: str
    number: int
    init: str = "systemd"


class Node:
    """A node.

    :param folder: the lab's folder.
    """

    def __init__(self, plan: Plan, folder: Path, network: Network) -> None:
        """Remember what it is; nothing is started yet."""
        self.plan = plan
        self.name = plan.name
        self.address = network.address(plan.number)
        self.folder = folder / "nodes" / plan.name
        self._lab = folder
        self._network = network
        self._group = Group(f"{network.bridge}-{plan.number}")

    @property
    def upper(self) -> Path:
        """Where the files are that the node changed."""
        return self.folder / "upper"

    def prepare(self, files: Mapping[str, str]) -> None:
        """Make its network and its first files.

        :param files: path -> content.
        """
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        for path, text in {"/etc/hostname": f"{self.name}\n", **files}.items():
            file = self.upper / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self._network.plug_in(self.plan.number)

    def boot(self) -> None:
        """Start it, on the files that it left when it stopped. It comes back by itself if it reboots itself."""
        self._group.remove()
        self._group.make()
        layers = ":".join(str(path) for path in (self._lab / "common", self._lab / "parts", "/"))
        command = [
            str(HERE / "keep.sh"),
            str(self.folder),
            "nsenter",
            f"--net=/run/netns/{self._network.namespace(self.plan.number)}",
            "unshare",
            *_NAMESPACES,
            "--fork",
            "--propagation=private",
            str(HERE / "boot.sh"),
            *(str(self.folder), layers, INITS[self.plan.init], str(ROOT)),
        ]
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "console").open("ab") as console:
            subprocess.Popen(
                command,
                preexec_fn=self._group.enter,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def first_process(self) -> int | None:
        """The node's first process, by its number on this machine; None while it is down."""
        try:
            unshare = int((self.folder / "pid").read_text())
            children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        except (OSError, ValueError):
            return None
        return int(children[0]) if children and unshare in self._group.processes() else None

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        return self.first_process is not None

    def wait(self, port: int, seconds: float = _SECONDS) -> None:
        """Wait until something on the node listens on a port.

        :raises RuntimeError: with what the node's console shows.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((self.address, port), 1).close()
                return
            except OSError as error:
                if time.monotonic() > until or not self._group.processes():
                    console = (self.folder / "console").read_text(errors="replace")[-2000:]
                    raise RuntimeError(
                        f"{self.name}: port {port} does not answer: {error}. Console: {console}"
                    ) from error
                time.sleep(0.02)

    def kill(self) -> None:
        """Cut its power: all its processes die at once, its files stay as they are."""
        self._group.kill()

    def cut(self) -> None:
        """Cut it off the network."""
        self._network.cut(self.plan.number)

    def reconnect(self) -> None:
        """Connect it again."""
        self._network.reconnect(self.plan.number)

    @property
    def is_cut(self) -> bool:
        """Whether it is cut off."""
        return self._network.is_cut(self.plan.number)

    def command(self, *words: str) -> list[str]:
        """Return a command of this machine that runs one on the node, without any network.

        :raises RuntimeError: if the node is down.
        """
        first = self.first_process
        if first is None:
            raise RuntimeError(f"{self.name} is down.")
        return ["nsenter", f"--target={first}", "--all", "--root", "--wd", "env", "-i", *_ENVIRON, *words]

    def run(self, *words: str, check: bool = True, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command on the node."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{self.name}: {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    def read(self, path: str) -> str | None:
        """Return a file of the node as it is now, None where there is none; the node may be down for it."""
        file = self.upper / path.lstrip("/")
        return file.read_text() if file.is_file() else None

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on the running node."""
        subprocess.run(
            self.command(
                "sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"', "-", path, f"{mode:o}"
            ),
            input=text,
            text=True,
            check=True,
        )

    def remove(self) -> None:
        """Kill it and remove its control group; network and files go with the lab."""
        self._group.kill()
        self._group.remove()


_ENVIRON = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")


def consul_config(node: str, address: str, servers: Sequence[str], more: Mapping[str, Any], *, server: bool) -> str:
    """Return the configuration of a node's Consul agent, as JSON.

    :param servers: the addresses of the servers.
    :param more: what to add, or to set otherwise.
    """
    config: dict[str, Any] = {
        "node_name": node,
        "bind_addr": address,
        "data_dir": "/var/lib/consul",
        "retry_join": list(servers),
        "retry_interval": "1s",
        "disable_update_check": True,
        "leave_on_terminate": False,
        "log_level": "warn",
        "performance": {"raft_multiplier": 1},
        # As quick to find a node gone, and back again, as a small network allows.
        "gossip_lan": {"probe_interval": "200ms", "probe_timeout": "100ms", "suspicion_mult": 3},
        "reconnect_timeout": "8h",
        "ports": {"dns": -1, "serf_wan": -1, "grpc": -1},
    }
    if server:
        config |= {"server": True, "bootstrap_expect": len(servers), "client_addr": "0.0.0.0"}
        # Else the leader tells a server that was away for a second to leave, and where that arrives as it comes back, it is
        # "leaving" for as long as it lives and never taken among the servers again.
        config["autopilot"] = {"cleanup_dead_servers": False}
    return json.dumps({**config, **more}, indent=2)
