# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that begins and ends the upgrade of a push host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_host
short_description: Wait for the admission of a push host, and report the end of its upgrade
version_added: 0.1.0
description:
  - With O(state=begun), it waits until the planner admits the host. As this is the first task of each host, the rules hold whatever forks and
    batches Ansible uses. In the playbooks, a host gets this task only when its admission is decided, so that hosts that wait take no fork.
  - A host that was admitted by an earlier run and has not ended continues without waiting, because it still has its slot.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: partial
    details: Validation is reported in check mode too. The playbooks admit no host then.
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  state:
    description:
      - V(valid) reports that the host can be upgraded, V(invalid) that it can't, and why. M(convoy.upgrade.push_run) writes the holds.
      - V(begun) waits for the admission of the host.
      - V(ended) reports that the host is upgraded. If C(--tags) left out task groups, the host stays in its state.
      - V(failing) lists the services that were drained, if nothing on the host was stopped or upgraded after that.
      - V(failed) reports that the host failed at its current step. It keeps its slot.
    type: str
    choices: [valid, invalid, begun, ended, failing, failed]
    required: true
  hosts:
    description:
      - Hosts of a wave, for O(state=begun). The default is only the host of the task.
      - While other hosts are upgrading, the wave waits until all its hosts fit under the caps. Otherwise those that fit are admitted.
    type: list
    elements: str
  unreachable:
    description:
      - Hosts of the wave that can't be reached, for O(state=begun). They are not admitted.
    type: list
    elements: str
    default: []
  goes_last:
    description:
      - Whether the host goes after the other hosts of its role in this run, such as the primary of a database. For O(state=valid).
    type: bool
    default: false
  puppet_disabled:
    description:
      - Reason that was given to C(puppet agent --disable) on the host, for O(state=valid). The run holds the host, and the others go.
      - Empty if Puppet is enabled, which ends the hold of an earlier run. Without this option, that hold stays.
    type: str
  error:
    description:
      - Error of the host, for O(state=failing), O(state=failed) and O(state=invalid).
    type: str
notes:
  - It runs only on the control node, without a connection to a host.
seealso:
  - module: convoy.upgrade.push_run
"""

EXAMPLES = r"""
- name: Report that the host can be upgraded
  convoy.upgrade.push_host:
    state: valid

- name: Report that it can be upgraded, after the other hosts of its role
  convoy.upgrade.push_host:
    state: valid
    goes_last: true

- name: Hold the host, as its Puppet is disabled
  convoy.upgrade.push_host:
    state: valid
    puppet_disabled: the disk is being replaced

- name: Wait for the admission of the host
  convoy.upgrade.push_host:
    state: begun
  register: upgrade_admission

- name: Report that the host is upgraded
  convoy.upgrade.push_host:
    state: ended
  when: upgrade_admission.go
"""

RETURN = r"""
go:
  description: Whether the host is admitted.
  returned: with O(state=begun), without O(hosts)
  type: bool
state:
  description:
    - With O(state=begun), the state of the host, or V(leased) if another run has its lease.
    - With O(state=ended), V(upgraded), or V(partial) if C(--tags) left out task groups.
  returned: with O(state=begun) without O(hosts), and with O(state=ended)
  type: str
reason:
  description: Why the host is admitted or not.
  returned: with O(state=begun), without O(hosts)
  type: str
done:
  description: Task groups that an earlier run finished.
  returned: if the host is admitted
  type: list
  elements: str
hosts:
  description: Maps each host of the wave to its RV(go), RV(state), RV(reason) and RV(done).
  returned: with O(hosts)
  type: dict
error:
  description: The reported error.
  returned: with O(state=failing), O(state=failed) and O(state=invalid)
  type: str
drained:
  description:
    - Services whose tasks of the step C(drain) have begun. Empty if the host has begun to stop or upgrade any service, because its services may be
      down then.
  returned: with O(state=failing)
  type: list
  elements: str
service:
  description: The service whose tasks failed. Empty if the host has run none.
  returned: with O(state=failed)
  type: str
step:
  description: The step that failed. Empty if the host has run none.
  returned: with O(state=failed)
  type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(no_daemon), V(no_push), V(once_failed) or V(leased).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
