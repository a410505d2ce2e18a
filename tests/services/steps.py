# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the steps of services on the nodes of a lab, as the engine does: split by step, with nothing filtered by tag."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from devkit.child import start
from lab.lab import Lab
from lab.node import ROOT

STEPS = ("validate", "prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify", "undrain")
POST = "post"

_FACTS = ["!all", "min", "pkg_mgr", "service_mgr"]
_RUNTIME = Path(sys.executable).parent


class Steps:
    """Runs steps on hosts of a lab.

    :param folder: for what is written on the way.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        """Remember them; nothing is run yet."""
        self.lab = lab
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        services: str | Sequence[str],
        steps: Iterable[str],
        hosts: Iterable[str],
        variables: Mapping[str, Any],
        *arguments: str,
        code: int = 0,
        seconds: float = 300,
    ) -> str:
        """Run steps of services to their end, and make sure of the exit code; return what Ansible printed.

        :param steps: names of steps, or ``post`` for what comes after the whole fleet.
        :param arguments: more of them for ansible-playbook.
        """
        process = self.start(services, steps, hosts, variables, *arguments)
        try:
            shown, _nothing = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            shown, _nothing = process.communicate()
            raise AssertionError(f"not within {seconds} s: {shown}") from None
        assert process.returncode == code, shown
        return shown

    def start(
        self,
        services: str | Sequence[str],
        steps: Iterable[str],
        hosts: Iterable[str],
        variables: Mapping[str, Any],
        *arguments: str,
    ) -> subprocess.Popen[str]:
        """Start steps of services."""
        inventory = self.lab.inventory()
        inventory["all"]["vars"].update({"upgrade_version": "v2", "upgrade_version_before": "v1", **variables})
        (self.folder / "inventory.json").write_text(json.dumps(inventory))
        names = [services] if isinstance(services, str) else list(services)
        for name in names:
            _split(name, self.folder / "roles")
        plays = [_play(step, [name for name in names if self._has(name, step)], list(hosts)) for step in steps]
        plays[0]["tasks"].insert(0, {"ansible.builtin.setup": {"gather_subset": _FACTS}})
        playbook = self.folder / "playbook.yml"
        playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
        environ |= {"ANSIBLE_HOME": str(self.folder / "home"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PIPELINING": "true"}
        environ |= {"ANSIBLE_ROLES_PATH": str(self.folder / "roles"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
        return start(
            [_RUNTIME / "ansible-playbook", playbook, "-i", self.folder / "inventory.json", *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def _has(self, service: str, step: str) -> bool:
        return (self.folder / "roles" / service / "tasks/steps" / f"{step}.yml").exists()


def one_line(shown: str) -> str:
    """Return what was printed with one space between words, as sentences are broken into lines.

    ansible-core 2.17 prints an apostrophe twice.
    """
    return " ".join(shown.split()).replace("''", "'")


def _split(service: str, roles: Path) -> None:
    """Copy a role, and give it a file of tasks for each step."""
    shutil.rmtree(roles / service, ignore_errors=True)
    shutil.copytree(ROOT / "roles" / service, roles / service)
    tasks = roles / service / "tasks"
    (tasks / "steps").mkdir()
    found: dict[str, list[dict[str, Any]]] = {}
    for task in yaml.safe_load((tasks / "upgrade_tasks.yml").read_text()):
        tags = [task["tags"]] if isinstance(task["tags"], str) else task["tags"]
        (step,) = set(tags) & set(STEPS)
        found.setdefault(step, []).append(_once(task) if "once" in tags else task)
    if (tasks / "post_upgrade_tasks.yml").exists():
        for task in yaml.safe_load((tasks / "post_upgrade_tasks.yml").read_text()):
            found.setdefault(POST, []).append(_once(task) if "once" in task.get("tags", []) else task)
    specs = yaml.safe_load((roles / service / "meta/argument_specs.yml").read_text())["argument_specs"]
    check = {"ansible.builtin.validate_argument_spec": {"argument_spec": specs["upgrade_tasks"]["options"]}}
    found["validate"] = [{"name": "Check the variables", **check}, *found.get("validate", [])]
    for step, listed in found.items():
        (tasks / "steps" / f"{step}.yml").write_text(yaml.safe_dump(listed, sort_keys=False))


def _once(task: dict[str, Any]) -> dict[str, Any]:
    """Let one host do it for all, while the others wait: the first, or the one that C(steps_once) names."""
    return {"block": [task], "when": "inventory_hostname == steps_once | default(ansible_play_hosts_all[0])"}


def _play(step: str, services: list[str], hosts: list[str]) -> dict[str, Any]:
    return {
        "name": step,
        "hosts": ",".join(hosts),
        "gather_facts": False,
        "tasks": [{"ansible.builtin.include_role": {"name": name, "tasks_from": f"steps/{step}"}} for name in services],
    }
