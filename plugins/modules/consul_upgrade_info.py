# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the state of a fleet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_info
short_description: Show the state of every host, and why hosts wait
version_added: 0.1.0
description:
  - Reads the state of the fleet from Consul and writes nothing there.
  - Also returns which hosts the next pass of M(convoy.upgrade.consul_upgrade_plan) would admit under the rules in the ledger.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: The module writes nothing.
  diff_mode:
    support: none
    details: Nothing is changed.
  platform:
    platforms: all
    support: full
options:
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to the names of reported hosts that O(fleet) does not list.
      - The default is the pattern in the ledger, else V(([a-z]+\)(\\d+\)(-.*\)?).
    type: str
  history:
    description:
      - Number of history entries to return.
    type: int
    default: 10
  name:
    description:
      - Host to explain, with its history. See RV(host).
      - The cost depends on the current rollout, not on the number of earlier ones.
    type: str
  hosts:
    description:
      - Names of hosts to return in RV(hosts), or V(all) for all hosts. With V(all), the result also has RV(status), RV(waves) and RV(wave_seconds).
      - A result without hosts is small, whatever the size of the fleet.
    type: list
    elements: str
    default: []
  job:
    description:
      - ID of the last job, to show it whether or not it is complete. Without it, a job is shown until it is complete, and rollouts to versions
        after that. The ID of any other job is refused.
      - V(last) stands for the last job, and has no effect if a rollout to a version has begun after it.
    type: str
  show:
    description:
      - Print the state of the fleet, or with O(name) the explanation of the host, for people.
    type: bool
    default: false
seealso:
  - module: convoy.upgrade.consul_upgrade_metrics
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Read the state of the fleet
  convoy.upgrade.consul_upgrade_info:
  register: fleet

- name: Read the state of each host
  convoy.upgrade.consul_upgrade_info:
    hosts: all
  register: fleet

- name: Explain one host
  convoy.upgrade.consul_upgrade_info:
    name: compute7
    history: 0
  register: explained
"""

RETURN = r"""
version:
  description: Version that the fleet is to run, or empty.
  returned: success
  type: str
  sample: "2.10"
previous_version:
  description: Version before the rollout, or empty if unknown.
  returned: success
  type: str
  sample: "2.8"
epoch:
  description: Epoch of the ledger, which counts planner writes.
  returned: success
  type: int
  sample: 7
index:
  description: Newest Consul index that was read.
  returned: success
  type: int
  sample: 4711
complete:
  description: Whether every host of the fleet is upgraded.
  returned: success
  type: bool
counts:
  description: Maps each of the six states to the number of its hosts.
  returned: success
  type: dict
  sample: {"upgraded": 1, "failed": 0, "lost": 0, "upgrading": 1, "held": 0, "pending": 0}
roles:
  description: Maps each role to the numbers of its hosts.
  returned: success
  type: dict
  contains:
    hosts:
      description: Number of hosts.
      type: int
    states:
      description: Maps each of the six states to the number of hosts.
      type: dict
    versions:
      description: Maps each version that hosts reported to their number. The empty version is for hosts that never reported.
      type: dict
  sample: {"controller": {"hosts": 1, "states": {"upgraded": 1, "failed": 0, "lost": 0, "upgrading": 0, "held": 0, "pending": 0}, "versions": {"2.10": 1}}}
reasons:
  description:
    - Why hosts are not upgraded, each reason once. States that need an operator come first.
    - Of each state and cause, the reasons after the first 100 become one, which counts them.
  returned: success
  type: list
  elements: dict
  contains:
    state:
      description: State of the hosts.
      type: str
    reason:
      description: The reason as a sentence.
      type: str
    cause:
      description: Code of the reason, as in RV(hosts.cause).
      type: str
    hosts:
      description: The first eight hosts, in natural order.
      type: list
      elements: str
    count:
      description: Number of hosts.
      type: int
  sample: [{"state": "pending", "reason": "waits for a slot", "cause": "cap", "hosts": ["compute2"], "count": 1}]
forecast:
  description: The forecast of the waves, if no host fails.
  returned: success
  type: dict
  contains:
    waves:
      description:
        - The first twelve waves, each with C(hosts) (the first eight), C(count) and C(seconds). The first wave has the hosts that the next pass would admit.
        - C(seconds) is how long the wave may take, from the last upgrades of the hosts (median per role), or V(0) if unknown. The time until a node
          asks for its gate is not included.
      type: list
      elements: dict
    more_waves:
      description: Number of the waves after these.
      type: int
    more_hosts:
      description: Number of the hosts in the waves after these.
      type: int
    seconds:
      description: Expected duration of all waves, or V(0) if unknown.
      type: float
  sample: {"waves": [{"hosts": ["compute1", "compute2"], "count": 2, "seconds": 310.0}], "more_waves": 0, "more_hosts": 0, "seconds": 310.0}
