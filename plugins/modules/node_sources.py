# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the package sources that come with a version."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_sources
short_description: Write the package sources that come with a version
version_added: 0.1.0
description:
  - Writes the package sources of a version to a host, and removes those that an earlier call wrote and this version lacks. So a rollback brings
    the former ones back.
  - In the files, O(version) replaces C({{ version }}). No other template is evaluated.
  - The files are the keys in C(upgrade/sources/<version>/) in Consul, which the control node reads, or those in a folder on the host.
  - The end of the name says where a file goes. C(.list) and C(.sources) go to F(/etc/apt/sources.list.d), C(.pref) to F(/etc/apt/preferences.d),
    C(.asc) to F(/etc/apt/keyrings), and C(.repo) to F(/etc/yum.repos.d). Other names are refused.
  - It fails if the version has none.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: posix
    support: full
options:
  version:
    description:
      - Version whose package sources are read from Consul, unless O(folder) is given.
    type: str
  folder:
    description:
      - Folder on the host with the package sources of the version. Nothing is read from Consul then. Without O(version), they are written as they
        are.
    type: path
  state_file:
    description:
      - File on the host that lists what was written.
    type: path
    default: /var/lib/convoy/sources.json
  files:
    description:
      - Content of each file by its name. Set by the action plugin.
    type: dict
seealso:
  - module: convoy.upgrade.node_packages
"""

EXAMPLES = r"""
- name: Write the package sources of 2.10 that are in Consul
  convoy.upgrade.node_sources:
    version: "2.10"

- name: Write those in a folder
  convoy.upgrade.node_sources:
    folder: /srv/fleet/2.10/sources
    version: "2.10"
"""

RETURN = r"""
written:
  description: Files that were written, because they were missing or differed.
  returned: success
  type: list
  elements: str
removed:
  description: Files that were removed, because the version has none with this name.
  returned: success
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(no_sources), V(bad_sources) or V(unwritten_sources).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._node.sources import (
    for_version,
    read_folder,
    write_sources,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "version": {"type": "str"},
            "folder": {"type": "path"},
            "state_file": {"type": "path", "default": "/var/lib/convoy/sources.json"},
            # Set by the action plugin.
            "files": {"type": "dict"},
        },
        required_one_of=[("files", "folder")],
        mutually_exclusive=[("files", "folder")],
        supports_check_mode=True,
    )
    options = module.params

    def act() -> dict[str, Any]:
        files = options["files"] if options["files"] is not None else read_folder(options["folder"])
        if options["version"] is not None:
            files = for_version(files, options["version"])
        changes = write_sources(files, options["state_file"], dry=module.check_mode)
        return {
            "changed": bool(changes),
            "written": [change.path for change in changes if change.after is not None],
            "removed": [change.path for change in changes if change.after is None],
            "diff": [
                {
                    "before_header": change.path,
                    "after_header": change.path,
                    "before": change.before or "",
                    "after": change.after or "",
                }
                for change in changes
            ],
        }

    end(module, act)


if __name__ == "__main__":
    main()
