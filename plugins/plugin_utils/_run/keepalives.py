# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keepalives for SSH: without them, a host that is cut off in a task hangs the run."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ansible import constants as C
from ansible import context
from ansible.plugins.loader import connection_loader

_ENVIRONMENT, _OPTION, _OF_HOST = "ANSIBLE_SSH_EXTRA_ARGS", "ssh_extra_args", "ansible_ssh_extra_args"
# A host is unreachable after a minute without an answer.
_KEEPALIVES = "-o ServerAliveInterval=10 -o ServerAliveCountMax=6"


def keep_connections_alive() -> None:
    """Add keepalives to the environment's arguments for ``ssh``.

    It takes the first value of each option, so those of the operator come first. Arguments of the command line and in a variable replace these:
    see :func:`keep_connections_of_hosts_alive`.
    """
    connection_loader.get("ssh", class_only=True)
    given = C.config.get_config_value(_OPTION, plugin_type="connection", plugin_name="ssh") or ""
    if _KEEPALIVES not in given:
        os.environ[_ENVIRONMENT] = f"{given} {_KEEPALIVES}".strip()


def keep_connections_of_hosts_alive(variables: Any, hosts: Collection[Any]) -> None:
    """Add keepalives, as the last arguments, to those that the command line, the inventory or an extra variable gives.

    :param variables: Ansible's variable manager.
    :param hosts: hosts of its inventory.
    """
    extra = variables.extra_vars
    if _OF_HOST in extra:
        extra[_OF_HOST] = _with_keepalives(extra[_OF_HOST])
        return
    of_all = context.CLIARGS.get(_OPTION) or ""
    for host in hosts:
        given = variables.get_vars(host=host, include_hostvars=False).get(_OF_HOST) or of_all
        if given and _KEEPALIVES not in given:
            variables.set_nonpersistent_facts(host.name, {_OF_HOST: _with_keepalives(given)})


def _with_keepalives(given: str) -> str:
    """Return arguments, which may be a template, with keepalives."""
    found = given if _KEEPALIVES in given else f"{given} {_KEEPALIVES}"
    try:
        from ansible.template import is_trusted_as_template, trust_as_template
    except ImportError:
        # ansible-core before 2.19 trusts all variables.
        return found
    return trust_as_template(found) if is_trusted_as_template(given) else found
