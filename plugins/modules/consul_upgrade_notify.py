# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that starts the notifier of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_notify
short_description: Send each event of the rollout to chats, mail, webhooks or a task file, while this run lasts
version_added: 0.1.0
description:
  - Starts the notifier in the daemon of this run. It reads events of the rollout from Consul and sends each event. The
    playbooks of this collection start it if C(upgrade_notify) is set. C(docs/watching.md) lists the events and their fields.
  - Each event is sent once, by one of all runs that have a hook at that time. C(upgrade/notified) records what was sent.
  - O(hook) with settings names the targets of messages. The daemon sends them.
  - With tasks, each call is a separate C(ansible-playbook). It includes the file with the variable C(upgrade_event), and can neither delay nor end this
    run. It has the inventory and the extra variables of this run, but not its facts and results.
  - At its end, the run waits until all events are sent. Failed calls are shown as a warning.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    description: Shows the calls without making them.
  diff_mode:
    support: none
    details: The module changes nothing in the fleet.
  platform:
    platforms: posix
    support: full
options:
  hook:
    description:
      - File with a list of tasks, or with settings, C(targets) and C(page). A missing or invalid file is refused. C(docs/watching.md) describes the
        settings.
      - C(targets) with C(url) need the Python library C(apprise) on the control node.
    type: path
    required: true
  hook_timeout:
    description:
      - Longest duration of a call in seconds. A longer call is ended with a warning.
    type: float
    default: 60
  expects:
    description:
      - Events that check mode shows as expected from this run. The hook is called for all events in any case.
    type: list
    elements: str
    choices: [begin, stage, pause, resume, failure, approval_needed, approved, end]
    default: [begin, stage, pause, resume, failure, approval_needed, approved, end]
  retry_failed:
    description:
      - Whether this run retries failed hosts. A host that fails again is then sent again.
    type: bool
    default: false
notes:
  - It runs only on the control node, so Consul must be reachable from there.
  - It needs the callback C(convoy_watch), which Ansible finds beside the playbooks of this collection. For a playbook of your own, add their
    folder C(callback_plugins) to C(callback_plugins) in C(ansible.cfg).
  - Calls can't ask for a vault password. Give it as a file or script.
seealso:
  - module: convoy.upgrade.consul_upgrade_follow
"""

EXAMPLES = r"""
- name: Send all events from here to the end of the run
  convoy.upgrade.consul_upgrade_notify:
    hook: notify.yml

- name: Show the events that a file would be called with
  convoy.upgrade.consul_upgrade_notify:
    hook: notify.yml
    expects: [pause]
  check_mode: true
"""

RETURN = r"""
notifications:
  description: In check mode, the sentences of past events that would be sent at once.
  returned: success
  type: list
  elements: str
  sample: ["The rollout to 2.10 was paused by ann: logins fail."]
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(bad_hook), V(no_watch), V(denied) or V(unreachable).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
