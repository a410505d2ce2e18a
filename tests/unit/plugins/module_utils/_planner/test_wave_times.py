# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long waves may take, by what hosts took the last time."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, UPGRADED, HostRecord
from fleets import OLD, Fleet, fleet


def took(one: Fleet, seconds: int, *hosts: str, state: str = UPGRADED) -> Fleet:
    one.records.update({host: HostRecord(OLD, state, times={"started": 100, state: 100 + seconds}) for host in hosts})
    return one


def test_a_wave_takes_as_long_as_the_middle_host_of_its_slowest_role() -> None:
    one = fleet(compute=3, web=1)
    for seconds, host in ((10, "compute1"), (1000, "compute2"), (20, "compute3"), (15, "web1")):
        took(one, seconds, host)
    plan = one.plan({"rolling_rules": {"roles": {"compute": 1}}, "health": {"soak": 5}})
    assert plan.waves == (("compute1", "web1"), ("compute2",), ("compute3",))
    assert plan.wave_seconds == (25.0, 25.0, 25.0)


def test_a_role_of_which_nothing_is_known_takes_as_long_as_the_others() -> None:
    one = took(took(fleet(compute=2, web=1), 30, "compute1"), 50, "compute2")
    assert one.plan({"role_order": {"web": "compute"}}).wave_seconds == (40.0, 40.0)


def test_where_no_host_has_told_no_time_is_given() -> None:
    one = took(fleet(compute=2), 30, "compute1", state=FAILED)
    one.records["compute2"] = HostRecord(OLD, UPGRADED, times={"started": 100, "upgraded": 90})
    assert one.plan({"rolling_rules": {"global": 1}}).wave_seconds == (0.0, 0.0)


def test_a_wave_of_nobody_takes_no_time() -> None:
    one = took(fleet(compute=3), 30, "compute2").opened("compute1")
    plan = one.plan({"rolling_rules": {"global": 1}})
    assert plan.waves == ((), ("compute2",), ("compute3",))
    assert plan.wave_seconds == (0.0, 30.0, 30.0)
