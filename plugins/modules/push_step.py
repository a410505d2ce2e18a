# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that begins a task group."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_step
short_description: Begin a task group of a push host, and record it
version_added: 0.1.0
description:
  - A task group has the tasks of one service in one step, such as C(upgrade/nginx). When a task group begins, the one before it is finished.
    So the host record always has the current service and step, for one request to Consul.
  - Returns whether to run the tasks of the group on this host. They are skipped if an earlier run finished the group, if C(--tags) leaves it
    out, or if another host runs it for all. The step C(stop) of a service that is not started yet runs again.
  - If another host runs the group for all, this host waits for its end before it begins the next group. It fails if that host failed.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  task_group:
    description:
      - Name of the task group, as M(convoy.upgrade.compose_upgrade_tasks) returns it.
    type: str
    required: true
  state:
    description:
      - V(begun) begins the task group.
      - V(done) ends it. Use this for a group that this host runs for all, so that the other hosts continue, and for a group of a checkpoint,
        so that it does not run again.
      - V(refused) reports that the service of the group may not be stopped yet, and waits before the next try. It fails after O(patience).
    type: str
    choices: [begun, refused, done]
    default: begun
  error:
    description:
      - Why the service may not be stopped, for O(state=refused).
    type: str
    default: ""
  patience:
    description:
      - How long the stop of the service is tried, in seconds, at most V(14400). After that, O(state=refused) fails. The service still runs then.
    type: float
    default: 1800
  task_tags:
    description:
      - Tags of each task in the group. They are compared with C(--tags) and C(--skip-tags).
    type: list
    elements: list
    default: []
notes:
  - It runs only on the control node, without a connection to a host.
seealso:
  - module: convoy.upgrade.push_run
"""

EXAMPLES = r"""
- name: Begin upgrade/nginx
  convoy.upgrade.push_step:
    task_group: upgrade/nginx
    task_tags: [[step3, upgrade, nginx]]
  register: upgrade_task_group

- name: Wait before the next try to stop the service
  convoy.upgrade.push_step:
    task_group: may_stop/haproxy_backend
    state: refused
    error: no other server of the backend is UP
    patience: 600
"""

RETURN = r"""
run:
  description: Whether to run the tasks of the group on this host.
  returned: with O(state=begun)
  type: bool
why:
  description: Why the tasks are skipped. Empty if they run.
  returned: with O(state=begun)
  type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(may_not_stop), V(no_push), V(once_failed), V(once_gone), V(not_admitted) or V(unknown_task_group).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
