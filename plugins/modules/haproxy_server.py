# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server behind a HAProxy."""

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_server
short_description: Take a server behind a HAProxy out, and put it back
version_added: 0.2.0
description:
  - Uses HAProxy's runtime API. It runs on the host of HAProxy, or reaches the API by the network, and needs no other program.
  - Waits until it took effect. A server that is taken out has no sessions any more, one that is put back is UP.
  - HAProxy forgets the state of its servers when it is reloaded or restarted, unless its configuration has it kept.
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
      - The backend, by its name in HAProxy's configuration.
    type: str
    required: true
  server:
    description:
      - The server, by its name there.
    type: str
    required: true
  state:
    description:
      - V(drained) gives it no new sessions, but those that have to stick to it. It is checked as before.
      - V(maintenance) gives it none at all, and does not check it.
      - V(ready) gives it sessions again.
      - A server in maintenance is not drained, as it gets nothing.
    type: str
    choices: [drained, maintenance, ready]
    required: true
  socket:
    description:
      - Path of the socket of the runtime API, or C(host:port). It needs C(level admin) in HAProxy's configuration.
    type: str
    default: /run/haproxy/admin.sock
  timeout:
    description:
      - Seconds to wait for the end of its sessions, or until it is UP.
    type: float
    default: 60
  shutdown_sessions:
    description:
      - Whether sessions that did not end within O(timeout) are cut off. Otherwise they are a failure.
    type: bool
    default: false
  others_up:
    description:
      - How many other servers of the backend have to be UP before this one is taken out. They too are waited for.
    type: int
    default: 0
  keep_maintenance:
    description:
      - Whether a server in maintenance stays there with O(state=ready), as somebody else put it there.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Take this web server out of the balancer
  convoy.upgrade.haproxy_server:
    backend: app
    server: "{{ inventory_hostname }}"
    state: drained
    others_up: 1
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
  description: What the server was.
  returned: success
  type: dict
  contains:
    state:
      description: V(drained), V(maintenance) or V(ready).
      type: str
    status:
      description: HAProxy's word for it, such as V(UP), V(DRAIN) or V(DOWN).
      type: str
    sessions:
      description: How many sessions it had.
      type: int
status:
  description: HAProxy's word for what it is now. In check mode, for what it was.
  returned: success
  type: str
sessions:
  description: How many sessions it has now.
  returned: success
  type: int
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(still_busy), V(not_up), V(too_few_servers), V(unknown_server) or V(haproxy_unreachable).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._node.haproxy import Runtime, ServerChange, set_server
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
            keep_maintenance=options["keep_maintenance"],
        )
        return set_server(
            Runtime(options["socket"]), options["backend"], options["server"], wish, dry=module.check_mode
        )

    end(module, act)


if __name__ == "__main__":
    main()
