# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Puppet once."""

from __future__ import annotations

DOCUMENTATION = r"""
module: puppet_run
short_description: Run Puppet once
version_added: 0.1.0
description:
  - Runs C(puppet apply) or C(puppet agent --onetime) with C(--detailed-exitcodes). Exit codes 0 and 2 are success.
  - If Puppet is already running, as an agent or through this module, it waits up to O(lock_timeout) seconds for the end of that run.
  - If C(puppet agent --disable) was given, it fails with that reason and does not run Puppet, not even C(puppet apply). The lock with
    which C(convoy-node) keeps out Puppet's own runs does not count.
  - With O(ignore:--check) or O(noop), Puppet runs with C(--noop), and the result shows whether it would change anything.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Puppet shows changes of files in its own output if O(arguments) include C(--show_diff).
  platform:
    platforms: posix
    support: full
options:
  kind:
    description:
      - V(apply) compiles the catalog on the node. V(agent) gets it from a Puppet server.
    type: str
    choices: [apply, agent]
    default: apply
  manifest:
    description:
      - File or folder with the manifests, for O(kind=apply). The default is those of O(environment), as C(puppet config print manifest) shows them.
    type: path
  modulepath:
    description:
      - Folders with modules, for O(kind=apply). The default is Puppet's configuration.
    type: list
    elements: path
    default: []
  environment:
    description:
      - Puppet's environment. The default is Puppet's configuration.
      - C({version}) stands for O(version). Characters that Puppet does not accept in the name of an environment become C(_), as in the environments
        that r10k makes of branches. V(release_{version}) for 2.10 is C(release_2_10).
      - With C({version}) and O(kind=agent), the run fails if the server has another environment for the node.
    type: str
  version:
    description:
      - Version that the run is for, if O(environment) has C({version}).
    type: str
  arguments:
    description:
      - Additional arguments for Puppet.
    type: list
    elements: str
    default: []
  executable:
    description:
      - Name or path of Puppet. A name is searched on C(PATH) and in the folder of Puppet's own packages.
    type: str
    default: puppet
  noop:
    description:
      - Only show what would change.
    type: bool
    default: false
  timeout:
    description:
      - Longest duration of the run in seconds. After that, the module kills it with all processes that it started.
    type: float
    default: 3600
  lock_timeout:
    description:
      - Longest time in seconds to wait for another run of Puppet, and for locks of the package manager. If Puppet fails because of such a lock, it runs
        again. With V(0), it fails at once, with the code V(puppet_locked).
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

- name: Show what Puppet would change
  convoy.upgrade.puppet_run:
    manifest: /etc/puppet/code/environments/production/manifests
    modulepath:
      - /etc/puppet/code/modules
    noop: true

- name: Apply the manifests of the environment of a version, release_2_10
  convoy.upgrade.puppet_run:
    environment: release_{version}
    version: "2.10"
"""

RETURN = r"""
command:
  description: The command that ran.
  returned: success
  type: list
  elements: str
exit_code:
  description: Puppet's exit code. Null if Puppet did not run, or was killed after O(timeout).
  returned: always
  type: int
output:
  description: Output of Puppet.
  returned: always
  type: str
seconds:
  description: Duration of the run.
  returned: success
  type: float
waited:
  description: Seconds that the module waited for another run of Puppet and for locks of the package manager.
  returned: success
  type: float
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(puppet_failed), V(puppet_timeout), V(puppet_locked), V(puppet_disabled) or
        V(not_runnable).
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
            "version": {"type": "str"},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "executable": {"type": "str", "default": "puppet"},
            "noop": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 3600},
            "lock_timeout": {"type": "float", "default": 600},
        },
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
                version=options["version"],
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

    # Not `rc`, because Ansible treats every `rc` except 0 as a failure.
    end(module, act, exit_code=None, output="")


if __name__ == "__main__":
    main()
