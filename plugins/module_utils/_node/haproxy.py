# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take servers out of a running HAProxy and put them back, through its runtime API.

See HAProxy's management guide, chapter 9.3 ("Unix Socket commands"). Each connection takes one command, and is closed after the
answer.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import runtime
from .._common.errors import UpgradeError
from .._common.names import plural
from .lock_file import FOLDER, open_lock_file

DRAINED, MAINTENANCE, READY = "drained", "maintenance", "ready"
_COMMANDS = {DRAINED: "drain", MAINTENANCE: "maint", READY: "ready"}
# Held while a server is taken out. Otherwise two servers could be taken out at once, each counting on the other to serve.
LOCK = f"{FOLDER}/haproxy.lock"
_DRAIN_BITS = 0x08 | 0x10
_SECONDS_TO_ANSWER = 10.0
_SECONDS_BETWEEN_TRIES = 0.25


@dataclass(frozen=True)
class HaproxyServer:
    """A server as HAProxy reports it.

    :param status: HAProxy's status, such as ``UP``, ``DRAIN`` or ``MAINT``. A server that fails its checks is ``DOWN``,
        even while it is drained.
    :param sessions: the number of its current and queued sessions.
    :param admin: the administrative state, as bits: ``srv_admin_state`` in the management guide.
    :param is_backup: whether it gets sessions only if no other server is up.
    """

    backend: str
    name: str
    status: str
    sessions: int
    admin: int
    is_backup: bool = False

    @property
    def state(self) -> str:
        """The state in the module's terms: ``drained``, ``maintenance`` or ``ready``."""
        if self.admin & ~_DRAIN_BITS:
            return MAINTENANCE
        return DRAINED if self.admin else READY

    @property
    def serves(self) -> bool:
        """Whether it gets new sessions: it is up, or has no health checks."""
        return self.status.startswith(("UP", "no check"))

    @property
    def is_healthy(self) -> bool:
        """Whether it gets new sessions and its last health check has passed, if it has any.

        HAProxy shows ``UP 1/2`` after a failed check, and also from the end of maintenance until the first check.
        """
        return self.serves and "/" not in self.status


@dataclass(frozen=True)
class ServerChange:
    """The state that a server should get.

    :param state: ``drained``, ``maintenance`` or ``ready``.
    :param seconds: how long to wait until its sessions have ended, or until it serves.
    :param shut: whether to cut off the sessions that are left after that.
    :param others: how many other servers of the backend have to serve before this one is taken out.
    :param others_seconds: how long to wait for them; None for ``seconds``.
    :param keep_maintenance: whether a server in maintenance stays there when the state is ``ready``.
    """

    state: str
    seconds: float
    shut: bool = False
    others: int = 0
    others_seconds: float | None = None
    keep_maintenance: bool = False


