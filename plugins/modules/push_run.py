# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a push run, start it, wait for it and stop it: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_run
short_description: Validate a run in which Ansible upgrades hosts, start it, wait for it and stop it
version_added: 0.1.0
description:
  - A run has one daemon, a process on the control node that lasts as long as C(ansible-playbook). In a push run it admits the hosts
    and writes their records. Tasks ask it over a Unix socket, so a step of a host costs one request to Consul, no module and no
    connection.
  - The daemon holds a lease in Consul on each host that the run upgrades. Another run does not touch these hosts until the lease ends.
  - M(convoy.upgrade.prepare_run) decides once what a run is. The daemon keeps it, and the plays that follow use what was returned.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
  - convoy.upgrade.consul
attributes:
  check_mode:
    support: partial
    details: The playbooks only check, prepare and validate in check mode.
  diff_mode:
    support: none
    details: What changes is written step by step while hosts are upgraded.
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(validated) fails if a host has reported that it can't be upgraded, or has reported nothing. It holds hosts whose Puppet is
        disabled, and ends such holds of earlier runs.
      - V(started) opens a session with Consul and admits hosts from now on. The rollout has to have begun.
      - V(settled) waits until the hosts of O(play) are upgraded, shows every change, and fails if nothing can move any more.
        Hosts of roles without services are admitted meanwhile, as they upgrade themselves.
      - V(finished) admits hosts to the post-upgrade tasks, if every host of the fleet is upgraded.
      - V(stopped) ends the session, and with it all leases of the run.
    type: str
    choices: [validated, started, settled, finished, stopped]
    required: true
  upgrade_roles:
    description:
      - Roles of the inventory, as for M(convoy.upgrade.prepare_run). For V(finished).
    type: dict
    default: {}
  play:
    description:
      - Play whose hosts are waited for. Needed for V(settled).
    type: str
    choices: [dataplane_first, controlplane, dataplane, post_upgrade]
  wait_timeout:
    description:
      - Seconds to wait at most, for a host to be admitted and for V(settled).
    type: float
    default: 14400
notes:
  - It runs on the control node alone, so Consul has to be reachable from there.
  - It needs the callback C(convoy_watch), which Ansible finds beside the playbooks of this collection. For a playbook of your own, add their
    folder C(callback_plugins) to C(callback_plugins) in C(ansible.cfg).
seealso:
  - module: convoy.upgrade.prepare_run
  - module: convoy.upgrade.push_host
  - module: convoy.upgrade.push_step
"""

EXAMPLES = r"""
- name: Admit its hosts from now on
  convoy.upgrade.push_run:
    state: started
    wait_timeout: 3600

- name: Wait until the hosts of the data plane are upgraded
  convoy.upgrade.push_run:
    state: settled
    play: dataplane
    wait_timeout: 3600

- name: End all leases of the run
  convoy.upgrade.push_run:
    state: stopped
"""

RETURN = r"""
held:
  description: Host -> the reason that was given to C(puppet agent --disable) on it.
  returned: with V(validated)
  type: dict
pushes:
  description: Always true.
  returned: with V(started) and V(finished)
  type: bool
role_order:
  description: Order of the roles, from planes and from what services require.
  returned: with V(started) and V(finished)
  type: dict
version:
  description: Version that the fleet moves to.
  returned: with V(started) and V(finished)
  type: str
tasks_folder:
  description: The composed tasks, a folder for each role below it.
  returned: with V(started) and V(finished)
  type: str
dataplane_first:
  description: Hosts of the data plane that the control plane waits for, as in a rollback, in their order.
  returned: with V(started) and V(finished)
  type: list
  elements: str
controlplane:
  description: Hosts that go in waves, in their order.
  returned: with V(started) and V(finished)
  type: list
  elements: str
waves:
  description:
    - The hosts of each wave of RV(controlplane). If the inventory has enough hosts, each wave has one more that runs no task of it, because Ansible ends
      a run if a whole batch is unreachable.
  returned: with V(started) and V(finished)
  type: list
  elements: list
dataplane:
  description: All other hosts that Ansible upgrades, in their order.
  returned: with V(started) and V(finished)
  type: list
  elements: str
validate:
  description: The hosts that are validated, which are those on which no run has stopped or replaced anything yet.
  returned: with V(started) and V(finished)
  type: list
  elements: str
only_validates:
  description: Whether the tags on the command line select only the validation of hosts.
  returned: with V(started) and V(finished)
  type: bool
resumed:
  description: The hosts that an earlier run began to upgrade.
  returned: with V(started) and V(finished)
  type: list
  elements: str
post_upgrade:
  description: Hosts that have post-upgrade tasks. Empty before V(finished), and as long as a host is not upgraded.
  returned: with V(started) and V(finished)
  type: list
  elements: str
complete:
  description: Whether every host of the fleet is upgraded, as V(finished) found.
  returned: with V(started) and V(finished)
  type: bool
hosts:
  description: Maps each host of the run that Ansible upgrades to what its tasks need, also if it failed and the run does not retry it.
  returned: with V(started) and V(finished)
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
  returned: with V(started) and V(finished)
  type: list
  elements: str
task_timeout:
  description: The longest that a task of a host may take, in seconds, from C(health.progress_deadline) in the rules. 0 for no limit.
  returned: with V(started) and V(finished)
  type: int
providers:
  description: Maps providers to the version that each comes from.
  returned: with V(started) and V(finished)
  type: dict
left_out:
  description: Why the run leaves out some of its hosts, a sentence each.
  returned: with V(started) and V(finished)
  type: list
  elements: str
done:
  description: Whether all hosts of the play are upgraded.
  returned: with V(settled)
  type: bool
partial:
  description: Host -> the steps that the tags on the command line left out on it.
  returned: with V(settled)
  type: dict
blockers:
  description: The reasons why hosts are not upgraded, each with its hosts.
  returned: with V(settled)
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
