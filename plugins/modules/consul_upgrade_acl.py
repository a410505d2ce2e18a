# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies and tokens: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_acl
short_description: Give controllers, nodes, viewers and migrators Consul policies and tokens of their own
version_added: 0.2.0
description:
  - Makes a policy that allows what a part in rollouts needs and nothing else, and one token with it.
  - The token of a node can read C(current_version), the version of the layout, gates and holds, and write the host's own record, and
    nothing else. It can't open a gate, speak for another host, end a hold or touch the ledger. Planners publish what such a host says of itself.
  - It runs on the controller, with a token that has C(acl = "write"). The secret of the new token is written to O(token_file) on the
    host of the task, and appears nowhere else.
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
      - V(controller) plans, holds, drives hosts and looks. V(node) asks for its own gates and reports on itself. V(viewer) looks.
      - V(migrator) brings the keys to another layout, and has no more to do once that is done.
    type: str
    choices: [controller, node, viewer, migrator]
    required: true
  name:
    description:
      - For V(node), the host as its record has it. Without it, the host of the task.
      - For the others it tells several of a kind apart.
    type: str
    default: ""
  publishes_health:
    description:
      - Whether a node may set checks of its own in the catalog, as M(convoy.upgrade.consul_health) and C(playbooks/node.yml) do unless
        C(puppet_gate_health) is false.
      - It adds C(write) on the host's own node in the catalog, so that the host could also set any other check of its node to passing,
        or take the node out of the catalog. Other hosts and all keys stay out of its reach.
    type: bool
    default: false
  token_file:
    description:
      - File on the host of the task that gets the secret, readable by its owner alone. Without it, only policy and token are made.
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
  - Consul has to be reachable from the controller.
  - Where O(kv_prefix) is set, it is a part of the names of policies, so that several fleets share one Consul.
"""

EXAMPLES = r"""
- name: Give the planner what it needs
  convoy.upgrade.consul_upgrade_acl:
    kind: controller

- name: Give a node what it needs to report, and to publish checks of its own
  convoy.upgrade.consul_upgrade_acl:
    kind: node
    name: compute7
    publishes_health: true

- name: Let the keys of an older layout be migrated
  convoy.upgrade.consul_upgrade_acl:
    kind: migrator

- name: Let somebody look
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
  description: Consul's public name of the token. Empty where there is none.
  returned: success
  type: str
token_file:
  description: The file that has the secret.
  returned: if O(token_file) is given
  type: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(denied), V(foreign_policy), V(unwritten_token) or V(bad_name).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
