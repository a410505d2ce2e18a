# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's turn: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_host
short_description: Wait until a host may go, and say how its turn ended
version_added: 0.2.0
description:
  - With O(state=begun) it waits until the planner lets the host through. That is the first task of each host, so that no more
    hosts are at work than the rules allow, whatever batches and forks Ansible uses.
  - A host that was let through and has not ended takes its turn up again without waiting, as it holds its slot already.
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
  state:
    description:
      - V(begun) waits until the host may go.
      - V(ended) reports that it is upgraded. With units left that the tags on the command line do not choose, it stays where it is.
      - V(failed) reports that it failed, at the step at which it is. It keeps its slot.
    type: str
    choices: [begun, ended, failed]
    required: true
  hosts:
    description:
      - Hosts that go together, for O(state=begun) of a wave. Without it, the host of the task goes by itself.
      - While others are at work, they wait until all of them fit under the caps. After that, those go that can.
    type: list
    elements: str
  error:
    description:
      - What went wrong, for O(state=failed).
    type: str
notes:
  - It runs on the controller alone, and needs no connection.
  - With C(strategy=host_pinned), as many hosts wait at once as there are forks. Ansible needs more of them than hosts may go at once.
seealso:
  - module: convoy.upgrade.push_daemon
"""

EXAMPLES = r"""
- name: Wait until the host may go
  convoy.upgrade.push_host:
    driver: "{{ upgrade_daemon }}"
    state: begun
  register: upgrade_admission

- name: Report that it is upgraded
  convoy.upgrade.push_host:
    driver: "{{ upgrade_daemon }}"
    state: ended
  when: upgrade_admission.go
"""

RETURN = r"""
go:
  description: Whether the host may go.
  returned: with O(state=begun), without O(hosts)
  type: bool
state:
  description:
    - With O(state=begun), the state in which the host is now, or V(taken) if another run drives it.
    - With O(state=ended), V(upgraded), or V(partial) if tags left something for later.
  returned: unless O(state=failed)
  type: str
reason:
  description: Why it may go or not.
  returned: with O(state=begun), without O(hosts)
  type: str
done:
  description: Units that it finished on an earlier run.
  returned: if it may go
  type: list
  elements: str
hosts:
  description: Maps the hosts of a wave to the same.
  returned: with O(hosts)
  type: dict
error:
  description: What was reported.
  returned: with O(state=failed)
  type: str
failure:
  description: What went wrong with the call itself.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as C(no_driver), C(once_failed) or C(taken).
      type: str
    message:
      description: The message of the failure.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
