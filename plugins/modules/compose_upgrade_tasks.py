# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that composes the upgrade tasks of each role."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compose_upgrade_tasks
short_description: Compose the upgrade tasks of services into task files for each role and step
version_added: 0.1.0
description:
  - Reads all services of all roles before any host is touched. Writes a folder with the tasks of each role and step, in the order in which they
    run. You can read, compare and keep these files.
  - A service is an Ansible role with C(tasks/upgrade_tasks.yml), C(tasks/post_upgrade_tasks.yml) or C(upgrade_path) in C(meta/upgrade.yml).
  - Each task in C(upgrade_tasks.yml) has one step as a tag, by number (C(step0) to C(step5)) or by name (C(validate), C(prepare), C(stop),
    C(upgrade), C(start), C(verify)), or C(may_stop), C(drain) or C(undrain). With the additional tag C(once), one host per version runs the task
    for all.
  - In C(meta/upgrade.yml) of a service, C(requires) lists services that must be upgraded before it, and C(once) lists steps that one host
    runs for all. With C(stop_together), all services of a role are stopped before any of them is upgraded.
  - C(upgrade_path) there lists checkpoints, or maps them to files. A host whose upgrade passes a checkpoint runs
    C(tasks/upgrade_to/<version>.yml) before the service's own tasks of the same step.
  - C(provider) there marks something that is no host but has a version, such as a cloud. One host at a time upgrades it from its own version.
  - C(needs_controller) there marks a service that acts on other hosts. Roles with C(pull) can't have it.
  - Tasks that would be lost or run at the wrong time are refused, with file and line. Other errors are an unknown step, a task with no
    step or two, a missing service, services that require each other, and a C(once) step without a host.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
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
  upgrade_roles:
    description:
      - Maps each role to a dictionary with its C(plane) and C(services). With C(pull), its hosts run the tasks themselves.
      - A service is the name of an Ansible role, or a dictionary with C(service) (the Ansible role), C(name) (the name of the service here)
        and C(vars) (variables for its tasks). One Ansible role can serve several services of a host.
      - The dictionary may also have C(plane), C(versions), C(allowed_from) and C(allow_downgrade). They override C(meta/upgrade.yml) of the service.
    type: dict
    required: true
  folder:
    description:
      - Folder to write. Files of the last composition that this one does not have are deleted.
    type: path
    required: true
  roles_path:
    description:
      - Folders to search first for roles. Next are the folders C(roles) beside the inventory, in the current folder and beside the playbook, those of
        Ansible's configuration, then collections. A name without a collection is also searched in this collection.
    type: list
    elements: path
    default: []
  hosts:
    description:
      - Maps roles to their hosts, as the variable C(groups) does. With it, a service with C(once) tasks is refused if no host has the service.
    type: dict
  for_run:
    description:
      - Whether to write a copy to the folder of this run too, also in check mode. The run uses the copy, so a later composition does not
        change its tasks. The copy is deleted when C(ansible-playbook) ends. It needs the callback C(convoy_watch), as
        M(convoy.upgrade.push_run) does.
    type: bool
    default: false
  composed:
    description:
      - Folder that an earlier call wrote. Its composition is returned, and nothing is written.
    type: path
notes:
  - It runs only on the control node, without a connection to a host.
seealso:
  - module: convoy.upgrade.push_run
"""

EXAMPLES = r"""
- name: Compose the tasks of each role
  convoy.upgrade.compose_upgrade_tasks:
    upgrade_roles:
      web:
        plane: dataplane
        services:
          - nginx
          - service: nginx
            name: nginx-internal
            vars:
              nginx_unit: nginx-internal.service
              nginx_pid_file: /run/nginx-internal.pid
    folder: "{{ playbook_dir }}/composed"
    roles_path: ["{{ playbook_dir }}/roles"]
"""

RETURN = r"""
folder:
  description: The folder that was written.
  returned: success
  type: str
run_folder:
  description: The folder that the run uses, its own copy or O(composed). Empty without either of them.
  returned: success
  type: str
files:
  description: The files in RV(folder), sorted.
  returned: success
  type: list
  elements: str
roles:
  description: Maps roles with services to their C(plane), C(services) in order, C(paths) (checkpoints), C(version_rules) (allowed versions), C(task_groups)
    and C(dropped) (remarks on duplicate tasks that were left out). A role whose services go back in another order also has C(reversed_task_groups),
    the names of its task groups in the order of a rollback.
  returned: success
  type: dict
  sample:
    web:
      plane: dataplane
      services:
        nginx: convoy.upgrade.nginx
      paths:
        nginx:
          checkpoints: ["2.8", "2.10"]
          provider: false
      task_groups:
        - name: upgrade/nginx
          step: upgrade
          service: nginx
          once: false
          checkpoint: ""
          provider: false
          tags: [step3, upgrade, nginx]
          tasks: 2
      dropped: []
pull_roles:
  description: The same for roles whose hosts run the tasks themselves (C(pull)). Each also has a C(tasks_id), which changes with its tasks, with the
    versions that its services allow, and with the role itself. Variables do not change it.
  returned: success
  type: dict
role_order:
  description: Maps each role to the roles that go before it, from planes and C(requires).
  returned: success
  type: dict
reasons:
  description: Maps each role to the roles that go before it, and these to the reason.
  returned: success
  type: dict
lockstep:
  description: Lists of control plane roles that require each other. Their hosts are upgraded together.
  returned: success
  type: list
  elements: list
remarks:
  description: Remarks for the operator, such as a role whose services have no task.
  returned: success
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(bad_service).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
