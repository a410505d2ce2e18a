# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admit the next hosts of a rollout."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_plan
short_description: Begin or continue a rollout, and admit the next hosts that the rules allow
version_added: 0.1.0
description:
  - Makes a planner pass. It computes which hosts the rules admit, and opens their gates in Consul. An open gate wakes the agent of its node,
    which then begins the upgrade.
  - A new O(version) begins a rollout. One transaction sets C(current_version), removes all gates and closes the global one. The same version
    continues the rollout.
  - Several planners may run at once. Each write is a transaction that compares the ledger. If another planner wrote first, the pass is
    repeated.
  - With O(wait), it repeats passes until all hosts in scope are upgraded, and shows each change.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Nothing is written. The result is what a real call would do. O(wait) does not wait.
  diff_mode:
    support: full
    description: Shows every key before and after, except those of the history.
  platform:
    platforms: all
    support: full
options:
  version:
    description:
      - Version that the fleet is to run. Without it, the module continues the rollout in the ledger.
      - Quote it. YAML reads V(2.10) as the number 2.1.
    type: str
  instructions:
    description:
      - Rules of the rollout. The ledger stores them, so every planner applies them.
      - They are merged with O(instructions_file), key by key. If both give a rule with different values, the call is refused.
      - Without rules, a running rollout keeps the rules in the ledger, and a new one takes those of the last rollout.
      - New rules replace all rules of a running or paused rollout. If they omit a key that the rollout has, they are refused, V({}) included. To
        end a key, give it an empty value, such as C(stages=[]) or C(failure_rules={}).
      - C(rolling_rules.global) is the cap of each role or group without its own cap. C(rolling_rules.roles) maps roles or groups to their caps.
        C(rolling_rules.fleet) is an additional cap over all hosts.
      - A cap is a number of hosts, or a percentage of the members, rounded down but at least one host. V(0) admits no host. V(unlimited) for C(global)
        or a role means no cap. Rules that leave a role without a cap are refused.
      - C(rolling_rules.complete_sets) admits the next hosts only when no host is upgrading, failed or lost.
      - C(role_order) maps a role or group to the roles or groups that must be upgraded completely before it. C(role_dependencies) is another
        name for it.
      - C(group_mappings) maps a group to a regular expression, or a list of them. They match the names of its roles from the start. The roles
        of a group share its cap.
      - C(failure_rules) sets failure budgets, that is, how many failed or lost hosts stop admissions. It has the keys C(global), C(roles) and
        C(fleet), like C(rolling_rules).
      - C(health.soak) is how long a host must stay healthy after its report before it counts as upgraded. C(health.consul_checks) lists Consul
        checks that must pass on it. C(health.progress_deadline) is how long an admitted host may be silent before it is lost. Times are
        seconds, or a text such as V(15m).
      - C(stages) lists parts of the fleet that go one after the other. Each has C(name), C(hosts) (a number or percentage of each role, or a list
        of hosts), C(roles), C(soak) and C(approve). Hosts in no stage go last. C(soak) and C(approve) are refused if no stage follows.
      - C(windows) lists times at which hosts may be admitted, each with C(days), C(from), C(to) and C(timezone). C(freezes) lists times at which no
        host may, each with C(from), C(to), C(timezone) and C(reason). A freeze whose C(to) is a date ends when that day begins. Quote hours,
        with minutes, such as C("22:00").
      - A name in the rules that matches no role, group or host of the fleet is refused when a rollout begins and when its rules change.
        C(optional_names) lists names that may be absent, for rules that several fleets share.
      - C(rollback_order) is the order of a rollback, V(reversed) or V(forward). C(history.keep_rollouts) is how many rollouts the history keeps.
    type: dict
  instructions_file:
    description:
      - JSON or YAML file with instructions, on the host where the module runs.
      - Without it, a call that begins a rollout, or that has O(instructions), reads C(/etc/jio-upgrade.json) or C(/etc/jiocloud-upgrade.json) if it
        exists. O(instructions) override it, key by key. If both files exist with different content, the call fails. A rollout that continues without
        O(instructions) keeps its rules, and a rollback has those of the rollout before.
      - An empty value means no file.
    type: path
  role_order:
    description:
      - Order that is added to C(role_order) of the instructions, in the same form. Use it for order from another source. The default is the order
        of the planes in O(upgrade_roles); if you give both, include it with P(convoy.upgrade.plane_order#filter).
    type: dict
  roles_with_post_upgrade:
    description:
      - Roles whose hosts have post-upgrade tasks. They stay a part of the rollout, and all gates are opened only after them. Without this option, a
        rollout that continues keeps those in the ledger, and one that begins has none.
    type: list
    elements: str
  services:
    description:
      - For roles whose hosts run the tasks of services themselves, the C(tasks_id) in C(pull_roles) of M(convoy.upgrade.compose_upgrade_tasks). A
        host of such a role is admitted only if it has these tasks, as P(convoy.upgrade.puppet_gate#role) delivers them.
      - The ledger stores them. Without this option, a rollout that continues keeps those in the ledger, and one that begins has none.
    type: dict
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to the names of reported hosts that O(fleet) does not list. The ledger
        stores it.
      - The default is the pattern in the ledger, else V(([a-z]+\)(\\d+\)(-.*\)?).
    type: str
  limit:
    description:
      - Hosts that this call may admit, as host patterns. All others still count for the caps.
      - A pattern is the name of a host, role or group, a glob (V(web*\)), a regular expression for the beginning of a name (V(~web[0-9]\)) or a
        range of a role (V(web[0:2]\)). V(!web1) excludes hosts, and V(&web) keeps only these. A pattern that fits no host is refused.
      - With O(upgrade_roles), the groups of the inventory count too. An empty list admits no host.
    type: list
    elements: str
  converge:
    description:
      - When every host is upgraded, open the global gate and remove the gates of roles and hosts, in one transaction.
    type: bool
    default: false
  wait:
    description:
      - Repeat passes until all hosts in scope are upgraded. It waits with blocking queries. While Consul is unreachable, no host is admitted.
      - It fails with the reasons if nothing can continue, or after O(wait_timeout). The rollout is unchanged, and the next call continues it.
      - If a planner service runs, it also hands the rollout over, so that planner services carry it on if this call ends before the rollout.
        A handover without a limit stays as it is. Otherwise O(limit) replaces the one of an earlier handover. If the handover fails, such as
        with a token that may not write it, it warns and the call goes on. In check mode nothing is handed over.
    type: bool
    default: false
  wait_timeout:
    description:
      - Longest time to wait in seconds, with O(wait), O(since) or O(wait_for_other).
    type: int
    default: 14400
  hand_over:
    description:
      - Hand the rollout over to the planner services of the role P(convoy.upgrade.planner#role), which carry it to its end. They admit only hosts in
        O(limit), and only as long as C(current_version) and the ledger belong to this rollout.
      - Fails before anything is written if no planner service runs. It can't be combined with O(wait).
      - Then waits until a planner service carries the rollout, and fails if all refuse it, or if none answers within 20 seconds.
      - Only for hosts that upgrade themselves. Planner services run no Ansible tasks.
    type: bool
    default: false
  restart:
    description:
      - Begin an aborted rollout again. Without it, a call with the version of an aborted rollout fails.
      - Begin a complete rollout again, if hosts do not run its version, such as hosts that joined later. They are admitted under the rules then.
      - Begin a rollout to another version although hosts still have to run the post-upgrade tasks of the last one. Without it, such a call fails.
      - It has no effect on a running or paused rollout, except for one that other code began with an open global gate.
    type: bool
    default: false
  by:
    description:
      - Who begins the rollout, for the ledger and the history. Empty for the user and the machine that run the module.
      - It has no effect on a rollout that has begun, nor with O(job), which has O(job.by).
    type: str
    default: ""
  replace:
    description:
      - Version of the running or paused rollout that O(version) replaces. Without it, a call with another version fails while a rollout is running or
        paused.
      - The stages, approvals and failure budgets of the replaced rollout end. Its rules stay, unless you give others.
      - It has no effect if that rollout has ended, or if the rollout to O(version) has already begun. A rollback does not need it.
    type: str
  rollback:
    description:
      - Begin O(version) as a rollback, as M(convoy.upgrade.consul_upgrade_control) does. O(version) is required. Hosts that changed last go first,
        stages neither soak nor need approval, and no host waits for broken hosts. Without instructions, the rules of the replaced
        rollout apply.
      - In check mode, this shows the plan of a rollback before it begins. It has no effect if that rollback has already begun.
    type: bool
    default: false
  since:
    description:
      - RV(index) of an earlier call. The call first waits until something changes after it, at most O(wait_timeout) seconds. It never begins a
        rollout. O(wait) uses this option. It is here for your own loops.
    type: int
  epoch:
    description:
      - Newest RV(epoch) of an earlier call. If the ledger has a lower one, Consul was restored from an older snapshot, and the call fails. O(wait)
        uses this option. It is here for your own loops.
    type: int
    default: 0
  job:
    description:
      - Begin a job, that is, run a command of the nodes on the fleet under the rules of a rollout. A job is a rollout whose target is the job, and
        O(version) is C(job/<id>) then. Give O(version) alone to continue the job.
      - A job opens no gate of Puppet. While it is under way, no rollout to a version begins, and the other way round.
      - It can't be combined with O(version), O(rollback), O(restart), O(replace), O(converge) and O(since).
    type: dict
    suboptions:
      run:
        description: Name of the command, an executable in C(/etc/convoy/commands.d) of the nodes.
        type: str
        required: true
      args:
        description: Arguments of the command, as the schema beside it on the nodes allows them.
        type: dict
        default: {}
      only:
        description: Hosts that the job is for, as in O(limit). All others count as done. Without it, the job is for the whole fleet. An empty
          list is refused.
        type: list
        elements: str
      expires:
        description: Time after which no node begins the job, in seconds or as a text such as V(2h); at most 31 days.
        type: str
        default: 1d
      sign_with:
        description:
          - File of the private key to sign the job with, or of a public key whose private one an ssh-agent has. It is read on the host where the
            module runs.
          - Nodes with O(convoy.upgrade.puppet_gate#role:main:puppet_gate_require_signed_jobs) run only signed jobs.
        type: path
      by_ansible:
        description:
          - Whether Ansible runs tasks on the hosts, as M(convoy.upgrade.push_job) does. Nodes ignore such a job, and O(limit) is required, because only
            the run with the tasks admits hosts.
        type: bool
        default: false
      id:
        description: ID of the job. The default is the command, the time, and a random part.
        type: str
      by:
        description: Operator who begins the job. Empty for the user and the machine that run the module.
        type: str
        default: ""
      reason:
        description: Reason for the job, for the history.
        type: str
        default: ""
  wait_for_other:
    description:
      - Wait while another job or rollout is under way, for at most O(wait_timeout). Without it, the call fails and names the other one.
      - It has no effect in check mode.
    type: bool
    default: false
  hosts:
    description:
      - Names of hosts to return in RV(hosts), or V(all) for all hosts. With V(all), the result also has RV(status), RV(waves) and RV(wave_seconds).
      - A result without hosts is small, whatever the size of the fleet.
    type: list
    elements: str
    default: []
  show:
    description:
      - Print the rules and the waves of the plan for people. It has no effect with O(wait), except in check mode.
    type: bool
    default: false
  commit:
    description:
      - RV(commit) that came with O(epoch). If this epoch has another commit now, or is missing in the history, Consul was restored and another
        planner has written since. The call then fails too.
      - The call also fails if that epoch belongs to a rollout that the history no longer keeps.
    type: str
    default: ""
  began:
    description:
      - RV(began) of an earlier call. If another rollout has begun since then, also one to the same version, the call fails. O(wait) uses this
        option. It is here for your own loops.
    type: int
seealso:
  - module: convoy.upgrade.consul_upgrade_info
  - module: convoy.upgrade.consul_upgrade_host_report
"""

EXAMPLES = r"""
- name: Begin a rollout, first one controller at a time, then three computes at a time
  convoy.upgrade.consul_upgrade_plan:
    version: "2.10"
    instructions:
      rolling_rules:
        global: 1
        roles:
          compute: 3
      role_order:
        compute: controller

- name: Continue until every host is upgraded, then open all gates
  convoy.upgrade.consul_upgrade_plan:
    wait: true
    wait_timeout: 7200
    converge: true

- name: Show with which computes a job would begin, under the rules of the last rollout
  convoy.upgrade.consul_upgrade_plan:
    job:
      run: restart-nova
      args:
        grace: 30
      only: [compute]
      reason: new certificate
  check_mode: true

- name: Show the plan of a rollback
  convoy.upgrade.consul_upgrade_plan:
    version: "2.8"
    rollback: true
  check_mode: true

- name: Replace the running rollout, under the same rules
  convoy.upgrade.consul_upgrade_plan:
    version: "2.11"
    replace: "2.10"

- name: Continue with the hosts of one role only, at most a tenth of them at once
  convoy.upgrade.consul_upgrade_plan:
    version: "2.11"
    instructions:
      rolling_rules:
        global: 1
        roles:
          compute: 10%
      role_order:
        compute: controller
    limit:
      - compute
"""

RETURN = r"""
version:
  description: Target version of the rollout.
  returned: success
  type: str
  sample: "2.10"
previous_version:
  description:
    - Version before the rollout, or empty if unknown.
    - If the rollout before was not completed, its previous version.
  returned: success
  type: str
  sample: "2.8"
replaces:
  description:
    - The rollout that this call replaced, or would replace in check mode. Empty if it replaces none, and in a rollback.
  returned: success
  type: dict
  contains:
    version:
      description: Target version of the replaced rollout.
      type: str
    state:
      description: V(running) or V(paused).
      type: str
    who:
      description: Operator who began it.
      type: str
    since:
      description: When it began, in Unix seconds.
      type: int
epoch:
  description: Epoch of the ledger, which counts planner writes.
  returned: success
  type: int
  sample: 7
commit:
  description: Unique ID of the write of RV(epoch). Empty in check mode if something would be written.
  returned: success
  type: str
  sample: 5d0f9a7c6e1b4c0d8a3f2b1e9c7d6a54
began:
  description: When the rollout began, in Unix seconds. V(0) in check mode if something would be written.
  returned: success
  type: int
  sample: 1789000000
targets:
  description: Roles and hosts that a job is for. Empty for the whole fleet, and in a rollout to a version.
  returned: success
  type: dict
  sample: {"roles": ["compute"]}
handover:
  description: The handover of the rollout to planner services.
  returned: success
  type: dict
  contains:
    id:
      description: ID of the handover. Empty if the rollout is not handed over.
      type: str
    planners:
      description: Names of the planner services that have answered that they carry the rollout.
      type: list
      elements: str
    warning:
      description: Why the rollout was not handed over with O(wait), or which hosts planner services no longer carry. Empty for neither.
      type: str
planners:
  description: Names of the planner services that carry the rollout, in check mode of all that run.
  returned: with O(hand_over), unless nothing is left to do
  type: list
  elements: str
complete:
  description: Whether every host of the fleet is upgraded.
  returned: success
  type: bool
instructions:
  description: Rules of the rollout from all sources, in the form that the ledger stores.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}, "role_order": {"compute": ["controller"]}}
sources:
  description:
    - Maps each key of RV(instructions) to its source. The source is V(instructions), a file name, V(upgrade_roles) for O(role_order), or
      V(the ledger) for rules that were in force before, or several of these, joined by C( and ).
  returned: success
  type: dict
  sample: {"rolling_rules.global": "rules.yml", "role_order.compute": "upgrade_roles"}
counts:
  description: Maps each of the six states to the number of its hosts after the call.
  returned: success
  type: dict
  sample: {"upgraded": 1, "failed": 0, "lost": 0, "upgrading": 1, "held": 0, "pending": 0}
roles:
  description: Maps each role to the numbers of its hosts after the call.
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
  description: The forecast of the waves, if no host fails. With O(wait), that of the first pass, as for RV(waves), RV(wave_seconds), RV(replaces) and
    RV(sources).
  returned: success
  type: dict
  contains:
    waves:
      description:
        - The first twelve waves, each with C(hosts) (the first eight), C(count) and C(seconds). The first wave has the hosts that this call admitted.
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
blocked:
  description: Hosts that are in no wave of RV(forecast) and not upgrading.
  returned: success
  type: dict
  contains:
    outside:
      description: Hosts that O(limit) excludes. C(hosts) has the first eight of them, C(count) is their number.
      type: dict
    reasons:
      description: Why the other hosts are blocked, as in RV(reasons).
      type: list
      elements: dict
  sample: {"outside": {"hosts": [], "count": 0}, "reasons": []}
status:
  description: Maps each of the six states to its hosts after the call, in natural order.
  returned: if O(hosts) has V(all)
  type: dict
  sample: {"upgraded": ["controller1"], "failed": [], "lost": [], "upgrading": ["compute1"], "held": [], "pending": []}
hosts:
  description: Maps the hosts of O(hosts) to their states after the call.
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
admitted:
  description: Number of hosts that this call admitted, with O(wait) in all its passes.
  returned: success
  type: int
transitions:
  description: The hosts that this call admitted, with their states before and after. The first 100; without O(wait), all if O(hosts) has V(all).
  returned: success
  type: list
  elements: dict
  contains:
    host:
      description: Name of the host.
      type: str
    role:
      description: Role of the host.
      type: str
    from:
      description: State before.
      type: str
    to:
      description: State after.
      type: str
    reason:
      description: The rule that admitted it.
      type: str
waves:
  description:
    - Hosts that this call admitted, then the forecast of the waves after them if no host fails.
    - Empty if no host is left to admit.
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
done:
  description: Whether all hosts in scope (O(limit)) are upgraded.
  returned: success
  type: bool
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
blockers:
  description: Reasons why hosts in scope are not upgraded, one sentence for each, with the hosts. Of each state, those after the first 100 share one.
  returned: success
  type: list
  elements: str
wake_at:
  description: When the next change without a write may happen, such as the end of a soak, in Unix seconds. V(0) if none is expected.
  returned: success
  type: float
index:
  description: Newest Consul index that the plan has read, for O(since).
  returned: success
  type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(bad_instructions), V(unreachable), V(denied), V(stuck), V(timeout),
        V(too_slow), V(failure_budget), V(aborted), V(rules_left_out), V(conflicting_rules), V(unknown_names), V(rollout_under_way) or V(went_back).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    changed,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import (
    MOST_LISTED,
    blocked_summary,
    fleet_summary,
    forecast_summary,
    hosts_as_result,
    listed,
    rollout_summary,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import blocked_hosts
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import as_rollback
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import (
    HandedOver,
    hand_over,
    hand_over_while_waiting,
    handed_over,
    require_planner,
    wait_for_planner,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.job_request import as_data, requested_job
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.sources import RuleSource, of_call, origins
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_input import merged, sources_of
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import with_order
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "version": {"type": "str"},
    "instructions": {"type": "dict"},
    "instructions_file": {"type": "path"},
    "role_order": {"type": "dict"},
    "roles_with_post_upgrade": {"type": "list", "elements": "str"},
    "services": {"type": "dict"},
    "role_pattern": {"type": "str"},
    "limit": {"type": "list", "elements": "str"},
    "converge": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": False},
    "wait_timeout": {"type": "int", "default": 14400},
    "hand_over": {"type": "bool", "default": False},
    "restart": {"type": "bool", "default": False},
    "by": {"type": "str", "default": ""},
    "replace": {"type": "str"},
    "rollback": {"type": "bool", "default": False},
    "job": {
        "type": "dict",
        "options": {
            "run": {"type": "str", "required": True},
            "args": {"type": "dict", "default": {}},
            "only": {"type": "list", "elements": "str"},
            "expires": {"type": "str", "default": "1d"},
            "sign_with": {"type": "path"},
            "by_ansible": {"type": "bool", "default": False},
            "id": {"type": "str"},
            "by": {"type": "str", "default": ""},
            "reason": {"type": "str", "default": ""},
        },
    },
    # The action waits.
    "wait_for_other": {"type": "bool", "default": False},
    "since": {"type": "int"},
    "epoch": {"type": "int", "default": 0},
    "commit": {"type": "str", "default": ""},
    "began": {"type": "int"},
    "hosts": {"type": "list", "elements": "str", "default": []},
    # The action prints.
    "show": {"type": "bool", "default": False},
}
REQUIRED_IF: list[tuple[str, Any, tuple[str, ...]]] = [("rollback", True, ("version",))]


def as_result(
    outcome: PassResult,
    requested: Sequence[str] = (),
    sources: Sequence[RuleSource] = (),
    order: Mapping[str, Any] | None = None,
    handed: HandedOver | None = None,
    *,
    with_diff: bool = False,
) -> dict[str, Any]:
    """Return the result of the module for a pass.

    :param requested: the hosts to return.
    :param sources: the sources of the rules in this call.
    :param order: the order that this call added.
    :param handed: what it handed over after the pass.
    :param with_diff: whether the diff has all changes.
    """
    plan, ledger, hosts, replaces = outcome.plan, outcome.ledger, outcome.hosts(), outcome.replaces
    used = sources if outcome.begun or of_call(sources) else ()
    return {
        "version": plan.version,
        "previous_version": (ledger.previous_version if ledger else None) or "",
        "replaces": {name: getattr(replaces, name) for name in ("version", "state", "who", "since")}
        if replaces
        else {},
        "epoch": ledger.epoch if ledger else 0,
        "commit": ledger.commit if ledger else "",
        "began": ledger.since if ledger and ledger.commit else 0,
        "targets": {name: list(names) for name, names in ledger.targets.items()} if ledger else {},
        "complete": plan.complete,
        "instructions": dict(ledger.instructions) if ledger else {},
        "sources": origins(ledger.instructions if ledger else {}, used, with_order({}, order or {})),
        **fleet_summary(hosts),
        "forecast": forecast_summary(plan),
        "blocked": blocked_summary(plan, hosts),
        **hosts_as_result(plan, hosts, requested),
        "admitted": len(outcome.admissions),
        "transitions": listed(outcome.transitions(), requested),
        "done": plan.scope_done,
        "can_move": plan.can_move,
        **rollout_summary(outcome.snapshot, plan, requested),
        "handover": (handed or handed_over(outcome.snapshot, ledger)).as_result(),
        "providers": {name: one.plain() for name, one in outcome.snapshot.providers.items()},
        "blockers": blocked_hosts(plan, hosts),
        "wake_at": plan.wake_at or 0,
        "index": outcome.index,
        **changed(outcome.changes, None if with_diff else MOST_LISTED),
    }


def read_sources(options: Mapping[str, Any]) -> Sequence[RuleSource]:
    """Return the rules that the options give. After the first pass, the rules are in the ledger.

    :raises UpgradeError: what :func:`sources_of` raises.
    """
    if options["since"] is not None:
        return ()
    file = options["instructions_file"]
    return sources_of(options["instructions"], "" if file is None and options["rollback"] else file)


def as_request(store: Store, options: Mapping[str, Any], sources: Sequence[RuleSource]) -> PassRequest:
    """Return what the options ask of a pass.

    :param sources: what :func:`read_sources` returns.
    :raises UpgradeError: what :func:`merged`, :func:`requested_job` and :func:`as_rollback` raise.
    """
    named = of_call(sources)
    rules, all_rules = (merged(found) if found else None for found in (named, sources))
    job = None
    if options["job"] is not None:
        _refuse_with_job(options)
        asked = {**options["job"], "args": as_data(options["job"]["args"])}
        job = requested_job(store, asked, options["fleet"], options["role_pattern"], all_rules)
    request = PassRequest(
        version=job.target if job is not None else options["version"],
        job=job,
        rules=rules,
        rules_with_default=all_rules,
        role_order=options["role_order"],
        post_upgrade=options["roles_with_post_upgrade"],
        services=options["services"],
        fleet=options["fleet"],
        role_pattern=options["role_pattern"],
        limit=options["limit"],
        converge=options["converge"],
        restart=options["restart"],
        by=options["by"],
        replace=options["replace"],
        since=options["since"],
        epoch=options["epoch"],
        commit=options["commit"],
        began=options["began"] or None,
    )
    return as_rollback(store, request) if options["rollback"] else request


def _refuse_with_job(options: Mapping[str, Any]) -> None:
    given = [name for name in ("version", "rollback", "restart", "replace", "converge") if options[name]]
    if given or options["since"] is not None:
        raise UpgradeError(
            "bad_options",
            f"job and {given[0] if given else 'since'} can't be combined. Leave out {given[0] if given else 'job, and give version'}: a job has its own "
            "target, always begins a new rollout, and opens no gate of Puppet.",
        )


def hand_over_first(store: Store, outcome: PassResult, options: Mapping[str, Any]) -> HandedOver:
    """Hand the rollout of the first pass of a wait over; return what was handed over."""
    if outcome.ledger is None or outcome.plan.complete or outcome.plan.scope_done or options["since"] is not None:
        return HandedOver()
    handed = hand_over_while_waiting(store, outcome.ledger, options["limit"])
    outcome.changes += handed.changes
    return handed


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Make a pass; return its result.

    :raises UpgradeError: ``bad_options``, ``no_planner``, and what :func:`make_pass` raises.
    """
    options = call.params
    if options["hand_over"] and options["wait"]:
        raise UpgradeError(
            "bad_options",
            "hand_over and wait can't be combined: either this call waits for the rollout, or planner services do.",
        )
    planners = list(require_planner(store)) if options["hand_over"] else []
    sources = read_sources(options)
    request = as_request(store, options, sources)
    if options["since"] is not None:
        seen = store.wait_for_change(options["since"], options["wait_timeout"])
    # One slow try ends the call. The action plugin prints a line and tries again.
    outcome = make_pass(store, request, dry=call.check_mode, most_slow=1)
    if options["since"] is not None:
        outcome.index = max(outcome.index, seen)
    # No one has to carry a rollout that is over.
    hands_over = bool(planners) and bool(outcome.plan.post_upgrade or not outcome.plan.complete)
    handed = None
    if hands_over and outcome.ledger is not None:
        found = hand_over(store, outcome.ledger, options["limit"], dry=call.check_mode)
        outcome.changes += found.changes
        outcome.warnings += [found.warning] if found.warning else []
        if not call.check_mode:
            handed = replace(found, planners=wait_for_planner(store, found.id))
            planners = list(handed.planners)
    elif options["wait"] and not call.check_mode:
        # The action makes the passes after this one.
        handed = hand_over_first(store, outcome, options)
    for warning in outcome.warnings:
        call.warn(warning)
    more = {"planners": planners} if hands_over else {}
    made = as_result(outcome, options["hosts"], sources, options["role_order"], handed, with_diff=call._diff)
    return {**made, **more}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, required_if=REQUIRED_IF, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
