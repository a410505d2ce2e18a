# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of this machine: whether one still runs, how to end one, and how one detaches from its parent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import runtime

_SECONDS_BETWEEN_CHECKS = 0.5


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def boot_id() -> str:
    """Return an ID of this machine that changes at each boot; empty where it can't be read.

    Each container and each user has its own, because one need not see the processes of another (``hidepid``, see proc(5)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def machine_id(path: str = "/etc/machine-id") -> str | None:
    """Return an ID of this machine that stays the same when it reboots; None where it has none.

    It is a hash of the content of the file, see :func:`machine_id_of`.
    """
    try:
        return machine_id_of(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def machine_id_of(content: str) -> str | None:
    """Return the ID of the machine with this content of ``/etc/machine-id``; None if it says nothing.

    It is a hash, because machine-id(5) asks to keep that content confidential.
    """
    text = content.strip()
    # systemd writes "uninitialized" before the first boot.
    if text in ("", "uninitialized"):
        return None
    return hashlib.sha256(f"convoy.upgrade {text}".encode()).hexdigest()[:16]


def ssh_connection_pid() -> int | None:
    """Return the PID of the sshd process that this process descends from; None if there is none."""
    pid = os.getppid()
    while pid > 1:
        fields = _stat(pid)
        if fields is None:
            return None
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
            if name == "sshd" or name.startswith("sshd-"):
                return pid
        pid = int(fields[1])
    return None


def wait_for_exit(pid: int, started: int) -> None:
    """Block until a process has ended.

    :param started: when it started, from :func:`start_ticks`, in case its PID was reused.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # pidfd_open needs Linux 5.3, and is missing from some builds of Python.
        while start_ticks(pid) == started:
            runtime.sleep(_SECONDS_BETWEEN_CHECKS)
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if start_ticks(pid) == started:
        poll.poll()


def end_process_tree(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process and all its descendants, first with SIGTERM, then with SIGKILL.

    A process group is not enough: Puppet runs each command in a session of its own, and so do the workers of Ansible 2.19 and later.
    Daemons are no longer descendants and go on, such as a service that was started. So do processes that this user may not
    signal.

    :param seconds: how long to wait after SIGTERM.
    """
    family = _family([process.pid])
    _signal(family, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    # Parents first: a shell would report the death of its child in the output.
    _signal(dict.fromkeys((*family, *_family(family))), signal.SIGKILL)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _family(pids: Sequence[int]) -> list[int]:
    """Return the PIDs with those of all descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # Not _stat: a process whose first thread has ended looks like a zombie, but its other threads may go on.
        fields = _fields(int(path.parent.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(pids)
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in found]
    return found


def close_files_except(*files: int) -> None:
    """Close all files of this process but those given, because Ansible waits until its output is closed.

    Standard input, output and errors become ``/dev/null``, the directory becomes ``/``, and SIGTERM, SIGINT and SIGHUP get
    their defaults.
    """
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in files:
            with contextlib.suppress(OSError):
                os.close(number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _stat(pid: int) -> list[str] | None:
    """Return what :func:`_fields` does, but None for a zombie."""
    fields = _fields(pid)
    return None if fields is None or fields[0] in "ZX" else fields


def _fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; None if there is no such process. See proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
