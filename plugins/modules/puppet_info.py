# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show whether Puppet is disabled on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: puppet_info
short_description: Show whether Puppet is disabled on a host
version_added: 0.1.0
description:
  - Reads the file that C(puppet agent --disable) writes, at the paths of Debian's and Puppet's own packages. It does not run Puppet.
  - The same file does not count if C(convoy-node) wrote it to keep out Puppet's own runs.
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
options: {}
seealso:
  - module: convoy.upgrade.puppet_run
"""

EXAMPLES = r"""
- name: Check whether Puppet is disabled
  convoy.upgrade.puppet_info:
  register: puppet
"""

RETURN = r"""
disabled:
  description: Whether Puppet is disabled with C(puppet agent --disable).
  returned: success
  type: bool
reason:
  description: Reason that was given to it. Null if Puppet is not disabled.
  returned: success
  type: str
machine:
  description: Hash of C(/etc/machine-id), which distinguishes machines with the same name. Null if the file has no ID or can't be read.
  returned: success
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import machine_id
from ansible_collections.convoy.upgrade.plugins.module_utils._node.puppet import disabled_for
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)

    def act() -> dict[str, Any]:
        reason = disabled_for()
        return {"changed": False, "disabled": reason is not None, "reason": reason, "machine": machine_id()}

    end(module, act)


if __name__ == "__main__":
    main()
