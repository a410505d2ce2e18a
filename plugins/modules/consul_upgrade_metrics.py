# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the metrics of a fleet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_metrics
short_description: Write metrics of the fleet for Prometheus
version_added: 0.1.0
description:
  - Reads the state of the fleet from Consul, and writes it to a file as metrics in the OpenMetrics text format. C(docs/watching.md) lists
    the metrics.
  - The file is replaced as a whole each time, so its age shows when the module last ran. The task is changed if the content is.
  - It costs one request for the fleet, and one for each 64 history entries of the current rollout.
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
  path:
    description:
      - The file, on the host where the module runs. For the textfile collector of node_exporter, its name must end in C(.prom).
    type: path
    required: true
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported belong to the fleet only if they are listed here.
    type: dict
seealso:
  - module: convoy.upgrade.consul_upgrade_info
"""

EXAMPLES = r"""
- name: Write metrics for node_exporter
  convoy.upgrade.consul_upgrade_metrics:
    path: /tmp/convoy.prom
    fleet:
      compute5: compute
"""

RETURN = r"""
metrics:
  description: Content of the file. In check mode, the content that would be written.
  returned: success
  type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied) or V(bad_metrics_file).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._common.text_file import read_text, write_atomically
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, run
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "path": {"type": "path", "required": True},
            "fleet": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]

    def act(store: Store) -> dict[str, Any]:
        view = read_fleet(store, fleet=module.params["fleet"])
        for warning in view.warnings:
            module.warn(warning)
        before, text = read_text(path, "metrics_file"), metrics_text(store, view)
        if not module.check_mode:
            write_atomically(path, text, "metrics_file")
        diff = {"before_header": path, "after_header": path, "before": before, "after": text}
        return {"metrics": text, "changed": before != text, "diff": diff}

    run(module, act)


if __name__ == "__main__":
    main()
