# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pause, resume, abort, retry, approve or roll back a rollout, or forget hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_control
short_description: Pause, resume, abort, retry, approve or take back a rollout, or forget hosts
version_added: 0.2.0
description:
  - Writes the action into the ledger and the history. All planners obey it from their next pass on, wherever they run.
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
  action:
    description:
      - V(pause) opens nothing more. Hosts that were let through go on.
      - V(resume) ends a pause.
      - V(abort) ends the rollout. Hosts that have begun keep their open gates, whatever became of them; all other gates are closed,
        the global one included. Every record is kept.
      - V(retry) puts failed and lost hosts back among those that wait, with their gates closed. Holds stay.
      - V(approve) lets the rollout go on after a stage whose rules have C(approve).
      - V(rollback) begins a rollout to where the fleet was, under the same rules. The order between roles and
        stages is reversed, see O(rollback_order). Within a role, the hosts that changed last go first. Hosts that are broken take
        no slot in it, and no other host waits for them. It opens nothing itself; M(convoy.upgrade.consul_upgrade_plan) does.
        Said again it goes on with the same rollback, and begins it again where it was aborted. It never turns round without O(version).
      - V(forget) removes all that is known of O(hosts), such as ones that are decommissioned. These are their reports, records, gates,
        holds and health, and what the ledger has of them. The history stays. Each host is one transaction. It works without a rollout too.
      - What is said of one rollout is not done to another one that is begun meanwhile.
    type: str
    choices: [pause, resume, abort, retry, approve, rollback, forget]
    required: true
  reason:
    description:
      - Why, for those who look at it later in the ledger and the history.
    type: str
    default: ""
  by:
    description:
      - Who says it. Without it, the user and the machine that the module runs as.
    type: str
    default: ""
  hosts:
    description:
      - Hosts to try again, for O(action=retry). Without it, all that failed or are lost. A list that is empty is no one.
      - A host that is named is put back also where it began to go to another version and never said that it ended, as one that died
        on the way to a version that is taken back. Make sure that nothing is at work there any more.
      - Hosts to forget, for O(action=forget), which needs them. One of which nothing is known is left out, and a remark tells so.
    type: list
    elements: str
  force:
    description:
      - Whether O(action=forget) forgets hosts that are at work too, which is refused otherwise with the code V(at_work). A host is at work
        if a run of Ansible has it, if it has begun an upgrade and not ended it, or if it was admitted and has not reported. It is not if it
        failed or was lost.
      - The slot of the host is free then, so make sure that nothing is at work there.
    type: bool
    default: false
    version_added: 0.3.0
  stage:
    description:
      - The stage that is approved, for O(action=approve). Without it, the one that waits for it.
    type: str
  version:
    description:
      - Where to go back to, for O(action=rollback). Without it, the version that the ledger says the fleet comes from, or that of the
        rollback that has been begun already. The fleet does not come from a version whose rollout was not completed, as one that was
        aborted because it is bad.
    type: str
  rollback_order:
    description:
      - How the rollback of O(action=rollback) uses the order between roles, which planes and C(requires) of services are part of, and the
        order of stages.
      - V(reversed) goes from the last to the first, so that no host is newer than one that has to be upgraded before it.
      - V(forward) keeps the order of roles, and has no stages.
      - Without it, C(rollback_order) of the instructions says so, and without that the order is reversed.
    type: str
    choices: [reversed, forward]
    version_added: 0.3.0
  fleet:
    description:
      - Maps hosts to their roles, as for M(convoy.upgrade.consul_upgrade_plan). V(retry) and V(approve) fail without hosts that the
        rollout has and that never reported.
    type: dict
    default: {}
seealso:
  - module: convoy.upgrade.consul_upgrade_hold
  - module: convoy.upgrade.consul_upgrade_plan
"""

EXAMPLES = r"""
- name: Open nothing more for now
  convoy.upgrade.consul_upgrade_control:
    action: pause
    reason: the network is being looked at

- name: Go on
  convoy.upgrade.consul_upgrade_control:
    action: resume

- name: Put a host back that is fixed
  convoy.upgrade.consul_upgrade_control:
    action: retry
    hosts: [compute7]
    reason: it has a new disk
    by: alice

- name: Remove all that is known of a host that is decommissioned
  convoy.upgrade.consul_upgrade_control:
    action: forget
    hosts: [compute7]
    reason: its hardware is gone

- name: Go back to where the fleet was
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
  description: Version that the fleet moves to now. Null without a rollout.
  returned: success
  type: str
epoch:
  description: Number of planner writes so far, which is the epoch of the ledger.
  returned: success
  type: int
instructions:
  description: The rules that the rollout runs under.
  returned: success
  type: dict
  sample: {"rolling_rules": {"global": 1}}
hosts:
  description: Hosts that were closed by V(abort), put back by V(retry), or forgotten by V(forget).
  returned: success
  type: list
  elements: str
remarks:
  description: What is worth knowing, such as that a host was left as it is.
  returned: success
  type: list
  elements: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(unreachable), V(no_rollout), V(not_running), V(nothing_to_approve), V(bad_options),
        V(unknown_host), V(at_work), V(fleet_too_small), V(foreign_version) or V(overtaken).
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
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._module import CONNECTION_OPTIONS, changed, run
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store

_ONLY_FOR = (
    ("hosts", ("retry", "forget")),
    ("stage", ("approve",)),
    ("version", ("rollback",)),
    ("rollback_order", ("rollback",)),
    ("force", ("forget",)),
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
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
            "fleet": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    options = module.params

    def act(store: Store) -> dict[str, Any]:
        for option, actions in _ONLY_FOR:
            if options[option] not in (None, False) and options["action"] not in actions:
                raise UpgradeError(
                    "bad_options",
                    f"{option} goes with action: {' or '.join(actions)}, not with {options['action']}. Leave {option} out.",
                )
        word = control.Command(options["reason"], options["by"], options["fleet"])
        dry = module.check_mode
        simple = {"pause": control.pause, "resume": control.resume, "abort": control.abort}
        if options["action"] in simple:
            done = simple[options["action"]](store, word, dry=dry)
        elif options["action"] == "retry":
            done = control.retry(store, word, options["hosts"], dry=dry)
        elif options["action"] == "approve":
            done = control.approve(store, word, options["stage"], dry=dry)
        elif options["action"] == "forget":
            done = control.forget(store, word, options["hosts"] or [], force=options["force"], dry=dry)
        else:
            done = control.roll_back(store, word, options["version"], options["rollback_order"], dry=dry)
        ledger = done.ledger
        facts = {
            "state": ledger.state if ledger else None,
            "version": ledger.version if ledger else None,
            "epoch": ledger.epoch if ledger else 0,
            "instructions": dict(ledger.instructions) if ledger else {},
        }
        return {**facts, "hosts": done.hosts, "remarks": done.remarks, **changed(done.changes)}

    run(module, act)


if __name__ == "__main__":
    main()
