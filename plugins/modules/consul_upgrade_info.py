# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a fleet stands: read only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_info
short_description: Tell where every host of a fleet stands, what waits and why
version_added: 0.1.0
description:
  - Reads the state of the fleet from Consul, and changes nothing there.
  - Tells what the next pass of M(convoy.upgrade.consul_upgrade_plan) would open under the rules in the ledger.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Nothing is ever written but O(metrics_file), and that not in check mode.
  diff_mode:
    support: full
    details: Shows what would be different in O(metrics_file).
  platform:
    platforms: all
    support: full
options:
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported are part of the fleet by being here.
    type: dict
  role_pattern:
    description:
      - Regular expression whose first group is the role, searched for in the names of reported hosts that
        O(fleet) does not name.
      - Without it, that of the ledger is used, else V(([a-z]+\)(\\d+\)(-.*\)?).
    type: str
  history:
    description:
      - How many entries of the history to return.
    type: int
    default: 10
  name:
    description:
      - A host whose story in the current rollout is wanted.
      - What it costs depends on that rollout, and not on how many there were before it.
    type: str
  metrics_file:
    description:
      - File to write what is seen to as numbers, in the text format of OpenMetrics, where the module runs. Its name has to end in C(.prom)
        for the textfile collector of node_exporter.
      - It is replaced as a whole, each time, so that its age tells when somebody looked last. The task is changed where something else is in
        it than before.
      - It costs a request for each 64 entries of the history of the current rollout.
    type: path
    version_added: 0.2.0
seealso:
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: See where the fleet stands
  convoy.upgrade.consul_upgrade_info:
  register: fleet

- name: Ask for one host's story and why it waits
  convoy.upgrade.consul_upgrade_info:
    name: compute7
    history: 0
  register: story

- name: Write metrics for node_exporter
  convoy.upgrade.consul_upgrade_info:
    metrics_file: /tmp/convoy.prom
"""

RETURN = r"""
version:
  description: Version that the fleet should run, empty where none is set.
  returned: success
  type: str
  sample: "2.10"
previous_version:
  description: Version that it comes from, empty where that is not known.
  returned: success
  type: str
  sample: "2.8"
epoch:
  description: Number of planner writes so far, which is the epoch of the ledger.
  returned: success
  type: int
  sample: 7
complete:
  description: Whether every host of the fleet is upgraded.
  returned: success
  type: bool
status:
  description: State to hosts, sorted in natural order. All six states are there.
  returned: success
  type: dict
  sample: {"upgraded": ["controller1"], "failed": [], "lost": [], "upgrading": ["compute1"], "held": [], "pending": []}
hosts:
  description: Every host.
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
waves:
  description: Hosts that the next pass would let through, then the forecast of those that come after them.
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
holds:
  description: Every hold, whatever the state of the hosts that it covers, and also where it names no known host or role.
  returned: success
  type: list
  elements: dict
  contains:
    scope:
      description: V(global), V(role) or V(host).
      type: str
    name:
      description: Role or host, empty for V(global).
      type: str
    key:
      description: The Consul key.
      type: str
    reason:
      description: Why.
      type: str
    by:
      description: Who holds.
      type: str
    at:
      description: Since when, empty where no one wrote that down.
      type: str
obstacles:
  description: The reasons why hosts are not upgraded yet, each with its hosts.
  returned: success
  type: list
  elements: str
ledger:
  description: The ledger, with the rules that the rollout runs under. Empty where there is none.
  returned: success
  type: dict
  sample: {"epoch": 7, "version": "2.10", "previous_version": "2.8", "state": "running", "since": 1789000000}
history:
  description: What applied plans changed and why, the newest first.
  returned: success
  type: list
  elements: dict
  sample: [{"epoch": 7, "what": "open", "hosts": {"compute1": "rolling_rules.global admits 1 of role compute at once"}}]
host:
  description: The host that O(name) asked for.
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
    explanation:
      description:
        - Where it is and since when, why, the rule behind it, who could change that, and what comes next, in sentences.
      type: list
      elements: str
    record:
      description: Its own account of its upgrade, if it gave one.
      type: dict
    events:
      description: The entries of the history that touched it, the newest first. All of the current rollout, and of the 50 before that.
      type: list
      elements: dict
    older_events:
      description: Whether the history has entries that are older, and were not looked at. O(history) brings as many as it is told.
      type: bool
metrics:
  description: What O(metrics_file) has, or would have.
  returned: if O(metrics_file) is given
  type: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(denied), V(unknown_host) or V(bad_metrics_file).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.convoy.upgrade.plugins.module_utils._common.text_file import read_text, write_atomically
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, run
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import blocked_hosts, rollout_blockers
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import FleetView, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store


def as_result(view: FleetView, name: str | None) -> dict[str, Any]:
    """Return the result of the module for what was seen."""
    plan, ledger = view.plan, view.snapshot.ledger
    result: dict[str, Any] = {
        "changed": False,
        "version": plan.version or "",
        "previous_version": (ledger.previous_version if ledger else None) or "",
        "epoch": ledger.epoch if ledger else 0,
        "complete": plan.complete,
        "status": plan.status(),
        "hosts": {host: asdict(one) for host, one in plan.hosts.items()},
        "waves": plan.waves,
        "wave_seconds": plan.wave_seconds,
        "can_move": plan.can_move,
        **rollout_blockers(plan),
        "providers": {name: one.plain() for name, one in view.snapshot.providers.items()},
        "holds": [{"scope": scope, "name": of, **asdict(one)} for scope, of, one in view.snapshot.holds.every()],
        "obstacles": blocked_hosts(plan, plan.hosts),
        "ledger": asdict(ledger) if ledger else {},
        "history": view.history,
    }
    if name is not None and view.story is not None:
        result["host"] = {"name": name, **asdict(plan.hosts[name]), **view.story}
    return result


def with_metrics(store: Store, view: FleetView, path: str, *, dry: bool) -> dict[str, Any]:
    """Write metrics, and return what of the result tells of them.

    :param dry: write nothing.
    :raises UpgradeError: ``bad_metrics_file``, and what :func:`metrics_text` raises.
    """
    before, text = read_text(path, "metrics_file"), metrics_text(store, view)
    if not dry:
        write_atomically(path, text, "metrics_file")
    diff = {"before_header": path, "after_header": path, "before": before, "after": text}
    return {"metrics": text, "changed": before != text, "diff": diff}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "fleet": {"type": "dict"},
            "role_pattern": {"type": "str"},
            "history": {"type": "int", "default": 10},
            "name": {"type": "str"},
            "metrics_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        view = read_fleet(
            store,
            fleet=options["fleet"],
            role_pattern=options["role_pattern"],
            history=max(0, options["history"]),
            name=options["name"],
        )
        for warning in view.warnings:
            module.warn(warning)
        result = as_result(view, options["name"])
        if options["metrics_file"]:
            result |= with_metrics(store, view, options["metrics_file"], dry=module.check_mode)
        return result

    run(module, act)


if __name__ == "__main__":
    main()
