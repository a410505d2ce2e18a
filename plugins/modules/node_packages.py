# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the packages of a node to the versions of its sources."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_packages
short_description: Bring the packages of a node to the versions of its package sources
version_added: 0.1.0
description:
  - Upgrades all packages with C(apt-get dist-upgrade) or C(dnf distro-sync), and installs missing ones. Packages are downgraded if the sources offer
    or the pins of apt prefer an older version. Packages that are held (C(apt-mark hold), versionlock) stay.
  - With apt, it first finishes an interrupted run of dpkg, and waits for the locks of apt and dpkg. Configuration files that were changed on the node
    are kept. Neither debconf nor needrestart asks.
  - If all of it takes longer than O(timeout), it ends the package manager with all processes that it started, such as a maintainer script that hangs.
    The result has the output.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: The package manager simulates the upgrade. apt does so with the lists that it has, while dnf reads the metadata of its sources again.
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  manager:
    description:
      - Package manager, as in the fact C(ansible_facts.pkg_mgr).
    type: str
    choices: [apt, dnf, dnf5]
    required: true
  packages:
    description:
      - Packages that must be installed.
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Longest duration of all of it in seconds.
    type: float
    default: 3600
  lock_timeout:
    description:
      - Seconds to wait for the locks of the package manager.
    type: float
    default: 600
seealso:
  - module: convoy.upgrade.puppet_run
"""

EXAMPLES = r"""
- name: Upgrade all packages, and install nginx
  convoy.upgrade.node_packages:
    manager: "{{ ansible_facts.pkg_mgr }}"
    packages: [nginx]
    timeout: 1800
"""

RETURN = r"""
commands:
  description: Commands that ran.
  returned: success
  type: list
  elements: list
output:
  description: Output of these commands.
  returned: always
  type: str
exit_code:
  description: Exit code of the command that failed. Null if it took too long.
  returned: failure
  type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(packages_failed) or V(not_runnable).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._node.packages import (
    APT,
    DNF,
    DNF5,
    ENVIRONMENT,
    PackageOptions,
    upgrade_packages,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "manager": {"type": "str", "choices": [APT, DNF, DNF5], "required": True},
            "packages": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "float", "default": 3600},
            "lock_timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=True,
    )
    given = module.params
    options = PackageOptions(
        given["manager"], given["packages"], given["timeout"], given["lock_timeout"], dry=module.check_mode
    )

    def act() -> dict[str, Any]:
        os.environ.update(ENVIRONMENT)
        done = upgrade_packages(options)
        return {"changed": done.changed, "commands": done.commands, "output": done.output}

    end(module, act, exit_code=None, output="")


if __name__ == "__main__":
    main()
