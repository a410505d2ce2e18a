# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pause, resume, abort, retry, approve or roll back a rollout, or forget hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_control
short_description: Pause, resume, abort, retry, approve or roll back a rollout, or forget hosts
version_added: 0.1.0
description:
  - Writes the command to the ledger and the history. All planners apply it from their next pass.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
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
  action:
    description:
      - V(pause) stops admissions. Admitted hosts continue.
      - V(resume) ends a pause.
      - V(abort) ends the rollout. Hosts that have started keep their open gates, even if they upgraded or failed since. All other gates are
        closed, including the global one. Records are kept.
      - V(retry) makes failed and lost hosts pending again and closes their gates. Holds stay. A lost host that has started and not reported an
        end has to be listed in O(hosts), because its upgrade may still run. Of a host whose post-upgrade tasks failed, only these begin again,
        also once the rollout is complete.
      - V(approve) continues the rollout after a stage with C(approve).
      - V(rollback) begins a rollout to the previous version, under the same rules. It reverses the order of roles and stages, see
        O(rollback_order). Within a role, the hosts that changed last go first. Broken hosts use no slot, and no other host waits for them.
      - V(rollback) admits no host by itself. Use M(convoy.upgrade.consul_upgrade_plan) afterwards. A second V(rollback) continues the first, or
        begins it again after an abort. Its target changes only with O(version).
      - V(forget) deletes the reports, records, gates, holds, health and ledger entries of O(hosts), for example after they were decommissioned.
        The history stays. Each host is one transaction. It also works without a rollout.
      - If another rollout begins while a command runs, the command is not applied to the new rollout.
    type: str
    choices: [pause, resume, abort, retry, approve, rollback, forget]
    required: true
  reason:
    description:
      - Reason of the command, for the ledger and the history.
    type: str
    default: ""
  by:
    description:
      - Operator who gives the command. The default is the user and the machine that run the module.
    type: str
    default: ""
  hosts:
    description:
      - Hosts to retry, for O(action=retry). The default is all failed hosts, and the lost ones that have not started. An empty
        list retries no host.
      - A listed host is also retried if it started an upgrade to another version, or behind what is a closed gate now, and never reported the end,
        for example because it died, or if it fails its checks after its report. Make sure that nothing runs there any more.
      - Hosts to forget, for O(action=forget), where the option is required. Unknown hosts are skipped with a remark.
    type: list
    elements: str
  force:
    description:
      - Whether O(action=forget) also forgets hosts that are at work. Without it, they are refused with the code V(at_work). A host is at work if a
        run holds a lease on it, if it started an upgrade and has not ended it, or if it was admitted and has not reported. Failed
        hosts are not at work, nor are lost ones that have not started.
      - This frees the slot of the host, so make sure that nothing runs there any more.
    type: bool
    default: false
    version_added: 0.1.0
  stage:
    description:
      - Stage to approve, for O(action=approve). The default is the stage that needs approval.
    type: str
  version:
    description:
      - Target version of O(action=rollback). The default is the target of a rollback that has already begun, else the last completed version
        in the ledger. A version whose rollout was aborted does not count as completed.
    type: str
  rollback_order:
    description:
      - Order of roles and stages for O(action=rollback). The order of roles includes planes and C(requires) of services.
      - V(reversed) goes from the last to the first, so that no host is newer than one that must be upgraded before it.
      - V(forward) keeps the order of roles and has no stages.
      - The default is C(rollback_order) of the instructions, else V(reversed).
    type: str
    choices: [reversed, forward]
    version_added: 0.1.0
  hand_over:
    description:
      - Whether planner services are to carry the rollback. V(rollback) fails with the code V(no_planner) and writes nothing if none runs.
      - To hand the rollback over, use O(convoy.upgrade.consul_upgrade_plan#module:hand_over) afterwards.
    type: bool
    default: false
    version_added: 0.1.0
  show:
    description:
      - Print RV(remarks) for people.
    type: bool
    default: false
seealso:
  - module: convoy.upgrade.consul_upgrade_hold
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Pause the rollout
  convoy.upgrade.consul_upgrade_control:
    action: pause
    reason: the network is being checked

- name: Resume it
  convoy.upgrade.consul_upgrade_control:
    action: resume

- name: Retry a host that was fixed
  convoy.upgrade.consul_upgrade_control:
    action: retry
    hosts: [compute7]
    reason: it has a new disk
    by: alice

- name: Forget a decommissioned host
  convoy.upgrade.consul_upgrade_control:
    action: forget
    hosts: [compute7]
    reason: its hardware is gone

- name: Roll back to the previous version
  convoy.upgrade.consul_upgrade_control:
    action: rollback
    reason: logins fail
"""

RETURN = r"""
state:
  description: State of the rollout, V(running), V(paused), V(aborted) or V(complete). Null without a rollout.
  returned: success
  type: str
version:
  description: Target version of the rollout. Null without a rollout.
  returned: success
  type: str
epoch:
  description: Epoch of the ledger, which counts planner writes.
  returned: success
  type: int
instructions:
  description: Rules of the rollout.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}}
