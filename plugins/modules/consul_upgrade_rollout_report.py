# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as a page."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_rollout_report
short_description: Write a report of a rollout, as a page, JSON and CSV
version_added: 0.3.0
description:
  - Reads a rollout, the current one or a former one, from the history and the records in Consul, and writes it into a folder.
  - The page is one file without scripts that needs nothing from elsewhere. It has a bar for each host with its states and steps, how many
    were down at once against the caps, failures, how long hosts and steps took, the rules, and who did what when.
  - When a host was at which step stands in its record, which has the last move only. Of former rollouts it is known when hosts were let
    through, and what else the history has.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Nothing is written.
  diff_mode:
    support: full
    description: Shows what would be different in the JSON file.
  platform:
    platforms: all
    support: full
options:
  folder:
    description:
      - Folder to write to, where the module runs. It has to be there.
    type: path
    required: true
  version:
    description:
      - Version of the rollout; the last one that went there is taken. Left out, the one in the ledger.
    type: str
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported are part of the fleet by being here.
    type: dict
  role_pattern:
    description:
      - Regular expression whose first group is the role, searched for in the names of reported hosts that O(fleet) does not name.
      - Without it, that of the ledger is used.
    type: str
seealso:
  - module: convoy.upgrade.consul_upgrade_info
"""

EXAMPLES = r"""
- name: Begin a rollout
  convoy.upgrade.consul_upgrade_plan:
    version: "2.10"
    instructions:
      rolling_rules:
        global: 1

- name: Write a report of it
  convoy.upgrade.consul_upgrade_rollout_report:
    folder: /tmp
"""

RETURN = r"""
files:
  description: The files, the page first.
  returned: success
  type: list
  elements: str
  sample: [/tmp/rollout-2.10.html, /tmp/rollout-2.10.json, /tmp/rollout-2.10.csv]
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(no_rollout) or V(bad_folder).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._common.text_file import read_text, write_atomically
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, run
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import (
    paths_in,
    read_rollout_report,
    report_files,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "folder": {"type": "path", "required": True},
            "version": {"type": "str"},
            "fleet": {"type": "dict"},
            "role_pattern": {"type": "str"},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        found = read_rollout_report(store, options["version"], options["fleet"], options["role_pattern"])
        files = paths_in(options["folder"], report_files(found))
        before = {path: read_text(path, "folder") for path in files}
        if not module.check_mode:
            for path, text in files.items():
                if text != before[path]:
                    write_atomically(path, text, "folder")
        data = next(path for path in files if path.endswith(".json"))
        diff = {"before_header": data, "after_header": data, "before": before[data], "after": files[data]}
        return {"changed": files != before, "files": list(files), "diff": diff}

    run(module, act)


if __name__ == "__main__":
    main()
