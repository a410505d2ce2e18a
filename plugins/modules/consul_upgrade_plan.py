# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute and apply which hosts may move from pending to upgrading."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_plan
short_description: Let the next hosts of a fleet upgrade, as the rules allow
version_added: 0.1.0
description:
  - Computes which hosts may move from pending to upgrading, and opens their gates in Consul, so that the nodes,
    which ask for their gate every few minutes, upgrade themselves.
  - A O(version) that is not the current one begins a rollout. One transaction sets C(current_version), wipes
    the gates and closes the global one. The same version again goes on with the rollout.
  - Any number of planners may run at once. Each write is a transaction that compares and sets the ledger, so a
    plan that was made from old facts can't be written, and is made again.
  - With O(wait), goes on until all hosts in scope are upgraded, and shows every change as it happens.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Nothing is written; the result is what a real call would do. O(wait) does not wait.
  diff_mode:
    support: full
    description: Shows every key before and after, other than those of the history.
  platform:
    platforms: all
    support: full
options:
  version:
    description:
      - Version that the fleet should run. Left out, the call goes on with the rollout in the ledger.
      - Put it in quotes, as YAML reads V(2.10) as the number 2.1.
    type: str
  instructions:
    description:
      - The rules of the rollout. They are stored in the ledger, and hold for every planner from then on.
      - They add to those of O(instructions_file), key by key. A rule that both give with different values is refused. Where neither is
        given, a rollout goes on under the rules of the ledger, and one that begins is under those of the last one.
      - Given rules take the place of all that the ledger has. So that none ends unawares, rules that leave out a key that a running or
        paused rollout has are refused, V({}) included. A key ends by being given an empty value, such as C(stages=[]) or
        C(failure_rules={}).
      - C(rolling_rules.global) is the cap of every role or group that has none of its own,
        C(rolling_rules.roles) maps roles or groups to their own caps, and C(rolling_rules.fleet) is a cap over
        all hosts on top of the others. A cap is a number of hosts, or a percent of the members, rounded down
        but at least one host. V(0) holds all of them, and V(unlimited) for C(global) or a role asks for no cap. Rules that leave a
        role without any cap are refused.
      - C(rolling_rules.complete_sets) opens the next hosts only when none is upgrading.
      - C(role_order) maps a role or group to the role or roles (or groups) that have to be wholly upgraded
        first. C(role_dependencies) is another name for it.
      - C(group_mappings) maps a group to a regular expression, or a list of them, that match the names of its
        roles from their start. The roles of a group share its cap.
      - C(failure_rules) says how many failed or lost hosts stop further opening, with the keys C(global), C(roles) and C(fleet) as
        C(rolling_rules) has them.
      - C(health.soak) is for how long a host that reported has to be well before it counts as upgraded, C(health.consul_checks)
        which Consul checks have to pass on it, and C(health.progress_deadline) how long an open host may be silent before it is lost.
        Times are seconds, or such as V(15m).
      - C(stages) is a list of parts of the fleet that go one after the other, each with a C(name), C(hosts) (a number or percent of
        each role, or a list of hosts), C(roles), C(soak) and C(approve). Hosts that none of them names go last.
        C(soak) and C(approve) are refused where no stage comes after it.
      - C(windows) is a list of times at which hosts may be opened, each with C(days), C(from), C(to) and C(timezone), and C(freezes) one
        of times at which none may, each with C(from), C(to), C(timezone) and C(reason).
        A freeze whose C(to) is a date ends when that day begins.
        Hours are written with their minutes and in quotes, such as C("22:00").
      - A name in the rules that fits no role, group or host of the fleet is refused, with the nearest one, when a rollout begins and when
        its rules change. C(optional_names) is a list of those that may be absent, for rules that several fleets share.
    type: dict
  instructions_file:
    description:
      - File with instructions, as JSON or YAML, where the module runs.
      - Without it, C(/etc/jio-upgrade.json) or C(/etc/jiocloud-upgrade.json) is read where it exists, and O(instructions) win over it, key
        by key. Where both files exist and say different things, the call fails.
    type: path
  role_order:
    description:
      - Order that is added to that of the instructions, in the same form, and replaces none of it. For order
        that comes from elsewhere, such as the stages of C(upgrade_roles).
    type: dict
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported are part of the fleet by being here.
      - Give all planners of a rollout the same. One that knows fewer hosts than the last fleet had opens nothing.
    type: dict
  role_pattern:
    description:
      - Regular expression whose first group is the role, searched for in the names of reported hosts that
        O(fleet) does not name. Stored in the ledger.
      - Without it, that of the ledger is used, else V(([a-z]+\)(\\d+\)(-.*\)?).
    type: str
  limit:
    description:
      - Hosts, roles or groups that this call may open. The others still count under the caps.
    type: list
    elements: str
  converge:
    description:
      - When every host is upgraded, open the global gate and remove those of roles and hosts, in one transaction.
    type: bool
    default: false
  wait:
    description:
      - Go on until all hosts in scope are upgraded. It waits by blocking queries; if Consul goes away meanwhile,
        nothing is opened until it is back.
      - Fails with the reasons when nothing can move any more, and when the time is up. The rollout itself stays
        as it is, and the next call goes on with it.
    type: bool
    default: false
  wait_timeout:
    description:
      - Seconds to wait at most, with O(wait) or O(since).
    type: int
    default: 14400
  restart:
    description:
      - Begin a rollout again that was aborted. Without it, a call that gives the version of such a rollout fails.
      - Where the rollout was not aborted, it makes no difference.
    type: bool
    default: false
  replace:
    description:
      - Version of the rollout under way whose place O(version) takes. While a rollout to another version is running or paused, a call that does
        not name it fails.
      - Its stages, approvals and failure budgets end with it. Its rules stay in force, unless others are given.
      - Where that rollout is under way no more, or O(version) has begun already, it makes no difference. A rollback does not need it.
    type: str
  rollback:
    description:
      - Begin O(version) as a rollback, which it has to be given for, as M(convoy.upgrade.consul_upgrade_control) does. The hosts that
        changed last go first, there are no stages, and no one waits for hosts that are broken. Without instructions it is under the
        rules of the rollout that it takes back.
      - In check mode this shows the plan of a rollback that has not begun. Where it has begun already, it makes no difference.
    type: bool
    default: false
  since:
    description:
      - The RV(index) that an earlier call returned. The call first waits, for at most O(wait_timeout) seconds,
        until anything has changed after it, and never begins a rollout. This is what O(wait) uses; it is here
        for loops of your own.
    type: int
  epoch:
    description:
      - The newest RV(epoch) that an earlier call returned. If the ledger is behind it, Consul was put back to an earlier time, and
        the call fails. O(wait) uses it; it is here for loops of your own.
    type: int
    default: 0
  commit:
    description:
      - The RV(commit) that came with O(epoch). If that epoch has another one by now, or is gone from the history, Consul was put back
        and somebody has gone on since then, and the call fails too.
    type: str
    default: ""
