# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the operator's validations or hooks on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_validate
short_description: Run all validations or hooks in a folder on a node
version_added: 0.1.0
description:
  - Runs each executable in a folder, one after the other, in natural order of their names.
  - If one exits with another code than 0 or takes too long, the module fails and does not run the rest.
  - It succeeds if the folder does not exist or has no executable. Subfolders are ignored, and so are hidden files and C(README*), C(*.disabled),
    C(*~), C(*.bak), C(*.orig), C(*.dpkg-old), C(*.dpkg-dist), C(*.dpkg-new), C(*.dpkg-tmp), C(*.ucf-old), C(*.ucf-dist), C(*.ucf-new), C(*.rpmnew),
    C(*.rpmsave) and C(*.rpmorig).
  - In check mode nothing runs, because a validation or hook may change the node. It fails if one could not run, which is a link to nothing, or a file
    that begins with C(#!) and is not executable. Otherwise, files that are not executable are ignored.
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
      - Folder with the validations or hooks.
    type: path
    required: true
  kind:
    description:
      - What the executables are. V(validation) checks the node and fails with the code V(validation_failed). V(hook) does something to the node, so
        the result is changed, and fails with the code V(hook_failed).
    type: str
    choices: [validation, hook]
    default: validation
    version_added: 0.1.0
  timeout:
    description:
      - Longest duration of each validation in seconds. After that, the module kills it with all processes that it started.
    type: float
    default: 60
seealso:
  - module: convoy.upgrade.puppet_run
"""

EXAMPLES = r"""
- name: Validate the node
  convoy.upgrade.node_validate:
    path: /etc/convoy/validation.d
    timeout: 30

- name: Drain the node
  convoy.upgrade.node_validate:
    path: /etc/convoy/hooks/drain.d
    kind: hook
    timeout: 600
"""

RETURN = r"""
validations:
  description: Validations or hooks in the order in which they ran. In check mode, those that would run.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the file.
      type: str
    seconds:
      description: Duration. Null in check mode.
      type: float
    output:
      description: Its output. Null in check mode.
      type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(validation_failed), V(hook_failed) or V(not_runnable).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._node.validation import (
    HOOK,
    VALIDATION,
    check_validations,
    validate,
    validations,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "kind": {"type": "str", "choices": [VALIDATION, HOOK], "default": VALIDATION},
            "timeout": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    path, kind = module.params["path"], module.params["kind"]

    def act() -> dict[str, Any]:
        if module.check_mode:
            check_validations(path, kind)
            found = [{"name": name, "seconds": None, "output": None} for name in validations(path)]
        else:
            found = [asdict(one) for one in validate(path, module.params["timeout"], kind)]
        return {"changed": kind == HOOK and bool(found), "validations": found}

    end(module, act)


if __name__ == "__main__":
    main()
