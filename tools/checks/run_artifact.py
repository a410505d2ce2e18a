# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""run_artifact.py COLLECTIONS: run playbooks of an installed artifact, the internal ones too, with a Consul agent.

Only the collections in the folder can be found, and not the link in .venv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from devkit.agent import ROOT, Agent

_GATE = "config_state/enable_puppet/host/web1"


def main(collections: str) -> None:
    """Upgrade a fleet of one host that upgrades itself, as far as its admission.

    :raises subprocess.CalledProcessError: if a playbook fails; its output is printed.
    """
    with Agent() as agent:
        agent.kv.put("running/versions/1.0/web1", "")
        environ = {
            **os.environ,
            **agent.environ,
            "ANSIBLE_COLLECTIONS_PATH": collections,
            "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
            "ANSIBLE_LOCALHOST_WARNING": "false",
        }
        given = {"version": "2.0", "once": True, "instructions": {"rolling_rules": {"global": 1}}}
        for name, variables in (("upgrade", given), ("status", {})):
            command: list[str] = [
                str(ROOT / ".venv/bin/ansible-playbook"),
                f"convoy.upgrade.{name}",
                "-e",
                json.dumps(variables),
            ]
            done = subprocess.run(
                command,
                cwd=collections,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                print(done.stdout)
                done.check_returncode()
        if agent.kv.get(_GATE) != b"True":
            sys.exit(f"{_GATE} is {agent.kv.get(_GATE)!r} after an upgrade with the installed artifact")


if __name__ == "__main__":
    main(sys.argv[1])