status:
  description: Maps each of the six states to its hosts, in natural order.
  returned: if O(hosts) has V(all)
  type: dict
  sample: {"upgraded": ["controller1"], "failed": [], "lost": [], "upgrading": ["compute1"], "held": [], "pending": []}
hosts:
  description: Maps the hosts of O(hosts) to their states.
  returned: success
  type: dict
  contains:
    role:
      description: Role of the host.
      type: str
    group:
      description: Group of the role, or null.
      type: str
    state:
      description: One of the six states.
      type: str
    version:
      description: Version that the host reported, or null.
      type: str
    reason:
      description: Why the host is in this state. For a pending host, what it waits for.
      type: str
    soaking:
      description: Whether the host reported the version and its health is not confirmed yet.
      type: bool
    started:
      description: Whether the host reported that it started an upgrade and has not reported its end.
      type: bool
    held:
      description: Whether a hold covers the host, in any state.
      type: bool
    holds_itself:
      description: Whether the host is held only because it reported so, for example because its Puppet is disabled.
      type: bool
    services:
      description: ID of the tasks of services that a pull host has, or null.
      type: str
    release:
      description: Release of the node agent that reported last, or null.
      type: str
    origin:
      description: Version before the upgrade. Set when the tasks of services begin on the host, until it reports that it is upgraded.
      type: str
    begun:
      description: Version that an unfinished upgrade of the host leads to, for example after a failure.
      type: str
    done:
      description: Task groups that are finished, such as V(stop/nginx), until the host is upgraded. After an upgrade to another version, only those
        of checkpoints, such as V(upgrade/nginx@2.4).
      type: list
      elements: str
    steps:
      description: Steps that the host has begun, such as V(stop), in any attempt and to any version, until it is upgraded.
      type: list
      elements: str
    cause:
      description:
        - Code of the reason why a host waits. Empty if RV(hosts.state) says it all.
        - One of V(cap), V(cap_zero), V(order), V(complete_sets), V(stage), V(soak), V(approval), V(rollback), V(paused), V(aborted), V(expired),
          V(failure_budget), V(role_budget), V(hours), V(other_role), V(other_services), V(admissible), V(limit), V(post_upgrade_failed) and V(no_version).
      type: str
    rule:
      description: Key of the instructions that makes the host wait, such as V(rolling_rules.global), or empty.
      type: str
    unadmitted:
      description: Whether the host reported that it started although its gate is closed and no planner admitted it.
      type: bool
    busy:
      description: Whether the host has started a job, or an upgrade while the rollout is a job, and not ended it.
      type: bool
    outside:
      description: Whether the host counts as upgraded only because a job is not for it. Then it is not in RV(counts) and RV(roles).
      type: bool
    stage:
      description: Number of the host's stage, in order. V(0) for the first stage, and without stages.
      type: int
    blocks:
      description: Whether hosts later in the order wait for this one.
      type: bool
waves:
  description: Hosts that the next pass would admit, then the forecast of the hosts after them.
  returned: if O(hosts) has V(all)
  type: list
  elements: list
  sample: [["compute1", "compute2"], ["compute3"]]
wave_seconds:
  description: Expected duration of each of RV(waves) in seconds, as in RV(forecast).
  returned: if O(hosts) has V(all)
  type: list
  elements: float
  sample: [310.0, 290.0]
can_move:
  description: Whether hosts are upgrading, can be admitted, or wait only for time, an approval or the end of a pause.
  returned: success
  type: bool
stage:
  description: Current stage, or empty without stages.
  returned: success
  type: str
  sample: canary
needs_approval:
  description: Whether RV(stage) is done and needs an operator's approval.
  returned: success
  type: bool
stages:
  description: Stages of the rollout, in the order in which they are upgraded. Empty without stages.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the stage.
      type: str
    state:
      description: V(done), V(current), V(soak) or V(approval) once all its hosts are upgraded, or V(waiting).
      type: str
    selects:
      description: Which hosts it has, as the rules say.
      type: str
    hosts:
      description: Number of its hosts.
      type: int
    upgraded:
      description: Number of its upgraded hosts.
      type: int
    upgrading:
      description: Number of its hosts that are being upgraded.
      type: int
    failed:
      description: Number of its failed and lost hosts.
      type: int
    soak:
      description: Seconds to wait after its last host was upgraded.
      type: int
    approve:
      description: Whether it needs an approval before the next stage begins.
      type: bool
    until:
      description: When its soak ends, in Unix seconds. V(0) if it does not soak now.
      type: float
    approved_by:
      description: Operator who approved it, or empty.
      type: str
  sample: [{"name": "canary", "state": "approval", "selects": "1 of each role", "hosts": 1, "upgraded": 1, "upgrading": 0, "failed": 0,
    "soak": 600, "approve": true, "until": 0, "approved_by": ""}]
