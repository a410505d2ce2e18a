# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next step at the end of a run, from the results of its tasks."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import PreparedRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.ansible_run import PlaybookRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import CONTROL, DATA, FIRST, RunScope
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import Routes

PLAYS: dict[str, tuple[str, ...]] = {FIRST: (), CONTROL: (), DATA: ("web1",)}
PREPARED = PreparedRun(
    "2", "/run/composed", {"web1": "web"}, {}, RunScope(PLAYS, (), (), PLAYS), Routes({}, {}, {}, {}, {}, ()), (), False
)
STATUS = {"hosts": {"web1": {"state": "failed"}}, "can_move": False}
STUCK = {"failure": {"code": "stuck", "message": "", "details": {}}}


@pytest.mark.parametrize(
    ("results", "next_step"),
    [
        ([PREPARED.as_result()], "ansible-playbook convoy.upgrade.upgrade -e version=2 -e retry_failed=true"),
        ([], "ansible-playbook convoy.upgrade.retry -e host=web1"),
    ],
)
def test_a_run_in_which_ansible_upgrades_hosts_retries_them_itself(
    monkeypatch: pytest.MonkeyPatch, results: list[dict[str, Any]], next_step: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "convoy.upgrade.upgrade", "-e", "version=2"])
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/upgrade.yml", lines.append)
    for result in [*results, STATUS, STUCK]:
        run.remember(result)
    run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines[0] == f"Next: {next_step}"
