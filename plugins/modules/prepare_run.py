# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare a run of an upgrade: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prepare_run
short_description: Check an upgrade, show its plan, and decide what each host will do
version_added: 0.1.0
description:
  - Fails before anything is written if there is a problem with the variables, the version, the rules, the fleet or Consul. Prints the plan.
  - If O(upgrade_roles) has services, it also composes their tasks, and computes the plays, waves and upgrade paths of the run.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: full
    details: It writes only the composed tasks, and not in check mode.
  diff_mode:
    support: full
    details: It shows the changes of the composed tasks.
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(prepared) prepares a run to O(version).
      - V(checked) refuses, before a rollback to O(version), or to the version before, begins, what would keep its run from being prepared.
    type: str
    choices: [prepared, checked]
    default: prepared
  version:
    description:
      - Version that the fleet moves to. Required for V(prepared).
    type: str
    default: ""
  upgrade_roles:
    description:
      - Roles of the inventory. Each maps to its C(plane) and C(services), as O(convoy.upgrade.compose_upgrade_tasks#module:upgrade_roles).
    type: dict
    default: {}
  restart:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:restart).
    type: bool
    default: false
  by:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:by).
    type: str
    default: ""
  replace:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:replace). Empty for none.
    type: str
    default: ""
  rollback:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:rollback).
    type: bool
    default: false
  rollback_order:
    description:
      - With O(state=checked), as O(convoy.upgrade.consul_upgrade_control#module:rollback_order).
    type: str
    choices: [reversed, forward]
  once:
    description:
      - Whether the run makes a single pass. It is refused if Ansible upgrades hosts.
    type: bool
    default: false
  wait:
    description:
      - Whether the run waits for the rollout, or hands it over to planner services. The latter is refused if Ansible upgrades hosts.
    type: bool
    default: true
  wait_for_other:
    description:
      - Whether the run waits while a job, or a rollout to another version, is under way, instead of failing.
    type: bool
    default: false
  wait_timeout:
    description:
      - Longest time in seconds that the run waits with O(wait_for_other). RV(rollout) has it as the longest wait for the rollout too.
    type: float
    default: 14400
  instructions:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:instructions). Empty for those of the file, or of the running rollout.
    type: dict
    default: {}
  instructions_file:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:instructions_file).
    type: str
  limit:
    description:
      - Host patterns of those that may be admitted, as O(convoy.upgrade.consul_upgrade_plan#module:limit). Empty for all.
    type: list
    elements: str
    default: []
  part:
    description:
      - Which part of the fleet the run upgrades. V(role) upgrades O(role) alone, and V(post_upgrade) only runs post-upgrade tasks.
    type: str
    choices: [all, controlplane, dataplane, role, post_upgrade]
    default: all
  role:
    description:
      - The role, with O(part=role).
    type: str
    default: ""
  folder:
    description:
      - As O(convoy.upgrade.compose_upgrade_tasks#module:folder).
    type: path
    required: true
  composed:
    description:
      - As O(convoy.upgrade.compose_upgrade_tasks#module:composed). Empty to compose the tasks.
    type: str
    default: ""
  roles_path:
    description:
      - As O(convoy.upgrade.compose_upgrade_tasks#module:roles_path).
    type: list
    elements: path
    default: []
  provider_versions:
    description:
      - Maps providers to the version that each runs, where Consul has none.
    type: dict
    default: {}
  retry_failed:
    description:
      - Whether to upgrade failed and lost hosts again.
    type: bool
    default: false
notes:
  - The plan is made on the host of the task. The tasks are composed on the control node.
  - If O(upgrade_roles) has services, it needs the callback C(convoy_watch), which Ansible finds beside the playbooks of this collection. For a
    playbook of your own, add their folder C(callback_plugins) to C(callback_plugins) in C(ansible.cfg).
seealso:
  - module: convoy.upgrade.push_run
"""

EXAMPLES = r"""
- name: Prepare an upgrade of hosts that upgrade themselves
  convoy.upgrade.prepare_run:
    version: "2.10"
    folder: /tmp/composed
    instructions:
      rolling_rules:
        global: 1
  register: upgrade_run
"""

RETURN = r"""
pushes:
  description: Whether roles have services and the run waits for their hosts, also for those that upgrade themselves. With O(state=prepared), V(false)
    with O(once), or without O(wait).
  returned: success
  type: bool
rollout:
  description:
    - Options of M(convoy.upgrade.consul_upgrade_plan) with which the run begins or continues the rollout. An option without a value is
      left out.
  returned: with O(state=prepared)
  type: dict
  contains:
    version:
      description: Version that the fleet moves to.
      type: str
    restart:
      description: As O(restart).
      type: bool
    by:
      description: As O(by).
      type: str
    replace:
      description: As O(replace).
      type: str
    rollback:
      description: As O(rollback).
      type: bool
    instructions:
      description: As O(instructions).
      type: dict
    instructions_file:
      description: As O(instructions_file).
      type: str
    limit:
      description: As O(limit), and the roles of O(part).
      type: list
      elements: str
    role_order:
      description: Order of the roles, from planes and from what services require.
      type: dict
    services:
      description: For roles whose hosts run the tasks of services themselves, the ID of these tasks.
      type: dict
    roles_with_post_upgrade:
      description: Roles whose hosts have post-upgrade tasks.
      type: list
      elements: str
    wait:
      description: Whether the run waits until the rollout ends.
      type: bool
    hand_over:
      description: Whether planner services carry the rollout.
      type: bool
    wait_timeout:
      description: As O(wait_timeout).
      type: int
    wait_for_other:
      description: As O(wait_for_other).
      type: bool
role_order:
  description: Order of the roles, from planes and from what services require.
  returned: with O(state=prepared), if RV(pushes) is true
  type: dict
version:
  description: Version that the fleet moves to.
  returned: with O(state=prepared), if RV(pushes) is true
  type: str
tasks_folder:
  description: The composed tasks, a folder for each role below it.
  returned: with O(state=prepared), if RV(pushes) is true
  type: str
dataplane_first:
  description: Hosts of the data plane that the control plane waits for, as in a rollback, in their order.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
controlplane:
  description: Hosts that go in waves, in their order.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
waves:
  description:
    - The hosts of each wave of RV(controlplane). If the inventory has enough hosts, each wave has one more that runs no task of it, because Ansible ends
      a run if a whole batch is unreachable.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: list
dataplane:
  description: All other hosts that Ansible upgrades, in their order.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
validate:
  description: The hosts that are validated, which are those on which no run has stopped or replaced anything yet.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
only_validates:
  description: Whether the tags on the command line select only the validation of hosts. Then no rollout begins.
  returned: with O(state=prepared), if RV(pushes) is true
  type: bool
resumed:
  description: The hosts that an earlier run began to upgrade.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
post_upgrade:
  description: Always empty. M(convoy.upgrade.push_run) returns the hosts that have post-upgrade tasks.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
complete:
  description: Always V(false). M(convoy.upgrade.push_run) finds out whether every host of the fleet is upgraded.
  returned: with O(state=prepared), if RV(pushes) is true
  type: bool
hosts:
  description: Maps each host of the run that Ansible upgrades to what its tasks need, also if it failed and the run does not retry it.
  returned: with O(state=prepared), if RV(pushes) is true
  type: dict
  contains:
    tasks_folder:
      description: The composed tasks of its role.
      type: str
    is_reversed:
      description: Whether it replaces its services in the order of a rollback, so that it runs C(upgrade_reversed.yml).
      type: bool
    version_before:
      description: Version that it comes from. Empty if it is not known.
      type: str
    checkpoints:
      description: The checkpoints that are still before it on its upgrade path, such as C(nginx@2.4).
      type: list
      elements: str
plays:
  description: Plays with hosts that are waited for, hosts that upgrade themselves included.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
task_timeout:
  description: The longest that a task of a host may take, in seconds, from C(health.progress_deadline) in the rules. 0 for no limit.
  returned: with O(state=prepared), if RV(pushes) is true
  type: int
providers:
  description: Maps providers to the version that each comes from.
  returned: with O(state=prepared), if RV(pushes) is true
  type: dict
left_out:
  description: Why the run leaves out some of its hosts, a sentence each.
  returned: with O(state=prepared), if RV(pushes) is true
  type: list
  elements: str
failure:
  description: What went wrong.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(forbidden_upgrade), C(not_upgradable), C(stuck), C(timeout), C(no_watch) or C(unreachable).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
