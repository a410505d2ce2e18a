# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the playbooks: the fleet from the inventory, and a rollout as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose import inventory_roles
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe import status_text


def _raising(work: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return work(*args, **kwargs)
        except UpgradeError as error:
            raise AnsibleFilterError(error.as_text()) from None

    return wrapped


class FilterModule:
    """The filters of this file, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name -> filter."""
        return {
            "fleet": _raising(inventory_roles.fleet_of),
            "plane_order": _raising(inventory_roles.plane_order),
            "composition_text": status_text.composition_lines,
            "mistakes_text": status_text.mistake_lines,
        }
