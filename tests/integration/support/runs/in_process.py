# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real modules, called within the process of the tests: for calls by the hundred, where starting Ansible costs most."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any
from unittest import mock

from ansible.module_utils import basic
from ansible.module_utils.common import warnings
from integration.support.runs.coverage import COLLECTION

# Those whose action plugin does nothing but call the module, unless these options are given.
_WAITING = {"consul_upgrade_plan": {"wait", "instructions_file"}}
_MODULES = {
    "consul_enable_puppet",
    "consul_health",
    "consul_upgrade_control",
    "consul_upgrade_hold",
    "consul_upgrade_info",
    "consul_upgrade_plan",
    "consul_upgrade_host_report",
}


def is_plain(tasks: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether Ansible would do no more with some tasks than to call their modules."""
    return all(_is_plain(task) for task in tasks)


def _is_plain(task: Mapping[str, Any]) -> bool:
    (name, options), *more = task.items()
    prefix, _dot, module = name.rpartition(".")
    return (
        not more
        and prefix == COLLECTION
        and module in _MODULES
        and not _WAITING.get(module, set()) & set(options)
        and "{{" not in json.dumps(options, default=str)
    )


def play(tasks: Sequence[Mapping[str, Any]], environ: Mapping[str, str], *, check: bool) -> list[dict[str, Any]]:
    """Return the results of plain tasks, as Ansible's callbacks get them.

    :param environ: what the modules see of Consul and Ansible.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CONSUL_", "ANSIBLE_"))}
    with mock.patch.dict(os.environ, {**clean, **environ}, clear=True):
        results = []
        for task in tasks:
            ((name, options),) = task.items()
            result = call(name.rpartition(".")[2], json.loads(json.dumps(options)), check=check)
            # As Ansible completes it.
            results.append({"changed": False, "warnings": [], **result, "action": name})
    return results


def call(module: str, options: Mapping[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Call a module's ``main()``; return its result, whether it ``failed`` included. What it raises comes through.

    :param check: Ansible's check mode.
    """
    main = import_module(f"ansible_collections.{COLLECTION}.plugins.modules.{module}").main
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {**options, "_ansible_check_mode": check}}).encode()
    # Both are a list or a dictionary, depending on the release, and outlive a call.
    for name in ("_global_warnings", "_global_deprecations"):
        getattr(warnings, name).clear()
    printed = io.StringIO()
    warned: list[str] = []
    with (
        # In a process that has Ansible's controller loaded, modules show warnings instead of returning them.
        mock.patch.object(basic.AnsibleModule, "warn", lambda _module, warning, **_options: warned.append(warning)),
        mock.patch.object(basic, "_ANSIBLE_ARGS", arguments),
        # From ansible-core 2.19 on.
        mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True),
        contextlib.redirect_stdout(printed),
    ):
        try:
            main()
        except SystemExit as end:
            result: dict[str, Any] = json.loads(printed.getvalue())
            return {**result, **({"warnings": warned} if warned else {}), "failed": bool(end.code)}
    raise AssertionError(f"{module} came to no end: {printed.getvalue()}")
