# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's folder: an inventory, services in `roles/`, and runs of the playbooks. Each host keeps a log of its own.

The hosts are this machine under several names, as what is tried is who goes when, and not what a service does; or they
are the nodes of a lab, where ssh has a part in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from devkit.agent import ROOT, Agent
from devkit.child import start, stop
from lab.lab import Lab
from terminal import Terminal

PLAYBOOKS = ROOT / "playbooks"
_BIN = Path(sys.executable).parent

# Begins and ends are one line each, so that it is known what was cut short. Each task needs a fact, as most services do.
_TASK = """\
- name: {step} of {service}
  ansible.builtin.shell:
    cmd: |
      : {fact}
      echo "$(date +%s.%N) begin {name} {version}" >> {log}/{host}
      if test -e {log}/fail-{host}-{slug}; then echo "{slug} is broken here" >&2; exit 3; fi
      sleep $(cat {log}/sleep-{host} 2>/dev/null || cat {log}/sleep 2>/dev/null || echo 0.05)
      echo "$(date +%s.%N) end {name} {version}" >> {log}/{host}
  check_mode: "{skips}"
  tags: [{tags}]
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a host's log."""

    at: float
    host: str
    what: str
    task: str
    version: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended."""

    code: int
    stdout: str


class Site:
    """The folder, and the runs in it."""

    def __init__(self, folder: Path, where: Agent | Lab) -> None:
        """Begin with an empty one; the hosts are where the Consul is."""
        self.folder = folder
        self.consul = where.kv
        self._environ = where.environ
        self._lab = where if isinstance(where, Lab) else None
        self._has_rules = False
        # The hosts' logs, and where the hosts themselves see them.
        self.log = (self._lab.shared if self._lab else folder) / "log"
        self._log_of_hosts = "/srv/lab/log" if self._lab else str(self.log)
        self.log.mkdir()
        (folder / "roles").mkdir()
        (folder / "ansible.cfg").write_text("[defaults]\n")

    def service(
        self,
        name: str,
        steps: Sequence[str],
        *,
        requires: Sequence[str] = (),
        after: Sequence[str] = (),
        path: Mapping[str, Sequence[str]] | None = None,
        provider: bool = False,
        meta: str = "",
    ) -> None:
        """Write a service whose tasks log when they begin and end.

        :param steps: tags of its tasks, such as ``upgrade`` or ``upgrade,once``.
        :param path: version -> the same for its file on the way there; what is called ``app@2.4/upgrade`` in the logs.
        :param after: the same for its post-upgrade tasks, such as ``after``, or ``after,once``.
        """
        tasks = self.folder / "roles" / name / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "upgrade_tasks.yml").write_text("---\n" + "\n".join(self._task(name, tags) for tags in steps))
        if after:
            text = "\n".join(self._task(name, tags).replace("tags: [after, ", "tags: [") for tags in after)
            (tasks / "post_upgrade_tasks.yml").write_text("---\n" + text)
        meta_folder = tasks.parent / "meta"
        meta_folder.mkdir()
        says: dict[str, Any] = {"requires": [*requires]}
        if path:
            (tasks / "upgrade_to").mkdir()
            for version, tags_of_tasks in path.items():
                text = "---\n" + "\n".join(self._task(f"{name}@{version}", tags) for tags in tags_of_tasks)
                (tasks / "upgrade_to" / f"{version}.yml").write_text(text)
            says["upgrade_path"] = [*path]
        if provider:
            says["provider"] = True
        (meta_folder / "upgrade.yml").write_text(meta or yaml.safe_dump(says))

    def _task(self, service: str, tags: str) -> str:
        step, _comma, more = tags.partition(",")
        once = "-once" if more == "once" else ""
        return _TASK.format(
            step=step,
            # Check mode would skip the command, and with it what it would find.
            skips="false" if step == "validate" else "{{ ansible_check_mode }}",
            service=service,
            name=f"{service}/{step}{once}",
            slug=f"{service}-{step}{once}",
            log=self._log_of_hosts,
            host="{{ inventory_hostname }}",
            fact="{{ ansible_facts.pkg_mgr }}",
            version="{{ upgrade_version_before | default('', true) or 'none' }}>{{ upgrade_version }}",
            tags=", ".join([step, *([more] if more else [])]),
        )

    def inventory(
        self, roles: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, Sequence[str]], **host_vars: Any
    ) -> None:
        """Write the inventory.

        :param roles: ``upgrade_roles``.
        :param hosts: role -> its hosts.
        :param host_vars: host -> variables.
        """
        reached = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        addresses: dict[str, dict[str, str]] = {}
        if self._lab is not None:
            reached = self._lab.inventory()["all"]["vars"]
            addresses = {name: {"ansible_host": node.address} for name, node in self._lab.nodes.items()}
        content = {
            "all": {
                "vars": {**reached, "upgrade_roles": {role: dict(what) for role, what in roles.items()}},
                "children": {
                    role: {"hosts": {name: {**addresses.get(name, {}), **host_vars.get(name, {})} for name in names}}
                    for role, names in hosts.items()
                },
            }
        }
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(content, sort_keys=False))

    def start(
        self,
        playbook: str | Path,
        *arguments: str,
        forks: int = 10,
        environ: Mapping[str, str] | None = None,
        **given: Any,
    ) -> subprocess.Popen[str]:
        """Start a playbook of the collection, or any other one.

        :param arguments: further ones for the command line.
        :param given: extra variables.
        """
        return start(
            self._command(playbook, arguments, forks, given),
            env={**self._environment(), "ANSIBLE_NOCOLOR": "1", **(environ or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def on_terminal(self, playbook: str, *arguments: str, environ: Mapping[str, str], **given: Any) -> Terminal:
        """Start a playbook of the collection on a terminal."""
        base = self._environment()
        # The checks of this project are run without colours.
        base.pop("NO_COLOR", None)
        return Terminal(self._command(playbook, arguments, 10, given), cwd=self.folder, env={**base, **environ})

    def _command(
        self, playbook: str | Path, arguments: Sequence[str], forks: int, given: Mapping[str, Any]
    ) -> list[str | Path]:
        path = PLAYBOOKS / f"{playbook}.yml" if isinstance(playbook, str) else playbook
        # Tests that are not about caps ask for none; those that once gave rules go on under them.
        self._has_rules = self._has_rules or "instructions" in given
        if not self._has_rules:
            given = {"instructions": {"rolling_rules": {"global": "unlimited"}}, **given}
        command = [_BIN / "ansible-playbook", "-i", "inventory.yml", "-f", str(forks), path, *arguments]
        return [*command, "-e", json.dumps(given)]

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        return {
            **kept,
            **self._environ,
            "PWD": str(self.folder),
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_PIPELINING": "True",
        }

    def end(self, process: subprocess.Popen[str], seconds: float = 600) -> Ended:
        """Wait for a run to end."""
        try:
            stdout, _nothing = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            stop(process, signal.SIGKILL)
            raise AssertionError(f"still running after {seconds} s:\n{process.communicate()[0]}") from None
        return Ended(process.returncode, stdout)

    def play(self, playbook: str | Path, *arguments: str, code: int = 0, **given: Any) -> str:
        """Run a playbook to its end, which has to be the one that is expected; return what it printed."""
        ended = self.end(self.start(playbook, *arguments, **given))
        assert ended.code == code, ended.stdout
        return ended.stdout

    def fail(self, host: str, task: str) -> Path:
        """Let a task fail on a host until the file that is returned is gone; ``app/upgrade`` is such a task."""
        file = self.log / f"fail-{host}-{task.replace('/', '-')}"
        file.touch()
        return file

    def sleep(self, seconds: float, host: str = "") -> None:
        """Let tasks take so long, on one host or on all that have no time of their own."""
        (self.log / ("sleep" + (f"-{host}" if host else ""))).write_text(str(seconds))

    def entries(self, *hosts: str) -> list[Entry]:
        """Return what the hosts logged, by time."""
        found = []
        for file in self.log.iterdir():
            if file.name.startswith(("fail-", "sleep")) or (hosts and file.name not in hosts):
                continue
            for line in file.read_text().splitlines():
                at, what, task, version = line.split()
                found.append(Entry(float(at), file.name, what, task, version))
        return sorted(found, key=lambda one: one.at)

    def done(self, host: str) -> list[str]:
        """Return the tasks that a host finished, in order."""
        return [one.task for one in self.entries(host) if one.what == "end"]

    def record(self, host: str) -> dict[str, Any]:
        """Return a host's record."""
        text = self.consul.get(f"upgrade/hosts/{host}")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def reported(self, version: str) -> set[str]:
        """Return the hosts that reported a version."""
        prefix = f"running/versions/{version}/"
        return {key[len(prefix) :] for key in self.consul.tree(prefix)}


def spans(entries: Sequence[Entry]) -> dict[str, tuple[float, float]]:
    """Return host -> from when to when it was at work."""
    found: dict[str, tuple[float, float]] = {}
    for one in entries:
        begin, _end = found.get(one.host, (one.at, one.at))
        found[one.host] = (begin, one.at)
    return found


def most_at_once(found: Mapping[str, tuple[float, float]], hosts: Sequence[str]) -> int:
    """Return how many of some hosts were at work at the same time."""
    mine = [found[host] for host in hosts if host in found]
    return max((sum(1 for begin, end in mine if begin <= at <= end) for at, _end in mine), default=0)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Return as soon as the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a run and the tasks that are under way, as when the power of their machines fails."""
    found, family = [process.pid], []
    while found:
        family.append(found.pop())
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{family[-1]}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    # From the top, so that no one sees that another one is gone.
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.communicate()
