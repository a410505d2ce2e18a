# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the playbooks: the fleet from the inventory, and a rollout as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.convoy.upgrade.plugins.module_utils._model.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils import (
    _inventory,
    _plan_text,
    _routes,
    _scope,
    _text,
    _ways,
)


def _telling(work: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return work(*args, **kwargs)
        except UpgradeError as error:
            raise AnsibleFilterError(error.message) from None

    return told


class FilterModule:
    """The filters of this file, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name -> filter."""
        return {
            "fleet": _telling(_inventory.fleet_of),
            "stage_order": _telling(_inventory.stage_order),
            "roles_of_stage": _telling(_inventory.roles_of_stage),
            "upgrade_scope": _telling(_scope.scope_of),
            "after_scope": _telling(_scope.after_scope),
            "unknown_hosts": _telling(_routes.unknown_hosts),
            "upgrade_ways": _telling(_routes.ways_of),
            "forbidden_moves": _telling(_ways.forbidden_moves),
            "composition_text": _text.composition,
            "status_text": _text.status,
            "plan_text": _plan_text.plan,
            "story_text": _text.story,
            "mistakes_text": _text.mistakes,
        }
