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
  - It costs one request for the fleet, and one for each 64 history entries of the current rollout. With
    C(health.consul_checks) in the rules, there is one more.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
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
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "path": {"type": "path", "required": True},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Write the metrics; return the result.

    :raises UpgradeError: what :func:`read_fleet` and :func:`write_atomically` raise.
    """
    path = call.params["path"]
    view = read_fleet(store, fleet=call.params["fleet"])
    for warning in view.warnings:
        call.warn(warning)
    before, text = read_text(path, "metrics_file"), metrics_text(store, view)
    if not call.check_mode:
        write_atomically(path, text, "metrics_file")
    diff = {"before_header": path, "after_header": path, "before": before, "after": text}
    return {"metrics": text, "changed": before != text, "diff": diff}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
