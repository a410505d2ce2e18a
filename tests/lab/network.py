# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's network: a bridge on this machine, and a namespace with one interface for each node."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any


def ip(*words: str) -> str:
    """Run one command of iproute2; return what it prints.

    :raises RuntimeError: with what it complained of.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


# Number of a network -> the lab that has it, as symbolic links, which are made by one process only.
_TAKEN = Path("/run/convoy-lab-networks")
# RFC 2544 keeps 198.18.0.0/15 free for tests: 512 networks of 254 addresses.
_NETWORKS = 512


class Network:
    """A bridge with addresses from the range that RFC 2544 keeps free for tests.

    :param lab: the lab's name; labs of different names never have the same network.
    """

    def __init__(self, lab: str) -> None:
        """Find the lab's network, whether it has one yet or not."""
        self._lab = lab
        self._number = next((int(link.name) for link in _taken() if _owner(link) == lab), None)

    def take(self) -> None:
        """Take a network that no lab has.

        :raises RuntimeError: if all are taken.
        """
        _TAKEN.mkdir(parents=True, exist_ok=True)
        for number in range(_NETWORKS):
            with contextlib.suppress(FileExistsError):
                (_TAKEN / str(number)).symlink_to(self._lab)
                self._number = number
                return
        raise RuntimeError(f"All {_NETWORKS} networks of the lab are taken: see {_TAKEN}.")

    @property
    def is_taken(self) -> bool:
        """Whether the lab has a network."""
        return self._number is not None

    @property
    def number(self) -> int:
        """The network's number.

        :raises RuntimeError: if the lab has none.
        """
        if self._number is None:
            raise RuntimeError(f"The lab {self._lab} is not up.")
        return self._number

    @property
    def bridge(self) -> str:
        """The bridge on this machine, with whose name all others begin."""
        return f"cvl{self.number}"

    @property
    def gateway(self) -> str:
        """The address of this machine."""
        return self.address(1)

    def address(self, number: int) -> str:
        """Return the address with this number, from 1 to 254."""
        return f"198.{18 + self.number // 256}.{self.number % 256}.{number}"

    def namespace(self, number: int) -> str:
        """Return the name of a node's namespace."""
        return f"{self.bridge}-{number}"

    def interface(self, number: int) -> str:
        """Return the end of a node's cable that is plugged into the bridge."""
        return f"{self.bridge}n{number}"

    def up(self) -> None:
        """Make the bridge."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.gateway}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def plug_in(self, number: int) -> None:
        """Make a node's namespace and cable."""
        namespace, interface = self.namespace(number), self.interface(number)
        ip("netns", "add", namespace)
        ip("link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "set", interface, "master", self.bridge, "up")
        ip("-n", namespace, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "link", "set", "eth0", "up")
        ip("-n", namespace, "route", "add", "default", "via", self.gateway)

    def cut(self, number: int) -> None:
        """Pull a node's plug."""
        ip("link", "set", self.interface(number), "down")

    def reconnect(self, number: int) -> None:
        """Put the plug back in."""
        ip("link", "set", self.interface(number), "up")

    def is_cut(self, number: int) -> bool:
        """Return whether a node's plug is out."""
        found: list[dict[str, Any]] = json.loads(ip("-j", "link", "show", self.interface(number)))
        return "UP" not in found[0]["flags"]

    def leftovers(self) -> list[str]:
        """Return what is there of this network: namespaces and interfaces, by name."""
        if self._number is None:
            return []
        namespaces = [
            line.split()[0] for line in ip("netns", "list").splitlines() if line.startswith(f"{self.bridge}-")
        ]
        links = [one["ifname"] for one in json.loads(ip("-j", "link", "show"))]
        return namespaces + [name for name in links if name == self.bridge or name.startswith(f"{self.bridge}n")]

    def down(self) -> None:
        """Remove all of it, as far as it is there."""
        for name in self.leftovers():
            if "-" in name:
                ip("netns", "delete", name)
            elif name != self.bridge:
                # The kernel removes a cable with its namespace, some time later; which of the two is first is open.
                subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
        if self.leftovers():
            subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)

    def give_back(self) -> None:
        """Leave the network to other labs."""
        if self._number is not None:
            (_TAKEN / str(self._number)).unlink(missing_ok=True)
            self._number = None
        with contextlib.suppress(OSError):
            _TAKEN.rmdir()


def _taken() -> list[Path]:
    return [*_TAKEN.iterdir()] if _TAKEN.is_dir() else []


def _owner(link: Path) -> str | None:
    # Another lab may give its own back meanwhile.
    with contextlib.suppress(OSError):
        return str(link.readlink())
    return None
