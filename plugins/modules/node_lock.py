# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the lock of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lock
short_description: Lock a node, so that only one run works on it at a time
version_added: 0.1.0
description:
  - Takes a lock on the node. The lock stays during the following tasks, until it is freed or the run ends.
  - With O(ignore:ansible_connection=local), the lock ends with the process of C(ansible-playbook), even if that is killed.
  - Over SSH, the lock ends O(lease) seconds after the connection, because a run may continue over another connection. Over any other connection, it
    ends O(lease) seconds after it was taken.
  - The module does not fail if another run has the lock. Check RV(acquired).
  - In check mode the lock is not taken. RV(acquired) shows whether it is free.
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
      - File to lock. It is created if missing, and stays. Its directory is created too, if its parent exists.
      - The directory and the file must belong to root or to the user, and no one else may write them.
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
      - Seconds until the lock ends after an SSH connection has closed.
    type: float
    default: 600
  who:
    description:
      - Name of the holder, shown to other runs. The default is the user and the machine that started the run.
    type: str
  run:
    description:
      - ID of the run. The action plugin on the control node sets it and overrides any value.
    type: str
  process:
    description:
      - ID of the process of the run. The action plugin on the control node sets it and overrides any value.
    type: int
notes:
  - The module never reports a change.
"""

EXAMPLES = r"""
- name: Take the lock
  convoy.upgrade.node_lock:
    path: /run/convoy/node.lock
  register: lock

- name: Work that only one run may do at a time
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
  description: Whether this run has the lock.
  returned: success
  type: bool
released:
  description: Whether this call freed the lock of this run.
  returned: success
  type: bool
holder:
  description: Holder of the lock. Null if it is free, if the holder is not known yet, and with O(state=absent).
  returned: success
  type: dict
  contains:
    who:
      description: Name of the holder.
      type: str
    since:
      description: When it took the lock, in Unix seconds.
      type: int
    pid:
      description: ID of the process on the node that holds the lock.
      type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: V(bad_lock_file).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
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
            # Set by the action plugin.
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
        request = LockRequest(
            run=options["run"] or "",
            who=options["who"] or "",
            process=ssh_connection_pid() if local is None else local,
            lease=options["lease"] if local is None else 0,
        )
        acquired, holder = acquire_lock(options["path"], request, dry=module.check_mode)
        shown = {"who": holder.who, "since": holder.since, "pid": holder.pid} if holder else None
        return {"changed": False, "acquired": acquired, "released": False, "holder": shown}

    end(module, act)


if __name__ == "__main__":
    main()
