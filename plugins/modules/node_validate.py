# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operator's own checks of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_validate
short_description: Run all checks of a folder on a node
version_added: 0.2.0
description:
  - Runs every executable in a folder, one after the other, in the natural order of their names.
  - One that ends with another exit code than 0, or takes too long, fails the node. Those behind it are not run.
  - Where the folder does not exist or holds no executable, there is nothing to fail. Hidden files are passed over.
  - In check mode nothing is run, as a check may do anything.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  path:
    description:
      - The folder.
    type: path
    required: true
  timeout:
    description:
      - Seconds that each may take. Then it is ended, with all that it has started.
    type: float
    default: 60
seealso:
  - module: convoy.upgrade.puppet_run
"""

EXAMPLES = r"""
- name: Make sure that the node is well
  convoy.upgrade.node_validate:
    path: /etc/convoy/validation.d
    timeout: 30
"""

RETURN = r"""
validations:
  description: The checks, in the order in which they ran. In check mode, those that would run.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the file.
      type: str
    seconds:
      description: How long it took. Null in check mode.
      type: float
    output:
      description: What it printed. Null in check mode.
      type: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(validation_failed) or V(not_runnable).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._node.validation import validate, validations
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "timeout": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]

    def act() -> dict[str, Any]:
        if module.check_mode:
            found = [{"name": name, "seconds": None, "output": None} for name in validations(path)]
        else:
            found = [asdict(one) for one in validate(path, module.params["timeout"])]
        return {"changed": False, "validations": found}

    end(module, act)


if __name__ == "__main__":
    main()
