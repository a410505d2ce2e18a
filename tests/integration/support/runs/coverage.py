# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which options the tests have used and which results they have seen, against what the plugins document."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

COLLECTION = "convoy.upgrade"
CONNECTED = (
    "consul_enable_puppet",
    "consul_health",
    "consul_upgrade_acl",
    "consul_upgrade_rollout_report",
    "consul_upgrade_control",
    "consul_upgrade_follow",
    "consul_upgrade_hold",
    "consul_upgrade_info",
    "consul_upgrade_metrics",
    "consul_upgrade_notify",
    "consul_upgrade_plan",
    "consul_upgrade_host_report",
    "consul_upgrade_schema",
    "prepare_run",
    "push_job",
    "push_run",
)
MODULES = (
    *CONNECTED,
    "check_instructions",
    "compose_upgrade_tasks",
    "node_lock",
    "node_validate",
    "push_step",
    "push_host",
)
LOOKUP = "enable_puppet"
INVENTORY = "consul_fleet"

# Keywords that name another file with plays or tasks.
_IMPORTS = {"import_playbook", "import_tasks", "include_tasks"}
# A value that depends on whether these variables are set.
_DEFAULTS = re.compile(r"(\w+) \| default\(|(\w+) is defined")

# What Ansible itself puts into results, and what the recorder adds.
_ANSIBLES = {
    "_ansible_delegated_vars",
    "action",
    "changed",
    "deprecations",
    "diff",
    "exception",
    "failed",
    "failed_when_result",
    "false_condition",
    "invocation",
    "module_stderr",
    "module_stdout",
    "msg",
    "rc",
    "results",
    "skip_reason",
    "warnings",
}


def documentation(plugin: str, kind: str) -> dict[str, Any]:
    """Return what ansible-doc says of a plugin: ``doc``, ``examples``, ``return``."""
    name = f"{COLLECTION}.{plugin}"
    command = [Path(sys.executable).parent / "ansible-doc", "-j", "-t", kind, name]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found[name]


class Coverage:
    """A record of a whole session."""

    def __init__(self) -> None:
        self.options: dict[str, set[str]] = {name: set() for name in (*MODULES, LOOKUP, INVENTORY)}
        self.returned: dict[str, set[str]] = {name: set() for name in MODULES}
        self.failures: set[tuple[str, str]] = set()

    def save(self, file: Path) -> None:
        """Write down what was seen, for a session that looks back."""
        file.parent.mkdir(parents=True, exist_ok=True)
        noted = {"options": self.options, "returned": self.returned}
        plain = {kind: {name: sorted(of) for name, of in each.items()} for kind, each in noted.items()}
        file.write_text(json.dumps({**plain, "failures": sorted(self.failures)}))

    def load(self, folder: Path) -> None:
        """Take over what other sessions have written down."""
        for file in folder.glob("*.json"):
            noted = json.loads(file.read_text())
            for name, found in noted["options"].items():
                self.options[name].update(found)
            for name, found in noted["returned"].items():
                self.returned[name].update(found)
            self.failures.update((code, message) for code, message in noted["failures"])

    def see_tasks(self, found: Any) -> None:
        """Note the options in tasks, plays or parts of them."""
        if isinstance(found, str):
            if f"{COLLECTION}.{LOOKUP}" in found:
                self.options[LOOKUP].update(["_terms", *re.findall(r"(\w+)=", found)])
        elif isinstance(found, Mapping):
            for name, value in found.items():
                module = str(name).rpartition(".")[2]
                if module in MODULES and isinstance(value, Mapping):
                    self.options[module].update(value)
                if name == f"group/{COLLECTION}.consul":
                    for each in CONNECTED:
                        self.options[each].update(value)
                self.see_tasks(value)
        elif isinstance(found, Sequence):
            for value in found:
                self.see_tasks(value)

    def see_playbook(self, file: Path, given: Collection[str]) -> None:
        """Note the options in a playbook that an operator runs, and in what it imports.

        :param given: the variables that the operator gives. An option with the default of a variable is not used.
        """
        found = _playbook(file)
        variables = {*given, *_names_set(found)}
        for name, value in _pairs(found):
            module = name.rpartition(".")[2]
            if module in MODULES and isinstance(value, Mapping):
                self.options[module].update(option for option, text in value.items() if _is_used(text, variables))
            if module in _IMPORTS and isinstance(value, str) and (imported := file.parent / value).is_file():
                self.see_playbook(imported, variables)

    def see_results(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Note the keys of results, with those below them as ``status.pending``, and how they failed."""
        for result in results:
            failure = result.get("failure")
            if isinstance(failure, Mapping):
                self.failures.add((failure["code"], failure["message"]))
            module = result["action"].rpartition(".")[2]
            if module in MODULES:
                self.returned[module].update(_paths({k: v for k, v in result.items() if k not in _ANSIBLES}))


@cache
def _playbook(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def _pairs(found: Any) -> Iterable[tuple[str, Any]]:
    """Return all keys with their values, at any depth."""
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield str(name), value
            yield from _pairs(value)
    elif isinstance(found, list):
        for one in found:
            yield from _pairs(one)


def _names_set(found: Any) -> Iterable[str]:
    """Return the names of the variables that plays or tasks set."""
    for name, value in _pairs(found):
        if name.rpartition(".")[2] in ("vars", "set_fact") and isinstance(value, Mapping):
            yield from value


def _is_used(value: Any, given: Collection[str]) -> bool:
    """Return whether the value of an option is more than the default of variables that are not set."""
    names = [one or other for one, other in _DEFAULTS.findall(value)] if isinstance(value, str) else []
    return not names or any(name in given for name in names)


def _paths(value: Any, prefix: str = "") -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield f"{prefix}{key}"
            yield from _paths(below, f"{prefix}{key}.")
    elif isinstance(value, list):
        for below in value:
            yield from _paths(below, prefix)


def documented_paths(contents: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Return the keys of a RETURN block in the same form."""
    for key, entry in contents.items():
        yield f"{prefix}{key}"
        yield from documented_paths(entry.get("contains") or {}, f"{prefix}{key}.")
