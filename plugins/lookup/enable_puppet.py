# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look up whether hosts may run Puppet."""

from __future__ import annotations

DOCUMENTATION = r"""
name: enable_puppet
short_description: Return whether a host may run Puppet
version_added: 0.1.0
author: The convoy.upgrade authors (@convoy-upgrade)
description:
  - Reads the gates in Consul. The gate of the host applies, else that of its role, else the global one.
  - A hold on the host, its role or the whole fleet overrides open gates.
  - The keys of JioCloud's code are read too. One that an operator closed counts as a hold; an open one has no effect. So the result is correct
    before, during and after a migration.
  - It takes one request for any number of hosts. With a token, there are up to three more, because Consul hides keys that the token may not
    read. One checks that there are no holds, one that there are no gates, and one that there are no gates of JioCloud's code. Before the first
    rollout or hold, there is one more, and another one if the role of a host has changed.
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.consul.plugin
options:
  _terms:
    description:
      - Names of hosts.
    type: list
    elements: str
    required: true
  role:
    description:
      - Role of the hosts. The default is the role that O(role_pattern) finds in each name.
    type: str
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to the host name.
    type: str
    default: '([a-z]+)(\d+)(-.*)?'
  default:
    description:
      - Result if no gate is set. With the default, a fleet without a rollout runs Puppet as usual.
    type: bool
    default: true
  version:
    description:
      - Version to compare with gates that contain a version. The default is C(current_version).
    type: str
  unreachable:
    description:
      - Result if Consul is unreachable. V(fail) is an error, V(closed) returns a closed gate.
      - Other failures, such as an unreadable gate or a refused token, are always errors.
    type: str
    choices: [fail, closed]
    default: fail
    version_added: 0.1.0
  detail:
    description:
      - Return a dictionary for each host instead of a boolean.
    type: bool
    default: false
notes:
  - An unreadable gate or an unreachable Consul never opens a gate.
seealso:
  - module: convoy.upgrade.consul_enable_puppet
"""

EXAMPLES = r"""
- name: Run a task only if this host may run Puppet
  ansible.builtin.debug:
    msg: Puppet would run now
  when: lookup('convoy.upgrade.enable_puppet', 'compute7', role='compute')

- name: Show which gate applies
  ansible.builtin.debug:
    msg: "{{ lookup('convoy.upgrade.enable_puppet', 'compute7', detail=true) }}"

- name: Look up several hosts at once
  ansible.builtin.debug:
    msg: "{{ query('convoy.upgrade.enable_puppet', 'compute7', 'compute8', default=false) }}"
"""

RETURN = r"""
_raw:
  description:
    - Whether each host may run Puppet. With O(detail), a dictionary for each host.
    - C(value) is the boolean, and C(reason) explains it in a sentence. C(scope) is the scope of the gate or hold that applies, V(host), V(role) or
      V(global). It is V(default) if nothing is set, and V(unreachable) if Consul is unreachable.
    - C(key) is the key that applies, C(hold) whether it is a hold, and C(version) the value of C(current_version).
      C(held) is the reason of the hold in the record of the host, or null. C(pending) is whether the gate is closed only because a rollout has not
      admitted the host yet. C(started) is the version of an upgrade that the host has started and not ended, or null.
  type: list
  elements: raw
"""

import os
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import (
    ask_gate,
    closed_when_unreachable,
    role_by_host_name,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[Any], variables: Any = None, **kwargs: Any) -> list[Any]:
        """Return a boolean for each host, or a dictionary with ``detail``, in the order of the terms."""
        # Ansible does not template the variables that it passes to a lookup.
        given = {name: value for name, value in (variables or {}).items() if name.startswith("upgrade_consul_")}
        self.set_options(var_options=self._templar.template(given) if given else {}, direct=kwargs)
        try:
            names = [str(term) for term in self._flatten(terms)]
            role = self.get_option("role")
            hosts = {
                name: role if role is not None else role_by_host_name(name, self.get_option("role_pattern"))
                for name in names
            }
            if not hosts:
                return []
            store = Store(read_settings(self.get_option, os.environ))
            try:
                answers = ask_gate(store, hosts, default=self.get_option("default"), version=self.get_option("version"))
            except Unreachable as error:
                if self.get_option("unreachable") == "fail":
                    raise
                answers = closed_when_unreachable(error, hosts)
        except UpgradeError as error:
            # Without the cause, or ansible-core 2.19 and later show the message twice.
            raise AnsibleLookupError(f"enable_puppet: {error.as_text()}") from None
        return [asdict(answers[name]) if self.get_option("detail") else answers[name].value for name in names]
