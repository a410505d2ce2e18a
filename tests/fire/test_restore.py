# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a planner ends after a snapshot of an earlier time was restored; `restore.py` does it to planners at work."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from lab.lab import Lab

from .cluster import becomes_whole
from .fleet import FLEET, NEW, OLD
from .rules import CAPS


def test_a_planner_detects_that_the_epoch_went_back(lab: Lab) -> None:
    assert becomes_whole(lab)
    assert lab.kv.delete("", tree=True)
    lab.kv.load([*((f"running/versions/{OLD}/{host}", "1") for host in FLEET), ("current_version", OLD)])
    server = next(iter(lab.servers.values()))
    store = Store(Settings(host=server.address, port=8500))
    begun = make_pass(store, PassRequest(NEW, CAPS.instructions, fleet=FLEET))
    code, _headers, snapshot = lab.kv.call("GET", "snapshot")
    assert code == 200
    for host in [one.host for one in begun.admissions]:
        write_report(store, HostReport(host, NEW, "upgraded"))
    later = make_pass(store, PassRequest(NEW, CAPS.instructions, fleet=FLEET))
    assert later.admissions
    assert lab.kv.call("PUT", "snapshot", snapshot)[0] == 200
    assert becomes_whole(lab)

    before = lab.kv.texts()
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest(NEW, fleet=FLEET, epoch=later.ledger.epoch if later.ledger else 0))
    assert caught.value.code == "went_back"
    assert "Consul was restored to an earlier time" in caught.value.message
    assert lab.kv.texts() == before
    # An operator who knows of it continues: what was admitted since then is counted by what its hosts say.
    assert make_pass(store, PassRequest(NEW, fleet=FLEET)).plan.hosts
