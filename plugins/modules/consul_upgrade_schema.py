# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that migrates the key layout."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_schema
short_description: Migrate the keys of a fleet in Consul to the newest layout
version_added: 0.1.0
description:
  - Applies all steps between the current and the newest layout, in order. C(upgrade/schema) has the version of the layout. Without this key, the
    fleet has layout 0, which JioCloud's code wrote.
  - Before each step, all problems are listed at once, each with its key and a fix. If there are any, nothing is changed.
  - A step copies keys to their new names, checks that all are there, and writes the version last. Legacy keys stay until every host has reported
    through convoy.upgrade, or until O(remove_legacy). So nodes with older code keep working.
  - Every write is a transaction that is safe by itself. It checks that no other migration runs. If a migration is killed, the next one
    finishes it.
  - During a migration, planners and other commands are refused. Nodes read their gates and report as usual, and holds can be set.
  - It runs on the control node.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Shows what each step would do, with counts and examples.
  diff_mode:
    support: full
  platform:
    platforms: all
    support: full
options:
  to:
    description:
      - Target layout, for tests. The default is the newest layout of this release.
    type: int
  remove_legacy:
    description:
      - Remove the legacy keys now, even if older code still uses them. Nodes with older code then find no gate and treat it as open, and their
        reports are ignored.
    type: bool
    default: false
notes:
  - Consul must be reachable from the control node. The token needs the policy that M(convoy.upgrade.consul_upgrade_acl) creates with
    C(kind=migrator).
seealso:
  - module: convoy.upgrade.consul_upgrade_acl
"""

EXAMPLES = r"""
- name: Migrate the keys to the newest layout
  convoy.upgrade.consul_upgrade_schema:

- name: Remove the legacy keys after all nodes have new code
  convoy.upgrade.consul_upgrade_schema:
    remove_legacy: true
"""

RETURN = r"""
from:
  description: Version of the layout before.
  returned: success
  type: int
  sample: 0
schema:
  description: Version of the layout after.
  returned: success
  type: int
  sample: 1
steps:
  description: Steps that were applied, in order.
  returned: success
  type: list
  elements: dict
  contains:
    schema:
      description: Layout after the step.
      type: int
    title:
      description: What the step changes.
      type: str
    moves:
      description: Actions of the step, each with C(what), C(count) and some C(examples).
      type: list
      elements: dict
removed:
  description: Steps whose legacy keys were removed, in the same form.
  returned: success
  type: list
  elements: dict
  contains:
    schema:
      description: Layout after the step that kept the keys.
      type: int
    title:
      description: What the step changed.
      type: str
    moves:
      description: Actions of the step, each with C(what), C(count) and some C(examples).
      type: list
      elements: dict
kept:
  description: Number of legacy keys that are kept.
  returned: success
  type: int
waiting_for:
  description: Hosts that may still need the legacy keys, because they have not reported through convoy.upgrade.
  returned: success
  type: list
  elements: str
summary:
  description: The result as sentences.
  returned: success
  type: list
  elements: str
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(in_the_way), V(migrating), V(lost_lock), V(newer_schema) or V(unreachable).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions. For V(in_the_way), C(problems) lists all problems, each with
        C(key), C(why) and C(fix).
      type: dict
"""
