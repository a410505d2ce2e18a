# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that every run of a playbook imports, also each agent run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CALLBACK = Path(__file__).resolve().parents[5] / "playbooks/callback_plugins/convoy_watch.py"
LOAD = """\
import json, runpy, sys
import ansible.plugins.callback
before = set(sys.modules)
runpy.run_path(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_callback_of_every_run_loads_no_client_of_consul() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, CALLBACK], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert any(name.endswith("_daemon_client.client") for name in loaded)
    assert [
        name for name in loaded if "._state" in name or "._rollout" in name or name.endswith("_consul.client")
    ] == []
    assert {"consul", "requests", "urllib3", "http.client"}.isdisjoint(loaded)
