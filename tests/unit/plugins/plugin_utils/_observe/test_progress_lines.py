# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a rollout as lines."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot, find_members
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassResult
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.progress_lines import (
    FleetStates,
    PassProgress,
    running_count,
    states_of_pass,
    states_of_result,
    states_of_views,
)
from fleets import fleet


def result(**hosts: str) -> FleetStates:
    """Return the states of a result in which hosts are in these states, for the reason ``because``."""
    return states_of_result(
        {
            "version": "2.0",
            "hosts": {
                host: {"role": host.rstrip("0123456789"), "state": state, "reason": "because", "outside": False}
                for host, state in hosts.items()
            },
        }
    )


def test_explained_hosts_have_the_same_states() -> None:
    found = states_of_views("2.0", {"web1": HostView("web", None, "upgrading", "1", "because")})
    assert PassProgress().lines(found) == ["web1 upgrading: because", "-- 2.0: web 0/1; 1 upgrading, 0 waiting"]


def test_hosts_that_a_job_is_not_for_are_not_counted() -> None:
    found = states_of_views("job/a-1", {"db1": HostView("db", None, "upgraded", None, "", outside=True)})
    assert running_count(found) == "-- job a-1: no hosts; 0 running, 0 waiting"


def test_a_pass_has_the_states_after_its_admissions() -> None:
    plan = fleet(web=2).plan({"rolling_rules": {"global": 1}})
    outcome = PassResult(
        plan,
        admissions=list(plan.admissions),
        membership=find_members({"web1": "web", "web2": "web"}, Snapshot(), None),
    )
    found = states_of_pass(outcome)
    assert found.states == {"web1": "upgrading", "web2": "pending"}
    assert found.reason("web1").startswith("admitted, because rolling_rules.global admits 1 of role web at once")
    progress = PassProgress({"web1": "pending", "web2": "pending"})
    assert progress.lines(found) == ["web1 admitted (slot 1 of 1)", "-- 2.0: web 0/2; 1 upgrading, 1 waiting"]
    # A failed host that goes on in its slot was admitted earlier.
    assert PassProgress({"web1": "failed"}).lines(found)[0].startswith("web1 admitted, because rolling_rules.global")


def test_a_reason_that_names_the_state_is_not_preceded_by_it() -> None:
    reasons = {"web1": "started, service app, step stop", "web2": "failed: disk full", "web3": "silent for 900 s"}
    states = {"web1": "upgrading", "web2": "failed", "web3": "lost"}
    found = FleetStates("2.0", dict.fromkeys(states, "web"), states, lambda host: reasons[host])
    assert PassProgress({"web1": "pending"}).lines(found)[0] == "web1 admitted"
    assert PassProgress().lines(found) == [
        "web1 started, service app, step stop",
        "web2 failed: disk full",
        "web3 lost: silent for 900 s",
        "-- 2.0: web 0/3; 1 upgrading, 0 waiting, 1 failed, 1 lost",
    ]


def test_what_was_shown_already_is_no_change() -> None:
    progress = PassProgress({"compute1": "upgrading"})
    assert progress.lines(result(compute1="upgrading")) == []


def test_a_fleet_that_only_waits_has_no_line() -> None:
    assert PassProgress().lines(result(compute1="pending", compute2="held")) == []


def test_the_first_lines_are_of_upgrading_and_failed_hosts() -> None:
    lines = PassProgress().lines(
        result(compute1="upgraded", compute2="upgrading", compute3="failed", compute4="pending")
    )

    assert lines == [
        "compute2 upgrading: because",
        "compute3 failed: because",
        "-- 2.0: compute 1/4; 1 upgrading, 1 waiting, 1 failed",
    ]


def test_later_lines_are_changes_only() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="pending", compute2="upgrading", compute3="pending"))

    assert progress.lines(result(compute1="upgrading", compute2="upgraded", compute3="pending")) == [
        "compute2 upgraded",
        "compute1 upgrading: because",
        "-- 2.0: compute 1/3; 1 upgrading, 1 waiting",
    ]


def test_a_host_that_waits_again_has_a_line() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))

    assert progress.lines(result(compute1="held"))[0] == "compute1 held: because"


def test_without_a_change_there_is_no_line() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))

    assert progress.lines(result(compute1="upgrading")) == []


def test_a_host_that_was_removed_and_returns_is_new() -> None:
    progress = PassProgress()
    progress.lines(result(compute1="upgrading"))
    assert progress.lines(result()) == []

    assert progress.lines(result(compute1="upgrading"))[0] == "compute1 upgrading: because"


def test_the_count_is_by_role_and_by_state() -> None:
    found = result(controller1="upgraded", controller2="lost", compute1="held", compute2="failed", compute3="pending")

    assert running_count(found) == "-- 2.0: controller 1/2, compute 0/3; 0 upgrading, 2 waiting, 1 failed, 1 lost"


def test_the_count_of_an_empty_fleet() -> None:
    assert running_count(result()) == "-- 2.0: no hosts; 0 upgrading, 0 waiting"
