# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the options for the hosts of a fleet."""

from __future__ import annotations


class ModuleDocFragment:
    """Options for the hosts of a fleet and their roles."""

    DOCUMENTATION = r"""
options:
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported belong to the fleet only if they are listed here.
      - Give all callers of a rollout the same fleet. One that gives a smaller fleet goes on with it, and the others after it too. One that gives none
        admits no host while it knows fewer hosts than the ledger has (C(fleet_too_small)).
    type: dict
  upgrade_roles:
    description:
      - Roles of the inventory, as the playbooks have them in the variable of this name. Each maps to its C(plane) and C(services). A role without
        C(plane) has no order to the control plane.
      - The hosts of each group with such a name become O(fleet). So it can't be combined with that option.
    type: dict
"""
