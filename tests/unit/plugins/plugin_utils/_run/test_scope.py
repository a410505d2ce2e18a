# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a run and its plays."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import (
    RunScope,
    forks_lines,
    hosts_with_post_upgrade_tasks,
    run_scope,
)

ROLES: dict[str, Any] = {"control": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}, "puppet": None}
COMPOSITION = {
    "roles": {
        "control": {"task_groups": [{"name": "post_upgrade/api", "step": "post_upgrade"}]},
        "compute": {"task_groups": [{"name": f"{step}/nova", "step": step} for step in ("prepare", "drain", "stop")]},
    }
}


def plan(waves: list[list[str]] | None = None, **states: str) -> dict[str, Any]:
    hosts = {
        host: {
            "role": host.rstrip("123"),
            "group": "all",
            "state": state,
            "version": None if state == "lost" else "1",
            "holds_itself": False,
            "begun": "2" if state in ("upgrading", "failed", "lost") else None,
            "steps": ["upgrade"] if state in ("upgrading", "failed", "lost") else [],
            "done": (),
        }
        for host, state in states.items()
    }
    return {"version": "2", "hosts": hosts, "waves": waves or [], "transitions": []}


def test_begun_hosts_go_first_then_the_waves_then_all_others() -> None:
    found = run_scope(
        plan(
            [["control2"], ["compute2", "puppet1"], ["control3"]],
            compute1="pending",
            compute2="pending",
            compute3="upgrading",
            control1="upgrading",
            control2="pending",
            control3="pending",
            puppet1="pending",
        ),
        ROLES,
        COMPOSITION,
    )
    assert found == RunScope(
        pushed={
            "dataplane_first": (),
            "controlplane": ("control1", "control2", "control3"),
            "dataplane": ("compute3", "compute2", "compute1"),
        },
        waves=(1, 1, 1),
        validate=("compute1", "compute2", "control2", "control3"),
        plays={
            "dataplane_first": (),
            "controlplane": ("control1", "control2", "control3"),
            "dataplane": ("compute1", "compute2", "compute3", "puppet1"),
        },
        left_out=(),
        resumed=("compute3", "control1"),
    )
    assert found.pushed_hosts == ("control1", "control2", "control3", "compute3", "compute2", "compute1")


@pytest.mark.parametrize(("retry", "pushed"), [(False, ["compute3"]), (True, ["compute1", "compute2", "compute3"])])
def test_failed_and_lost_hosts_are_pushed_only_if_retried(retry: bool, pushed: list[str]) -> None:
    fleet = plan([["compute3"]], compute1="failed", compute2="lost", compute3="pending", control1="held")
    found = run_scope(fleet, ROLES, COMPOSITION, retry_failed=retry)
    assert [*found.pushed_hosts] == pushed
    assert found.validate == ("compute3",)


@pytest.mark.parametrize(
    ("begun", "steps", "is_validated"),
    [
        ("2", "", True),
        ("2", "prepare", True),
        ("2", "prepare may_stop drain", True),
        ("2", "prepare may_stop drain stop", False),
        # The check before the stop runs again after an interrupted stop.
        ("2", "prepare stop may_stop", False),
        # An upgrade to another version was interrupted somewhere, as before a rollback.
        ("1.9", "", False),
        ("1.9", "prepare", True),
        ("1.9", "prepare stop", False),
    ],
)
def test_a_resumed_host_is_validated_until_something_on_it_is_stopped(
    begun: str, steps: str, *, is_validated: bool
) -> None:
    fleet = plan(compute1="upgrading", compute2="upgrading")
    fleet["hosts"]["compute1"] |= {"begun": begun, "steps": steps.split()}
    found = run_scope(fleet, ROLES, COMPOSITION)
    assert found.validate == (("compute1",) if is_validated else ())
    assert found.resumed == ("compute1", "compute2")
    assert found.without(["compute1"]).resumed == ("compute2",)
    # The same holds after a retry, which has it admitted again.
    fleet["transitions"] = [{"host": "compute1", "from": "pending"}]
    again = run_scope({**fleet, "waves": [["compute1"]]}, ROLES, COMPOSITION)
    assert (again.validate, again.resumed) == (found.validate, ("compute2",))


