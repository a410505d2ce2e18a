# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the state of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_host_report
short_description: Report that a host has started, finished or failed its upgrade
version_added: 0.1.0
description:
  - Writes the host record in Consul, which planners read.
  - V(upgraded) also moves the host to O(version) in C(running/versions), in the same transaction.
  - V(started) is refused with the code V(not_admitted) unless the host is admitted to O(version). The same transaction compares the gates
    and holds. A host that has started may report its next O(service) or O(step) without admission.
  - A repeated report changes nothing.
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
      - Name of the host, as in the fleet of the planner.
    type: str
    required: true
  version:
    description:
      - Version that the host upgrades to, or has reached. Required unless O(state=delivered).
    type: str
    default: ""
  state:
    description:
      - V(started) means that the upgrade began. The host counts as down until it reports again.
      - V(upgraded) means that the host runs O(version). It clears a failure.
      - V(failed) means that the upgrade failed. The host keeps its slot.
      - V(held) means that the host must not be upgraded now, for O(reason), for example because its Puppet is disabled. It is held until the
        next report of any state but V(delivered) and V(enrolled). V(released) only ends this hold. Both leave the rest of the record unchanged.
      - V(delivered) only stores O(services), O(role) and O(release) in the record of a host, if it has one. It needs O(services)
        or O(role).
      - V(enrolled) means that the files of the host name O(version), though no run has brought it there. It is V(upgraded) for a host that has no
        record or is upgraded. It is V(delivered) for one that has started, failed, was retried for O(version) or is held by its own report.
    type: str
    required: true
    choices: [started, upgraded, failed, held, released, delivered, enrolled]
  admitted:
    description:
      - Whether V(started) needs an admission. That means that the gate of the host, its role or the fleet is open, no hold covers the host, and
        C(current_version) is O(version).
      - Set it to V(false) only if something other than this collection decides which host starts.
    type: bool
    default: true
    version_added: 0.1.0
  role:
    description:
      - Role in the settings of the host. Its gate and hold count for the admission. A host with another role in the fleet is not admitted. The
        default of V(started), and of other reports with O(release), is the role that O(role_pattern) finds in O(name).
    type: str
    version_added: 0.1.0
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to O(name).
    type: str
    default: '([a-z]+)(\d+)(-.*)?'
    version_added: 0.1.0
  default:
    description:
      - Whether the host is admitted if no gate is set, as for P(convoy.upgrade.enable_puppet#lookup).
    type: bool
    default: true
    version_added: 0.1.0
  service:
    description:
      - Service that the host upgrades, if known.
    type: str
  step:
    description:
      - Step of the upgrade, if known.
    type: str
  error:
    description:
      - Error, for O(state=failed). Only the last 4000 characters are kept.
    type: str
  reason:
    description:
      - Reason of the hold. Required for O(state=held). A long text is shortened in the middle.
    type: str
  machine:
    description:
      - ID of the machine that reports, such as RV(convoy.upgrade.puppet_info#module:machine). Omit it if it is unknown.
      - The record stores it. If another machine reports under the same name, plans and the status show a warning until the host goes to
        another version, is retried or is forgotten.
      - While one machine has started and not ended, V(started), V(upgraded), V(failed) and V(enrolled) of the other fail with the code
        V(other_machine). They free no slot.
    type: str
    version_added: 0.1.0
  release:
    description:
      - Release of the node agent that reports. The record keeps it, and the status counts the releases. Omit it if something else reports.
    type: str
    version_added: 0.1.0
  services:
    description:
      - ID of the tasks of services that the host has, as M(convoy.upgrade.node_services) returns it. Empty if it has none. The record keeps it, and
        a rollout does not begin while it differs from those of the role.
    type: str
    version_added: 0.1.0
seealso:
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Report that the upgrade of this host began
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: started
    service: nova_compute
    step: stop

- name: Report that it failed
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: failed
    step: upgrade
    error: "apt-get: no space left on device"

- name: Report that the host must not be upgraded now
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: held
    reason: Puppet is disabled here, as its disk is being replaced

- name: Report that the host runs the new version
  convoy.upgrade.consul_upgrade_host_report:
    name: compute7
    version: "2.10"
    state: upgraded
"""

RETURN = r"""
record:
  description: The host record after the report.
  returned: success
  type: dict
  contains:
    version:
      description: Version that the host upgrades to, or has reached.
      type: str
    state:
      description: V(started), V(upgraded), V(failed) or V(retried).
      type: str
    service:
      description: Current service, or null.
      type: str
    step:
      description: Current step, or null.
      type: str
    attempt:
      description: How often the host started the upgrade to this version.
      type: int
    error:
      description: Error of a failed host, or null.
      type: str
    times:
      description: Maps states to the time when the host last entered them, in Unix seconds.
      type: dict
    reported:
      description: Version under which the host is listed in C(running/versions), if a report wrote it.
      type: str
    done:
      description: Task groups of this upgrade that are finished, such as C(upgrade/nginx). Only for hosts that run the tasks of
        services, by Ansible or by themselves.
      type: list
      elements: str
    post:
      description: State of its post-upgrade tasks, V(open), V(started), V(failed) or V(done). Null before they are admitted.
      type: str
    origin:
      description: Version before the upgrade. Set when the tasks of services begin on the host, until it reports that it is upgraded.
      type: str
    trail:
      description:
        - Steps of this upgrade, each as a list of its begin in Unix seconds, service and step. Both are empty if no step was active. Only the last
          entries are kept, in up to 4,000 characters.
      type: list
      elements: list
    failures:
      description:
        - Failures of this upgrade, including those from which the host recovered. Each is a list of the time in Unix seconds, attempt, service,
          step, the last 200 characters of the error, and the number of failures that it stands for. That is 1, but if all do not fit into 1,500
          characters, the first errors are left out, then the first failures, and the next one stands for these too.
      type: list
      elements: list
    former:
      description:
        - Upgrades of the host in earlier rollouts, shortened. Each may have RV(record.version), RV(record.state), RV(record.service), RV(record.step),
          RV(record.attempt), RV(record.error), RV(record.times), RV(record.trail) and RV(record.failures). Only the last entries are kept, in up to
          1,500 characters.
      type: list
      elements: dict
    held:
      description: Reason of the hold that the host reported, or null.
      type: str
    machine:
      description: ID of the machine that reported, or null.
      type: str
    other_machine:
      description: ID of another machine that reported under the same name, or null.
      type: str
    release:
      description: Release of the node agent that reported last, or null.
      type: str
    role:
      description: Role in the host's settings, as it last reported it, or null.
      type: str
    former_role:
      description: Role that it reported before, or null if its role has not changed since its last start. Empty if an operator has ended the hold of that
        role for the host.
      type: str
    services:
      description: ID of the tasks of services that the host has, or null.
      type: str
    next_step:
      description: First step that tags on the command line left to a later run, if its run ended between steps, or null.
      type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied) or V(bad_name).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import check_name
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    DEFAULT_ROLE_PATTERN,
    DELIVERED,
    ENROLLED,
    HELD,
    RELEASED,
    REPORTED_STATES,
    STARTED,
    compile_role_pattern,
    role_by_name,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import role_by_host_name
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, ModuleCall, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "default": ""},
    "state": {"type": "str", "required": True, "choices": [*REPORTED_STATES, HELD, RELEASED, DELIVERED, ENROLLED]},
    "service": {"type": "str"},
    "step": {"type": "str"},
    "error": {"type": "str"},
    "reason": {"type": "str"},
    "machine": {"type": "str"},
    "release": {"type": "str"},
    "services": {"type": "str"},
    "admitted": {"type": "bool", "default": True},
    "role": {"type": "str"},
    "role_pattern": {"type": "str", "default": DEFAULT_ROLE_PATTERN},
    "default": {"type": "bool", "default": True},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Write the report; return the result.

    :raises UpgradeError: what :func:`write_report` raises.
    """
    options = call.params
    report = HostReport(
        options["name"],
        *(options[name] for name in ("version", "state", "service", "step", "error", "reason")),
    )
    report = replace(
        report,
        machine=options["machine"] or None,
        release=options["release"] or None,
        services=options["services"],
        # The role in the host's settings. Planners open the gate of a role only if they know that no other host reads it.
        role=_role_in_settings(options) if options["state"] != STARTED else None,
    )
    if report.state == STARTED and options["admitted"]:
        # Before the role, so that an invalid name is reported as such, and not as a name without a role.
        check_name("host", report.host, "name")
        role = options["role"] or role_by_host_name(report.host, options["role_pattern"])
        report = replace(report, role=role, default=options["default"])
    record, changes = write_report(store, report, dry=call.check_mode)
    return {"record": record.plain(), **changed(changes)}


def _role_in_settings(options: Mapping[str, Any]) -> str | None:
    """Return the role by which a node agent reads its gate; None if something else reports, and gives no role."""
    if options["role"] or not options["release"]:
        return options["role"] or None
    return role_by_name(options["name"], compile_role_pattern(options["role_pattern"]))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
