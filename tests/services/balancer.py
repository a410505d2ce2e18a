# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real HAProxy of a node, before the web servers of others."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping

from lab.node import Node

# No second try and no other server: a request that meets a server which is gone fails.
_CONFIG = """\
global
    stats socket /run/haproxy/admin.sock mode 660 level admin expose-fd listeners
    user haproxy
    group haproxy
defaults
    mode http
    retries 0
    timeout connect 2s
    timeout client 30s
    timeout server 30s
frontend web
    bind :80
    default_backend app
backend app
    option httpchk GET /
    default-server check inter 200ms fall 2 rise 2
"""
_ASK = (
    "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect('/run/haproxy/admin.sock')\n"
    "s.sendall((sys.argv[1] + '\\n').encode())\nsys.stdout.write(s.makefile().read())"
)


def balance(node: Node, servers: Mapping[str, str]) -> None:
    """Let a node balance between servers, by name and address."""
    lines = "".join(f"    server {name} {address}:80\n" for name, address in servers.items())
    node.write("/etc/haproxy/haproxy.cfg", _CONFIG + lines)
    node.run("systemctl", "start", "haproxy")
    node.wait(80)


def ask(node: Node, command: str) -> str:
    """Ask HAProxy by a way that is not the module's."""
    return node.run("python3", "-c", _ASK, command).stdout


def status(node: Node, server: str) -> str:
    """Return HAProxy's status of a server."""
    rows = csv.DictReader(ask(node, "show stat").removeprefix("# ").splitlines())
    return next(row["status"] for row in rows if (row["pxname"], row["svname"]) == ("app", server))


def wait_for_status(node: Node, server: str, target: str, seconds: float = 20) -> None:
    """Return as soon as a server has a status."""
    until = time.monotonic() + seconds
    while status(node, server) != target:
        assert time.monotonic() < until, status(node, server)
        time.sleep(0.1)