seealso:
  - module: convoy.upgrade.consul_upgrade_info
  - module: convoy.upgrade.consul_upgrade_host_report
"""

EXAMPLES = r"""
- name: Begin a rollout, controllers first and one at a time, then three computes at a time
  convoy.upgrade.consul_upgrade_plan:
    version: "2.10"
    instructions:
      rolling_rules:
        global: 1
        roles:
          compute: 3
      role_order:
        compute: controller

- name: Go on with it until every host is upgraded, and let Puppet run everywhere again
  convoy.upgrade.consul_upgrade_plan:
    wait: true
    wait_timeout: 7200
    converge: true

- name: Show what a rollback would do
  convoy.upgrade.consul_upgrade_plan:
    version: "2.8"
    rollback: true
  check_mode: true

- name: Begin a rollout in place of the one that is under way, under the same rules
  convoy.upgrade.consul_upgrade_plan:
    version: "2.11"
    replace: "2.10"

- name: Go on with the hosts of one role only, at most a tenth of them at once
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
  description: Version that the fleet moves to.
  returned: success
  type: str
  sample: "2.10"
previous_version:
  description:
    - Version that it comes from, empty where that is not known.
    - After a rollout that was not completed, it is where that one came from.
  returned: success
  type: str
  sample: "2.8"
replaces:
  description:
    - The rollout whose place this call took, or in check mode would take. Empty where it takes none, and in a rollback.
  returned: success
  type: dict
  contains:
    version:
      description: Version that it moved the fleet to.
      type: str
    state:
      description: V(running) or V(paused).
      type: str
    who:
      description: Who began it.
      type: str
    since:
      description: When it began, in unix seconds.
      type: int
epoch:
  description: Number of planner writes so far, which is the epoch of the ledger.
  returned: success
  type: int
  sample: 7
commit:
  description: Tells the write of that epoch from any other with the same number. Empty in check mode where something would be written.
  returned: success
  type: str
  sample: 5d0f9a7c6e1b4c0d8a3f2b1e9c7d6a54
complete:
  description: Whether every host of the fleet is upgraded.
  returned: success
  type: bool
