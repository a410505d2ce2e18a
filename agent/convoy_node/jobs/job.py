# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job: which command runs with which arguments, on which hosts, and until when a node may begin it. No IO.

``plugins/module_utils/_codecs/job.py`` has the same text to sign, which a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..machine.errors import sanitize
from .refusals import Refused

# No job may last longer, so that nodes need not remember for longer which ones they have run.
MOST_SECONDS = 31 * 86400
# How far the clock of a node may be behind that of the control node that began the job (seconds).
CLOCK_SKEW = 3600
# How far a node's clock may be behind a time that has passed (seconds).
_CLOCK_BEHIND = 60
_MOST_BYTES = 65536


@dataclass(frozen=True)
class NodeJob:
    """A job as an operator began it.

    :param roles: the roles that it is for.
    :param hosts: the hosts that it is for. Without roles and hosts, it is for the whole fleet.
    :param expires: no node begins it later (unix seconds, by the node's clock).
    :param signature: the armored signature of :meth:`signed_text`; empty for none.
    :param by_ansible: whether Ansible runs tasks on the hosts, so that no node runs a command.
    """

    id: str
    command: str
    expires: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    signature: str = ""
    by_ansible: bool = False

    def signed_text(self, prefix: str) -> bytes:
        """Return the text that a signature is for: all that decides what runs where, and until when.

        :param prefix: the key prefix of the fleet: empty, or text that ends with a slash.
        """
        facts = {
            "args": self.arguments,
            "command": self.command,
            "expires": self.expires,
            "hosts": sorted(self.hosts),
            "id": self.id,
            "prefix": prefix,
            "roles": sorted(self.roles),
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"convoy.upgrade job 1\n{text}\n".encode()

    def is_for(self, host: str, role: str) -> bool:
        """Return whether the job is for a host."""
        return not (self.roles or self.hosts) or role in self.roles or host in self.hosts


def parse_job(key: str, identifier: str, value: bytes) -> NodeJob:
    """Return a job as it is stored in Consul.

    :param key: its key, for messages.
    :raises Refused: if any part of it has a wrong value.
    """
    try:
        data = json.loads(value, parse_constant=_no_constant) if len(value) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise _bad(key, "it is not an object of at most 64 KiB")
    arguments, expires = data.get("args", {}), data.get("expires")
    command, signature = data.get("command"), data.get("signature", "")
    if data.get("id") != identifier:
        raise _bad(key, "its id is another one")
    if not isinstance(command, str) or not isinstance(signature, str):
        raise _bad(key, "command and signature have to be texts")
    if not isinstance(arguments, dict):
        raise _bad(key, "args has to be an object")
    if not isinstance(expires, int) or isinstance(expires, bool) or not 0 < expires < 2**53:
        raise _bad(key, "expires has to be a time in unix seconds")
    names = {}
    for name in ("roles", "hosts"):
        found = data.get(name, [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise _bad(key, f"{name} has to be a list of texts")
        names[name] = tuple(found)
    by_ansible = data.get("by_ansible", False) is not False
    return NodeJob(identifier, command, expires, arguments, names["roles"], names["hosts"], signature, by_ansible)


def check_clock(now: float, known: float, source: str, otherwise: str) -> None:
    """Refuse jobs if the clock of the node is behind: one that has expired could begin.

    :param now: the time of the node (unix seconds).
    :param known: a time that has come already.
    :param source: where that is from.
    :param otherwise: what to do if the clock of the node is right.
    :raises Refused: if it has not come by the clock of the node.
    """
    if known - now > _CLOCK_BEHIND:
        raise Refused(
            f"The clock of this node is behind by {int(known - now)} s, by {source}, so a job that has expired could begin. Correct the clock; if it is "
            f"right, {otherwise}. Then retry the host."
        )


def check_time(job: NodeJob, now: float) -> None:
    """Refuse a job that has expired, or that would be valid for longer than any job may.

    :param now: the time of the node (unix seconds).
    :raises Refused: with the node's time, because its clock may be wrong.
    """
    if now >= job.expires:
        raise Refused(
            f"The job expired {int(now - job.expires)} s ago by the clock of this node. Begin a new job, or correct the clock."
        )
    if job.expires - now > MOST_SECONDS + CLOCK_SKEW:
        raise Refused(
            f"The job expires in {int(job.expires - now)} s by the clock of this node, and at most {MOST_SECONDS} s are allowed. "
            "Begin a job with an earlier expiry, or correct the clock."
        )


def _no_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python reads and JSON does not have."""
    raise ValueError(name)


def _bad(key: str, problem: str) -> Refused:
    return Refused(f"{sanitize(key, 200)} can't be used: {problem}. Begin a new job.")
