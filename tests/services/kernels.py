# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes whose kernel is chosen by a boot loader of the lab, as all of them have this machine's."""

from __future__ import annotations

from lab.node import Node

RUNNING = "/proc/sys/kernel/osrelease"
OLD, NEW = "6.1.0-9-amd64", "6.1.0-10-amd64"

# All nodes have this machine's kernel; the loader has the node say that it is the one of /boot/default.
LOADER = f"""\
#!/bin/sh
cp /boot/default /run/osrelease
mount --bind /run/osrelease {RUNNING}
"""
UNIT = """\
[Unit]
Description=What a boot loader would have done
DefaultDependencies=no
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/lab-loader
[Install]
WantedBy=lab.target
"""


def install(node: Node, release: str, *, default: bool = True) -> None:
    """Put a kernel into /boot, and let the boot loader take it."""
    node.write(f"/boot/vmlinuz-{release}", "")
    if default:
        node.write("/boot/default", f"{release}\n")


def boot_with(node: Node, release: str) -> None:
    """Let a node have a boot loader, and run a kernel."""
    install(node, release)
    node.write("/usr/local/sbin/lab-loader", LOADER, 0o755)
    node.write("/etc/systemd/system/lab-loader.service", UNIT)
    node.run("systemctl", "enable", "--now", "lab-loader")
    assert node.run("cat", RUNNING).stdout == f"{release}\n"
