# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""May this host run Puppet?"""

from __future__ import annotations

DOCUMENTATION = r"""
name: enable_puppet
short_description: Tell whether a host may run Puppet
version_added: 0.1.0
author: The convoy.upgrade authors (@convoy-upgrade)
description:
  - Reads the gates in Consul. The host's value decides, else that of its role, else the global one.
  - A hold on the host, its role or everything closes it, whatever the gates say.
  - A gate that is not in its place is looked for where JioCloud's own code had it, so the answer is right before, during and after
    a migration of the keys.
  - However many hosts are asked for, it takes one request. Where a token is used and no hold is seen, a second
    one makes sure that there is none, as Consul hides from a token what it may not read. So does one for the gates, and where there
    is no global gate one for those of JioCloud's code.
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
      - Role of the hosts. Without it, each name tells its own by O(role_pattern).
    type: str
  role_pattern:
    description:
      - Regular expression whose first group is the role, searched for in the host's name.
    type: str
    default: '([a-z]+)(\d+)(-.*)?'
  default:
    description:
      - The answer where no gate is set. A fleet that no one is upgrading runs Puppet as usual.
    type: bool
    default: true
  version:
    description:
      - What gates that hold a version are compared to. Without it, C(current_version).
    type: str
  unreachable:
    description:
      - What a Consul that can't be reached means. V(fail) makes it an error, V(closed) an answer. It is never a yes.
      - Anything else that goes wrong, such as a value that can't be read or a token that is refused, stays an error.
    type: str
    choices: [fail, closed]
    default: fail
    version_added: 0.2.0
  detail:
    description:
      - Return a dictionary for each host instead of a boolean.
    type: bool
    default: false
notes:
  - A value that can't be read and a Consul that can't be reached are errors, never a yes.
seealso:
  - module: convoy.upgrade.consul_enable_puppet
"""

EXAMPLES = r"""
- name: Run Puppet only if this host may
  ansible.builtin.debug:
    msg: Puppet would run now
  when: lookup('convoy.upgrade.enable_puppet', 'compute7', role='compute')

- name: Say what decides
  ansible.builtin.debug:
    msg: "{{ lookup('convoy.upgrade.enable_puppet', 'compute7', detail=true) }}"

- name: Ask for several hosts at once
  ansible.builtin.debug:
    msg: "{{ query('convoy.upgrade.enable_puppet', 'compute7', 'compute8', default=false) }}"
"""

RETURN = r"""
_raw:
  description:
    - For each host whether it may run Puppet. With O(detail), a dictionary.
    - Its C(value) is the boolean, C(scope) where the deciding gate or hold stands (V(host), V(role), V(global), or
      V(default) where nothing is set, V(unreachable) where Consul could not be asked), C(key) the deciding key,
      C(hold) whether a hold did it, C(reason) all of that in a sentence, C(version) what C(current_version) was
      at that moment, and C(held) why the host says in its record that it holds itself, null where it does not.
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
        """Return the answers, in the order of the terms."""
        # Ansible hands a lookup its variables as they were written, templates and all.
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
            # Not from the error itself, as ansible-core 2.19 and later would tell the sentence twice.
            raise AnsibleLookupError(f"enable_puppet: {error.as_text()}") from None
        return [asdict(answers[name]) if self.get_option("detail") else answers[name].value for name in names]