@pytest.mark.parametrize("state", ["upgrading", "failed"])
def test_a_host_that_has_begun_and_holds_itself_may_end_its_hold(state: str) -> None:
    fleet = plan(compute1=state, compute2=state)
    fleet["hosts"]["compute1"] |= {"holds_itself": True, "steps": ["prepare"]}
    found = run_scope(fleet, ROLES, COMPOSITION, retry_failed=True)
    assert (found.validate, found.held) == (("compute1",), ("compute1",))


def test_a_host_that_holds_itself_is_validated_again() -> None:
    fleet = plan([["compute3"]], compute1="held", compute2="held", compute3="pending")
    fleet["hosts"]["compute2"]["holds_itself"] = True
    found = run_scope(fleet, ROLES, COMPOSITION)
    assert (found.validate, found.held) == (("compute2", "compute3"), ("compute2",))
    assert found.without(["compute2"]).held == ()


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ({}, ["control1", "compute1", "compute2"]),
        ({"part": "controlplane"}, ["control1"]),
        ({"part": "role", "role": "compute"}, ["compute1", "compute2"]),
        ({"part": "post_upgrade"}, []),
        ({"limit": ["compute2"]}, ["compute2"]),
        ({"limit": ["control", "compute1"]}, ["control1", "compute1"]),
        ({"limit": ["all"]}, ["control1", "compute1", "compute2"]),
        ({"limit": ["all:!compute2"]}, ["control1", "compute1"]),
    ],
)
def test_a_part_or_a_limit(options: dict[str, Any], hosts: list[str]) -> None:
    found = run_scope(plan(control1="pending", compute1="pending", compute2="pending"), ROLES, COMPOSITION, **options)
    assert [*found.pushed_hosts] == hosts


def test_a_role_that_no_host_has_is_refused() -> None:
    with pytest.raises(UpgradeError) as caught:
        run_scope(plan(compute1="pending"), ROLES, COMPOSITION, part="role", role="compte")
    assert (caught.value.code, caught.value.message) == (
        "unknown_role",
        "role: no host has the role 'compte'; did you mean 'compute'? The roles are compute.",
    )


def test_the_data_plane_waits_for_the_control_plane_even_if_it_is_held() -> None:
    fleet = {**plan(control1="held", control2="upgraded", compute1="pending"), "order": {"compute": ["control"]}}
    with pytest.raises(UpgradeError) as caught:
        run_scope(fleet, ROLES, COMPOSITION, part="dataplane")
    assert caught.value.code == "control_plane_first"
    assert (
        "The data plane waits for hosts of the control plane that are not upgraded: control1 (held). Run"
        in caught.value.message
    )
    done = run_scope(plan(control1="upgraded", compute1="pending"), ROLES, COMPOSITION, part="dataplane")
    assert done.pushed_hosts == ("compute1",)


def test_post_upgrade_tasks_run_on_the_control_plane_first() -> None:
    composition = {"roles": {role: {"task_groups": [{"step": "post_upgrade"}]} for role in ("compute", "control")}}
    fleet = plan(compute1="upgraded", control1="upgraded", control2="lost", puppet1="upgraded")
    assert hosts_with_post_upgrade_tasks(fleet, composition, ROLES) == ("control1", "control2", "compute1")
    assert hosts_with_post_upgrade_tasks(fleet, COMPOSITION, ROLES) == ("control1", "control2")


def test_hosts_that_the_plan_would_admit_are_validated() -> None:
    found = plan([["web1"]], web1="upgrading", web2="upgrading")
    found["transitions"] = [{"host": "web1", "from": "pending"}]
    found["hosts"]["web1"] |= {"begun": None, "steps": []}
    scope = run_scope(found, {"web": {"plane": "dataplane"}}, {"roles": {"web": {}}})
    assert scope.validate == ("web1",)
    assert scope.pushed_hosts == ("web2", "web1")


