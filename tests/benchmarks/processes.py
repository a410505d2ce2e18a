# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process and its children cost: seconds, processor time and memory, by the kernel's own account."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from devkit.agent import ROOT, Agent
from devkit.child import die_with_parent

PLAYBOOKS = ROOT / "playbooks"
_ANSIBLE = str(Path(sys.executable).parent / "ansible-playbook")
_SET_CHILD_SUBREAPER = 36
_MOST_OUTPUT = 6000


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took.

    :param seconds: its duration.
    :param busy: processor time of all its processes (seconds).
    :param memory: the most memory that one of its processes had (MiB).
    :param output: what it printed.
    """

    seconds: float
    busy: float
    memory: float
    output: str

    @property
    def banners(self) -> int:
        """How many task banners it printed."""
        return sum(line.startswith(("TASK [", "RUNNING HANDLER [")) for line in self.output.splitlines())

    @property
    def found(self) -> Any:
        """What a function of :class:`Measured` returned."""
        return json.loads(self.output.splitlines()[-1])


class Measured:
    """A process that runs.

    A process between this one and that one adopts what it leaves behind, such as the daemon of a run, and waits for the end of all.
    """

    def __init__(self, act: Callable[[], object], folder: Path | None = None) -> None:
        """Start it.

        Python may fork only while it has a single thread.

        :param act: what the process does.
        :param folder: its working directory; None for that of this process.
        """
        self._out: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  end() closes it
        self._used: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  end() closes it
        sys.stdout.flush()
        self._number = os.fork()
        if not self._number:
            self._between(act, folder)

    def is_running(self) -> bool:
        """Return whether it has not ended yet."""
        return os.waitid(os.P_PID, self._number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def end(self) -> Cost:
        """Wait for its end.

        :raises RuntimeError: if it failed, with the end of its output.
        """
        _number, status = os.waitpid(self._number, 0)
        with self._out as out, self._used as used:
            out.seek(0)
            used.seek(0)
            output, costs = out.read(), used.read()
        if status or not costs:
            raise RuntimeError(f"A process to measure ended with {status}:\n{output[-_MOST_OUTPUT:]}")
        seconds, busy, memory = json.loads(costs)
        return Cost(seconds, busy, memory, output)

    def _between(self, act: Callable[[], object], folder: Path | None) -> NoReturn:
        code = 1
        try:
            die_with_parent()
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            began = time.monotonic()
            number = os.fork()
            if not number:
                self._within(act, folder)
            _number, status = os.waitpid(number, 0)
            seconds = time.monotonic() - began
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    break
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._used.write(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
            self._used.flush()
            code = os.waitstatus_to_exitcode(status)
        finally:
            os._exit(code if code >= 0 else 128 - code)

    def _within(self, act: Callable[[], object], folder: Path | None) -> NoReturn:
        code = 1
        try:
            die_with_parent()
            if folder is not None:
                os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(self._out.fileno(), 1)
            os.dup2(self._out.fileno(), 2)
            # Those of this process may be something else than its first files.
            sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
            found = act()
            print(json.dumps(found), flush=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def start_playbook(
    playbook: str | Path,
    folder: Path,
    agent: Agent,
    *arguments: str,
    forks: int = 10,
    inventory: str = "inventory.yml",
    **given: Any,
) -> Measured:
    """Start a playbook: one of the collection by its name, or any other by its path.

    :param folder: the operator's folder, with the inventory.
    :param arguments: further ones for the command line.
    :param given: extra variables.
    """
    path = PLAYBOOKS / f"{playbook}.yml" if isinstance(playbook, str) else playbook
    extra = ["-e", json.dumps(given)] if given else []
    command = [_ANSIBLE, "-i", inventory, "-f", str(forks), str(path), *arguments, *extra]
    environ = _environment(folder, agent)
    return Measured(lambda: os.execve(command[0], command, environ), folder)


def run_playbook(playbook: str | Path, folder: Path, agent: Agent, *arguments: str, **given: Any) -> Cost:
    """Run a playbook to its end, see :func:`start_playbook`."""
    return start_playbook(playbook, folder, agent, *arguments, **given).end()


def _environment(folder: Path, agent: Agent) -> Mapping[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
    return {
        **kept,
        **agent.environ,
        "PWD": str(folder),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_NOCOLOR": "1",
    }


def operator_folder(folder: Path, inventory: str, plays: Mapping[str, str]) -> None:
    """Write an operator's folder: configuration, inventory, and playbooks by their names."""
    (folder / "ansible.cfg").write_text("[defaults]\n")
    (folder / "inventory.yml").write_text(inventory)
    for name, text in plays.items():
        (folder / f"{name}.yml").write_text(text)


def interleaved(ways: Mapping[str, Callable[[], Cost]], rounds: int) -> dict[str, list[Cost]]:
    """Run all ways one after the other, several times, so that the load of the machine meets all of them alike.

    :returns: way -> the costs of its runs.
    """
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for _round in range(rounds):
        for name, run in ways.items():
            found[name].append(run())
    return found


def names(prefix: str, count: int) -> Sequence[str]:
    """Return so many host names: ``web1``, ``web2``."""
    return [f"{prefix}{number}" for number in range(1, count + 1)]