class HaproxyApi:
    """The runtime API of a HAProxy.

    :param address: path of its socket, or ``host:port``.
    """

    def __init__(self, address: str) -> None:
        """Keep the address."""
        self.address = address

    def call(self, command: str) -> str:
        """Return the answer to a command.

        :raises UpgradeError: ``haproxy_unreachable``.
        """
        try:
            with self._connected() as connection:
                connection.sendall(f"{command}\n".encode())
                answer = b""
                while part := connection.recv(65536):
                    answer += part
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UpgradeError(
                "haproxy_unreachable",
                f"HAProxy's runtime API at {self.address} does not answer: {reason}. Start HAProxy, with 'stats socket "
                f"{self.address} level admin' in the section 'global' of its configuration.",
                socket=self.address,
            ) from error
        return answer.decode(errors="replace").strip()

    def _connected(self) -> socket.socket:
        if "/" in self.address:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_SECONDS_TO_ANSWER)
            try:
                connection.connect(self.address)
            except OSError:
                connection.close()
                raise
            return connection
        host, _sign, port = self.address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER)

    def servers(self, backend: str) -> list[HaproxyServer]:
        """Return the servers of a backend.

        :raises UpgradeError: ``haproxy_unreachable``, ``unknown_server``.
        """
        # In this order, so that the status is not older than the administrative state.
        state = self.call(f"show servers state {backend}")
        found = parse_servers(self.call(f"show stat {backend} 4 -1"), state, backend)
        if not found:
            raise UpgradeError(
                "unknown_server",
                f"HAProxy at {self.address} has no servers in a backend {backend}. Use the name of a section 'backend' or "
                "'listen' of its configuration, and the names after 'server' in that section.",
                backend=backend,
            )
        return found

    def server(self, backend: str, name: str) -> tuple[HaproxyServer, list[HaproxyServer]]:
        """Return a server, and the others of its backend that can take over from it. A backup server can take over from another one alone.

        :raises UpgradeError: ``haproxy_unreachable``, ``unknown_server``.
        """
        found = self.servers(backend)
        for one in found:
            if one.name == name:
                return one, [other for other in found if other is not one and (one.is_backup or not other.is_backup)]
        raise UpgradeError(
            "unknown_server",
            f"HAProxy at {self.address} has no server {name} in its backend {backend}; it has: "
            f"{', '.join(one.name for one in found)}.",
            backend=backend,
            server=name,
        )

    def order(self, command: str) -> None:
        """Send a command whose answer is empty if it succeeds.

        :raises UpgradeError: ``haproxy_unreachable``, ``haproxy_refused``.
        """
        answer = self.call(command)
        if answer:
            raise UpgradeError(
                "haproxy_refused",
                f"HAProxy at {self.address} refused '{command}': {answer} The socket needs 'level admin' in HAProxy's "
                "configuration.",
                command=command,
            )


def parse_servers(stat: str, state: str, backend: str) -> list[HaproxyServer]:
    """Return the servers of a backend.

    :param stat: the answer to ``show stat``: CSV, with a header after ``# ``.
    :param state: the answer to ``show servers state``: a line with a version, a header after ``# ``, and lines with spaces
        between the fields.
    """
    lines = state.splitlines()[1:]
    names = lines[0].removeprefix("# ").split() if lines else []
    words = [dict(zip(names, line.split())) for line in lines[1:]]  # noqa: B905  Python 3.9 of the host has no strict
    admin = {row["srv_name"]: int(row["srv_admin_state"]) for row in words if row.get("be_name") == backend}
    rows = csv.DictReader(io.StringIO(stat.removeprefix("# ")))
    return [
        HaproxyServer(
            row["pxname"],
            row["svname"],
            row["status"],
            int(row["scur"] or 0) + int(row["qcur"] or 0),
            admin[row["svname"]],
            row.get("bck") == "1",
        )
        for row in rows
        if row["pxname"] == backend and row["svname"] in admin
    ]


def set_server(
    haproxy: HaproxyApi, backend: str, name: str, change: ServerChange, *, dry: bool = False
) -> dict[str, Any]:
    """Bring a server into a state, wait until that has taken effect, and return the result of the module.

    :param dry: check mode: only find out whether anything would change.
    :raises UpgradeError: ``haproxy_unreachable``, ``haproxy_refused``, ``unknown_server``, ``too_few_servers``,
        ``still_busy``, ``not_up``.
    """
    was, others = haproxy.server(backend, name)
    # A server in maintenance gets no sessions, like a drained one. An operator may want it to stay there.
    kept = was.state == MAINTENANCE and (change.state == DRAINED or (change.state == READY and change.keep_maintenance))
    changes = not kept and was.state != change.state
    if dry:
        if changes and change.state != READY and was.serves:
            _refuse_too_few(haproxy, backend, name, change.others, others)
        return _result(was, was, changed=changes)
    until = runtime.monotonic() + change.seconds
    if changes:
        command = f"set server {backend}/{name} state {_COMMANDS[change.state]}"
        if change.state == READY or change.others == 0 or not was.serves:
            haproxy.order(command)
        else:
            longest = change.seconds if change.others_seconds is None else change.others_seconds
            _order_with_others(haproxy, backend, name, command, change, runtime.monotonic() + longest)
            # Its sessions have their full time, however long the others took.
            until = runtime.monotonic() + change.seconds
    if change.state == READY:
        now = was if kept else _wait_until_up(haproxy, backend, name, change, until)
    else:
        try:
            now = _wait_until_idle(haproxy, backend, name, change, until)
        except UpgradeError as error:
            # One that was drained by an earlier call may not be put back. What an operator put into maintenance decides nothing.
            error.details["was_out"] = not changes and not kept
            raise
    return _result(was, now, changed=changes)