instructions:
  description: The rules that the rollout runs under, from wherever they come, in the form in which they are stored.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}, "role_order": {"compute": ["controller"]}}
sources:
  description:
    - Key of each of the RV(instructions) to where it came from. V(instructions), the name of a file, V(upgrade_roles) for what
      O(role_order) adds, or V(the ledger) for what was in force before.
  returned: success
  type: dict
  sample: {"rolling_rules.global": "rules.yml", "role_order.compute": "upgrade_roles"}
status:
  description: State to hosts, sorted in natural order. All six states are there. As it is after the call.
  returned: success
  type: dict
  sample: {"upgraded": ["controller1"], "failed": [], "lost": [], "upgrading": ["compute1"], "held": [], "pending": []}
hosts:
  description: Every host, as it is after the call.
  returned: success
  type: dict
  contains:
    role:
      description: Role of the host.
      type: str
    group:
      description: Group of the role, if it has one.
      type: str
    state:
      description: One of the six states.
      type: str
    version:
      description: Version that it reported, if it did.
      type: str
    reason:
      description: Why it is in its state; for a host that waits, what it waits for.
      type: str
    soaking:
      description: Whether it reported the version, and its health is still to be seen.
      type: bool
    started:
      description: Whether it said that it began an upgrade, and not that it ended.
      type: bool
    held:
      description: Whether a hold is over it, whatever its state.
      type: bool
    origin:
      description: Version that it came from, once Ansible has begun to upgrade it and until it reports.
      type: str
    begun:
      description: Version to which it has begun to go and has not got, as where it failed midway.
      type: str
    done:
      description: Units of paths that it has behind it, such as V(upgrade/nginx@2.4), until it reports.
      type: list
      elements: str
    cause:
      description:
        - Why a host waits, as a stable word; empty where RV(hosts.state) says it all.
        - One of V(cap), V(cap_zero), V(order), V(complete_sets), V(stage), V(soak), V(approval), V(rollback), V(paused), V(aborted),
          V(budget_spent), V(role_budget), V(hours), V(may_go), V(limit) and V(no_version).
      type: str
    rule:
      description: The key of the instructions that makes it wait, such as V(rolling_rules.global); empty where none does.
      type: str
    unadmitted:
      description: Whether it says that it has started, behind a closed gate, and no planner has admitted it.
      type: bool
    stage:
      description: Number of the stage that it belongs to, in the order in which they go. V(0) for the first, and without stages.
      type: int
    blocks:
      description: Whether hosts that come after it in the order have to wait for it.
      type: bool
transitions:
  description: Hosts that this call let through. With O(wait), over all its passes.
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
      description: State that it was in.
      type: str
    to:
      description: State that it is in now.
      type: str
    reason:
      description: The rule that let it through.
      type: str
waves:
  description:
    - Hosts that this call let through, then the forecast of those that come together after them if all goes well.
    - Empty where there is nothing left to open.
  returned: success
  type: list
  elements: list
  sample: [["compute1", "compute2"], ["compute3"]]
wave_seconds:
  description:
    - How many seconds each of RV(waves) may take, if every host takes as long as the middle one of its role did the last time,
      from its start to its end. V(0) where no host has told that yet.
    - How long a node waits until it asks for its gate is not in it.
  returned: success
  type: list
  elements: float
  sample: [310.0, 290.0]
done:
  description: Whether all hosts in scope (O(limit)) are upgraded.
  returned: success
  type: bool
can_move:
  description: Whether the rollout can still go on: hosts are upgrading, or only time, an approval or a command is missing.
  returned: success
  type: bool
stage:
  description: Stage that the fleet is in, empty where the rules have none.
  returned: success
  type: str
  sample: canary
wants_approval:
  description: Whether that stage is done, and somebody has to approve before the rollout goes on.
  returned: success
  type: bool
blocker:
  description: What keeps the whole rollout from opening anything now. Empty where nothing does.
  returned: success
  type: dict
  contains:
    code:
      description: V(paused), V(aborted), V(budget_spent) or V(hours).
      type: str
    reason:
      description: The same in words.
      type: str
    until:
      description: When it ends by itself, in unix seconds, V(0) where it does not.
      type: float
order:
  description: Role to the roles that go before it, as the rollout goes; in a rollback, in the order that RV(rollback_order) names.
  returned: success
  type: dict
  sample: {"compute": ["controller"]}
post_upgrade:
  description: Hosts whose tasks after the upgrade are still to be run before the rollout is over.
  returned: success
  type: list
  elements: str
rollback_order:
  description: Whether a rollback goes through roles and stages V(reversed) or V(forward). Empty in other rollouts.
  returned: success
  type: str
  sample: reversed