needs_operator:
  description: What the rollout needs from an operator, the most important first. Empty if it continues without one.
  returned: success
  type: list
  elements: dict
  contains:
    code:
      description: V(approval), V(paused), V(aborted), V(failure_budget), V(broken_hosts), V(unadmitted), V(interrupted), V(stuck),
        V(post_upgrade), V(no_planner), V(may_start), V(earlier_job) or V(gates_closed).
      type: str
    text:
      description: A sentence.
      type: str
    playbook:
      description: Playbook that answers it, such as V(approve).
      type: str
    variables:
      description: Variables for the playbook.
      type: dict
    otherwise:
      description: Playbook for the opposite decision, or empty.
      type: str
    since:
      description: Since when it is needed, in Unix seconds, or V(0) if unknown.
      type: float
  sample: [{"code": "approval", "text": "Stage canary is done and needs an approval.", "playbook": "approve", "variables": {"stage": "canary"},
    "otherwise": "abort", "since": 1789000000}]
carried_by:
  description: Names of the planner services that carry the rollout.
  returned: success
  type: list
  elements: str
  sample: [planner1]
blocker:
  description: What blocks the whole rollout now. Empty if nothing does.
  returned: success
  type: dict
  contains:
    code:
      description: V(paused), V(aborted), V(expired), V(failure_budget) or V(hours).
      type: str
    reason:
      description: The reason as a sentence.
      type: str
    until:
      description: When it ends by itself, in Unix seconds. V(0) if it does not, or if that is unknown.
      type: float
order:
  description: Maps each role to the roles that go before it. In a rollback, RV(rollback_order) is already applied.
  returned: success
  type: dict
  sample: {"compute": ["controller"]}
post_upgrade:
  description: The first 100 hosts whose post-upgrade tasks are not finished; all if O(hosts) has V(all).
  returned: success
  type: list
  elements: str
more_post_upgrade:
  description: Number of the hosts that RV(post_upgrade) leaves out.
  returned: success
  type: int
rollback_order:
  description: V(reversed) or V(forward) in a rollback, else empty.
  returned: success
  type: str
  sample: reversed
providers:
  description: Maps providers, such as a cloud, to their state. A provider is no host but has a version.
  returned: success
  type: dict
  sample: {"cloud": {"version": "2.8", "target": "2.10", "state": "upgrading", "host": "controller1", "task_group": "upgrade/cloud@2.10",
    "done": [], "error": ""}}
releases:
  description: Maps each release of the node agent to the number of hosts that reported it last. Empty if Ansible upgrades the hosts.
  returned: success
  type: dict
  sample: {"0.1.0-3f6c1a90b2": 198, "0.1.0-77ab03cd11": 2}
holds:
  description:
    - Holds, including those for unknown hosts and roles, the global one first, then those of roles.
    - The first 100; all if O(hosts) has V(all).
  returned: success
  type: list
  elements: dict
  contains:
    scope:
      description: V(global), V(role) or V(host).
      type: str
    name:
      description: Role or host. Empty for V(global).
      type: str
    key:
      description: The Consul key.
      type: str
    reason:
      description: Reason of the hold.
      type: str
    by:
      description: Operator who set it.
      type: str
    at:
      description: When it was set, or empty if unknown.
      type: str
    hosts:
      description: Number of hosts that it covers.
      type: int
    upgraded:
      description: Number of these hosts that are upgraded.
      type: int
more_holds:
  description: Number of the holds that RV(holds) leaves out.
  returned: success
  type: int
blockers:
  description: Reasons why hosts are not upgraded, one sentence for each, with the hosts. Of each state, those after the first 100 share one.
  returned: success
  type: list
  elements: str
ledger:
  description: The ledger, with the rules of the rollout. Empty if there is none.
  returned: success
  type: dict
  sample: {"epoch": 7, "version": "2.10", "previous_version": "2.8", "state": "running", "since": 1789000000}
history:
  description: Entries of the history, the newest first. Each says what a write changed and why.
  returned: success
  type: list
  elements: dict
  sample: [{"epoch": 7, "what": "open", "hosts": {"compute1": "rolling_rules.global admits 1 of role compute at once"}}]
