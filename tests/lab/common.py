# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layer of files that all nodes share: what makes of this machine's file system that of a plain host."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

_SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
MaxStartups 100
Subsystem sftp internal-sftp
"""

_TARGET = """\
[Unit]
Description=A node of the lab
Requires=basic.target
After=basic.target
# multi-user.target starts the services that a test has enabled, after a reboot too.
Wants=ssh.service consul.service cron.service dbus.service multi-user.target
AllowIsolate=yes
"""

_CONSUL = """\
[Unit]
Description=Consul
[Service]
ExecStart="{consul}" agent -config-dir=/etc/consul.d
Restart=always
RestartSec=1
"""

_PLAIN = """\
#!/bin/sh
# Started as the first process: it has to collect the orphans too.
mkdir -p /run/sshd /run/lock
/usr/sbin/cron
"{consul}" agent -config-dir=/etc/consul.d >/var/log/consul.log 2>&1 &
/usr/sbin/sshd -D &
while :; do
    wait
    sleep 1
done
"""

_SERVER = """\
#!/bin/sh
exec "{consul}" agent -config-dir=/etc/consul.d
"""

# What looks for hardware, or for a network that it could manage.
_MASKED = (
    "systemd-udevd.service",
    "systemd-udevd-kernel.socket",
    "systemd-udevd-control.socket",
    "systemd-udev-trigger.service",
    "systemd-hwdb-update.service",
    "systemd-modules-load.service",
    "systemd-sysctl.service",
    "systemd-random-seed.service",
    "systemd-pstore.service",
    "systemd-binfmt.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount",
    "dev-hugepages.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-logind.service",
    "getty.target",
    "networking.service",
    "ifupdown-pre.service",
)

# The machine's own enabled services, package sources and scheduled jobs are not the nodes'.
_EMPTIED = ("etc/systemd/system", "etc/apt/sources.list.d", "etc/cron.d", "etc/facter", "var/lib/apt/lists", "var/log")


def write(folder: Path, *, parts: Path, addresses: Mapping[str, str], public_key: str, consul: str) -> None:
    """Write the layer.

    :param parts: the layer of the packages.
    :param addresses: node -> address.
    :param consul: path of the Consul binary.
    """
    for name in _EMPTIED:
        emptied = folder / name
        emptied.mkdir(parents=True)
        # Overlayfs hides what the layers below have in a folder that is marked so.
        os.setxattr(emptied, "trusted.overlay.opaque", b"y")
    _make_log_folders(folder / "var/log", (Path("/var/log"), parts / "var/log"))
    units = "etc/systemd/system"
    hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    files = {
        "etc/apt/sources.list": "",
        "etc/hosts": "\n".join(hosts) + "\n",
        "etc/resolv.conf": "",
        "etc/machine-id": "",
        "etc/ssh/sshd_config": _SSHD,
        f"{units}/lab.target": _TARGET,
        f"{units}/consul.service": _CONSUL.format(consul=consul),
        "root/.ssh/authorized_keys": public_key,
        # What the machine's own root has its shell do, which would be done for each command that comes over SSH.
        "root/.bashrc": "",
        "root/.bash_profile": "",
        "root/.profile": "",
        "usr/local/sbin/lab-init": _PLAIN.format(consul=consul),
        "usr/local/sbin/lab-server": _SERVER.format(consul=consul),
    }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if "sbin" in name else 0o644)
    (folder / "root/.ssh").chmod(0o700)
    (folder / "root").chmod(0o700)
    for unit in _MASKED:
        (folder / units / unit).symlink_to("/dev/null")


def _make_log_folders(folder: Path, like: Iterable[Path]) -> None:
    """Make the folders that services write their logs into, without what is in them."""
    for place in like:
        for one in sorted(place.iterdir()) if place.is_dir() else ():
            if one.is_symlink() or not one.is_dir():
                continue
            known = one.stat()
            made = folder / one.name
            made.mkdir(exist_ok=True)
            os.chown(made, known.st_uid, known.st_gid)
            made.chmod(stat.S_IMODE(known.st_mode))
