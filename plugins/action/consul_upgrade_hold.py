# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the module of the same name, in this process if possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.convoy.upgrade.plugins.modules.consul_upgrade_hold import SPEC, act
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.module_action import ModuleAction


class ActionModule(ModuleAction):
    """The action behind the module of the same name."""

    MODULE = "convoy.upgrade.consul_upgrade_hold"
    SPEC = SPEC
    ACT = act

    def text(self, found: Mapping[str, Any]) -> list[str]:
        """Return the lines for people."""
        return [*found["messages"], *found["remarks"]]