providers:
  description: What is no host, such as a cloud, and has a version of its own all the same. Its keys are their names.
  returned: success
  type: dict
  sample: {"cloud": {"version": "2.8", "target": "2.10", "state": "upgrading", "host": "controller1", "unit": "upgrade/cloud@2.10",
    "done": [], "error": ""}}
obstacles:
  description: The reasons why hosts in scope are not upgraded yet, each with its hosts.
  returned: success
  type: list
  elements: str
wake_at:
  description: When a call may find something else though no one wrote anything, in unix seconds. V(0) where that is not so.
  returned: success
  type: float
index:
  description: The newest Consul index that the plan has seen, for O(since).
  returned: success
  type: int
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(bad_instructions), V(unreachable), V(denied), V(stuck), V(timeout), V(too_slow),
        V(budget_spent), V(aborted), V(rules_left_out), V(conflicting_rules), V(unknown_names), V(rollout_under_way) or V(went_back).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.states import STATES, UPGRADING
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import blocked_hosts, rollout_blockers
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import as_rollback
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.rule_input import merged, sources_of
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.sources import RuleSource, origins
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import with_order
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def as_result(
    outcome: PassResult, sources: Sequence[RuleSource] = (), order: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result of the module for what a pass did.

    :param sources: of the rules that the call brought.
    :param order: the order that it added.
    """
    plan, ledger, hosts, replaces = outcome.plan, outcome.ledger, outcome.hosts(), outcome.replaces
    return {
        "version": plan.version,
        "previous_version": (ledger.previous_version if ledger else None) or "",
        "replaces": {name: getattr(replaces, name) for name in ("version", "state", "who", "since")}
        if replaces
        else {},
        "epoch": ledger.epoch if ledger else 0,
        "commit": ledger.commit if ledger else "",
        "complete": plan.complete,
        "instructions": dict(ledger.instructions) if ledger else {},
        "sources": origins(ledger.instructions if ledger else {}, sources, with_order({}, order or {})),
        "status": {state: [host for host, view in hosts.items() if view.state == state] for state in STATES},
        "hosts": {host: asdict(view) for host, view in hosts.items()},
        "transitions": [
            {"host": one.host, "role": one.role, "from": one.before, "to": UPGRADING, "reason": one.reason}
            for one in outcome.admissions
        ],
        "waves": plan.waves,
        "wave_seconds": plan.wave_seconds,
        "done": plan.scope_done,
        "can_move": plan.can_move,
        **rollout_blockers(plan),
        "providers": {name: one.plain() for name, one in outcome.snapshot.providers.items()},
        "obstacles": blocked_hosts(plan, hosts),
        "wake_at": plan.wake_at or 0,
        "index": outcome.index,
        **changed(outcome.changes),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "version": {"type": "str"},
            "instructions": {"type": "dict"},
            "instructions_file": {"type": "path"},
            "role_order": {"type": "dict"},
            "fleet": {"type": "dict"},
            "role_pattern": {"type": "str"},
            "limit": {"type": "list", "elements": "str"},
            "converge": {"type": "bool", "default": False},
            "wait": {"type": "bool", "default": False},
            "wait_timeout": {"type": "int", "default": 14400},
            "restart": {"type": "bool", "default": False},
            "replace": {"type": "str"},
            "rollback": {"type": "bool", "default": False},
            "since": {"type": "int"},
            "epoch": {"type": "int", "default": 0},
            "commit": {"type": "str", "default": ""},
        },
        required_if=[("rollback", True, ("version",))],
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        # After the first pass, the ledger has them.
        sources = sources_of(options["instructions"], options["instructions_file"]) if options["since"] is None else ()
        request = PassRequest(
            version=options["version"],
            rules=merged(sources) if sources else None,
            role_order=options["role_order"],
            fleet=options["fleet"],
            role_pattern=options["role_pattern"],
            limit=options["limit"],
            converge=options["converge"],
            restart=options["restart"],
            replace=options["replace"],
            since=options["since"],
            epoch=options["epoch"],
            commit=options["commit"],
        )
        if options["rollback"]:
            request = as_rollback(store, request)
        if options["since"] is not None:
            seen = store.wait_for_change(options["since"], options["wait_timeout"])
        # One slow try ends the call: the action tells of it, and tries again.
        outcome = make_pass(store, request, dry=module.check_mode, most_slow=1)
        if options["since"] is not None:
            outcome.index = max(outcome.index, seen)
        for warning in outcome.warnings:
            module.warn(warning)
        return as_result(outcome, sources, options["role_order"])

    run(module, act)


if __name__ == "__main__":
    main()
