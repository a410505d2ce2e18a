# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all actions that run on the control node share: their options, and the fleet of the inventory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible import context
from ansible.plugins.action import ActionBase

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.sanitize import option
from ...module_utils._fleet.host_patterns import with_inventory_groups
from .._compose.inventory_roles import fleet_of, plane_order
from .._run.output import print_each_line_at_once
from .task_result import task_result

# Ansible imports actions in its main process, which prints what they display while they run.
print_each_line_at_once()


# The ends of the names of inventories that are read from Consul.
_DYNAMIC = ("consul_fleet.yml", "consul_fleet.yaml")
# The option that names roles of the inventory, which an action turns into a fleet.
ROLES = "upgrade_roles"


class ControllerAction(ActionBase):
    """An action without a module and without a connection to the host.

    :cvar OPTIONS: the argument spec.
    """

    TRANSFERS_FILES = False
    _requires_connection = False

    OPTIONS: ClassVar[Mapping[str, Mapping[str, Any]]]

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the options, and return the result of :meth:`act` or its failure."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(self.OPTIONS)
        given = task_vars or {}

        def act() -> dict[str, Any]:
            if "fleet" in self.OPTIONS and options.get(ROLES) is not None:
                options.update(fleet_options(options, given, self.OPTIONS))
            return self.act(options, given)

        return task_result(result, act)

    @property
    def forks(self) -> int:
        """Return how many hosts Ansible works on at the same time."""
        return int(context.CLIARGS.get("forks") or 1)

    @abstractmethod
    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do the work, and return its part of the result.

        :param options: the checked options.
        :param task_vars: the variables of the task.
        :raises UpgradeError: which becomes the failure of the task.
        """


def fleet_options(options: Mapping[str, Any], task_vars: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fleet``, and ``role_order``, ``limit`` and ``job`` if the spec has them, for the roles of the inventory that a task names.

    :raises UpgradeError: ``bad_options``, ``unread_inventory``, ``other_planner_host``, ``bad_upgrade_roles``, ``unknown_limit``.
    """
    if options.get("fleet"):
        raise UpgradeError(
            "bad_options", f"fleet and {ROLES} can't be combined, as both name the hosts. Leave one out."
        )
    groups = task_vars.get("groups") or {}
    sources = [str(one) for one in task_vars.get("ansible_inventory_sources") or ()]
    # Ansible continues without an inventory that it can't read. Without the roles there would be no order.
    if not groups.get("all") and any(one.endswith(_DYNAMIC) for one in sources):
        raise UpgradeError(
            "unread_inventory",
            f"The inventory {', '.join(sources)} gave no host: see the warning above. Nothing is done, because the fleet and its order are "
            "unknown. Fix the inventory, and run the same command again.",
        )
    # Ansible selects the hosts of a play before it reads variables of the inventory.
    requested, here = task_vars.get("upgrade_planner_host"), task_vars.get("inventory_hostname")
    if requested and here and requested != here:
        raise UpgradeError(
            "other_planner_host",
            f"upgrade_planner_host is {requested}, but this play runs on {here}, because an inventory can't set the host of a play. Nothing is "
            f"done: name one host with {option('upgrade_planner_host', requested)}.",
        )
    roles = options[ROLES]
    order = {"role_order": plane_order(roles)} if "role_order" in spec and not options.get("role_order") else {}
    fleet = fleet_of(roles, groups)
    more: dict[str, Any] = {}
    if patterns := _texts(options, "limit", spec):
        more["limit"] = with_inventory_groups(patterns, groups, fleet)
    job = options.get("job") if "job" in spec else None
    if isinstance(job, Mapping) and (patterns := _texts(job, "only", job)):
        more["job"] = {**job, "only": with_groups_of_job(patterns, groups, fleet)}
    return {"fleet": fleet, **order, **more}


def with_groups_of_job(only: Sequence[str], groups: Mapping[str, Sequence[str]], fleet: Mapping[str, str]) -> list[str]:
    """Return the patterns of a job with hosts in place of groups of the inventory.

    :raises UpgradeError: ``unknown_limit``.
    """
    try:
        return with_inventory_groups(only, groups, fleet)
    except UpgradeError as error:
        # That is what the patterns of a run are called.
        raise UpgradeError(error.code, f"only: {error.message.removeprefix('limit: ')}", **error.details) from None


def _texts(options: Mapping[str, Any], name: str, spec: Mapping[str, Any]) -> list[str]:
    """Return patterns of hosts; empty for none, and for others than texts, which the module reports."""
    found = options.get(name) if name in spec else None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []
