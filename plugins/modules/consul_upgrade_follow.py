# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin that follows a rollout."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_upgrade_follow
short_description: Follow a rollout that runs elsewhere until it ends
version_added: 0.1.0
description:
  - Reads the state of the fleet from Consul, prints each change as a line, and returns when the rollout is complete or aborted. It continues
    through pauses. It writes nothing to Consul. With O(page) or O(maintenance), it returns after an abort only when the hosts that had begun
    have finished, except hosts that an Ansible run has left between steps.
  - With the callback C(convoy.upgrade.rollout), it draws the progress of each role.
  - It waits with blocking queries. If Consul is unreachable, it retries until Consul is back.
  - A complete rollout whose gates are still closed may have post-upgrade tasks. It counts as over when no host runs them and nothing has
    changed for 15 seconds.
author: The convoy.upgrade authors (@convoy-upgrade)
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.fleet
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: The module follows the rollout, and does not write O(page).
  diff_mode:
    support: none
    details: O(page) changes all the time.
  platform:
    platforms: posix
    support: full
options:
  page:
    description:
      - Existing folder on the control node in which the module keeps a page of the rollout up to date, for a web server or a browser.
      - The page is C(index.html), with a page for groups of hosts in C(hosts), the report of the rollout, and the same as JSON in C(state.json)
        and C(hosts). The files C(schemas/page*.json) of the collection describe the JSON.
      - Each file is replaced as a whole, and only if it has changed. One process can write a folder at a time. Another C(index.html) than that of
        this module is not replaced.
      - If the folder can't be written later, the module warns, retries, and continues to follow.
    type: path
  maintenance:
    description:
      - File on the control node with the settings of an Alertmanager, C(alertmanager), an Icinga 2, C(icinga), or both. Alerts of hosts that are
        being upgraded are silenced there. C(docs/watching.md) describes the settings.
      - Silences last some minutes and are renewed, so they end by themselves if the module is killed.
      - If one of them refuses or can't be reached, the module warns, retries, and continues to follow.
    type: path
notes:
  - It runs only on the control node, so Consul must be reachable from there.
seealso:
  - module: convoy.upgrade.consul_upgrade_info
"""

EXAMPLES = r"""
- name: Follow the current rollout
  convoy.upgrade.consul_upgrade_follow:
    fleet:
      compute1: compute

- name: Create the folder of a page
  ansible.builtin.file:
    path: /tmp/convoy-page
    state: directory
    mode: "0755"

- name: Keep a page of the current rollout up to date
  convoy.upgrade.consul_upgrade_follow:
    page: /tmp/convoy-page
"""

RETURN = r"""
version:
  description: Version that the fleet is to run, or empty.
  returned: success
  type: str
  sample: "2.10"
ended:
  description: V(complete), V(aborted), or V(nothing) if there is no rollout.
  returned: success
  type: str
page:
  description: Path of the page.
  returned: if O(page) is given
  type: str
  sample: /var/www/convoy/index.html
failed_hosts:
  description: Number of failed and lost hosts.
  returned: success
  type: int
failure:
  description: Details of the failure, for use in conditions.
  returned: failure
  type: dict
  contains:
    code:
      description: Stable failure code, such as V(denied) or V(unreadable_ledger).
      type: str
    message:
      description: Message of the failure, without the code that RV(ignore:msg) begins with.
      type: str
    details:
      description: Names, keys and values that the message mentions.
      type: dict
"""
