# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of a run: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_daemon
short_description: Start, ask and stop the process that lets hosts through and records where they are
version_added: 0.2.0
description:
  - A run in which Ansible upgrades hosts has one driver, a process on the controller that plans for all hosts of the run and
    writes their records, and lasts no longer than C(ansible-playbook). Tasks talk to it over a Unix socket, so that a step
    of a host costs one request to Consul, no module and no connection.
  - The hosts that a run drives are claimed in Consul by a session. Another run leaves them alone as long as this one lives.
  - The playbooks of this collection use it, and the files that M(convoy.upgrade.compose_upgrade_tasks) writes.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: none
    details: The playbooks do not start one in check mode.
  diff_mode:
    support: none
    details: What changes is written step by step while hosts are upgraded.
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(prepared) makes a folder for the run, which is gone when C(ansible-playbook) is.
      - V(started) starts the driver. The rollout has to have begun.
      - V(settled) waits until the hosts in O(scope) are upgraded, shows every change, and fails if nothing can move any more.
        Hosts of roles without services are let through meanwhile, as they upgrade themselves.
      - V(stopped) ends the driver, and with it all claims of the run.
    type: str
    choices: [prepared, started, settled, stopped]
    required: true
  driver:
    description:
      - Folder of the run. Needed for every state but V(prepared).
    type: path
  version:
    description:
      - Version that the fleet moves to. Needed for O(state=started).
    type: str
  phase:
    description:
      - Whether hosts are upgraded, or go through their tasks after the upgrade.
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
      - A result of M(convoy.upgrade.compose_upgrade_tasks).
    type: dict
    default: {}
  scope:
    description:
      - The hosts that the run is for, in the order in which they go, or with O(state=settled) those that are waited for.
    type: list
    elements: str
    default: []
  plays:
    description:
      - The hosts of each play of the run, as a list for each. Without it, all hosts go in one play.
    type: list
    elements: list
    default: []
    version_added: 0.3.0
  ways:
    description:
      - Maps hosts to the points that are on their way, such as C(nginx@2.4). They go through the units of no other points.
    type: dict
    default: {}
  origins:
    description:
      - Maps hosts to the version that they come from, which their records tell until they report.
    type: dict
    default: {}
  providers:
    description:
      - Maps providers to the version that they come from.
    type: dict
    default: {}
  retry_failed:
    description:
      - Try hosts again that failed.
    type: bool
    default: false
  wait_timeout:
    description:
      - Seconds to wait at most, for a host to be let through and for O(state=settled).
    type: float
    default: 14400
notes:
  - It runs on the controller alone, so Consul has to be reachable from there.
  - It needs the callback C(convoy_watch), which lies beside the playbooks of this collection and is found there by itself.
seealso:
  - module: convoy.upgrade.push_host
  - module: convoy.upgrade.push_step
"""

EXAMPLES = r"""
- name: Make a folder for this run
  convoy.upgrade.push_daemon:
    state: prepared
  register: run

- name: Start the driver
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
  description: Hosts that have gone as far as the tags on the command line say, and not to the end.
  returned: with O(state=settled)
  type: list
  elements: str
obstacles:
  description: The reasons why hosts in scope are not upgraded, each with its hosts.
  returned: with O(state=settled)
  type: list
  elements: str
failure:
  description: What went wrong.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(stuck), C(timeout), C(no_driver), C(no_watch) or C(unreachable).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