host:
  description: The host that O(name) names.
  returned: if O(name) is given
  type: dict
  contains:
    name:
      description: Name of the host.
      type: str
    role:
      description: Role of the host.
      type: str
    group:
      description: Group of the role, or null.
      type: str
    state:
      description: One of the six states.
      type: str
    version:
      description: Version that the host reported, or null.
      type: str
    reason:
      description: Why the host is in this state. For a pending host, what it waits for.
      type: str
    soaking:
      description: Whether the host reported the version and its health is not confirmed yet.
      type: bool
    started:
      description: Whether the host reported that it started an upgrade and has not reported its end.
      type: bool
    held:
      description: Whether a hold covers the host, in any state.
      type: bool
    holds_itself:
      description: Whether the host is held only because it reported so, for example because its Puppet is disabled.
      type: bool
    services:
      description: ID of the tasks of services that a pull host has, or null.
      type: str
    release:
      description: Release of the node agent that reported last, or null.
      type: str
    origin:
      description: Version before the upgrade. Set when the tasks of services begin on the host, until it reports that it is upgraded.
      type: str
    begun:
      description: Version that an unfinished upgrade of the host leads to, for example after a failure.
      type: str
    done:
      description: Task groups that are finished, such as V(stop/nginx), until the host is upgraded. After an upgrade to another version, only those
        of checkpoints, such as V(upgrade/nginx@2.4).
      type: list
      elements: str
    steps:
      description: Steps that the host has begun, such as V(stop), in any attempt and to any version, until it is upgraded.
      type: list
      elements: str
    cause:
      description:
        - Code of the reason why a host waits. Empty if RV(hosts.state) says it all.
        - One of V(cap), V(cap_zero), V(order), V(complete_sets), V(stage), V(soak), V(approval), V(rollback), V(paused), V(aborted), V(expired),
          V(failure_budget), V(role_budget), V(hours), V(other_role), V(other_services), V(admissible), V(limit), V(post_upgrade_failed) and V(no_version).
      type: str
    rule:
      description: Key of the instructions that makes the host wait, such as V(rolling_rules.global), or empty.
      type: str
    unadmitted:
      description: Whether the host reported that it started although its gate is closed and no planner admitted it.
      type: bool
    busy:
      description: Whether the host has started a job, or an upgrade while the rollout is a job, and not ended it.
      type: bool
    outside:
      description: Whether the host counts as upgraded only because a job is not for it. Then it is not in RV(counts) and RV(roles).
      type: bool
    stage:
      description: Number of the host's stage, in order. V(0) for the first stage, and without stages.
      type: int
    blocks:
      description: Whether hosts later in the order wait for this one.
      type: bool
    explanation:
      description:
        - Sentences that explain the state of the host, the reason and its rule, who can change it, and what comes next.
      type: list
      elements: str
    record:
      description: The host record, as in RV(convoy.upgrade.consul_upgrade_host_report#module:record), if there is one.
      type: dict
    events:
      description: Entries of the history about the host, the newest first. All of the current rollout and those among the 50 entries before it.
      type: list
      elements: dict
    older_events:
      description:
        - Whether there are older entries, which O(history) reads, or were some that the history no longer keeps.
      type: bool
    jobs:
      description: The last jobs that ended on the host, at most three, the newest first.
      type: list
      elements: dict
      contains:
        job:
          description: ID of the job.
          type: str
        command:
          description: Name of the command. Empty if the host refused the job before it knew the command.
          type: str
        state:
          description: V(done), V(failed) or V(lost).
          type: str
        exit_status:
          description: Exit status of the command, negative for a signal, or null if it did not run or end.
          type: int
        at:
          description: When it ended, in Unix seconds, by the clock of the host.
          type: int
        seconds:
          description: How long it took.
          type: float
        error:
          description: Why it failed, is lost, or was refused.
          type: str
        output:
          description: What it wrote, without the middle of a long output.
          type: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(denied) or V(unknown_host).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import needs_memory
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.info_result import info_result
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "role_pattern": {"type": "str"},
    "history": {"type": "int", "default": 10},
    "name": {"type": "str"},
    "job": {"type": "str"},
    "hosts": {"type": "list", "elements": "str", "default": []},
    # The action prints.
    "show": {"type": "bool", "default": False},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Read the state of the fleet; return it as the result.

    :raises UpgradeError: ``out_of_memory``, and what :func:`read_fleet` raises.
    """
    options = call.params
    with needs_memory("the fleet was read"):
        view = read_fleet(
            store,
            fleet=options["fleet"],
            role_pattern=options["role_pattern"],
            history=max(0, options["history"]),
            name=options["name"],
            job=options["job"],
        )
        for warning in view.warnings:
            call.warn(warning)
        return info_result(view, options["name"], options["hosts"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
