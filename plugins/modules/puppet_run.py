# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of Puppet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: puppet_run
short_description: Run Puppet once
version_added: 0.2.0
description:
  - Runs C(puppet apply) or C(puppet agent --onetime) with C(--detailed-exitcodes). Exit codes 0 and 2 are success.
  - A run that is under way, of an agent or of this module, is waited for. It is no failure.
  - Where C(puppet agent --disable) was given, nothing is run, C(puppet apply) included. It fails with the reason that was given there.
  - With O(ignore:--check) or O(noop), Puppet runs with C(--noop), and the result tells whether it would change something.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Puppet shows the changes of files in its own output, with C(--show_diff) among the O(arguments).
  platform:
    platforms: posix
    support: full
options:
  kind:
    description:
      - Whether the node compiles its own catalog (V(apply)) or asks a server for it (V(agent)).
    type: str
    choices: [apply, agent]
    default: apply
  manifest:
    description:
      - File or folder with the manifests, for O(kind=apply).
    type: path
  modulepath:
    description:
      - Folders with modules, for O(kind=apply). Without them, those that Puppet is configured for.
    type: list
    elements: path
    default: []
  environment:
    description:
      - Puppet's environment. Without it, the one that Puppet is configured for.
    type: str
  arguments:
    description:
      - More arguments for Puppet.
    type: list
    elements: str
    default: []
  executable:
    description:
      - Name or path of Puppet. It is looked for on C(PATH), and where Puppet's own packages put it.
    type: str
    default: puppet
  noop:
    description:
      - Only tell what would be changed.
    type: bool
    default: false
  timeout:
    description:
      - Seconds that the run may take. Then it is ended, with all that it has started.
    type: float
    default: 3600
  lock_timeout:
    description:
      - Seconds to wait for another run to end.
    type: float
    default: 600
seealso:
  - module: convoy.upgrade.puppet_info
  - module: convoy.upgrade.node_validate
"""

EXAMPLES = r"""
- name: Apply the node's manifests
  convoy.upgrade.puppet_run:
    manifest: /etc/puppet/code/environments/production/manifests

- name: See what Puppet would change
  convoy.upgrade.puppet_run:
    manifest: /etc/puppet/code/environments/production/manifests
    modulepath:
      - /etc/puppet/code/modules
    noop: true
"""

RETURN = r"""
command:
  description: The command that was run.
  returned: success
  type: list
  elements: str
exit_code:
  description: Puppet's exit code. Null if it was ended for taking too long, or never ran.
  returned: always
  type: int
output:
  description: All that Puppet printed.
  returned: always
  type: str
seconds:
  description: How long Puppet ran.
  returned: success
  type: float
waited:
  description: For how many seconds another run was waited for.
  returned: success
  type: float
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(puppet_failed), V(puppet_timeout), V(puppet_locked), V(puppet_disabled) or V(not_runnable).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._node.puppet import PuppetOptions, run_puppet
from ansible_collections.convoy.upgrade.plugins.module_utils._result import end


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": ["apply", "agent"], "default": "apply"},
            "manifest": {"type": "path"},
            "modulepath": {"type": "list", "elements": "path", "default": []},
            "environment": {"type": "str"},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "executable": {"type": "str", "default": "puppet"},
            "noop": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 3600},
            "lock_timeout": {"type": "float", "default": 600},
        },
        required_if=[("kind", "apply", ("manifest",))],
        supports_check_mode=True,
    )
    options = module.params

    def act() -> dict[str, Any]:
        done = run_puppet(
            PuppetOptions(
                kind=options["kind"],
                manifest=options["manifest"],
                modulepath=options["modulepath"],
                environment=options["environment"],
                arguments=options["arguments"],
                executable=options["executable"],
                noop=options["noop"] or module.check_mode,
                seconds=options["timeout"],
                lock_seconds=options["lock_timeout"],
            )
        )
        return {
            "changed": done.changed,
            "command": done.command,
            "exit_code": done.code,
            "output": done.output,
            "seconds": round(done.seconds, 3),
            "waited": round(done.waited, 3),
        }

    # Not `rc`, as Ansible takes every `rc` but 0 for a failure.
    end(module, act, exit_code=None, output="")


if __name__ == "__main__":
    main()
