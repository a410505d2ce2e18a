# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A shell on a machine of its own: a network that no one else is on, so that Consul has its usual ports, and no process outlives it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from devkit.agent import consul_binary
from devkit.child import start

_OWN = ("unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
# SIOCSIFFLAGS with IFF_UP for the loopback device: `ip` is not on every machine.
_LOOPBACK = "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))"
_USER, _MACHINE = "ann", "laptop"


def blocker() -> str | None:
    """Return why there can be no such shell here, None where there can."""
    if shutil.which("unshare") is None:
        return "a page is walked in a network namespace, and there is no unshare"
    tried = subprocess.run([*_own(), "true"], capture_output=True, text=True, check=False)
    return (
        f"a page is walked in a network namespace, and there can be none: {tried.stderr}" if tried.returncode else None
    )


def _own() -> list[str]:
    return [*_OWN, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


class Shell:
    """A shell that is given one command after the other.

    :param folder: where it begins; it is the home of its user too.
    """

    def __init__(self, folder: Path) -> None:
        """Start it."""
        path = [str(Path(sys.executable).parent), str(Path(consul_binary()).parent), os.environ["PATH"]]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        self._process = start(
            [*_own(), "bash", "--noprofile", "--norc"],
            cwd=folder,
            env={
                **kept,
                "PATH": os.pathsep.join(path),
                "HOME": str(folder),
                "USER": _USER,
                "LOGNAME": _USER,
                # This machine has no such user. Without it, Ansible would make a folder named ~ann beside the playbook.
                "ANSIBLE_REMOTE_TEMP": str(folder / ".ansible/tmp"),
                "NO_COLOR": "1",
                "COLUMNS": "140",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        code, printed = self.type(f'hostname {_MACHINE} && {sys.executable} -c "{_LOOPBACK}"')
        assert code == 0, printed

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_exception: object) -> None:
        # Its namespace of processes ends with it, Consul and all.
        self._process.kill()
        self._process.communicate()

    def type(self, command: str, seconds: float = 300) -> tuple[int, str]:
        """Run a command; return its exit code and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = uuid.uuid4().hex
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\necho {mark} $?\n")
        self._process.stdin.flush()
        late = threading.Timer(seconds, self._process.kill)
        late.start()
        lines: list[str] = []
        try:
            for line in self._process.stdout:
                before, found, code = line.partition(mark)
                if found:
                    return int(code), "".join([*lines, before])
                lines.append(line)
        finally:
            late.cancel()
        raise AssertionError(f"{command}: not done within {seconds} s, or its shell died:\n{''.join(lines)}")
