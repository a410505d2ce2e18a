# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all modules of this collection share: the connection options, and the call with its result or failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ansible.module_utils.basic import AnsibleModule, env_fallback

from ._common.errors import needs_memory
from ._consul.operations import Change, as_diff
from ._consul.settings import DEFAULT_PASS_LIMIT, DEFAULT_TIMEOUT, read_settings
from ._result import end
from ._state.store import Store

CONNECTION_OPTIONS: dict[str, dict[str, Any]] = {
    "host": {"type": "str"},
    "port": {"type": "int"},
    "scheme": {"type": "str", "choices": ["http", "https"]},
    "token": {"type": "str", "no_log": True, "fallback": (env_fallback, ["CONSUL_HTTP_TOKEN"])},
    "validate_certs": {"type": "bool"},
    "ca_path": {"type": "path"},
    "client_cert": {"type": "path"},
    "client_key": {"type": "path", "no_log": False},
    "datacenter": {"type": "str"},
    "timeout": {"type": "float", "default": DEFAULT_TIMEOUT},
    "pass_limit": {"type": "float", "default": DEFAULT_PASS_LIMIT, "no_log": False},
    "kv_prefix": {"type": "str", "default": "", "no_log": False},
}
# The fleet. Actions turn upgrade_roles into the other one before a module gets them.
FLEET_OPTIONS: dict[str, dict[str, Any]] = {"fleet": {"type": "dict"}, "upgrade_roles": {"type": "dict"}}
# For actions on the control node. They check types only: read_settings checks the values, and names the source of a bad one.
ACTION_CONNECTION_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"type": spec["type"]} for name, spec in CONNECTION_OPTIONS.items()},
    "kv_prefix": {"type": "str", "default": ""},
}


class ModuleCall(Protocol):
    """What a module knows of its call."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Return the checked options."""

    @property
    def check_mode(self) -> bool:
        """Return whether nothing may be written."""

    @property
    def _diff(self) -> bool:
        """Return whether Ansible shows the diff. Its own name for that is private."""

    def warn(self, warning: str) -> None:
        """Add a warning to the result."""


def run(module: AnsibleModule, act: Callable[[Store], dict[str, Any]]) -> None:
    """Connect to Consul, call ``act``, and exit the module with its result or its failure."""

    end(module, lambda: connected(module.params, act))


def connected(params: Mapping[str, Any], act: Callable[[Store], dict[str, Any]]) -> dict[str, Any]:
    """Connect to Consul with a module's options, call ``act``, and return its result.

    :raises UpgradeError: ``bad_connection``, ``out_of_memory``, and what ``act`` raises.
    """
    with needs_memory("the result was made", lambda: "What was written before it obeys the rules."):
        return act(Store(read_settings(params.get, os.environ)))


def changed(changes: Iterable[Change], most: int | None = None) -> dict[str, Any]:
    """Return ``changed`` and ``diff`` of a result.

    :param most: how many keys the diff has at most; None for all.
    """
    found = list(changes)
    return {"changed": bool(found), "diff": as_diff(found, most)}
