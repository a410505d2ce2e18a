# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a rollout: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_follow
short_description: Show how a rollout goes until it is over, whoever runs it
version_added: 0.2.0
description:
  - Reads the state of the fleet from Consul, tells what happens line by line, and returns when the rollout is complete or aborted. It
    writes nothing. While a rollout is paused it goes on, and says so.
  - With the callback C(convoy.upgrade.rollout) it draws how far each role is.
  - It waits by blocking queries. A Consul that is away is asked again until it is back.
  - A rollout that is complete and whose gates are not open yet may go on with tasks after the upgrade. It counts as over when nothing has
    happened for 15 seconds and no host is at them.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: Nothing is ever changed.
  platform:
    platforms: posix
    support: full
options:
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported are part of the fleet by being here.
    type: dict
notes:
  - It runs on the controller alone, so Consul has to be reachable from there.
seealso:
  - module: convoy.upgrade.consul_upgrade_info
"""

EXAMPLES = r"""
- name: Watch the rollout that is under way
  convoy.upgrade.consul_upgrade_follow:
    fleet:
      compute1: compute
"""

RETURN = r"""
version:
  description: Version that the fleet should run, empty where none is set.
  returned: success
  type: str
  sample: "2.10"
ended:
  description: V(complete), V(aborted), or V(nothing) where no rollout has begun.
  returned: success
  type: str
failed_hosts:
  description: How many hosts have failed or are lost.
  returned: success
  type: int
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(denied) or V(unreadable_ledger).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
