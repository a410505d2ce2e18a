# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The details of hosts: in which part each is, and what makes a part change."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.host_details import (
    ROW,
    HostDetails,
    events_by_host,
    host_details,
    parts_of,
    waiting_text,
)
from fleets import NEW, OLD, Fleet, fleet
from hypothesis import given
from hypothesis import strategies as st

RULES = {"rolling_rules": {"global": 1}}


def details_of(site: Fleet) -> dict[str, HostDetails]:
    site.ledger = Ledger(3, NEW, OLD, instructions=RULES)
    return host_details(site.snapshot(), site.plan(RULES).hosts, [], {})


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_each_host_is_in_one_part_and_there_are_not_many(counts: list[int]) -> None:
    roles = {f"r{role}h{at}": f"r{role}" for role, count in enumerate(counts) for at in range(count)}
    found = parts_of(roles)
    assert [host for part in found for host in part.hosts] == [*roles]
    assert len({part.name for part in found}) == len(found) <= 100 + len(counts)
    assert all(roles[host] == part.role for part in found for host in part.hosts)
    assert all(len(part.hosts) % ROW == 0 for part, after in itertools.pairwise(found) if part.role == after.role)


def test_a_waiting_host_does_not_change_because_others_do() -> None:
    site = fleet(compute=4).opened("compute1")
    before = details_of(site)
    assert before["compute3"].view.reason == "waits for a slot: rolling_rules.global"
    site.upgraded("compute1").opened("compute2")
    after = details_of(site)
    assert {host for host in before if before[host] != after[host]} == {"compute1", "compute2"}


def test_a_host_that_its_former_role_holds_is_held_on_its_page() -> None:
    site = fleet(compute=2).held("role/spare")
    site.records["compute1"] = HostRecord(OLD, "upgraded", role="compute", former_role="spare")
    found = details_of(site)
    assert "a hold of its former role spare" in found["compute1"].hold
    assert found["compute2"].hold == ""


def test_a_reason_of_another_kind_is_shown_as_it_is() -> None:
    reason = 'stages[0] is {"name": "canary"}'
    assert waiting_text(HostView("web", None, "pending", "1", reason, cause="new")) == reason


@pytest.mark.parametrize(
    ("state", "end"), [("started", None), ("failed", 300), ("upgraded", 300)], ids=["in it", "failed", "upgraded"]
)
def test_steps_have_their_begin_and_end(state: str, end: int | None) -> None:
    site = fleet(compute=1)
    trail = (
        StepStart(100, "nova", "stop"),
        StepStart(160, "nova", "start"),
        StepStart(200, "", ""),
        StepStart(250, "nova", "verify"),
    )
    site.records["compute1"] = HostRecord(NEW, state, times={state: 300}, trail=trail)
    found = next(iter(details_of(site).values()))
    assert [*found.steps] == [
        ("nova", "stop", 100, 160), ("nova", "start", 160, 200), ("nova", "verify", 250, end),
    ]  # fmt: skip


def test_a_host_without_a_record_or_with_an_unreadable_one_has_no_steps() -> None:
    site = fleet(compute=2)
    site.records["compute1"] = HostRecord(NEW, "failed", readable=False)
    assert [[*one.steps] for one in details_of(site).values()] == [[], []]


def test_an_entry_of_the_history_is_of_the_hosts_and_roles_that_it_names() -> None:
    common = {"version": "2", "who": "ann"}
    events = [
        {"epoch": 1, "at": 10, "what": "begin", **common},
        {
            "epoch": 2,
            "at": 11,
            "what": "open",
            "hosts": {"web1": "first"},
            "roles": {"db": {"hosts": 2, "reason": "all"}},
            **common,
        },
        {"epoch": 3, "at": 12, "what": "retry", "by": "bob", "hosts": {"web1": "disk"}, **common},
    ]
    found = events_by_host(events, {"web1": "web", "web2": "web", "db1": "db", "db2": "db"})
    assert {host: [(one["epoch"], one["by"], one["reason"]) for one in entries] for host, entries in found.items()} == {
        "web1": [(2, "ann", "first"), (3, "bob", "disk")],
        "db1": [(2, "ann", "all")],
        "db2": [(2, "ann", "all")],
    }
