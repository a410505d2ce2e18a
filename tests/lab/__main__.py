# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as a command; ``python tests/lab --help``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "tools")]

from devkit.guard import take_guards_name

from lab.lab import Lab


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="tests/lab", description=sys.modules["lab"].__doc__)
    parser.add_argument("--name", default="lab", help="labs of different names can be up at once (default: lab)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make the nodes, and wait until they answer")
    up.add_argument("nodes", nargs="+", metavar="ROLE=COUNT", help="such as controller=2 compute=4")
    up.add_argument("--servers", type=int, choices=(1, 3), default=1, help="how many Consul servers (default: 1)")
    up.add_argument("--plain", action="append", default=[], metavar="NODE", help="a node without systemd, cron instead")
    commands.add_parser("down", help="remove all of it")
    commands.add_parser("status", help="show the nodes")
    commands.add_parser("inventory", help="print an Ansible inventory")
    for name, does in (
        ("cut", "cut a node off the network"),
        ("fix", "connect it again"),
        ("kill", "cut a node's power"),
        ("boot", "start a killed node again"),
    ):
        commands.add_parser(name, help=does).add_argument("node")
    commands.add_parser("guard", help="wait for the end of standard input, then remove all of it")
    run = commands.add_parser("run", help="run a command on a node")
    run.add_argument("node")
    run.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    lab = Lab(options.name)
    try:
        return act(lab, options)
    except RuntimeError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def act(lab: Lab, options: argparse.Namespace) -> int:
    """Do one command; return the exit code."""
    if options.command == "up":
        lab.up(roles_of(options.nodes), servers=options.servers, plain=options.plain)
    elif options.command in ("down", "guard"):
        if options.command == "guard":
            take_guards_name()
            print("ready", flush=True)
            sys.stdin.read()
            lab = Lab(options.name)
        lab.down()
        left = lab.leftovers()
        if left:
            raise RuntimeError(f"left behind: {', '.join(left)}")
    elif options.command == "inventory":
        print(json.dumps(lab.inventory(), indent=2))
    if options.command in ("up", "status"):
        for name, one in lab.status().items():
            state = "cut off" if one["cut"] else "up" if one["up"] else "down"
            print(f"{name:<16} {one['role']:<12} {one['address']:<15} {one['init']:<8} {state}")
    if not hasattr(options, "node"):
        return 0
    nodes = {**lab.servers, **lab.nodes}
    if options.node not in nodes:
        raise RuntimeError(f"there is no node {options.node}; those that are: {', '.join(nodes) or 'none'}")
    node = nodes[options.node]
    if options.command == "run":
        done = node.run(*options.words, check=False, seconds=600)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    getattr(node, options.command)()
    return 0


def roles_of(words: list[str]) -> dict[str, str]:
    """Return node -> role from ``controller=2 compute=4``."""
    roles = {}
    for word in words:
        role, _sign, count = word.partition("=")
        if not (role.isalpha() and count.isdigit()):
            raise RuntimeError(f"{word!r} is not of the form ROLE=COUNT, such as compute=4")
        roles.update({f"{role}{number}": role for number in range(1, int(count) + 1)})
    return roles


if __name__ == "__main__":
    sys.exit(main())
