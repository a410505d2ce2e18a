# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout of the keys: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_schema
short_description: Bring the keys of a fleet in Consul to the newest layout
version_added: 0.2.0
description:
  - Applies every step that lies between the layout that the keys have and the newest one, in order. C(upgrade/schema) has the version of
    the layout; a fleet without it has what JioCloud's own code wrote, which is layout 0.
  - Before a step, all that stands in its way is told at once, each with its key and what to do about it. Nothing is changed meanwhile.
  - A step copies keys to their new places, looks whether all are there, and writes the version last. Old keys are kept until every host
    has reported through convoy.upgrade, or O(remove_legacy) asks for their end, so that nodes with older code go on working.
  - Every write is a transaction that is safe by itself and checks that the migration is still the only one. One that was killed is finished
    by the next.
  - While it works, planners and operators' words are refused; nodes ask their gates and report as usual, and holds can be set.
  - It runs on the controller.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Tells what each step would do, with counts and examples.
  diff_mode:
    support: full
  platform:
    platforms: all
    support: full
options:
  to:
    description:
      - The layout to go to, for tests. Without it, the newest one that this release knows.
    type: int
  remove_legacy:
    description:
      - Remove the old keys now, whoever may still read or write them. Nodes with older code find no gate then, which they take for an open
        one, and are not heard of any more.
    type: bool
    default: false
notes:
  - Consul has to be reachable from the controller. The token needs what M(convoy.upgrade.consul_upgrade_acl) gives a C(migrator).
seealso:
  - module: convoy.upgrade.consul_upgrade_acl
"""

EXAMPLES = r"""
- name: Bring the keys to the newest layout
  convoy.upgrade.consul_upgrade_schema:

- name: Remove what older code needed, as no node has it any more
  convoy.upgrade.consul_upgrade_schema:
    remove_legacy: true
"""

RETURN = r"""
from:
  description: The version of the layout before.
  returned: success
  type: int
  sample: 0
schema:
  description: The version of the layout after.
  returned: success
  type: int
  sample: 1
steps:
  description: The steps that were made, in order.
  returned: success
  type: list
  elements: dict
  contains:
    schema:
      description: The layout that the step leads to.
      type: int
    title:
      description: What changes with it.
      type: str
    moves:
      description: What was done, as C(what), C(count) and some C(examples).
      type: list
      elements: dict
removed:
  description: The steps whose old keys were removed, in the same form.
  returned: success
  type: list
  elements: dict
  contains:
    schema:
      description: The layout whose step left them.
      type: int
    title:
      description: What changed with it.
      type: str
    moves:
      description: What was done, as C(what), C(count) and some C(examples).
      type: list
      elements: dict
kept:
  description: How many old keys are kept.
  returned: success
  type: int
waiting_for:
  description: The hosts that they are kept for, as nothing shows that they go by the new layout.
  returned: success
  type: list
  elements: str
summary:
  description: All of that in sentences.
  returned: success
  type: list
  elements: str
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(in_the_way), V(migrating), V(lost_lock), V(newer_schema) or V(unreachable).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data. For V(in_the_way) its C(obstacles) are all that stands in the way, each with its
        C(key), C(why) and C(fix).
      type: dict
"""
