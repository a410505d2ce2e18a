# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of its upgrade."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_host_report
short_description: Report that a host has started, finished or failed its upgrade
version_added: 0.1.0
description:
  - Writes what a node has to say into Consul, where the planner reads it.
  - V(upgraded) puts the host under its version in C(running/versions), and takes it away from the one that it
    stood under before, in the same transaction. What that costs does not grow with the fleet.
  - V(started) is refused with the code V(not_admitted) unless the host is admitted to O(version) at that very moment, which one
    transaction compares. The next O(service) or O(step) of a host that has started is not refused.
  - Reporting the same again changes nothing.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: all
    support: full
options:
  name:
    description:
      - Name of the host, as the planner knows it.
    type: str
    required: true
  version:
    description:
      - Version that the host moves to, or has reached.
    type: str
    required: true
  state:
    description:
      - V(started) takes it for down until it reports again. V(upgraded) means that it runs O(version), and clears
        a failure. V(failed) keeps its slot, so that no other host follows it into the same trouble.
      - V(held) means that the host must not be upgraded now, for O(reason), as where its Puppet is disabled. It counts as held until it
        reports anything else; V(released) ends just that. Both leave the rest of the record as it is.
    type: str
    required: true
    choices: [started, upgraded, failed, held, released]
  admitted:
    description:
      - Whether V(started) needs an admission. The gate of the host, its role or the fleet has to be open, no hold may be over it, and
        C(current_version) has to be O(version).
      - Turn it off only where something else than this collection decides which host starts.
    type: bool
    default: true
    version_added: 0.2.0
  role:
    description:
      - Role of the host, whose gate and hold count for an admission. Without it, O(name) tells it by O(role_pattern).
    type: str
    version_added: 0.2.0
  role_pattern:
    description:
      - Regular expression whose first group is the role, searched for in O(name).
    type: str
    default: '([a-z]+)(\d+)(-.*)?'
    version_added: 0.2.0
  default:
    description:
      - Whether the host is admitted where no gate is set, as for P(convoy.upgrade.enable_puppet#lookup).
    type: bool
    default: true
    version_added: 0.2.0
  service:
    description:
      - Service that it is at, if known.
    type: str
  step:
    description:
      - Step of the upgrade that it is at, if known.
    type: str
  error:
    description:
      - Why it failed, for O(state=failed). Of a long text the last 4000 characters are kept.
    type: str
  reason:
    description:
      - Why it is held, needed for O(state=held). Of a long text the beginning and the end are kept.
    type: str
  machine:
    description:
      - ID of the machine that reports, such as RV(convoy.upgrade.puppet_info#module:machine). Leave it out where that is not known.
      - The record keeps it. If another machine reports under the same name, that is a warning of each plan and status until the host goes to
        another version, is retried or is forgotten.
      - While the one has started and not ended, V(started), V(upgraded) and V(failed) of the other fail with the code V(other_machine). So they
        give back no slot.
    type: str
    version_added: 0.3.0
seealso:
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Say that this host begins
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: started
    service: nova_compute
    step: stop

- name: Say that it could not
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: failed
    step: upgrade
    error: "apt-get: no space left on device"

- name: Say that it must not be upgraded for now
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: held
    reason: Puppet is disabled here, as its disk is being replaced

- name: Say that it runs the new version
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: upgraded
"""

RETURN = r"""
record:
  description: The host's record after the report.
  returned: success
  type: dict
  contains:
    version:
      description: Version that it moves to, or has reached.
      type: str
    state:
      description: Its state, V(started), V(upgraded), V(failed) or V(retried).
      type: str
    service:
      description: Service that it is at.
      type: str
    step:
      description: Step that it is at.
      type: str
    attempt:
      description: How many times it started this version.
      type: int
    error:
      description: Why it failed.
      type: str
    times:
      description: State to the time it was last entered, in unix seconds.
      type: dict
    reported:
      description: Version under which it stands in C(running/versions), if a report put it there.
      type: str
    done:
      description: What Ansible has finished of the upgrade to this version, in units such as C(upgrade/nginx).
      type: list
      elements: str
    post:
      description: Where it is with the tasks after the upgrade, C(open), C(started), C(failed) or C(done), null before.
      type: str
    origin:
      description: Version that it came from, once Ansible has begun to upgrade it and until it reports.
      type: str
    trail:
      description:
        - The steps that it went through on the way to this version, each as a list of the unix time at which it began, the service and the
          step, both empty where it was at none any more. It has the last ones, in up to 4,000 characters.
      type: list
      elements: list
    failures:
      description:
        - Its failures on the way to this version, those that it has recovered from too, each as a list of the unix time, the attempt, the
          service, the step and the last 200 characters of the error. It has the last ones, in up to 1,500 characters.
      type: list
      elements: list
    former:
      description:
        - Its moves to other versions before this one, each with what there is of RV(record.version), RV(record.state), RV(record.service),
          RV(record.step), RV(record.attempt), RV(record.error), RV(record.times), RV(record.trail) and RV(record.failures), shortened. It has the last ones, in
          up to 1,500 characters.
      type: list
      elements: dict
    held:
      description: Why it holds itself, null where it does not.
      type: str
    machine:
      description: ID of the machine that reported, null where none was given.
      type: str
    other_machine:
      description: ID of another machine that reported under the same name, null where there is none.
      type: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(denied) or V(bad_name).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import check_name
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    DEFAULT_ROLE_PATTERN,
    HELD,
    RELEASED,
    REPORTED_STATES,
    STARTED,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import role_by_host_name
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": [*REPORTED_STATES, HELD, RELEASED]},
            "service": {"type": "str"},
            "step": {"type": "str"},
            "error": {"type": "str"},
            "reason": {"type": "str"},
            "machine": {"type": "str"},
            "admitted": {"type": "bool", "default": True},
            "role": {"type": "str"},
            "role_pattern": {"type": "str", "default": DEFAULT_ROLE_PATTERN},
            "default": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        word = HostReport(
            options["name"],
            *(options[name] for name in ("version", "state", "service", "step", "error", "reason")),
        )
        word = replace(word, machine=options["machine"] or None)
        if word.state == STARTED and options["admitted"]:
            # A name that can't be one is refused for that, before its role is looked for in it.
            check_name("host", word.host, "name")
            role = options["role"] or role_by_host_name(word.host, options["role_pattern"])
            word = replace(word, role=role, default=options["default"])
        record, changes = write_report(store, word, dry=module.check_mode)
        return {"record": record.plain(), **changed(changes)}

    run(module, act)


if __name__ == "__main__":
    main()