def canary(**states: str) -> dict[str, Any]:
    """Two stages, and in each the data plane after the control plane."""
    waves = [["control1"], ["compute1"], ["control2"], ["compute2"]]
    found = plan([[host for host in wave if states.get(host) == "pending"] for wave in waves], **states)
    for host, view in found["hosts"].items():
        view |= {"stage": int(host[-1]) - 1, "blocks": states[host] != "upgraded"}
    return {**found, "order": {"compute": ["control"]}}


ALL = ("compute1", "compute2", "control1", "control2")


def test_a_canary_of_the_data_plane_goes_between_those_of_the_control_plane() -> None:
    found = run_scope(canary(**dict.fromkeys(ALL, "pending")), ROLES, COMPOSITION)
    assert (found.pushed["controlplane"], found.waves) == (("control1", "compute1", "control2"), (1, 1, 1))
    assert (found.pushed["dataplane_first"], found.pushed["dataplane"]) == ((), ("compute2",))
    assert found.plays["controlplane"] == ("compute1", "control1", "control2")


def test_in_a_rollback_the_data_plane_goes_first() -> None:
    back = plan([["compute1", "compute2"], ["control1"]], compute1="pending", compute2="pending", control1="pending")
    found = run_scope({**back, "order": {"control": ["compute"]}, "rollback_order": "reversed"}, ROLES, COMPOSITION)
    assert found.pushed == {
        "dataplane_first": ("compute1", "compute2"),
        "controlplane": ("control1",),
        "dataplane": (),
    }
    # The paths of the control plane are computed first, and no host is left out.
    assert found.pushed_hosts == ("control1", "compute1", "compute2")


@pytest.mark.parametrize(
    ("upgraded", "part", "hosts"),
    [
        ((), "controlplane", ["control1"]),
        (("control1",), "dataplane", ["compute1"]),
        (("control1", "compute1"), "controlplane", ["control2"]),
        (("control1", "compute1", "control2"), "dataplane", ["compute2"]),
        ((), "role", ["control1"]),
    ],
)
def test_a_part_has_the_hosts_that_do_not_wait_for_the_other_part(
    upgraded: tuple[str, ...], part: str, hosts: list[str]
) -> None:
    states = {host: "upgraded" if host in upgraded else "pending" for host in ALL}
    found = run_scope(canary(**states), ROLES, COMPOSITION, part=part, role="control")
    assert [*found.pushed_hosts] == hosts


@pytest.mark.parametrize(
    ("upgraded", "part", "code", "names"),
    [
        ((), "dataplane", "control_plane_first", "control1 (pending). Run"),
        (("control1",), "controlplane", "data_plane_first", "compute1 (pending). Run"),
    ],
)
def test_a_part_that_only_waits_for_the_other_is_refused(
    upgraded: tuple[str, ...], part: str, code: str, names: str
) -> None:
    states = {host: "upgraded" if host in upgraded else "pending" for host in ALL}
    with pytest.raises(UpgradeError) as caught:
        run_scope(canary(**states), ROLES, COMPOSITION, part=part)
    assert caught.value.code == code
    assert names in caught.value.message


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"part": "controlplane"},
            "Not in this run: control2; it waits for compute1, which this run leaves out.",
        ),
        (
            {"part": "role", "role": "control", "limit": ["control"]},
            "Not in this run: control2; it waits for compute1, which upgrade_limit leaves out.",
        ),
    ],
)
def test_hosts_that_wait_for_hosts_outside_the_run_are_named(options: dict[str, Any], line: str) -> None:
    there = canary(**dict.fromkeys(ALL, "pending"))
    assert run_scope(there, ROLES, COMPOSITION, **options).waiting == (line,)
    # The plan names those that it does not expect to admit.
    assert run_scope({**there, "waves": [["control1"]]}, ROLES, COMPOSITION, **options).waiting == ()
    assert run_scope(there, ROLES, COMPOSITION).waiting == ()


