# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of its health."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_health
short_description: Publish a node's health to its own Consul agent
version_added: 0.2.0
description:
  - Sets checks of the node whose agent is asked.
  - A check of a node counts for every service on it, and a critical one takes them all out of Consul's answers. So checks are never
    critical and do not expire, unless O(critical) asks for that.
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
      - Whether checks may be critical, and turn so when they are not renewed within their time. All services of the node are then taken out
        of Consul's answers.
      - Without it, V(critical) is published as V(warning), and O(checks[].ttl) is not used. A check that was critical before becomes a
        warning.
    type: bool
    default: false
    version_added: 0.3.0
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
          - How it stands. Without it, what it is stays, and is renewed. One that is not there stays away.
          - V(absent) takes it out of Consul.
        type: str
        choices: [passing, warning, critical, absent]
      output:
        description:
          - What Consul shows beside it. Of a long text the last 4000 characters are kept.
        type: str
      ttl:
        description:
          - Seconds after which Consul takes it for critical unless it is renewed, with O(critical).
        type: int
        default: 3600
notes:
  - Renewing a check, or giving it another output, is not reported as a change.
seealso:
  - module: convoy.upgrade.consul_upgrade_host_report
"""

EXAMPLES = r"""
- name: Say that Puppet ran well, and the validations did not
  convoy.upgrade.consul_health:
    checks:
      - name: puppet
        status: passing
        output: version 2.10
      - name: validation
        status: critical
        output: nova-compute does not answer

- name: Take all services of the node out of Consul's answers as long as its validations fail
  convoy.upgrade.consul_health:
    critical: true
    checks:
      - name: validation
        status: critical
        output: nova-compute does not answer

- name: Say that nothing new is known
  convoy.upgrade.consul_health:
    checks:
      - name: puppet
      - name: validation
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
      description: How it stands. Null if it is not there, V(absent) if it was to be taken away.
      type: str
    output:
      description: What Consul shows beside it.
      type: str
    ttl:
      description: Seconds after which Consul takes it for critical unless it is renewed. Null if it does not expire.
      type: int
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(denied) or V(bad_check).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._host.health_checks import Check, publish
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
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
        },
        supports_check_mode=True,
    )

    def act(store: Store) -> dict[str, Any]:
        wanted = [Check(**check) for check in module.params["checks"]]
        checks, changes = publish(store, wanted, critical=module.params["critical"], dry=module.check_mode)
        return {"checks": [asdict(check) for check in checks], **changed(changes)}

    run(module, act)


if __name__ == "__main__":
    main()