hosts:
  description: Hosts whose gates V(abort) closed, that V(retry) made pending, or that V(forget) forgot.
  returned: success
  type: list
  elements: str
remarks:
  description: Remarks for the operator, such as that a host was skipped.
  returned: success
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(unreachable), V(no_rollout), V(not_running), V(nothing_to_approve),
        V(bad_options), V(unknown_host), V(at_work), V(fleet_too_small), V(foreign_version), V(no_planner) or V(overtaken).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._module import (
    CONNECTION_OPTIONS,
    FLEET_OPTIONS,
    ModuleCall,
    changed,
    run,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import require_planner
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

_ONLY_FOR = (
    ("hosts", ("retry", "forget")),
    ("stage", ("approve",)),
    ("version", ("rollback",)),
    ("rollback_order", ("rollback",)),
    ("hand_over", ("rollback",)),
    ("force", ("forget",)),
)


SPEC: dict[str, dict[str, Any]] = {
    **CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "action": {
        "type": "str",
        "choices": ["pause", "resume", "abort", "retry", "approve", "rollback", "forget"],
        "required": True,
    },
    "reason": {"type": "str", "default": ""},
    "by": {"type": "str", "default": ""},
    "hosts": {"type": "list", "elements": "str"},
    "force": {"type": "bool", "default": False},
    "stage": {"type": "str"},
    "version": {"type": "str"},
    "rollback_order": {"type": "str", "choices": ["reversed", "forward"]},
    "hand_over": {"type": "bool", "default": False},
    # The action prints.
    "show": {"type": "bool", "default": False},
}


def act(call: ModuleCall, store: Store) -> dict[str, Any]:
    """Give the command; return its result.

    :raises UpgradeError: ``bad_options``, ``no_planner``, and what the command raises.
    """
    options, dry = call.params, call.check_mode
    for option, actions in _ONLY_FOR:
        if options[option] not in (None, False) and options["action"] not in actions:
            raise UpgradeError(
                "bad_options",
                f"{option} goes with action: {' or '.join(actions)}, not with {options['action']}. Leave {option} out.",
            )
    if options["hand_over"]:
        require_planner(store)
    command = control.Command(options["reason"], options["by"], options["fleet"] or {})
    simple = {"pause": control.pause, "resume": control.resume, "abort": control.abort}
    if options["action"] in simple:
        done = simple[options["action"]](store, command, dry=dry)
    elif options["action"] == "retry":
        done = control.retry(store, command, options["hosts"], dry=dry)
    elif options["action"] == "approve":
        done = control.approve(store, command, options["stage"], dry=dry)
    elif options["action"] == "forget":
        done = control.forget(store, command, options["hosts"] or [], force=options["force"], dry=dry)
    else:
        done = control.roll_back(store, command, options["version"], options["rollback_order"], dry=dry)
    ledger = done.ledger
    facts = {
        "state": ledger.state if ledger else None,
        "version": ledger.version if ledger else None,
        "epoch": ledger.epoch if ledger else 0,
        "instructions": dict(ledger.instructions) if ledger else {},
    }
    return {**facts, "hosts": done.hosts, "remarks": done.remarks, **changed(done.changes)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run(module, lambda store: act(module, store))


if __name__ == "__main__":
    main()
