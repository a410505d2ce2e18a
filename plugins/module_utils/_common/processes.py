# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of this machine: who is still there, and how one becomes independent of who started it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_SECONDS_BETWEEN_LOOKS = 0.5


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since the machine did; None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def boot_id() -> str:
    """Return what tells this machine, since it was booted, from all others; empty where that can't be told.

    Containers and users count as machines: the processes of one container are not seen from another, nor have those of
    one user to be seen by another (``hidepid``, see proc(5)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def machine_id(path: str = "/etc/machine-id") -> str | None:
    """Return what tells this machine from others, also after it was booted; None where it has no ID.

    It is a hash, as machine-id(5) wants for what others see.
    """
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    # Empty, or the word that systemd writes before the first boot.
    if text in ("", "uninitialized"):
        return None
    return hashlib.sha256(f"convoy.upgrade {text}".encode()).hexdigest()[:16]


def ssh_connection_pid() -> int | None:
    """Return the process of the SSH connection by which this one was started, None if it was started otherwise."""
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
    """Return when a process is gone.

    :param started: when it started, as :func:`start_ticks` tells.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # An older kernel or Python.
        while start_ticks(pid) == started:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if start_ticks(pid) == started:
        poll.poll()


def end_process_tree(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a program and all that it has started, gently first.

    Its process group would not do: Puppet gives every command that it runs a session of its own, and so does Ansible from 2.19 on
    with its workers. What has become a daemon by now is no one's child and stays, as a service that was started should; so does what
    belongs to a user whose processes this one may not end.

    :param seconds: how long it may take to end gently.
    """
    family = _family([process.pid])
    _signal(family, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    _signal({*family, *_family(family)}, signal.SIGKILL)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _family(pids: Sequence[int]) -> list[int]:
    """Return processes with all their descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # One whose first thread has ended is a zombie by its state, and may have others that go on.
        fields = _fields(int(path.parent.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(pids)
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in found]
    return found


def close_files_except(*files: int) -> None:
    """Let go of all that this process had open but for some files, as Ansible waits for the end of it."""
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
    """Return the fields of a process from its state on, None if it has ended."""
    fields = _fields(pid)
    return None if fields is None or fields[0] in "ZX" else fields


def _fields(pid: int) -> list[str] | None:
    """Return the fields of a process from its state on, None if there is none; see proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
