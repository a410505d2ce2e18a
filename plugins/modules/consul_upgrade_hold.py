# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold hosts, roles or everything."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_hold
short_description: Keep hosts, roles or everything from being upgraded, and end that
version_added: 0.2.0
description:
  - A host that is held is not opened by any planner, whatever the rules say, and M(convoy.upgrade.consul_upgrade_info) shows who holds
    it and why. Holds survive every rollout.
  - Where a host has begun its upgrade, the run that is at work goes on, and no further run begins until the hold ends, also where that
    one is cut off midway. The host keeps its slot meanwhile; RV(remarks) says so.
  - It works also while the ledger can't be read.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
    support: full
options:
  hosts:
    description:
      - Hosts to hold, or to hold no longer.
    type: list
    elements: str
    default: []
  roles:
    description:
      - Roles, with all of their hosts.
    type: list
    elements: str
    default: []
  everything:
    description:
      - The whole fleet.
    type: bool
    default: false
  reason:
    description:
      - Why, for those who find the hold. Needed with O(state=present).
    type: str
    default: ""
  by:
    description:
      - Who holds, or ends holds. Without it, the user and the machine that the module runs as.
    type: str
  fleet:
    description:
      - Maps hosts to their roles, as for M(convoy.upgrade.consul_upgrade_plan). By it RV(remarks) tells which hosts of a role have
        begun; those that it lacks are placed by their names.
    type: dict
    default: {}
  allow_unknown:
    description:
      - Whether O(hosts) and O(roles) may name unknown hosts and roles, such as a host that is still to come. Without it, a name that is of no
        host or role that has reported or that O(fleet) has, and that is not held, is an error.
    type: bool
    default: false
  state:
    description:
      - V(present) holds, V(absent) ends holds. Only those that are named end; a host may still be held by its role.
    type: str
    choices: [present, absent]
    default: present
seealso:
  - module: convoy.upgrade.consul_upgrade_control
"""

EXAMPLES = r"""
- name: Hold a host that is being repaired
  convoy.upgrade.consul_upgrade_hold:
    hosts: [compute7]
    reason: its disk is being replaced
    by: alice

- name: Hold a whole role
  convoy.upgrade.consul_upgrade_hold:
    roles: [storage]
    reason: a rebalance is under way

- name: End both
  convoy.upgrade.consul_upgrade_hold:
    hosts: [compute7]
    roles: [storage]
    state: absent
"""

RETURN = r"""
holds:
  description: The holds that were asked for, as they are now. Empty with O(state=absent).
  returned: success
  type: list
  elements: dict
  contains:
    key:
      description: The Consul key.
      type: str
    reason:
      description: Why.
      type: str
    by:
      description: Who holds.
      type: str
    at:
      description: Since when.
      type: str
told:
  description: What is held from now on, or was already, in a sentence for each hold. Empty with O(state=absent).
  returned: success
  type: list
  elements: str
  sample: ["host compute7: held from now on, by alice: its disk is being replaced"]
remarks:
  description: What is worth knowing, such as that a host has begun its upgrade already, or is still held by something else.
  returned: success
  type: list
  elements: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(denied), V(no one), V(no_reason) or V(unknown_names).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldResult,
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def held_from_now_on(keys: Keys, held: HoldResult, *, dry: bool) -> list[str]:
    """Return what each hold holds from now on, in a sentence each.

    :param dry: whether nothing was written.
    """
    written = {one.key for one in held.changes}
    lines = []
    for hold in held.holds:
        scope, _slash, name = hold.key[len(keys.holds) :].partition("/")
        what = f"{scope} {name}" if name else "everything"
        is_new = ("would be held" if dry else "held from now on") if hold.key in written else "already held"
        lines.append(f"{what}: {is_new}, by {hold.by}: {hold.reason}")
    return lines


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "hosts": {"type": "list", "elements": "str", "default": []},
            "roles": {"type": "list", "elements": "str", "default": []},
            "everything": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": ""},
            "by": {"type": "str"},
            "fleet": {"type": "dict", "default": {}},
            "allow_unknown": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        whom = HoldTargets(
            options["everything"], options["roles"], options["hosts"], options["fleet"], options["allow_unknown"]
        )
        if options["state"] == "present":
            held = set_holds(store, whom, options["reason"], options["by"], dry=module.check_mode)
        else:
            held = end_holds(store, whom, options["by"], dry=module.check_mode)
        holds = [asdict(one) for one in held.holds]
        told = held_from_now_on(store.keys, held, dry=module.check_mode)
        return {"holds": holds, "told": told, "remarks": held.remarks, **changed(held.changes)}

    run(module, act)


if __name__ == "__main__":
    main()
