# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Consul that allows nothing without a token."""

from __future__ import annotations

import uuid
from typing import Any

from devkit.agent import Agent

# The token that may do everything there.
MASTER = str(uuid.uuid4())


def guarded_agent(**config: Any) -> Agent:
    """Return an agent with ACLs, to be started.

    :param config: further settings of Consul.
    """
    acl = {"enabled": True, "default_policy": "deny", "tokens": {Agent.management_token_name(): MASTER}}
    return Agent({"acl": acl, **config})
