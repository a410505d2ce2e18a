# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout as lines."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.progress_lines import PassProgress, running_count


def result(**hosts: str) -> dict[str, Any]:
    """Return a result in which hosts are in these states, for the reason ``because``."""
    return {
        "version": "2.0",
        "hosts": {
            host: {"role": host.rstrip("0123456789"), "state": state, "reason": "because"}
            for host, state in hosts.items()
        },
    }


def test_a_fleet_that_only_waits_has_no_line() -> None:
    assert PassProgress().lines(result(compute1="pending", compute2="held")) == []


def test_the_first_lines_are_of_upgrading_and_failed_hosts() -> None:
    lines = PassProgress().lines(
        result(compute1="upgraded", compute2="upgrading", compute3="failed", compute4="pending")
    )

    assert lines == [
        "compute2 is upgrading: because",
        "compute3 is failed: because",
        "-- 2.0: compute 1/4; 1 upgrading, 1 waiting, 1 failed",
    ]


def test_later_lines_are_changes_only() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="pending", compute2="upgrading", compute3="pending"))

    assert progress.lines(result(compute1="upgrading", compute2="upgraded", compute3="pending")) == [
        "compute2 upgrading -> upgraded",
        "compute1 pending -> upgrading: because",
        "-- 2.0: compute 1/3; 1 upgrading, 1 waiting",
    ]


def test_a_host_that_waits_again_has_a_line() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))

    assert progress.lines(result(compute1="held"))[0] == "compute1 upgrading -> held: because"


def test_without_a_change_there_is_no_line() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))

    assert progress.lines(result(compute1="upgrading")) == []


def test_a_host_that_was_removed_and_returns_is_new() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))
    assert progress.lines(result()) == []

    assert progress.lines(result(compute1="upgrading"))[0] == "compute1 is upgrading: because"


def test_the_count_is_by_role_and_counts_lost_hosts_as_failed() -> None:
    found = result(controller1="upgraded", controller2="lost", compute1="held", compute2="failed", compute3="pending")

    assert running_count(found) == "-- 2.0: controller 1/2, compute 0/3; 0 upgrading, 2 waiting, 2 failed"


def test_the_count_of_an_empty_fleet() -> None:
    assert running_count(result()) == "-- 2.0: no hosts; 0 upgrading, 0 waiting"
