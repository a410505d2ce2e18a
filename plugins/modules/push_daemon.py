# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that controls the push daemon."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_daemon
short_description: Start, query and stop the push daemon of a run
version_added: 0.2.0
description:
  - Each push run has one push daemon, a process on the controller. It admits the hosts of the run and writes their records. It ends with
    C(ansible-playbook). Tasks talk to it over a Unix socket, so a step of a host costs only one request to Consul.
  - The run holds a lease on each of its hosts, through a session in Consul. Other runs skip these hosts until the run ends.
  - The playbooks of this collection use this module, and so do the files that M(convoy.upgrade.compose_upgrade_tasks) writes.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: none
    details: The playbooks do not start a daemon in check mode.
  diff_mode:
    support: none
    details: The daemon writes changes step by step during the upgrade.
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(prepared) creates a folder for the run. It is deleted when C(ansible-playbook) ends.
      - V(started) starts the daemon. The rollout must have begun.
      - V(settled) waits until the hosts in O(scope) are upgraded, shows each change, and fails if nothing can continue. Meanwhile, the daemon
        admits hosts of roles without services, which upgrade themselves.
      - V(stopped) ends the daemon and all leases of the run.
    type: str
    choices: [prepared, started, settled, stopped]
    required: true
  driver:
    description:
      - Folder of the run. Required for all states except V(prepared).
    type: path
  version:
    description:
      - Target version of the rollout. Required for O(state=started).
    type: str
  phase:
    description:
      - V(upgrade) runs the upgrade of the hosts, V(after) their post-upgrade tasks.
    type: str
    choices: [upgrade, after]
    default: upgrade
  fleet:
    description:
      - Maps all hosts to their roles.
    type: dict
    default: {}
  composition:
    description:
      - Result of M(convoy.upgrade.compose_upgrade_tasks).
    type: dict
    default: {}
  scope:
    description:
      - Hosts of the run, in order. With O(state=settled), the hosts to wait for.
    type: list
    elements: str
    default: []
  plays:
    description:
      - Lists of the hosts of each play. The default is one play with all hosts.
    type: list
    elements: list
    default: []
    version_added: 0.3.0
  ways:
    description:
      - Maps hosts to the checkpoints on their upgrade path, such as C(nginx@2.4). They skip the task groups of all other checkpoints.
    type: dict
    default: {}
  origins:
    description:
      - Maps hosts to their version before the upgrade. Their records have it until they report.
    type: dict
    default: {}
  providers:
    description:
      - Maps providers to their version before the upgrade.
    type: dict
    default: {}
  retry_failed:
    description:
      - Whether to retry failed hosts.
    type: bool
    default: false
  wait_timeout:
    description:
      - Longest time in seconds to wait for the admission of a host, and for O(state=settled).
    type: float
    default: 14400
notes:
  - It runs only on the controller, so Consul must be reachable from there.
  - It needs the callback C(convoy_watch). Ansible finds it beside the playbooks of this collection.
seealso:
  - module: convoy.upgrade.push_host
  - module: convoy.upgrade.push_step
"""

EXAMPLES = r"""
- name: Create a folder for this run
  convoy.upgrade.push_daemon:
    state: prepared
  register: run

- name: Start the push daemon
  convoy.upgrade.push_daemon:
    state: started
    driver: "{{ run.driver }}"
    version: "2.10"
    fleet:
      web1: web
    composition: "{{ composed }}"
    scope: [web1]

- name: Wait until the hosts are upgraded
  convoy.upgrade.push_daemon:
    state: settled
    driver: "{{ run.driver }}"
    scope: [web1]
    wait_timeout: 3600
"""

RETURN = r"""
driver:
  description: Folder of the run.
  returned: unless O(state=settled)
  type: str
done:
  description: Whether all hosts in scope are upgraded.
  returned: with O(state=settled)
  type: bool
partial:
  description: Hosts that finished all task groups that C(--tags) selects, but not their upgrade.
  returned: with O(state=settled)
  type: list
  elements: str
obstacles:
  description: Reasons why hosts in scope are not upgraded, one sentence for each, with the hosts.
  returned: with O(state=settled)
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(stuck), V(timeout), V(no_driver), V(no_watch) or V(unreachable).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
