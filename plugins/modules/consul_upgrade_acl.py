# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that creates policies and tokens."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_acl
short_description: Create Consul policies and tokens for controllers, commanders, planner services, nodes, viewers and migrators
version_added: 0.1.0
description:
  - Creates one policy with only the permissions that O(kind) needs, and one token with this policy.
  - The token of a node can read C(current_version), C(upgrade/schema), gates, holds, package sources and jobs, and write the record of its own
    host, its reports on jobs, and the key that wakes it. It can't open a gate, report for another host, end a hold or change the ledger.
    Planners publish the reports of such a host.
  - The module runs on the control node with a token that has C(acl = "write"). The secret of the new token is written only to O(token_file), on
    the host of the task.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The rules of policies are shown, tokens are not.
  platform:
    platforms: posix
    support: full
options:
  kind:
    description:
      - V(controller) plans, runs commands of operators, upgrades push hosts and reads the status. It begins no job.
      - V(commander) does what V(controller) does, and begins jobs, which run commands of the nodes.
      - V(planner) is for planner services. It carries rollouts that a controller has begun and handed over, but gives no command of an operator.
      - V(node) reads its own gates and reports on itself. V(viewer) reads the status.
      - V(migrator) migrates the keys to another layout. Remove it after the migration.
    type: str
    choices: [controller, commander, planner, node, viewer, migrator]
    required: true
  name:
    description:
      - For V(node), the name under which the host reports. The default is the host of the task.
      - For the other kinds, a suffix that distinguishes several policies of one kind.
    type: str
    default: ""
  publishes_health:
    description:
      - Whether a node may set its own checks in the catalog. M(convoy.upgrade.consul_health) does this, and so does C(convoy.upgrade.node) unless
        C(puppet_gate_health) is false.
      - It adds C(write) on the host's own node in the catalog. With it, the host could also set any other check of its node to passing, or
        deregister the node. It gives no access to other hosts or to keys.
    type: bool
    default: false
  runs_services:
    description:
      - Whether a node runs the tasks of services, as hosts of roles with C(pull) do.
      - It adds C(write) on the tasks that one host runs for all, on providers and on the host's own lease, and sessions of the host's own node. With
        it, the host could also claim that it ran such a task, or that a provider is upgraded.
    type: bool
    default: false
  token_file:
    description:
      - File on the host of the task for the secret, readable only by its owner. Without it, only the policy and the token are created.
    type: path
  token_file_owner:
    description:
      - Owner of O(token_file).
    type: str
  state:
    description:
      - V(absent) deletes the policy, its token, and O(token_file).
    type: str
    choices: [present, absent]
    default: present
notes:
  - Consul must be reachable from the control node.
  - O(kv_prefix) becomes a part of the policy names, so that several fleets can share one Consul.
"""

EXAMPLES = r"""
- name: Create a policy and a token for controllers
  convoy.upgrade.consul_upgrade_acl:
    kind: controller

- name: Create a policy and a token for controllers that begin jobs
  convoy.upgrade.consul_upgrade_acl:
    kind: commander

- name: Create a policy and a token for planner services
  convoy.upgrade.consul_upgrade_acl:
    kind: planner

- name: Create a policy and a token for a node that reports and publishes checks
  convoy.upgrade.consul_upgrade_acl:
    kind: node
    name: compute7
    publishes_health: true
    runs_services: true

- name: Create a policy and a token for a migration
  convoy.upgrade.consul_upgrade_acl:
    kind: migrator

- name: Create a policy and a token that can only read
  convoy.upgrade.consul_upgrade_acl:
    kind: viewer
    name: grafana
"""

RETURN = r"""
policy:
  description: Name of the policy.
  returned: success
  type: str
  sample: convoy-upgrade-node-compute7
accessor_id:
  description: Accessor ID of the token, which is not secret. Empty if there is no token.
  returned: success
  type: str
token_file:
  description: The file with the secret.
  returned: if O(token_file) is given
  type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied), V(foreign_policy), V(unwritten_token) or V(bad_name).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