def _result(was: HaproxyServer, now: HaproxyServer, *, changed: bool) -> dict[str, Any]:
    return {
        "changed": changed,
        "before": {"state": was.state, "status": was.status, "sessions": was.sessions},
        "status": now.status,
        "sessions": now.sessions,
    }


def _order_with_others(
    haproxy: HaproxyApi, backend: str, name: str, command: str, change: ServerChange, until: float
) -> None:
    """Send a command as soon as enough other servers serve."""
    while True:
        with _alone():
            _server, others = haproxy.server(backend, name)
            serving = [one.name for one in others if one.is_healthy]
            if len(serving) >= change.others:
                haproxy.order(command)
                return
        if runtime.monotonic() > until:
            _refuse_too_few(haproxy, backend, name, change.others, others)
        runtime.sleep(_SECONDS_BETWEEN_TRIES)


def _refuse_too_few(haproxy: HaproxyApi, backend: str, name: str, needed: int, others: Sequence[HaproxyServer]) -> None:
    """Refuse to take a server out if fewer than the needed number of others serve."""
    serving = [one.name for one in others if one.is_healthy]
    if len(serving) < needed:
        raise UpgradeError(
            "too_few_servers",
            f"{backend}/{name} is not taken out: {plural(needed, 'other server')} of the backend must serve, and "
            f"{', '.join(serving) or 'none'} would. HAProxy at {haproxy.address} has "
            f"{', '.join(f'{one.name} {one.status}' for one in others) or 'no others'}. Fix those first.",
            others={one.name: one.status for one in others},
        )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of this host, after waiting for it.

    :raises UpgradeError: ``bad_lock_file``.
    """
    with open_lock_file(LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wait_until_idle(haproxy: HaproxyApi, backend: str, name: str, change: ServerChange, until: float) -> HaproxyServer:
    shut = False
    while True:
        now, _others = haproxy.server(backend, name)
        if now.sessions == 0:
            return now
        if runtime.monotonic() > until:
            if not change.shut or shut:
                raise UpgradeError(
                    "still_busy",
                    f"{backend}/{name} gets no new sessions any more, but has {now.sessions} that did not end within "
                    f"{change.seconds:g} s. Give them more time (timeout), or cut them off (shutdown_sessions).",
                    sessions=now.sessions,
                )
            haproxy.order(f"shutdown sessions server {backend}/{name}")
            shut, until = True, runtime.monotonic() + _SECONDS_TO_ANSWER
        runtime.sleep(_SECONDS_BETWEEN_TRIES)


def _wait_until_up(haproxy: HaproxyApi, backend: str, name: str, change: ServerChange, until: float) -> HaproxyServer:
    while True:
        now, _others = haproxy.server(backend, name)
        # A server of weight 0 has the status DRAIN even when it is ready.
        if now.is_healthy or (now.state == READY and now.status.startswith("DRAIN")):
            return now
        if runtime.monotonic() > until:
            raise UpgradeError(
                "not_up",
                f"{backend}/{name} was put back, but HAProxy at {haproxy.address} says that it is {now.status} after "
                f"{change.seconds:g} s. Check that the service answers HAProxy's health checks.",
                status=now.status,
            )
        runtime.sleep(_SECONDS_BETWEEN_TRIES)