def test_begun_hosts_that_wait_for_hosts_that_a_limit_leaves_out_are_named() -> None:
    there = plan(cache1="pending", db1="pending", web1="upgrading", web2="upgrading", web3="pending")
    found = run_scope({**there, "order": {"web": ["cache"]}}, ROLES, COMPOSITION, limit=["db", "web"])
    assert found.waiting == ("Not in this run: web1, web2; they wait for cache1, which upgrade_limit leaves out.",)


def test_hosts_that_are_left_out_are_in_no_play_and_are_named() -> None:
    there = plan(compute1="pending", compute2="pending", compute3="upgraded", control1="upgraded", puppet1="pending")
    found = run_scope(there, ROLES, COMPOSITION, left_out=["compute2", "compute3", "puppet9"])
    assert found.pushed_hosts == found.validate == ("compute1",)
    assert found.plays["dataplane"] == ("compute1", "compute3", "puppet1")
    assert found.left_out == ("compute2",)
    assert run_scope(there, ROLES, COMPOSITION, part="controlplane", left_out=["compute2"]).left_out == ()


def scope_of(waves: tuple[int, ...], control: str, data: str) -> RunScope:
    pushed = {"dataplane_first": (), "controlplane": tuple(control.split()), "dataplane": tuple(data.split())}
    return RunScope(pushed=pushed, waves=waves, validate=tuple(f"{control} {data}".split()[1:]), plays=pushed)


def test_hosts_are_left_out_of_all_plays_and_waves() -> None:
    found = scope_of((1, 2, 1), "a1 a2 a3 a4", "b1 b2").without({"a1", "a3", "b2"})
    assert (found.waves, found.pushed["controlplane"], found.plays["dataplane"]) == ((1, 1), ("a2", "a4"), ("b1",))
    assert found.validate == ("a2", "a4", "b1")


def test_each_wave_has_a_host_that_is_not_of_it_as_far_as_there_are_any() -> None:
    scope = scope_of((1, 2, 1), "a1 a2 a3 a4", "b1")
    assert scope.batches(["localhost", "a1", "b1"]) == [["a1", "localhost"], ["a2", "a3", "b1"], ["a4"]]
    assert scope_of((), "", "b1").batches(["localhost"]) == []


def test_hosts_that_go_last_keep_the_places_of_their_roles() -> None:
    fleet = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    found = scope_of((2,), "a1 b1", "b2 a2").with_last({"a1", "b2"}, fleet)
    assert found.pushed["controlplane"] == ("a1", "b1")
    found = scope_of((), "", "a1 b1 a2 b2").with_last({"a1"}, fleet)
    assert found.pushed["dataplane"] == ("a2", "b1", "a1", "b2")


def test_a_wave_with_a_host_that_goes_last_and_others_of_its_role_becomes_two() -> None:
    fleet = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
    found = scope_of((3, 1), "a1 a2 b1 a3", "").with_last({"a1"}, fleet)
    assert (found.waves, found.pushed["controlplane"]) == ((3, 1), ("a2", "a3", "b1", "a1"))
    found = scope_of((4,), "a1 a2 b1 a3", "").with_last({"a1"}, fleet)
    assert (found.waves, found.pushed["controlplane"]) == ((3, 1), ("a2", "a3", "b1", "a1"))


def test_too_few_forks_are_reported_with_the_number_that_uses_all_slots() -> None:
    found = plan(
        [["compute2", "puppet1"], ["compute3", "compute4"]],
        **dict.fromkeys(("compute2", "compute3", "compute4"), "pending"),
    )
    found["hosts"]["compute1"] = {**plan(compute1="upgrading")["hosts"]["compute1"]}
    scope = run_scope(found, ROLES, COMPOSITION)
    # compute1 has begun, and puppet1 upgrades itself.
    assert forks_lines(found, scope, 1) == [
        "The rules allow 2 hosts at the same time, but Ansible has 1 fork (-f) and upgrades no more hosts than that. To use all slots: -f 2."
    ]
    assert forks_lines(found, scope, 2) == []


def test_no_forks_are_needed_without_a_wave() -> None:
    found = plan(compute1="upgraded")
    assert forks_lines(found, run_scope(found, ROLES, COMPOSITION), 1) == []
