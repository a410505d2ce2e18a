# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notifier of a run: documentation of the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_notify
short_description: Call a task file when something happens to the rollout, for as long as this run lasts
version_added: 0.2.0
description:
  - Starts a process on the controller that reads from Consul what happens to the rollout, whoever does it, and calls a task file with each
    event. The playbooks of this collection do so with C(upgrade_notify); their documentation has the events and what is told of each.
  - Each event is told once, by one of all runs that have a hook at the time. What was told is remembered in C(upgrade/notified).
  - Each call is a run of C(ansible-playbook) of its own. It includes the file with the variable C(upgrade_event), and can neither
    hold up nor end this run. It has the inventory and the extra variables of this one, and none of its facts and results.
  - When this run ends, it waits until all was told. A file that failed is a warning then.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Nothing is called; it shows what would be.
  diff_mode:
    support: none
    details: Nothing of the fleet is ever changed.
  platform:
    platforms: posix
    support: full
options:
  hook:
    description:
      - The task file. One that is not there, or is no list of tasks, is refused.
    type: path
    required: true
  hook_timeout:
    description:
      - Seconds that a call of it may take. After that it is ended, with a warning.
    type: float
    default: 60
  fleet:
    description:
      - Maps hosts to their roles. Hosts that never reported are part of the fleet by being here.
    type: dict
    default: {}
  expects:
    description:
      - The events that are to be expected of this run, for check mode to show. It calls the file with all others too.
    type: list
    elements: str
    choices: [begin, stage, pause, resume, failure, approval_wanted, approved, end]
    default: [begin, stage, pause, resume, failure, approval_wanted, approved, end]
  retry_failed:
    description:
      - Whether this run tries failed hosts again, so that one that fails again is told again.
    type: bool
    default: false
notes:
  - It runs on the controller alone, so Consul has to be reachable from there.
  - It needs the callback C(convoy_watch), which lies beside the playbooks of this collection and is found there by itself.
  - Calls can't ask for the password of a vault. It has to come from a file or a script.
seealso:
  - module: convoy.upgrade.consul_upgrade_follow
"""

EXAMPLES = r"""
- name: Be told of all that happens from here to the end of the run
  convoy.upgrade.consul_upgrade_notify:
    hook: notify.yml

- name: Show which events a file would be called with
  convoy.upgrade.consul_upgrade_notify:
    hook: notify.yml
    expects: [pause]
  check_mode: true
"""

RETURN = r"""
notifier:
  description: Folder of the process, which is gone when the run is. Empty in check mode.
  returned: success
  type: str
process:
  description: The process. V(0) in check mode.
  returned: success
  type: int
untold:
  description: In check mode, the sentences of what has happened so far and would be told at once.
  returned: success
  type: list
  elements: str
  sample: ["The rollout to 2.10 was paused by ann: logins fail."]
failure:
  description: The failure, for programs.
  returned: failure
  type: dict
  contains:
    code:
      description: A stable word, such as V(bad_hook), V(no_watch), V(denied) or V(unreachable).
      type: str
    message:
      description: The sentence that RV(ignore:msg) has.
      type: str
    details:
      description: The facts of the failure as data.
      type: dict
"""
