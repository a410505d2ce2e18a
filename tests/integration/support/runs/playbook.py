# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real runs of ansible-playbook, and the results of their tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devkit.child import start, stop
from integration.support.runs.coverage import Coverage
from integration.support.runs.in_process import is_plain, play

HERE = Path(__file__).resolve().parents[2]
Task = dict[str, Any]
_NOTHING_PRINTED = "(the modules were called directly, so Ansible printed nothing)"


def plan(**options: Any) -> Task:
    """Return a task that plans, with all hosts in its result."""
    return {"convoy.upgrade.consul_upgrade_plan": {"hosts": "all", **options}}


def info(**options: Any) -> Task:
    """Return a task that looks, with all hosts in its result."""
    return {"convoy.upgrade.consul_upgrade_info": {"hosts": "all", **options}}


def report(name: str, version: str, state: str, **options: Any) -> Task:
    """Return a task that reports."""
    return {"convoy.upgrade.consul_upgrade_host_report": {"name": name, "version": version, "state": state, **options}}


def gate(**options: Any) -> Task:
    """Return a task that sets a gate."""
    return {"convoy.upgrade.consul_enable_puppet": options}


def health(*names: str, status: str = "passing", **options: Any) -> Task:
    """Return a task that publishes checks of the agent's node."""
    checks = [{"name": name, "status": status} for name in names]
    return {"convoy.upgrade.consul_health": {"checks": checks, **options}}


def ask(*hosts: str, **options: Any) -> Task:
    """Return a task whose ``msg`` is the list of the lookup's answers."""
    arguments = [repr(host) for host in hosts] + [f"{name}={value!r}" for name, value in options.items()]
    return {
        "ansible.builtin.debug": {"msg": f"{{{{ query('convoy.upgrade.enable_puppet', {', '.join(arguments)}) }}}}"}
    }


class Played(list[dict[str, Any]]):
    """The results of a run's tasks in order, what the run printed, and its exit code."""

    def __init__(self, results: Sequence[dict[str, Any]], stdout: str, code: int) -> None:
        super().__init__(results)
        self.stdout = stdout
        self.code = code


class Live:
    """A run of ansible-playbook that is under way."""

    def __init__(self, process: subprocess.Popen[str], results: Path) -> None:
        self.process = process
        self._results = results
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def wait_for(self, *texts: str, seconds: float = 30) -> None:
        """Return as soon as it has printed one of these texts."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(one in self.stdout for one in texts), seconds)
        assert found, f"none of {texts} within {seconds} s in:\n{self.stdout}"

    def end(self, seconds: float = 90) -> Played:
        """Wait for its end and return its results."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            stop(self.process, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds} s:\n{self.stdout}") from None
        self._reader.join(10)
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        return Played([json.loads(line) for line in lines], self.stdout, code)


class Runner:
    """Writes small playbooks and runs them."""

    def __init__(self, folder: Path, environ: Mapping[str, str], seen: Coverage, *, in_process: bool = False) -> None:
        """Remember where to write.

        :param in_process: call modules directly where Ansible would do no more than that.
        """
        self.folder = folder
        self._in_process = in_process
        self.environ = dict(environ)
        self._seen = seen
        self._count = 0
        (folder / "ansible.cfg").touch()

    def start(
        self,
        tasks: Sequence[Task],
        *,
        check: bool = False,
        diff: bool = False,
        extra_vars: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        play: Mapping[str, Any] | None = None,
        python: str = sys.executable,
        verbosity: int = 0,
    ) -> Live:
        """Start a run of one play with these tasks; a failed one does not keep the next from running.

        :param environ: added to that of the tests, in which nothing of Consul is set but the address.
        :param play: keywords of the play, such as ``module_defaults``.
        :param python: the interpreter of the modules.
        """
        self._count += 1
        playbook = self.folder / f"{self._count}.yml"
        results = self.folder / f"{self._count}.results"
        given = [{"ignore_errors": True, **task} for task in tasks]
        content = {"hosts": "all", "gather_facts": False, "connection": "local", **(play or {}), "tasks": given}
        playbook.write_text(json.dumps([content]))
        command = [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", playbook]
        command += ["-e", json.dumps({"ansible_python_interpreter": python, **(extra_vars or {})})]
        command += ["--check"] * check + ["--diff"] * diff + ["-" + "v" * verbosity] * bool(verbosity)
        self._seen.see_tasks([content])
        return Live(
            start(
                command,
                env={**self._environment(), "CONVOY_TEST_RESULTS": str(results), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
            ),
            results,
        )

    def __call__(self, tasks: Sequence[Task], *, seconds: float = 90, **options: Any) -> Played:
        """Run to the end; the options are those of :meth:`start`."""
        if self._in_process and options.keys() <= {"check"} and is_plain(tasks):
            results = play(tasks, self.environ, check=options.get("check", False))
            return Played(results, _NOTHING_PRINTED, 0)
        played = self.start(tasks, **options).end(seconds)
        assert len(played) >= len(tasks), played.stdout
        self._seen.see_results(played)
        return played

    def _environment(self) -> dict[str, str]:
        home = self.folder / "home"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CONSUL_", "ANSIBLE_", "PYTHONUNBUFFERED"))}
        return {
            **kept,
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
            "ANSIBLE_STDOUT_CALLBACK": "recorder",
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "False",
            "ANSIBLE_DEPRECATION_WARNINGS": "False",
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_NOCOLOR": "True",
            **self.environ,
        }


def wait_until(condition: Callable[[], object], seconds: float = 20, what: str = "it") -> None:
    """Return as soon as the condition holds, for conditions of which no event is sent."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not come within {seconds} s"
        time.sleep(0.02)
