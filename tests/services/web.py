# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real nginx of a node, with a page and a file that comes slowly, or slower."""

from __future__ import annotations

from lab.node import Node

# The layer of the lab that the tests of web servers share.
LAYER = ["haproxy", "nginx"]
PACKAGES = ["nginx", "nginx-common"]
SLOW = 600_000

_SITE = f"""\
server {{
    listen 80 default_server;
    root /var/www/html;
    add_header X-Served-By $hostname always;
    location /slow {{
        limit_rate {SLOW // 8};
    }}
    location /slower {{
        alias /var/www/html/slow;
        limit_rate {SLOW // 60};
    }}
}}
"""


def serve(node: Node) -> None:
    """Let a node serve."""
    node.write("/etc/nginx/sites-enabled/default", _SITE)
    node.write("/var/www/html/index.html", "well\n")
    node.write("/var/www/html/slow", "x" * SLOW)
    node.run("systemctl", "start", "nginx")
    node.wait(80)


def old_processes(node: Node, unit: str) -> list[str]:
    """Return the processes of a unit that run from files which are gone."""
    group = node.run("systemctl", "show", "--property=ControlGroup", "--value", unit).stdout.strip()
    script = f"for p in $(cat /sys/fs/cgroup{group}/cgroup.procs); do readlink /proc/$p/exe | grep deleted; done; true"
    return node.run("sh", "-c", script).stdout.splitlines()
