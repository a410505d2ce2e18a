# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what each role's hosts will run: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compose_upgrade_tasks
short_description: Compose the upgrade tasks of services into task files for each role and step
version_added: 0.2.0
description:
  - Reads every service that the roles name, before any host is touched, and writes a folder that holds for each role and
    step the tasks in the order in which they will run, so that they can be read, compared with the last composition, and kept.
  - A service is an Ansible role with C(tasks/upgrade_tasks.yml), C(tasks/post_upgrade_tasks.yml) or both. Each task of the
    former has one step as a tag, C(step0) to C(step5) or its name, C(validate), C(prepare), C(stop), C(upgrade), C(start),
    C(verify). The tag C(once) beside it means that one host per version runs the task for all.
  - C(meta/upgrade.yml) of a service says what tags can't, C(requires), the services that have to be upgraded before it, and
    C(once), the steps that one host runs for all.
  - C(upgrade_path) there lists versions, or maps them to files. What C(tasks/upgrade_to/<version>.yml) has is run by the hosts on whose way
    from one version to another it lies, before the service's own tasks of that step.
  - C(provider) there is for what is no host and has a version of its own. One host at a time upgrades it, once, from where it is itself.
  - What would be lost or run at the wrong time is refused, with file and line. So are an unknown step, a task without a step, a task with
    two, a service that can't be found, services that require each other, and a step that would be run once by no one.
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
      - Maps each role to a dictionary with its C(plane) and C(services).
      - A service is the name of an Ansible role, or a dictionary with C(service), the name of the role, C(name), what it is
        called here, and C(vars), variables for its tasks. So one role can serve several services of a host.
      - A dictionary may also have C(versions), C(allowed_from) and C(allow_downgrade), which take the place of those that the service
        has in its C(meta/upgrade.yml).
    type: dict
    required: true
  folder:
    description:
      - Folder to write. Files of the last composition that are not in this one are deleted.
    type: path
    required: true
  roles_path:
    description:
      - Folders with roles, which are searched before those beside the inventory, in the current folder, beside the playbook,
        and of Ansible's configuration. After these come collections, this one for names without a collection.
    type: list
    elements: path
    default: []
  hosts:
    description:
      - Maps roles to their hosts, as the variable C(groups) does. With it, a service with tasks that one host runs for all
        is refused if no host has it.
    type: dict
  copy_to:
    description:
      - Another folder that is written too, in check mode as well. A run works with it, so that a later composition does not
        change what it runs.
    type: path
notes:
  - It runs on the controller alone, and needs no connection.
seealso:
  - module: convoy.upgrade.push_daemon
"""

EXAMPLES = r"""
- name: Write what the hosts of each role would run
  convoy.upgrade.compose_upgrade_tasks:
    upgrade_roles:
      web:
        plane: dataplane
        services:
          - nginx
          - service: nginx
            name: nginx-internal
            vars:
              nginx_instance: internal
    folder: "{{ playbook_dir }}/composed"
    roles_path: ["{{ playbook_dir }}/roles"]
"""

RETURN = r"""
folder:
  description: The folder.
  returned: success
  type: str
files:
  description: What is in it, sorted.
  returned: success
  type: list
  elements: str
roles:
  description: The roles that have services, each with its plane, its services in their order, C(ways), which of
    their versions may go to which, and its units.
  returned: success
  type: dict
  sample:
    web:
      plane: dataplane
      services:
        nginx: convoy.upgrade.nginx
      paths:
        nginx:
          points: ["2.8", "2.10"]
          provider: false
      units:
        - name: upgrade/nginx
          step: upgrade
          service: nginx
          once: false
          point: ""
          provider: false
          tags: [step3, upgrade, nginx]
          tasks: 2
      dropped: []
role_order:
  description: Maps roles to those that go before them, from the planes and from what services require.
  returned: success
  type: dict
reasons:
  description: Maps roles to those that go before them, and these to the reason.
  returned: success
  type: dict
lockstep:
  description: Roles of the control plane that require each other, so that their hosts go together.
  returned: success
  type: list
  elements: list
remarks:
  description: What is worth knowing, such as a role whose services have no task.
  returned: success
  type: list
  elements: str
failure:
  description: What kept it from composing.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(bad_service).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
