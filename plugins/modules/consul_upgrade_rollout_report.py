# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a rollout report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_rollout_report
short_description: Write a rollout report as HTML, JSON and CSV
version_added: 0.1.0
description:
  - Reads the current or an earlier rollout from the history and the host records in Consul, and writes a report into a folder.
  - The page is one HTML file without scripts or external resources. It shows the states and steps of each host over time, hosts down at once
    with their caps, failures, durations of hosts and steps, the rules, and the history.
  - Steps come from host records, which keep only the last upgrades of a host. For earlier rollouts, the report may have only what the
    history has, such as the time of each admission.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Nothing is written.
  diff_mode:
    support: full
    description: Shows the changes of the JSON file.
  platform:
    platforms: all
    support: full
options:
  folder:
    description:
      - Existing folder for the report, on the control node.
    type: path
    required: true
  version:
    description:
      - Version of the rollout. If there were several to this version, the last one is taken. The default is the rollout in the ledger.
    type: str
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to the names of reported hosts that O(fleet) does not list.
      - The default is the pattern in the ledger.
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

- name: Write its report
  convoy.upgrade.consul_upgrade_rollout_report:
    folder: /tmp
"""

RETURN = r"""
files:
  description: Paths of the files, with the page first.
  returned: success
  type: list
  elements: str
  sample: [/tmp/rollout-2.10.html, /tmp/rollout-2.10.json, /tmp/rollout-2.10.csv]
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(no_rollout) or V(bad_folder).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "folder": {"type": "path", "required": True},
    "version": {"type": "str"},
    "role_pattern": {"type": "str"},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Return the report to the action of the same name, which writes the files.

    :raises UpgradeError: what :func:`read_rollout_report` raises.
    """
    options = call.params
    report = read_rollout_report(store, options["version"], options["fleet"], options["role_pattern"])
    return {"folder": options["folder"], "report": report}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
