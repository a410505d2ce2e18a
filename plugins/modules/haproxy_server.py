# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drain a server behind HAProxy, or put it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_server
short_description: Drain a server behind HAProxy, or put it back
version_added: 0.1.0
description:
  - Uses HAProxy's runtime API, through a socket on the host or over the network. It needs no other program.
  - Waits until the state is reached. A drained server or one in maintenance has no sessions left. A ready server is UP.
  - HAProxy loses the state of its servers when it reloads or restarts, unless its configuration keeps it.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
    support: full
options:
  backend:
    description:
      - Name of the backend in HAProxy's configuration.
    type: str
    required: true
  server:
    description:
      - Name of the server in the backend.
    type: str
    required: true
  state:
    description:
      - V(drained) stops new sessions, except those that must stick to the server. Health checks continue.
      - V(maintenance) stops all sessions and health checks.
      - V(ready) sends sessions to the server again.
      - V(drained) leaves a server in maintenance as it is, because it gets no sessions.
    type: str
    choices: [drained, maintenance, ready]
    required: true
  socket:
    description:
      - Path of the socket of the runtime API, or C(host:port). In HAProxy's configuration it needs C(level admin).
    type: str
    default: /run/haproxy/admin.sock
  timeout:
    description:
      - Longest time in seconds to wait until its sessions have ended, or until it is UP.
    type: float
    default: 60
  shutdown_sessions:
    description:
      - Whether to cut off sessions that have not ended within O(timeout). Otherwise the module fails.
    type: bool
    default: false
  others_up:
    description:
      - How many other servers of the backend must be UP, with their last check passed, before this one is taken out. The module waits for them. Those
        marked C(backup) count only if this one is a backup too.
    type: int
    default: 0
  others_timeout:
    description:
      - Longest time in seconds to wait for O(others_up), such as for another host that is being upgraded.
      - The default is O(timeout). The wait for the sessions of this server has its own O(timeout).
    type: float
  keep_maintenance:
    description:
      - Whether a server in maintenance stays there with O(state=ready), for example because another operator put it there.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Drain this web server
  convoy.upgrade.haproxy_server:
    backend: app
    server: "{{ inventory_hostname }}"
    state: drained
    others_up: 1
    others_timeout: 1800
    timeout: 120
  delegate_to: balancer1

- name: Put it back
  convoy.upgrade.haproxy_server:
    backend: app
    server: "{{ inventory_hostname }}"
    state: ready
  delegate_to: balancer1
"""

RETURN = r"""
before:
  description: The server before the call.
  returned: success
  type: dict
  contains:
    state:
      description: V(drained), V(maintenance) or V(ready).
      type: str
    status:
      description: HAProxy's status, such as V(UP), V(DRAIN) or V(DOWN).
      type: str
    sessions:
      description: Number of sessions.
      type: int
status:
  description: HAProxy's status after the call. In check mode, the status before.
  returned: success
  type: str
sessions:
  description: Number of sessions after the call.
  returned: success
  type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(still_busy), V(not_up), V(too_few_servers), V(unknown_server) or
        V(haproxy_unreachable).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._node.haproxy import HaproxyApi, ServerChange, set_server
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "backend": {"type": "str", "required": True},
            "server": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drained", "maintenance", "ready"], "required": True},
            "socket": {"type": "str", "default": "/run/haproxy/admin.sock"},
            "timeout": {"type": "float", "default": 60},
            "shutdown_sessions": {"type": "bool", "default": False},
            "others_up": {"type": "int", "default": 0},
            "others_timeout": {"type": "float"},
            "keep_maintenance": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act() -> dict[str, Any]:
        wish = ServerChange(
            state=options["state"],
            seconds=options["timeout"],
            shut=options["shutdown_sessions"],
            others=options["others_up"],
            others_seconds=options["others_timeout"],
            keep_maintenance=options["keep_maintenance"],
        )
        return set_server(
            HaproxyApi(options["socket"]), options["backend"], options["server"], wish, dry=module.check_mode
        )

    end(module, act)


if __name__ == "__main__":
    main()
