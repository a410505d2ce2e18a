# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planning the post-upgrade tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    FAILED,
    UPGRADED,
    HostRecord,
    Snapshot,
    roles_of_hosts,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.states import read_states
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.post_upgrade import (
    post_upgrade_snapshot,
    without_post_upgrade,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.health_rules import HealthRules
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from fleets import KEYS, NEW, OLD, Fleet, fleet, opened

GATE = KEYS.gate("global")


def states(found: Fleet, *roles: str) -> dict[str, str]:
    return {host: state.state for host, state in read_states(viewed(found, *roles), found.members).items()}


def viewed(found: Fleet, *roles: str, rules: HealthRules | None = None, **more: Any) -> Snapshot:
    snapshot = replace(found.snapshot(), **more)
    return post_upgrade_snapshot(snapshot, found.members, roles, GATE, read_states(snapshot, found.members, rules))


def at(found: Fleet, **posts: str | None) -> Fleet:
    """Set the progress of upgraded hosts in their post-upgrade tasks."""
    found.upgraded(*posts)
    found.records.update({host: HostRecord(NEW, UPGRADED, post=post) for host, post in posts.items()})
    return found


@pytest.mark.parametrize(("admitted_at", "state"), [(9_900, "upgrading"), (9_000, "lost")])
def test_a_host_may_be_silent_from_its_admission_on_and_not_from_its_upgrade(admitted_at: int, state: str) -> None:
    found, rules = at(fleet(compute=1), compute1="open"), HealthRules(progress_deadline=300)
    found.records["compute1"] = replace(found.records["compute1"], times={UPGRADED: 1})
    snapshot = found.snapshot()
    hosts = read_states(snapshot, found.members, rules)
    view = post_upgrade_snapshot(snapshot, found.members, ["compute"], GATE, hosts, {"compute1": admitted_at})
    assert read_states(view, found.members, rules)["compute1"].state == state


@pytest.mark.parametrize(
    ("post", "state"),
    [(None, "pending"), ("open", "upgrading"), ("started", "upgrading"), ("failed", "failed"), ("done", "upgraded")],
)
def test_where_a_host_is(post: str | None, state: str) -> None:
    assert states(at(fleet(compute=1), compute1=post), "compute") == {"compute1": state}


@pytest.mark.parametrize(
    ("post", "state"),
    [(None, "pending"), ("open", "upgrading"), ("started", "upgrading"), ("failed", "failed"), ("done", "upgraded")],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_where_a_host_is_whose_report_is_not_published_yet(post: str | None, state: str, is_first: bool) -> None:
    found = at(fleet(compute=1), compute1=post)
    if is_first:
        del found.reports["compute1"]
    else:
        found.running(OLD, "compute1")
    found.records["compute1"] = replace(found.records["compute1"], index=99)
    assert read_states(found.snapshot(), found.members)["compute1"].state == "upgraded"
    assert states(found, "compute") == {"compute1": state}
    if post in (None, "done"):
        assert states(found, "controller") == {"compute1": "upgraded"}


def test_a_role_without_such_tasks_is_done() -> None:
    assert states(at(fleet(compute=1), compute1=None), "controller") == {"compute1": "upgraded"}


def test_what_a_record_says_of_another_version_does_not_count() -> None:
    found = at(fleet(compute=1), compute1="done")
    found.records["compute1"] = replace(found.records["compute1"], version=OLD)
    assert states(found, "compute") == {"compute1": "pending"}


def test_a_host_that_is_not_upgraded_is_not_done() -> None:
    assert states(fleet(compute=1), "compute") == {"compute1": "pending"}


def test_open_gates_of_the_upgrade_admit_no_host_to_post_upgrade_tasks() -> None:
    found = at(fleet(compute=2), compute1=None, compute2=None).gated("True", "global", "role/compute", "host/compute1")
    assert states(found, "compute") == {"compute1": "pending", "compute2": "pending"}


def test_without_a_version_nothing_changes() -> None:
    found = fleet(compute=1)
    found.current = None
    assert viewed(found, "compute") == found.snapshot()


NOVA = HealthRules(consul_checks=("nova",))
PASSING, CRITICAL = {"nova": "passing"}, {"nova": "critical"}


@pytest.mark.parametrize(
    ("post", "roles", "state", "soaking"),
    [
        (None, ["compute"], "failed", False),
        ("open", ["compute"], "upgrading", False),
        ("started", ["compute"], "upgrading", False),
        ("failed", ["compute"], "failed", False),
        ("done", ["compute"], "upgrading", True),
        (None, [], "failed", False),
        ("done", [], "failed", False),
    ],
)
def test_where_a_host_is_that_lost_its_health(post: str | None, roles: list[str], state: str, soaking: bool) -> None:
    found = at(fleet(compute=1), compute1=post)
    marks = {"compute1": HealthMark(NEW, 100, upgraded=True)}
    view = viewed(found, *roles, rules=NOVA, marks=marks, checks={"compute1": CRITICAL})
    one = read_states(view, found.members, NOVA)["compute1"]
    assert (one.state, one.is_soaking) == (state, soaking)
    well = viewed(found, *roles, rules=NOVA, marks=marks, checks={"compute1": PASSING})
    expected = {"done": "upgraded", None: "pending" if roles else "upgraded", "failed": "failed"}
    assert read_states(well, found.members, NOVA)["compute1"].state == expected.get(post, "upgrading")


def test_a_host_is_without_post_upgrade_until_it_was_well_once() -> None:
    found = at(fleet(compute=3), compute1=None, compute2=None)
    marks = {"compute1": HealthMark(NEW, 100, upgraded=True), "compute2": HealthMark(NEW, 100)}
    snapshot = replace(found.snapshot(), marks=marks, checks={"compute1": CRITICAL, "compute2": CRITICAL})
    assert without_post_upgrade(read_states(snapshot, found.members, NOVA)) == ["compute2", "compute3"]


def test_caps_and_order_count_as_in_the_upgrade() -> None:
    found = at(fleet(controller=1, compute=3), controller1="done", compute1="started", compute2=None, compute3=None)
    rules = parse({"rolling_rules": {"roles": {"compute": 2}}, "role_order": {"compute": "controller"}})

    def planned() -> list[str]:
        view = viewed(found, "controller", "compute")
        plan = make_plan(view, roles_of_hosts(found.members, ()), rules)
        # A host that runs these tasks keeps its slot. They need no gates.
        return [one.host for one in plan.admissions if one.before == "pending"]

    assert planned() == ["compute2"]
    at(found, controller1="open")
    assert planned() == []


def test_hosts_run_the_tasks_with_which_they_were_upgraded() -> None:
    found = at(fleet(compute=1), compute1=None)
    found.ledger = Ledger(1, NEW, services={"compute": "a2"})
    view = viewed(found, "compute")
    assert [one.host for one in make_plan(view, found.members, parse({"rolling_rules": {"global": 1}})).admissions] == [
        "compute1"
    ]


def test_a_host_that_repeats_its_failed_tasks_counts_under_the_budget_until_they_are_done() -> None:
    rules = {"rolling_rules": {"global": 2}, "failure_rules": {"fleet": 1}}
    times = {"upgraded": 9_000, "open": 9_990, "post_failed": 9_995}
    found = at(fleet(compute=3), compute1="started", compute2=None, compute3=None)

    def admitted() -> list[str]:
        plan = make_plan(viewed(found, "compute"), found.members, parse(rules))
        return [one.host for one in plan.admissions]

    found.records["compute1"] = HostRecord(NEW, UPGRADED, post="started", times=times)
    assert admitted() == []
    del times["post_failed"]
    assert admitted() == ["compute2"]


@pytest.mark.parametrize("broken", [(), ("compute1", "compute2", "compute3")])
@pytest.mark.parametrize("post", ["failed", "started"])
def test_a_host_that_a_rollback_brought_back_takes_a_slot_and_counts(broken: tuple[str, ...], post: str) -> None:
    found = at(fleet(compute=3), compute1=post, compute2=None, compute3=None)
    found.ledger = Ledger(1, NEW, rollback=True, broken=broken)

    def planned(**rules: Any) -> Plan:
        return make_plan(viewed(found, "compute"), found.members, parse({"rolling_rules": {"global": 1}, **rules}))

    assert opened(planned()) == []
    exhausted = planned(rolling_rules={"global": 3}, failure_rules={"roles": {"compute": 1}})
    assert bool(exhausted.exhausted) is (post == "failed")


def test_a_host_that_a_rollback_did_not_bring_back_stays_excused() -> None:
    found = at(fleet(compute=2), compute1=None)
    found.ledger = Ledger(1, NEW, rollback=True, broken=("compute2",))
    found.records["compute2"] = HostRecord(NEW, FAILED)
    view = viewed(found, "compute")
    assert read_states(view, found.members)["compute2"].is_excused
