# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that end in each step of some services, by a failure, by a kill or by tags, and runs that go on from there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.lab import Lab
from push.site import Site, kill

from .snapshots import installed

STEPS = ("prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify", "undrain", "post_upgrade")
REPOSITORY = {
    "repositories_files": [{"src": "{{ inventory_dir }}/lab.list.j2", "dest": "/etc/apt/sources.list.d/lab.list"}]
}
# Usually listed first, so that a run ends before the services begin the step.
_BREAK = """\
- name: Break
  ansible.builtin.shell: {{cmd: "test ! -e /srv/sleep-{step} || sleep 600; test ! -e /srv/break-{step}"}}
  changed_when: false
"""


@dataclass(frozen=True)
class Services:
    """The services of a role.

    :param hosts: the hosts of the role.
    :param entries: the services, as entries of ``upgrade_roles``.
    :param packages: the packages that they upgrade.
    :param units: the units that have to be active afterwards.
    :param plane: the plane of the role. Hosts of the control plane are in one wave.
    """

    hosts: Sequence[str]
    entries: Sequence[Any]
    packages: Sequence[str] = ()
    units: Sequence[str] = ()
    plane: str = "dataplane"


class Fleet:
    """Hosts with some services, and runs of the playbook. The sources of version v2 have to be in ``v2`` of the lab's folder, and so on.

    :param roles: role -> its services.
    :param others: groups of further hosts in the inventory.
    :param stop_together: whether all services of a host stop before the first one is upgraded.
    :param ends_after: how many services of a role begin each step before runs end in it.
    """

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        roles: Mapping[str, Services],
        variables: Mapping[str, Any],
        others: Mapping[str, Sequence[str]] | None = None,
        *,
        stop_together: bool = True,
        ends_after: int = 0,
    ) -> None:
        """Write the inventory and the service that ends runs."""
        self.lab = lab
        self.site = Site(folder, lab)
        self._roles = roles
        self._hosts = [host for services in roles.values() for host in services.hosts]
        first = [host for services in roles.values() if services.plane == "controlplane" for host in services.hosts]
        last = [host for host in self._hosts if host not in first]
        # The data plane begins when the control plane is upgraded.
        parts: list[tuple[list[str], tuple[str, ...]]] = [(first, STEPS[:-1]), (last, STEPS)]
        self._ends = [(hosts, step) for hosts, steps in parts if hosts for step in steps]
        breaker = folder / "roles/breaker"
        (breaker / "tasks").mkdir(parents=True)
        (breaker / "meta").mkdir()
        *steps, post = STEPS
        tasks = "".join(f"{_BREAK.format(step=step)}  tags: {step}\n" for step in steps)
        (breaker / "tasks/upgrade_tasks.yml").write_text(tasks)
        (breaker / "tasks/post_upgrade_tasks.yml").write_text(_BREAK.format(step=post))
        (breaker / "meta/upgrade.yml").write_text("stop_together: true\n" if stop_together else "{}\n")
        (folder / "lab.list.j2").write_text("deb [trusted=yes] file:/srv/lab/{{ version }} ./\n")
        entries: dict[str, dict[str, Any]] = {}
        for role, services in roles.items():
            listed = [*services.entries[:ends_after], "breaker", *services.entries[ends_after:]]
            listed.insert(1 if ends_after == 0 else 0, "repositories")
            entries[role] = {"plane": services.plane, "services": listed}
        members = {role: list(services.hosts) for role, services in roles.items()}
        of_host = {host: {**REPOSITORY, **variables} for host in self._hosts}
        self.site.inventory(entries, {**members, **(others or {})}, **of_host)

    def fail_in_each_step(self, version: str) -> None:
        """Upgrade all hosts by runs that fail, each one step later."""
        for hosts, step in self._ends:
            self._mark(f"break-{step}", present=True, hosts=hosts)
            shown = self.site.play("upgrade", version=version, retry_failed=True, upgrade_may_stop_timeout=1, code=2)
            assert {host: self.site.record(host).get("step") for host in hosts} == dict.fromkeys(hosts, step), shown
            self._mark(f"break-{step}", present=False, hosts=hosts)
        self.site.play("upgrade", version=version, retry_failed=True)
        self._assert_upgraded(version)

    def select_steps(self, version: str) -> None:
        """Upgrade all hosts by runs with tags."""
        for tags in ("prepare", "stop,upgrade,start", "verify", "post_upgrade"):
            self.site.play("upgrade", "--tags", tags, version=version)
        self._assert_upgraded(version)

    def kill_in_each_step(self, version: str) -> None:
        """Upgrade all hosts by runs that are killed, each one step later."""
        for hosts, step in self._ends:
            self.kill_in(step, hosts, version)
        self.site.play("upgrade", version=version)
        self._assert_upgraded(version)

    def fail_in(self, step: str, hosts: Sequence[str], version: str) -> None:
        """Upgrade until some hosts fail in a step. The next run does not fail."""
        self._mark(f"break-{step}", present=True, hosts=hosts)
        shown = self.site.play("upgrade", version=version, code=2)
        assert {self._at(host) for host in hosts} == {("failed", version, step)}, shown
        self._mark(f"break-{step}", present=False, hosts=hosts)

    def kill_in(self, step: str, hosts: Sequence[str], version: str) -> None:
        """Upgrade until some hosts are in a step, and kill the run there."""
        self._mark(f"sleep-{step}", present=True, hosts=hosts)
        process = self.site.start("upgrade", version=version)
        until = time.monotonic() + 180
        while any(self._at(host) != ("started", version, step) for host in hosts):
            if process.poll() is not None or time.monotonic() > until:
                process.terminate()
                raise AssertionError(f"not all hosts have come to {step}: {self.site.end(process).stdout}")
            time.sleep(0.2)
        kill(process)
        # Over SSH, a task goes on after its controller is gone.
        self._mark(f"sleep-{step}", present=False, hosts=hosts)
        for host in hosts:
            self.lab.nodes[host].run("pkill", "-x", "sleep", check=False)

    def _at(self, host: str) -> tuple[str, ...]:
        """Return the state, version and step of a host's record; while it runs post-upgrade tasks, the state of these: it is upgraded then."""
        record = self.site.record(host)
        state = "post" if record.get("step") == STEPS[-1] and record.get("state") == "upgraded" else "state"
        return tuple(str(record.get(name)) for name in (state, "version", "step"))

    def finish(self, version: str, **given: Any) -> str:
        """Upgrade to the end; return what was printed."""
        shown = self.site.play("upgrade", version=version, **given)
        self._assert_upgraded(version)
        return shown

    def _mark(self, name: str, *, present: bool, hosts: Sequence[str] | None = None) -> None:
        """Make a file on all hosts, or on some, or remove it."""
        for host in self._hosts if hosts is None else hosts:
            self.lab.nodes[host].run("sh", "-c", f"touch /srv/{name}" if present else f"rm -f /srv/{name}")

    def _assert_upgraded(self, version: str) -> None:
        """Check that all packages are new, and that all services serve."""
        for services in self._roles.values():
            for host in services.hosts:
                node = self.lab.nodes[host]
                found = {name: installed(node, name).rpartition("+")[2] for name in services.packages}
                assert found == dict.fromkeys(services.packages, version)
                active = node.run("systemctl", "is-active", *services.units, check=False).stdout.split()
                assert active == ["active"] * len(services.units)
        assert self.site.reported(version) == set(self._hosts)
