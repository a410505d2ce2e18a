# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin for the tasks of services on pull hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_services
short_description: Prepare and begin the tasks of services on a pull host
version_added: 0.1.0
description:
  - Hosts of a role with C(pull) in C(upgrade_roles) run the composed tasks of their services themselves. C(convoy.upgrade.enroll) delivers these
    tasks, and agent runs use this module.
  - The composed tasks call M(convoy.upgrade.push_step), as on push hosts. So a host continues at the step that it did not finish, and a task that
    one host runs for all runs on one push host or pull host.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Without V(begun) and V(begun_post_upgrade), which begin nothing.
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(delivered) returns what the host needs, on the control node.
      - V(prepared) checks, on the host, whether its services may go to O(version), and returns its upgrade path.
      - V(begun) records the task groups of the host from now on. The host must have reported that its upgrade started.
      - V(begun_post_upgrade) does the same for the post-upgrade tasks, if planners have admitted the host to them and it has not
        finished them. If they can't begin there, it reports that they failed.
    type: str
    choices: [delivered, prepared, begun, begun_post_upgrade]
    required: true
  folder:
    description:
      - Folder that M(convoy.upgrade.compose_upgrade_tasks) wrote, or a copy of it with at least C(composition.json) and the folder of the role.
      - On the host, only root may be able to change it.
    type: path
    required: true
  upgrade_roles:
    description:
      - Roles of the fleet, for O(state=delivered).
    type: dict
    default: {}
  host:
    description:
      - Name of the host in Consul, for O(state=delivered). By default its name in the inventory.
    type: str
    default: ""
  role:
    description:
      - Role of the host. Required except for O(state=delivered).
    type: str
    default: ""
  version:
    description:
      - Version that the host upgrades to. Required except for O(state=delivered).
    type: str
    default: ""
  version_before:
    description:
      - Version that the host runs, for O(state=prepared). If it is empty, because an upgrade did not end, the one in its record counts.
    type: str
    default: ""
  prepared:
    description:
      - Result of O(state=prepared), for O(state=begun).
    type: dict
    default: {}
notes:
  - The variables C(upgrade_version_from) and C(upgrade_provider_versions) declare versions that were never reported.
  - With O(state=begun) it needs the callback C(convoy_watch), which Ansible finds beside the playbooks of this collection. For a playbook of your own,
    add their folder C(callback_plugins) to C(callback_plugins) in C(ansible.cfg).
seealso:
  - module: convoy.upgrade.compose_upgrade_tasks
  - module: convoy.upgrade.push_step
"""

EXAMPLES = r"""
- name: Select what the host needs
  convoy.upgrade.node_services:
    state: delivered
    folder: composed
    upgrade_roles:
      web: {pull: true, services: [nginx]}
  register: delivered
  no_log: true

- name: Find the upgrade path of the host
  convoy.upgrade.node_services:
    state: prepared
    folder: /etc/convoy/services
    role: web
    version: "2.10"
    version_before: "2.9"
  register: prepared

- name: Begin
  convoy.upgrade.node_services:
    state: begun
    folder: /etc/convoy/services
    role: web
    version: "2.10"
    prepared: "{{ prepared }}"

- name: Begin the post-upgrade tasks
  convoy.upgrade.node_services:
    state: begun_post_upgrade
    folder: /etc/convoy/services
    role: web
    version: "2.10"
"""

RETURN = r"""
role:
  description: Role of the host. Empty if hosts of its role do not run tasks themselves.
  returned: with O(state=delivered)
  type: str
inventory:
  description: Inventory with the host and the variables of its services, as YAML. Empty like RV(role).
  returned: with O(state=delivered)
  type: str
tasks_id:
  description: ID of the tasks, which changes with them. Empty like RV(role).
  returned: with O(state=delivered) and O(state=prepared)
  type: str
resumes:
  description: Whether the host has started this upgrade before, so that its services may be down and are not validated.
  returned: with O(state=prepared)
  type: bool
version:
  description: Version that the host upgrades to.
  returned: with O(state=prepared), and if RV(go) is true
  type: str
tasks_folder:
  description: The composed tasks of the role.
  returned: with O(state=prepared), and if RV(go) is true
  type: str
  sample: /opt/convoy/services/1f0c2a7be5d94b1c/web
is_reversed:
  description: Whether the host replaces its services in the order of a rollback, so that it runs C(upgrade_reversed.yml).
  returned: with O(state=prepared)
  type: bool
version_before:
  description: Version that the host comes from. Empty if it is not known.
  returned: with O(state=prepared)
  type: str
checkpoints:
  description: The checkpoints on its upgrade path, such as C(nginx@2.4).
  returned: with O(state=prepared)
  type: list
  elements: str
validate:
  description: The RV(checkpoints) that the host has not finished.
  returned: with O(state=prepared)
  type: list
  elements: str
providers:
  description: Maps providers to the version that each comes from.
  returned: with O(state=prepared)
  type: dict
go:
  description: Whether the tasks run now.
  returned: with O(state=begun) and O(state=begun_post_upgrade)
  type: bool
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(forbidden_upgrade), V(no_services), V(not_on_host), V(leased) or V(untrusted_services).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
