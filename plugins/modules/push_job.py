# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Begin a job whose tasks Ansible runs: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_job
short_description: Begin or continue a job whose tasks Ansible runs
version_added: 0.1.0
description:
  - Checks the tasks, makes and prints the plan, and begins the job. It admits no host. M(convoy.upgrade.push_run) does, once the tasks of a play wait for
    it.
  - A job that Ansible runs is a job as M(convoy.upgrade.consul_upgrade_plan) begins it, but nodes ignore it.
  - Without O(tasks) it begins nothing, and RV(pushes) is false.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: full
    details: It makes the plan, and begins nothing.
  diff_mode:
    support: full
    details: It shows the keys that the beginning of a job changes.
  platform:
    platforms: posix
    support: full
options:
  tasks:
    description:
      - File with tasks, relative to the current folder. Its name ends with C(.yml) or C(.yaml). Everything else is the name of a role.
    type: str
    default: ""
  job:
    description:
      - The job to begin, as O(convoy.upgrade.consul_upgrade_plan#module:job), without C(run), because it is named after O(tasks). Without O(tasks),
        C(run) is the command of the nodes. C(sign_with) is
        refused, because nodes have nothing to verify.
    type: dict
  version:
    description:
      - The job to continue, as C(job/<id>), in place of O(job). Other tasks than those that it was begun with are refused.
    type: str
    default: ""
  upgrade_roles:
    description:
      - Roles of the inventory, as O(convoy.upgrade.compose_upgrade_tasks#module:upgrade_roles). Their hosts and those that have reported to Consul are
        the fleet.
    type: dict
    default: {}
  roles_path:
    description:
      - Folders to search for the role, before those beside the inventory and those of Ansible's configuration.
    type: list
    elements: path
    default: []
  instructions:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:instructions). Empty for those of the file, or of the last rollout to a version.
    type: dict
    default: {}
  instructions_file:
    description:
      - As O(convoy.upgrade.consul_upgrade_plan#module:instructions_file).
    type: str
  once:
    description:
      - Whether the run makes a single pass. Refused with O(tasks).
    type: bool
    default: false
  wait:
    description:
      - Whether the run waits for the job. V(false) is refused with O(tasks).
    type: bool
    default: true
  wait_for_other:
    description:
      - Whether the run waits while another job or rollout is under way, instead of failing.
    type: bool
    default: false
  wait_timeout:
    description:
      - How long it waits for that, in seconds.
    type: float
    default: 14400
notes:
  - It needs the callback C(convoy_watch), which Ansible finds beside the playbooks of this collection. For a playbook of your own, add their
    folder C(callback_plugins) to C(callback_plugins) in C(ansible.cfg).
  - It reads a job to continue from the control node.
seealso:
  - module: convoy.upgrade.push_run
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Begin a job on all hosts of the role web
  convoy.upgrade.push_job:
    tasks: restart.yml
    upgrade_roles:
      web:
        plane: dataplane
    instructions:
      rolling_rules:
        global: 1
    job:
      only: [web]
      args:
        grace: 30
  register: upgrade_run

- name: Admit its hosts from now on
  convoy.upgrade.push_run:
    state: started
"""

RETURN = r"""
pushes:
  description: Whether Ansible runs tasks. All other values but the ID of the job are returned only then.
  returned: success
  type: bool
job:
  description: The job.
  returned: if RV(pushes) is true. Otherwise only its ID, if O(job) names a command in C(run).
  type: dict
  contains:
    id:
      description: Its ID. For a job that the nodes run, one to begin it with, so that the command which continues it is known if the run is interrupted.
      type: str
    run:
      description: Its name.
      type: str
    args:
      description: Its arguments.
      type: dict
    file:
      description: The file with its tasks. Empty for a role.
      type: str
    role:
      description: The role with its tasks. Empty for a file.
      type: str
version:
  description: The target of the job, C(job/<id>).
  returned: if RV(pushes) is true
  type: str
dataplane:
  description: The hosts that have not run the job, in the order of the plan.
  returned: if RV(pushes) is true
  type: list
  elements: str
resumed:
  description: Those of them that an earlier run began with. They run all tasks again.
  returned: if RV(pushes) is true
  type: list
  elements: str
plays:
  description: The play with hosts that are waited for, V(dataplane). Empty if every host has run the job.
  returned: if RV(pushes) is true
  type: list
  elements: str
task_timeout:
  description: The longest that a task of a host may take, in seconds, from C(health.progress_deadline) in the rules. 0 for no limit.
  returned: if RV(pushes) is true
  type: int
failure:
  description: What went wrong.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(bad_tasks), C(bad_job), C(unknown_job), C(no_watch) or C(unreachable).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
