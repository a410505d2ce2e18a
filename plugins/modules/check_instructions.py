# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check instructions before a rollout uses them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_instructions
short_description: Find all mistakes in instructions, without Consul
version_added: 0.1.0
description:
  - Reads instructions as M(convoy.upgrade.consul_upgrade_plan) does, and fails with a list of all mistakes. M(convoy.upgrade.consul_upgrade_plan)
    stops at the first one.
  - Use it in a pipeline, before rules are merged. It does not contact Consul and writes nothing.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The module changes nothing.
  platform:
    platforms: all
    support: full
options:
  instructions:
    description:
      - The rules, in the form of O(convoy.upgrade.consul_upgrade_plan#module:instructions).
      - They are merged with O(instructions_file), key by key. It is a mistake if both give a rule with different values. They override a
        file that is read by default.
    type: dict
  instructions_file:
    description:
      - JSON or YAML file with instructions, on the host where the module runs.
      - Without it, C(/etc/jio-upgrade.json) or C(/etc/jiocloud-upgrade.json) is read if it exists. An empty value means no file. Without any
        instructions, the module fails.
    type: path
  role_order:
    description:
      - Order that is added to that of the instructions, such as the order of planes in C(upgrade_roles).
    type: dict
  fleet:
    description:
      - Maps hosts to their roles. With it, the rules are also checked against this fleet. Names that are no role, group or host of it are mistakes.
    type: dict
  strict:
    description:
      - Whether warnings count as mistakes.
    type: bool
    default: false
notes:
  - With the schema C(schemas/instructions.json) of the collection, an editor shows most of these mistakes.
seealso:
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Check the rules of the next rollout
  convoy.upgrade.check_instructions:
    instructions:
      rolling_rules: {global: 1, roles: {compute: 10%}}
      role_order: {compute: controller}
    fleet: {controller1: controller, compute1: compute, compute2: compute}
    strict: true
"""

RETURN = r"""
mistakes:
  description: One entry for each mistake.
  returned: always
  type: list
  elements: dict
  contains:
    key:
      description: Key of the instructions. Empty if the file can't be read.
      type: str
      sample: rolling_rules.roles.compute
    message:
      description: What is wrong, as a sentence.
      type: str
    file:
      description: File with the mistake. Empty for O(instructions).
      type: str
    line:
      description: Line in the file, or V(0) if unknown.
      type: int
remarks:
  description: Warnings that a planner would give for this fleet.
  returned: always
  type: list
  elements: str
rules:
  description: The rules in the form that the ledger stores.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}}
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: V(bad_instructions), V(no_instructions) or V(bad_name).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import plural
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_check import check_rules


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the module.

    :raises UpgradeError: ``bad_instructions`` with ``mistakes`` and ``remarks``, and what :func:`check_rules` raises.
    """
    found = check_rules(options["instructions"], options["instructions_file"], options["fleet"], options["role_order"])
    mistakes, remarks = list(found.mistakes), list(found.warnings)
    if options["strict"]:
        mistakes += [{"key": "", "message": warning, "file": "", "line": 0} for warning in remarks]
    if mistakes:
        raise UpgradeError(
            "bad_instructions",
            f"{plural(len(mistakes), 'mistake')} in the instructions, the first of which is: {mistakes[0]['message']}",
            mistakes=mistakes,
            remarks=remarks,
        )
    return {"changed": False, "mistakes": [], "remarks": remarks, "rules": found.rules}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instructions": {"type": "dict"},
            "instructions_file": {"type": "path"},
            "role_order": {"type": "dict"},
            "fleet": {"type": "dict"},
            "strict": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    end(module, lambda: checked(module.params), mistakes=[], remarks=[])


if __name__ == "__main__":
    main()
