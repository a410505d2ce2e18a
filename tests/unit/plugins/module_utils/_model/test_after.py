# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks after the upgrade, for the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._model.after import after_view
from ansible_collections.convoy.upgrade.plugins.module_utils._model.fleet import UPGRADED, Record, place
from ansible_collections.convoy.upgrade.plugins.module_utils._model.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._model.planner import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._model.states import read_states
from fleets import KEYS, NEW, OLD, Fleet, fleet

GATE = KEYS.gate("global")


def states(found: Fleet, *roles: str) -> dict[str, str]:
    view = after_view(found.snapshot(), found.members, roles, GATE)
    return {host: state.state for host, state in read_states(view, found.members).items()}


def at(found: Fleet, **posts: str | None) -> Fleet:
    """Let upgraded hosts be somewhere with their tasks after the upgrade."""
    found.upgraded(*posts)
    found.records.update({host: Record(NEW, UPGRADED, post=post) for host, post in posts.items()})
    return found


@pytest.mark.parametrize(
    ("post", "state"),
    [(None, "pending"), ("open", "upgrading"), ("started", "upgrading"), ("failed", "failed"), ("done", "upgraded")],
)
def test_where_a_host_is(post: str | None, state: str) -> None:
    assert states(at(fleet(compute=1), compute1=post), "compute") == {"compute1": state}


def test_a_role_without_such_tasks_is_done() -> None:
    assert states(at(fleet(compute=1), compute1=None), "controller") == {"compute1": "upgraded"}


def test_what_a_record_says_of_another_version_does_not_count() -> None:
    found = at(fleet(compute=1), compute1="done")
    found.records["compute1"] = replace(found.records["compute1"], version=OLD)
    assert states(found, "compute") == {"compute1": "pending"}


def test_a_host_that_is_not_upgraded_is_not_done() -> None:
    assert states(fleet(compute=1), "compute") == {"compute1": "pending"}


def test_open_gates_of_the_upgrade_let_nobody_through_to_what_comes_after_it() -> None:
    found = at(fleet(compute=2), compute1=None, compute2=None).gated("True", "global", "role/compute", "host/compute1")
    assert states(found, "compute") == {"compute1": "pending", "compute2": "pending"}


def test_without_a_version_nothing_changes() -> None:
    found = fleet(compute=1)
    found.current = None
    assert after_view(found.snapshot(), found.members, ["compute"], GATE) == found.snapshot()


def test_caps_and_order_count_as_in_the_upgrade() -> None:
    found = at(fleet(controller=1, compute=3), controller1="done", compute1="started", compute2=None, compute3=None)
    rules = parse({"rolling_rules": {"roles": {"compute": 2}}, "role_order": {"compute": "controller"}})

    def planned() -> list[str]:
        view = after_view(found.snapshot(), found.members, ["controller", "compute"], GATE)
        plan = make_plan(view, place(found.members, ()), rules)
        # Who is at work keeps its slot; the gates that it lacks are not of the tasks after the upgrade.
        return [one.host for one in plan.openings if one.before == "pending"]

    assert planned() == ["compute2"]
    at(found, controller1="open")
    assert planned() == []
