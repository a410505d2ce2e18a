# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's record says is behind it, and what of that a run believes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, HostRecord
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.resume_point import finished_groups
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import AFTER, UPGRADE, PushRun, RunTaskGroup

UNITS = (
    RunTaskGroup("stop/db", "stop", "db", once=False),
    RunTaskGroup("upgrade/db@2.8", "upgrade", "db", once=False, point="db@2.8"),
    RunTaskGroup("upgrade/db@2.10", "upgrade", "db", once=False, point="db@2.10"),
    RunTaskGroup("upgrade/cloud@2.10", "upgrade", "cloud", once=False, point="cloud@2.10", provider=True),
    RunTaskGroup("upgrade/cloud", "upgrade", "cloud", once=False, provider=True),
    RunTaskGroup("post_upgrade/db", "post_upgrade", "db", once=False),
)
WAY = ("db@2.8", "db@2.10", "cloud@2.10")
DONE = ("stop/db", "upgrade/db@2.6", "upgrade/db@2.8", "upgrade/cloud@2.10", "upgrade/cloud")


def run(version: str = "2.10", phase: str = UPGRADE, way: tuple[str, ...] = WAY) -> PushRun:
    return PushRun(Settings(), version, phase, {"db1": "db"}, {"db": UNITS}, ("db1",), ways={"db1": way})


@pytest.mark.parametrize(
    ("version", "way", "expected"),
    [
        ("2.10", WAY, ["stop/db", "upgrade/db@2.8"]),
        # On the way elsewhere, the service's own units are done again.
        ("2.12", WAY, ["upgrade/db@2.8"]),
        # Back to where it came from, nothing of a path lies on the way.
        ("2.6", (), []),
    ],
)
def test_a_record_counts_for_hosts_and_never_for_providers(
    version: str, way: tuple[str, ...], expected: list[str]
) -> None:
    assert list(finished_groups(run(version, way=way), "db1", HostRecord("2.10", FAILED, done=DONE))) == expected


def test_points_that_a_way_back_did_not_take_off_the_record_do_not_stay_there() -> None:
    # It failed on the way to 2.10, and then before its first step on the way back to 2.6, which left the points in its record.
    record = HostRecord("2.6", FAILED, done=("upgrade/db@2.8",))
    assert not finished_groups(run("2.6", way=()), "db1", record)


def test_what_is_no_record_of_this_upgrade_has_nothing_behind_it() -> None:
    record = HostRecord("2.10", FAILED, done=("post_upgrade/db", "upgrade/db@2.8"))
    assert list(finished_groups(run(phase=AFTER), "db1", record)) == ["post_upgrade/db"]
    assert not finished_groups(run("2.12", AFTER), "db1", record)
    assert not finished_groups(run(), "db1", replace(record, readable=False))
    assert not finished_groups(run(), "db1", None)
