# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that go last in their roles, with stages and with a limit."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.last_hosts import PendingHosts, pending_hosts

CANARY = [{"name": "canary", "hosts": 1}]


def pending(
    stages: dict[str, int], limit: tuple[str, ...] = (), rollback_order: str = "", **states: str
) -> PendingHosts:
    hosts = {
        host: {"role": host.rstrip("123"), "group": None, "state": states.get(host, "pending"), "stage": stage}
        for host, stage in stages.items()
    }
    plan: dict[str, Any] = {
        "hosts": hosts,
        # What the plan would admit is upgrading in it.
        "transitions": [{"host": host, "from": "pending"} for host, state in states.items() if state == "upgrading"],
        "instructions": {"stages": CANARY},
        "rollback_order": rollback_order,
    }
    return pending_hosts(plan, limit)


def test_a_host_that_goes_last_is_in_no_stage_before_the_others_of_its_role() -> None:
    stages = {"cache1": 0, "cache2": 1, "db1": 0, "db2": 1, "db3": 1, "web1": 0, "web2": 1}
    with pytest.raises(UpgradeError) as caught:
        pending(stages, db1="upgrading", web1="upgraded").refuse_in_earlier_stage(["db1", "cache1"])
    assert (caught.value.code, caught.value.details["key"]) == ("bad_instructions", "stages[0].hosts")
    assert caught.value.message == (
        "instructions: stages[0].hosts: cache1, db1 would go in stage 'canary', before cache2, db2, db3 of a later stage. They go last in their "
        "roles (upgrade_goes_last), as the primary of a database does. Nothing was touched: name the hosts of this stage in the rules, hosts: [web1, "
        "cache2, db2]; then run the same command again."
    )


@pytest.mark.parametrize("state", ["upgraded", "held", "failed"])
def test_it_goes_in_any_stage_once_the_others_have_begun_or_do_not_go(state: str) -> None:
    pending({"db1": 0, "db2": 1}, db2=state).refuse_in_earlier_stage(["db1"])


def test_it_goes_with_or_after_the_others_of_its_role() -> None:
    pending({"db1": 0, "db2": 0, "db3": 1, "web1": 1}).refuse_in_earlier_stage(["db3"])
    pending({"db1": 0, "web1": 1}).refuse_in_earlier_stage(["db1"])
    # The standbys of a primary that migrates the schema.
    pending({"db1": 0, "db2": 1, "db3": 1}).refuse_in_earlier_stage(["db2", "db3"])


def test_a_rollback_reverses_stages_and_is_not_refused() -> None:
    pending({"db1": 0, "db2": 1}, rollback_order="reversed").refuse_in_earlier_stage(["db1"])


def test_a_limit_decides_which_hosts_it_does_not_wait_for() -> None:
    found = pending({"db1": 0, "db2": 1, "db3": 1}, ("db1",), db3="upgraded")
    found.refuse_in_earlier_stage(["db1"])
    assert found.lines(["db1"]) == [
        "upgrade_limit leaves out db2, which should go before db1 (upgrade_goes_last), as the replicas of a database before its primary. It does not "
        "wait for them."
    ]
    assert found.lines(["db1", "db2"]) == []
    found = pending({"db1": 0, "db2": 1, "db3": 1}, ("db",))
    assert found.lines(["db1"]) == []
    with pytest.raises(UpgradeError):
        found.refuse_in_earlier_stage(["db1"])
