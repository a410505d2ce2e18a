# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as a whole: up, down, and what is in it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.agent import ROOT, consul_binary
from devkit.kv import RawKV

from . import common
from .network import Network
from .node import HERE, SERVER, Node, Plan, consul_config
from .processes import Group, hierarchy

LABS = Path("/run/convoy-lab")
PARTS = (
    "puppet-agent",
    "openssh-server",
    "cron",
    "systemd-sysv",
    "dbus",
    "curl",
    "python3-apt",
    "python3-venv",
    "python3-packaging",
)

_HTTP = 8500
_SSH = 22
_FIRST_SERVER, _FIRST_NODE = 2, 11
_SECONDS = 30


_TRIAL = """
set -eu
mount -t tmpfs convoy-trial "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t sysfs sys "$1/root/sys"
mount -t cgroup2 cgroup "$1/root/sys/fs/cgroup"
ip link add convoy-trial type bridge
"""


# Folders of which each service of a node sees its own, without the interpreter in .venv.
_PRIVATE = ("/tmp", "/var/tmp")


def blocker() -> str | None:
    """Return why there can be no lab here, None where there can: what it does with this machine is tried."""
    if any(ROOT.resolve().is_relative_to(folder) for folder in _PRIVATE):
        return f"the lab of nodes needs a checkout outside of {' and '.join(_PRIVATE)}, which services on nodes have for themselves, and not {ROOT}"
    lacking = [
        name
        for name in ("ip", "ssh", "ssh-keygen", "nsenter", "unshare", "tar", "apt-get")
        if shutil.which(name) is None
    ]
    if lacking:
        return f"the lab of nodes needs {', '.join(lacking)}: run 'tools/setup.sh test'"
    try:
        # One name for all, so that one which was killed here leaves nothing that the next one does not remove.
        group = Group("convoy-trial")
        group.make()
        group.remove()
    except (OSError, RuntimeError) as error:
        return f"the lab of nodes needs control groups of version 2 that it may write to: {error}"
    with tempfile.TemporaryDirectory(prefix="convoy-trial-") as folder:
        spaces = ("--cgroup", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--propagation=private")
        refused = _try("unshare", *spaces, "sh", "-c", _TRIAL, "trial", folder)
    needs = "CAP_SYS_ADMIN and CAP_NET_ADMIN, and may not mount or make a bridge here"
    return f"the lab of nodes needs {needs}: {refused}" if refused else None


def _try(*command: str) -> str | None:
    """Return what a command complained of, None if it went well."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return (
        None if done.returncode == 0 else " ".join(done.stderr.split()) or f"{command[0]} ended with {done.returncode}"
    )


class Lab:
    """A lab.

    :param name: labs of different names can be up at once.
    """

    def __init__(self, name: str = "lab") -> None:
        """Find the lab, whether it is up or not."""
        self.name = name
        self.folder = LABS / name
        self.network = Network(name)
        self.nodes: dict[str, Node] = {}
        self.servers: dict[str, Node] = {}
        with contextlib.suppress(FileNotFoundError):
            self._take([Plan(**one) for one in json.loads((self.folder / "lab.json").read_text())])

    def _take(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            nodes = self.servers if plan.init == SERVER else self.nodes
            nodes[plan.name] = Node(plan, self.folder, self.network)

    @property
    def key(self) -> Path:
        """The private key that all nodes let in."""
        return self.folder / "key"

    @property
    def shared(self) -> Path:
        """A folder that all nodes have as ``/srv/lab``."""
        return self.folder / "shared"

    @property
    def kv(self) -> RawKV:
        """Consul's keys, seen through the first server."""
        return RawKV(f"http://{next(iter(self.servers.values())).address}:{_HTTP}")

    @property
    def environ(self) -> dict[str, str]:
        """What Consul's tools and the collection read to reach the first server."""
        return {"CONSUL_HTTP_ADDR": self.kv.url.removeprefix("http://")}

    def up(
        self,
        roles: Mapping[str, str],
        *,
        servers: int = 1,
        plain: Iterable[str] = (),
        consul: Mapping[str, Any] | None = None,
        packages: Iterable[str] = (),
    ) -> None:
        """Make the lab, and wait until all its nodes answer.

        :param roles: node -> role.
        :param servers: how many Consul servers, 1 or 3.
        :param plain: nodes that run without systemd.
        :param consul: more configuration for all agents.
        :param packages: Debian packages to have on all nodes, beside those that every lab has.
        :raises RuntimeError: if something does not come up. What was made is removed then.
        """
        if reason := blocker():
            raise RuntimeError(f"No lab: {reason}.")
        plans = [Plan(f"consul{n + 1}", SERVER, _FIRST_SERVER + n, SERVER) for n in range(servers)]
        plans += [
            Plan(name, role, _FIRST_NODE + n, "plain" if name in plain else "systemd")
            for n, (name, role) in enumerate(roles.items())
        ]
        self.down()
        try:
            self._make(plans, consul or {}, [*PARTS, *packages])
        except BaseException:
            self.down()
            raise

    def _make(self, plans: list[Plan], consul: Mapping[str, Any], packages: list[str]) -> None:
        parts = subprocess.run([HERE / "parts.sh", *packages], capture_output=True, text=True, check=False)
        if parts.returncode:
            raise RuntimeError(parts.stderr.strip())
        self.network.take()
        self.folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "convoy-lab", self.folder], check=True)
        (self.folder / "lab.json").write_text(json.dumps([asdict(plan) for plan in plans]))
        (self.folder / "parts").mkdir()
        self.shared.mkdir()
        unpack = [
            "tar",
            "-C",
            str(self.folder / "parts"),
            "--xattrs",
            "--xattrs-include=trusted.*",
            "-xf",
            parts.stdout.strip(),
        ]
        subprocess.run(unpack, check=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "convoy-lab", "-f", self.key], check=True)
        self._take(plans)
        all_nodes = {**self.servers, **self.nodes}
        common.write(
            self.folder / "common",
            parts=self.folder / "parts",
            addresses={name: node.address for name, node in all_nodes.items()},
            public_key=self.key.with_suffix(".pub").read_text(),
            consul=consul_binary(),
        )
        self.network.up()
        addresses = [node.address for node in self.servers.values()]
        for name, node in all_nodes.items():
            config = consul_config(name, node.address, addresses, consul, server=name in self.servers)
            node.prepare({"/etc/consul.d/agent.json": config})
            node.boot()
        for node in self.servers.values():
            node.wait(_HTTP)
        for node in self.nodes.values():
            node.wait(_SSH)
        self._wait_for_members(set(all_nodes))

    def _wait_for_members(self, names: set[str]) -> None:
        until = time.monotonic() + _SECONDS
        while True:
            present: set[str] = set()
            with contextlib.suppress(OSError):
                code, _headers, body = self.kv.call("GET", "catalog/nodes", timeout=2)
                present = {one["Node"] for one in json.loads(body)} if code == 200 else set()
            if names <= present and self.kv.has_leader():
                return
            if time.monotonic() > until:
                raise RuntimeError(f"Consul does not know {', '.join(sorted(names - present)) or 'a leader'}.")
            time.sleep(0.05)

    def status(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each node."""
        return {
            name: {
                "role": node.plan.role,
                "address": node.address,
                "init": node.plan.init,
                "up": node.is_up,
                "cut": node.is_cut,
            }
            for name, node in {**self.servers, **self.nodes}.items()
        }

    def inventory(self) -> dict[str, Any]:
        """Return an Ansible inventory: a group for each role."""
        groups: dict[str, Any] = {}
        for name, node in self.nodes.items():
            groups.setdefault(node.plan.role, {"hosts": {}})["hosts"][name] = {"ansible_host": node.address}
        return {
            "all": {
                "children": groups,
                "vars": {
                    "lab_consul": next(iter(self.servers.values())).address,
                    "ansible_user": "root",
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "ansible_ssh_private_key_file": str(self.key),
                    "ansible_control_path": f"{self.folder}/%%C",
                    "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                    "-o LogLevel=ERROR -o ConnectTimeout=5",
                },
            }
        }

    def leftovers(self) -> list[str]:
        """Return what there is of this lab on the machine: processes, mounts, files, parts of the network."""
        found = [f"process {number}" for one in self._groups() for number in one.processes()]
        found += [f"control group {one.folder}" for one in self._groups()]
        if any(
            line.split()[1].startswith(f"{self.folder}") for line in Path("/proc/self/mounts").read_text().splitlines()
        ):
            found.append(f"mount {self.folder}")
        if self.folder.exists():
            found.append(f"folder {self.folder}")
        return found + self.network.leftovers()

    def _groups(self) -> list[Group]:
        if not self.network.is_taken:
            return []
        return [Group(path.name) for path in hierarchy().glob(f"{self.network.bridge}-*")]

    def down(self) -> None:
        """Remove all of it, as far as it is there; works for a lab that some other process made, or failed to make."""
        for socket in self.folder.glob("*") if self.folder.is_dir() else ():
            if socket.is_socket():
                subprocess.run(
                    ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "node"], capture_output=True, check=False
                )
        for group in self._groups():
            group.kill()
            group.remove()
        self.network.down()
        while subprocess.run(["umount", self.folder], capture_output=True, check=False).returncode == 0:
            pass
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
        with contextlib.suppress(OSError):
            LABS.rmdir()
        self.network.give_back()
        self.nodes, self.servers = {}, {}
