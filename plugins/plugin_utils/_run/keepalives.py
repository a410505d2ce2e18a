# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keepalives for SSH: without them, a host that is cut off in a task hangs the run."""

from __future__ import annotations

import os

from ansible import constants as C
from ansible.plugins.loader import connection_loader

_VARIABLE = "ANSIBLE_SSH_EXTRA_ARGS"
# A host is unreachable after a minute without an answer.
_KEEPALIVES = "-o ServerAliveInterval=10 -o ServerAliveCountMax=6"


def keep_connections_alive() -> None:
    """Add keepalives to the environment's arguments for ``ssh``.

    It takes the first value of each option, so those of the operator come first. Arguments in a variable of the inventory
    or on the command line replace these.
    """
    connection_loader.get("ssh", class_only=True)
    given = C.config.get_config_value("ssh_extra_args", plugin_type="connection", plugin_name="ssh") or ""
    if _KEEPALIVES not in given:
        os.environ[_VARIABLE] = f"{given} {_KEEPALIVES}".strip()
