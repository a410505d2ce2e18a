# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold hosts, roles or everything."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_hold
short_description: Hold hosts, roles or the whole fleet, or end holds
version_added: 0.1.0
description:
  - No planner admits a held host. M(convoy.upgrade.consul_upgrade_info) shows who holds it and why. A hold lasts until you end it, across
    rollouts.
  - If a host has started its upgrade, the current run continues, and no other run begins until the hold ends. The host keeps its slot, also
    if the run is cut off. RV(remarks) lists such hosts.
  - It also works while the ledger is unreadable.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
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
      - Hosts to hold, or whose holds to end.
    type: list
    elements: str
    default: []
  roles:
    description:
      - Roles to hold with all their hosts, or whose holds to end.
    type: list
    elements: str
    default: []
  everything:
    description:
      - Whether to hold the whole fleet, or end that hold.
    type: bool
    default: false
  reason:
    description:
      - Reason of the hold. Required with O(state=present).
    type: str
    default: ""
  by:
    description:
      - Operator who gives the command. The default is the user and the machine that run the module.
    type: str
  allow_unknown:
    description:
      - Whether O(hosts) and O(roles) may have unknown names, such as that of a future host. Without it, a name is an error unless the host or
        role has reported or is in O(fleet). With O(state=absent), a held name is no error either.
    type: bool
    default: false
  state:
    description:
      - V(present) holds, V(absent) ends holds. Only the given holds end. A host may still be held through its role.
        A hold of the role that a host had before no longer holds it if O(hosts) names it.
    type: str
    choices: [present, absent]
    default: present
  show:
    description:
      - Print RV(messages) and RV(remarks) for people.
    type: bool
    default: false
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
  description: The requested holds, as they are now. Empty with O(state=absent).
  returned: success
  type: list
  elements: dict
  contains:
    key:
      description: The Consul key.
      type: str
    reason:
      description: Reason of the hold.
      type: str
    by:
      description: Operator who set it.
      type: str
    at:
      description: When it was set.
      type: str
    allow_unknown:
      description: Whether it was set with O(allow_unknown). A rollout begins although its host or role is unknown.
      type: bool
messages:
  description: One sentence for each hold that was set or existed before, or was ended.
  returned: success
  type: list
  elements: str
  sample: ["host compute7: held from now on, by alice: its disk is being replaced"]
remarks:
  description: Remarks for the operator, such as that a host has started its upgrade, or that another hold still covers it.
  returned: success
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied), V(no_target), V(no_reason) or V(unknown_names).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    changed,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import (
    HoldResult,
    HoldTargets,
    end_holds,
    set_holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def held_from_now_on(keys: Keys, held: HoldResult, *, dry: bool) -> list[str]:
    """Return a sentence for each hold that was set or existed before.

    :param dry: whether nothing was written.
    """
    written = {one.key for one in held.changes}
    lines = []
    for hold in held.holds:
        is_new = ("would be held" if dry else "held from now on") if hold.key in written else "already held"
        lines.append(f"{_what(keys, hold.key)}: {is_new}, by {hold.by}: {hold.reason}")
    return lines


def no_longer_held(keys: Keys, held: HoldResult, *, dry: bool) -> list[str]:
    """Return a sentence for each hold that was ended.

    :param dry: whether nothing was written.
    """
    return [f"{_what(keys, key)}: {'would no longer be held' if dry else 'no longer held'}" for key in held.ended]


def _what(keys: Keys, key: str) -> str:
    """Return what the key of a hold holds."""
    scope, _slash, name = key[len(keys.holds) :].partition("/")
    return f"{scope} {name}" if name else "everything"


SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "hosts": {"type": "list", "elements": "str", "default": []},
    "roles": {"type": "list", "elements": "str", "default": []},
    "everything": {"type": "bool", "default": False},
    "reason": {"type": "str", "default": ""},
    "by": {"type": "str"},
    "allow_unknown": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    # The action prints.
    "show": {"type": "bool", "default": False},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Set or end holds; return the result.

    :raises UpgradeError: what :func:`set_holds` and :func:`end_holds` raise.
    """
    options, dry = call.params, call.check_mode
    whom = HoldTargets(
        options["everything"], options["roles"], options["hosts"], options["fleet"] or {}, options["allow_unknown"]
    )
    if options["state"] == "present":
        held = set_holds(store, whom, options["reason"], options["by"], dry=dry)
    else:
        held = end_holds(store, whom, options["by"], dry=dry)
    holds = [asdict(one) for one in held.holds]
    messages = held_from_now_on(store.keys, held, dry=dry) or no_longer_held(store.keys, held, dry=dry)
    # The end of a pause may change only who closes the host.
    is_changed = {"changed": bool(held.changes or held.ended)}
    return {"holds": holds, "messages": messages, "remarks": held.remarks, **changed(held.changes), **is_changed}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
