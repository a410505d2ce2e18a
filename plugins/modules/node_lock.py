# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lock
short_description: Keep two runs of a playbook from working on a node at the same time
version_added: 0.2.0
description:
  - Takes a lock on the node that lasts over the tasks that follow, until it is freed or the playbook's run ends.
  - With O(ignore:ansible_connection=local), the lock goes with the process of C(ansible-playbook), even if it is killed.
  - Over SSH it goes with the connection, O(lease) seconds later, as a run may live on over another one.
  - A lock that another run has is no failure, see RV(acquired).
  - In check mode the lock is not taken, and RV(acquired) tells whether it could be.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: linux
    support: full
options:
  path:
    description:
      - The file that is locked. It is made if it is not there, and stays. So is its directory, if that is all that is missing.
      - The directory and the file have to belong to root or to the user, and no one else may write them.
    type: path
    default: /run/convoy/node.lock
  state:
    description:
      - V(present) takes the lock, V(absent) frees it if this run has it.
    type: str
    choices: [present, absent]
    default: present
  lease:
    description:
      - Seconds for which the lock lasts after the end of an SSH connection.
    type: float
    default: 600
  who:
    description:
      - Who is at work, for others who find the lock taken. Without it, the user and the machine that started the run.
    type: str
  run:
    description:
      - What tells this run from all others. It is filled in by the plugin on the controller, whatever is given.
    type: str
  process:
    description:
      - The process with which the run ends. It is filled in by the plugin on the controller, whatever is given.
    type: int
notes:
  - The lock is no change of the node, so the module never reports one.
"""

EXAMPLES = r"""
- name: Take the lock
  convoy.upgrade.node_lock:
    path: /run/convoy/node.lock
  register: lock

- name: Do what only one may do at a time
  ansible.builtin.debug:
    msg: at work
  when: lock.acquired

- name: Free the lock
  convoy.upgrade.node_lock:
    path: /run/convoy/node.lock
    state: absent
"""

RETURN = r"""
acquired:
  description: Whether this run has the lock now.
  returned: success
  type: bool
released:
  description: Whether this run had the lock, and has it no more.
  returned: success
  type: bool
holder:
  description: Who has the lock. Null where no one has it, or no one has said so yet.
  returned: success
  type: dict
  contains:
    who:
      description: The run, in words.
      type: str
    since:
      description: Since when, in unix seconds.
      type: int
    pid:
      description: Number of the process on the node that holds the lock.
      type: int
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, V(bad_lock_file).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import ssh_connection_pid
from ansible_collections.convoy.upgrade.plugins.module_utils._node.lock import LockRequest, acquire_lock, release_lock
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/run/convoy/node.lock"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "lease": {"type": "float", "default": 600},
            # What the action plugin knows and the node does not.
            "who": {"type": "str"},
            "run": {"type": "str"},
            "process": {"type": "int"},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act() -> dict[str, Any]:
        if options["state"] == "absent":
            released = not module.check_mode and release_lock(options["path"], options["run"] or "")
            return {"changed": False, "acquired": False, "released": released, "holder": None}
        local = options["process"]
        claim = LockRequest(
            run=options["run"] or "",
            who=options["who"] or "",
            process=ssh_connection_pid() if local is None else local,
            lease=options["lease"] if local is None else 0,
        )
        acquired, holder = acquire_lock(options["path"], claim, dry=module.check_mode)
        shown = {"who": holder.who, "since": holder.since, "pid": holder.pid} if holder else None
        return {"changed": False, "acquired": acquired, "released": False, "holder": shown}

    end(module, act)


if __name__ == "__main__":
    main()
