# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated nodes of the demonstration, one process each. They read their gate, wait a moment as the upgrade, and report.

    nodes.py VERSION FD

starts them at VERSION, and writes a byte to the file descriptor FD when all have reported.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ansible.plugins.loader import init_plugin_loader, lookup_loader

# Must run before any import from a collection, or Ansible does not find collections.
init_plugin_loader()

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED, UPGRADED
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.child import die_with_parent

FLEET = [("controller", number) for number in (1, 2, 3)] + [("compute", number) for number in range(1, 10)]
_UPGRADE_SECONDS = (0.8, 2.0)
_WAIT_SECONDS = 30


def store() -> Store:
    """Return the store in the Consul at CONSUL_HTTP_ADDR."""
    return Store(read_settings(lambda _option: None, os.environ))


def live(name: str, role: str, version: str) -> None:
    """Simulate a node, as the role puppet_gate does every few minutes, but whenever a gate changes."""
    consul = store()
    index = 1
    while True:
        gate = lookup_loader.get("convoy.upgrade.enable_puppet")
        may_run = gate.run([name], variables={}, role=role)[0]
        target = consul.client.get(consul.keys.current_version)
        target_version = target.value.decode() if target else version
        if may_run and target_version != version:
            write_report(consul, HostReport(name, target_version, STARTED, step="upgrade"))
            time.sleep(random.uniform(*_UPGRADE_SECONDS))
            version = target_version
            write_report(consul, HostReport(name, version, UPGRADED))
        index = consul.client.wait_for_change_below(consul.keys.gates, index, _WAIT_SECONDS)[0]


def main() -> None:
    """Start all nodes, and wait."""
    version, ready = sys.argv[1], int(sys.argv[2])
    consul = store()
    for role, number in FLEET:
        write_report(consul, HostReport(f"{role}{number}", version, UPGRADED))
    os.write(ready, b"!")
    os.close(ready)
    for role, number in FLEET:
        if os.fork() == 0:
            die_with_parent()
            live(f"{role}{number}", role, version)
    # A node never ends by itself. If one does, this process and all other nodes end, and the demonstration fails.
    os.wait()
    sys.exit("A node of the demonstration has died.")


if __name__ == "__main__":
    main()
