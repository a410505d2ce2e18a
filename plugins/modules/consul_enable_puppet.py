# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set one gate by hand, or close them all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_enable_puppet
short_description: Open or close the gate of a host, a role or the whole fleet
version_added: 0.1.0
description:
  - Sets one gate. A node may run Puppet if its gate is open. The gate of the host applies, else that of its role, else the global one.
  - A node with another version than C(current_version) upgrades when its gate opens, outside caps, order and windows. For the gate of the host, it does
    so at once, and for that of its role or the global one minutes later. To run Puppet on hosts that wait for their upgrade, set
    C(puppet_gate_puppet_pending) instead.
  - O(state=reset) removes all gates and closes the global one, in one transaction. If JioCloud's layout has too many gates for that, the global gate
    is closed first. Pauses in that layout stay.
  - While the legacy layout of JioCloud's code exists, a gate is written in both layouts, in one transaction.
  - A running planner opens gates again. To keep a host out of a rollout, use M(convoy.upgrade.consul_upgrade_hold).
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
  scope:
    description:
      - Scope of the gate. Required unless O(state=reset).
    type: str
    choices: [global, role, host]
  name:
    description:
      - Name of the role or the host. Required for O(scope=role) and O(scope=host). If no host with it has reported, the module warns.
    type: str
  value:
    description:
      - V(true), V(false) or a version. A gate with a version is open while C(current_version) is that version.
      - Required for O(state=present).
    type: str
  state:
    description:
      - V(present) sets the gate. V(absent) removes it, and the next wider gate applies.
      - V(reset) removes all gates and closes the global one. It warns of a rollout or a job that is under way, which goes on.
    type: str
    choices: [present, absent, reset]
    default: present
seealso:
  - plugin: convoy.upgrade.enable_puppet
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Open the gate of one host, which upgrades it if its version is not the current one
  convoy.upgrade.consul_enable_puppet:
    scope: host
    name: compute7
    value: true

- name: Let a role run Puppet while the version of the fleet is 2.10
  convoy.upgrade.consul_enable_puppet:
    scope: role
    name: compute
    value: "2.10"

- name: Remove the gate of the host, so that the gate of its role applies
  convoy.upgrade.consul_enable_puppet:
    scope: host
    name: compute7
    state: absent

- name: Stop Puppet everywhere
  convoy.upgrade.consul_enable_puppet:
    state: reset
"""

RETURN = r"""
changes:
  description: The keys that changed, with their values. The value is null if the key does not exist.
  returned: success
  type: list
  elements: dict
  contains:
    key:
      description: The key.
      type: str
    before:
      description: Value before the change.
      type: str
    after:
      description: Value after the change.
      type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied) or V(bad_gate_value).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import (
    reset_gates,
    set_gate,
    unknown_name,
    who_is_under_way,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import SCOPES
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "scope": {"type": "str", "choices": list(SCOPES)},
            "name": {"type": "str"},
            "value": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent", "reset"], "default": "present"},
        },
        required_if=[
            ("state", "present", ("scope", "value")),
            ("state", "absent", ("scope",)),
            ("scope", "role", ("name",)),
            ("scope", "host", ("name",)),
        ],
        supports_check_mode=True,
    )
    scope, name, value, state = (module.params[option] for option in ("scope", "name", "value", "state"))
    if scope == "global" and name is not None:
        module.fail_json(msg=f"name: {name!r} does not go with scope: global, which has one gate. Leave name out.")
    if state != "present" and value is not None:
        module.fail_json(msg=f"value: {value!r} goes with state: present, not with {state}. Leave value out.")
    if state == "reset" and scope is not None:
        module.fail_json(msg=f"scope: {scope!r} does not go with state: reset, which wipes all gates. Leave scope out.")

    def act(store: Store) -> dict[str, Any]:
        if state == "reset":
            changes = reset_gates(store, dry=module.check_mode)
            if under_way := who_is_under_way(store):
                module.warn(under_way)
        else:
            changes = set_gate(store, scope, name, value, dry=module.check_mode)
            if changes and value is not None and name is not None and (warning := unknown_name(store, scope, name)):
                module.warn(warning)
        return {"changes": [asdict(one) for one in changes], **changed(changes)}

    run(module, act)


if __name__ == "__main__":
    main()
