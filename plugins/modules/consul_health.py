# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Publish health checks of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_health
short_description: Publish a node's health to its own Consul agent
version_added: 0.1.0
description:
  - Sets node checks through the agent of the node.
  - A node check applies to every service on the node. If it is critical, Consul leaves all these services out of its answers. So checks are
    never critical and never expire, unless O(critical=true).
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
  critical:
    description:
      - Whether checks may be critical, and become critical if they are not renewed within O(checks[].ttl). Consul then leaves all services of
        the node out of its answers.
      - With V(false), V(critical) is published as V(warning), and O(checks[].ttl) is not used. A check that was critical becomes a warning.
    type: bool
    default: false
    version_added: 0.1.0
  checks:
    description:
      - The checks to set or renew.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - Name of the check, and its ID.
        type: str
        required: true
      status:
        description:
          - Status to set. Without it, an existing check is renewed with the status it has, and a missing one is not created.
          - V(absent) removes the check.
        type: str
        choices: [passing, warning, critical, absent]
      output:
        description:
          - Text that Consul shows with the check. Only the last 4000 characters are kept.
        type: str
      ttl:
        description:
          - Seconds until the check becomes critical if it is not renewed. Needs O(critical=true).
        type: int
        default: 3600
  maintenance:
    description:
      - Reason with which Consul's maintenance mode of the node begins. Consul then leaves all services of the node out of its answers.
      - Empty to end one that this option began. One that began with another reason stays as it is.
      - Without this option, the maintenance mode does not change.
    type: str
    version_added: 0.1.0
notes:
  - A renewed check and a new output do not count as a change.
seealso:
  - module: convoy.upgrade.consul_upgrade_host_report
"""

EXAMPLES = r"""
- name: Report that Puppet succeeded and the validations failed
  convoy.upgrade.consul_health:
    checks:
      - name: puppet
        status: passing
        output: version 2.10
      - name: validation
        status: critical
        output: nova-compute does not answer

- name: Remove all services of the node from Consul's answers while its validations fail
  convoy.upgrade.consul_health:
    critical: true
    checks:
      - name: validation
        status: critical
        output: nova-compute does not answer

- name: Renew both checks with the status they have
  convoy.upgrade.consul_health:
    checks:
      - name: puppet
      - name: validation

- name: Remove all services of the node from Consul's answers during work on it
  convoy.upgrade.consul_health:
    checks: []
    maintenance: upgrade to 2.10
"""

RETURN = r"""
checks:
  description: The checks, in the order in which they were given.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the check.
      type: str
    status:
      description: Status of the check. Null if there is no such check, V(absent) if the call asks for that.
      type: str
    output:
      description: Text that Consul shows with the check.
      type: str
    ttl:
      description: Seconds until the check becomes critical if it is not renewed. Null if it does not expire.
      type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied) or V(bad_check).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._host.health_checks import (
    HealthCheck,
    publish,
    set_maintenance,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, ModuleCall, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    "critical": {"type": "bool", "default": False},
    "checks": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "status": {"type": "str", "choices": ["passing", "warning", "critical", "absent"]},
            "output": {"type": "str"},
            "ttl": {"type": "int", "default": 3600},
        },
    },
    "maintenance": {"type": "str"},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Set the checks and the maintenance mode; return the result.

    :raises UpgradeError: what :func:`publish` and :func:`set_maintenance` raise.
    """
    requested = [HealthCheck(**check) for check in call.params["checks"]]
    checks, changes = publish(store, requested, critical=call.params["critical"], dry=call.check_mode)
    if call.params["maintenance"] is not None:
        changes = [*changes, *set_maintenance(store, call.params["maintenance"], dry=call.check_mode)]
    return {"checks": [asdict(check) for check in checks], **changed(changes)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
