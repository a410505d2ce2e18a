# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line between two units of a host's turn: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_step
short_description: Begin a unit of a host's upgrade, and record where the host is
version_added: 0.2.0
description:
  - A unit is what a service does in a step, such as C(upgrade/nginx). When one begins, the one before it is finished. So the
    host's record always says at which service and step it is, for one request to Consul.
  - Says whether the tasks of the unit are to be run on this host. That is not so where an earlier run finished it, where the
    tags on the command line leave it out, and where another host does it for all. Before the next unit begins, the host
    waits until that is done, and fails if it failed.
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
  driver:
    description:
      - Folder of the run, as M(convoy.upgrade.push_daemon) returns it.
    type: path
    required: true
  unit:
    description:
      - Name of the unit, as M(convoy.upgrade.compose_upgrade_tasks) has it.
    type: str
    required: true
  state:
    description:
      - V(begun) begins it.
      - V(done) ends one that this host runs for all, so that the others go on, or one of a path, so that it is not run again.
    type: str
    choices: [begun, done]
    default: begun
  task_tags:
    description:
      - The tags of each of its tasks, from which follows whether the tags on the command line choose them.
    type: list
    elements: list
    default: []
notes:
  - It runs on the controller alone, and needs no connection.
seealso:
  - module: convoy.upgrade.push_daemon
"""

EXAMPLES = r"""
- name: Begin upgrade/nginx
  convoy.upgrade.push_step:
    driver: "{{ upgrade_daemon }}"
    unit: upgrade/nginx
    task_tags: [[step3, upgrade, nginx]]
  register: upgrade_unit
"""

RETURN = r"""
run:
  description: Whether the tasks of the unit are to be run on this host.
  returned: with O(state=begun)
  type: bool
why:
  description: Why not. Empty if they are.
  returned: with O(state=begun)
  type: str
failure:
  description: What went wrong.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(no_driver), C(once_failed), C(once_gone), C(not_let_through) or C(unknown_unit).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
