# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instructions looked at before they are used."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_instructions
short_description: Tell every mistake in instructions, without Consul
version_added: 0.2.0
description:
  - Reads instructions as M(convoy.upgrade.consul_upgrade_plan) does, and fails with all of their mistakes, where that one stops at the
    first. For a pipeline that looks at them before they are merged.
  - Consul is not asked, and nothing is written.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Nothing is ever changed.
  platform:
    platforms: all
    support: full
options:
  instructions:
    description:
      - The rules, as O(convoy.upgrade.consul_upgrade_plan#module:instructions) has them.
      - They add to those of O(instructions_file), key by key. A rule that both give with different values is a mistake.
    type: dict
  instructions_file:
    description:
      - File with instructions, as JSON or YAML, where the module runs.
      - Without it, C(/etc/jio-upgrade.json) or C(/etc/jiocloud-upgrade.json) is read where it exists. Where there are no instructions at all, the call fails.
    type: path
  role_order:
    description:
      - Order that is added to that of the instructions, such as that of the stages of C(upgrade_roles).
    type: dict
  fleet:
    description:
      - Maps hosts to their roles. Rules that can be read are then looked at with this fleet, too; with names that are none of its roles,
        groups and hosts, above all.
    type: dict
  strict:
    description:
      - Whether what planners would warn of is a mistake.
    type: bool
    default: false
notes:
  - The schema C(schemas/instructions.json) of the collection tells most of these mistakes in an editor.
seealso:
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Look at the rules of the next rollout
  convoy.upgrade.check_instructions:
    instructions:
      rolling_rules: {global: 1, roles: {compute: 10%}}
      role_order: {compute: controller}
    fleet: {controller1: controller, compute1: compute, compute2: compute}
    strict: true
"""

RETURN = r"""
mistakes:
  description: All that is wrong, one of them for each mistake.
  returned: always
  type: list
  elements: dict
  contains:
    key:
      description: Key of the instructions, empty where a file can't be read at all.
      type: str
      sample: rolling_rules.roles.compute
    message:
      description: What is wrong with it, in words.
      type: str
    file:
      description: File that it stands in, empty for what was given inline.
      type: str
    line:
      description: Its line there, V(0) where that is not known.
      type: int
remarks:
  description: What planners would warn of in this fleet.
  returned: always
  type: list
  elements: str
rules:
  description: The rules in the form in which they are stored.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}}
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: V(bad_instructions), V(no_instructions) or V(bad_name).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import plural
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.rule_check import check_rules


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
