# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired ledger of a request: the rules under which a rollout begins, and the rollouts that it may replace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import FIRST_ROLLOUT
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import (
    ABORTED,
    COMPLETE,
    PAUSED,
    RUNNING,
    Ledger,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.desired_ledger import (
    DesiredLedger,
    desired_ledger,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.pass_request import PassRequest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from fleets import NEW, OLD, UNLIMITED, Fleet

NEXT = "3.0"
ONE = {"rolling_rules": {"global": 1}, "stages": [{"name": "canary", "hosts": 1}, {"name": "rest"}]}
LEDGER = Ledger(epoch=4, version=NEW, previous_version=OLD, state=RUNNING, instructions=ONE, who="ann", since=7)


def fleet(ledger: Ledger | None = None, current: str | None = NEW) -> Fleet:
    return Fleet({}, current, ledger=ledger).running(OLD, "web1", "web2", "db1")


def desired(there: Fleet, version: str | None, rules: dict[str, Any] | None = None, **more: Any) -> DesiredLedger:
    return desired_ledger(Keys(), PassRequest(version, rules, **more), there.snapshot(), 99, begun=False)


def refusal(there: Fleet, version: str | None, rules: dict[str, Any] | None = None, **more: Any) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        desired(there, version, rules, **more)
    return caught.value


@pytest.mark.parametrize("rules", [None, {}, {"rolling_rules": {"roles": {"web": 1}}}, {"health": {"soak": 5}}])
def test_without_a_cap_nothing_begins(rules: dict[str, Any] | None) -> None:
    error = refusal(fleet(None, OLD), NEW, rules)

    assert error.code == "no_cap"
    assert "Keep that with global: unlimited" in error.message, "the original had no cap by default"


def test_a_half_done_rollout_of_other_code_is_adopted_under_rules_alone() -> None:
    assert refusal(fleet(None), NEW).code == "no_cap"
    assert not desired(fleet(None), NEW, UNLIMITED).begins


def test_a_version_that_a_token_may_not_read_is_not_said_to_be_set_by_others() -> None:
    error = refusal(fleet(LEDGER, None), None)
    assert error.code == "foreign_version"
    assert (
        "has no value, or this token may not read it, but the rollout in upgrade/ledger goes to '2.0'. Check the policy"
        in error.message
    )


def test_rules_of_a_running_rollout_do_not_lose_their_cap() -> None:
    there = fleet(replace(LEDGER, instructions=UNLIMITED))
    assert refusal(there, NEW, {"rolling_rules": {}}).code == "no_cap"


def test_a_rollout_that_has_begun_goes_on_where_a_role_without_a_cap_comes_up() -> None:
    there = fleet(replace(LEDGER, instructions={"rolling_rules": {"roles": {"web": 1}}}))
    assert desired(there, NEW).members == {"db1": "db", "web1": "web", "web2": "web"}


def test_a_role_without_a_cap_that_came_up_keeps_no_rollback_from_beginning() -> None:
    ledger = replace(LEDGER, instructions={"rolling_rules": {"roles": {"web": 1}}})
    back = desired(fleet(ledger), OLD, ledger.instructions, rolls_back=ledger)
    assert back.begins
    assert back.ledger.rollback
    # Other rules are checked, and so are those of a rollout that began without any cap.
    assert refusal(fleet(ledger), OLD, {"rolling_rules": {"roles": {"web": 2}}}, rolls_back=ledger).code == "no_cap"
    none = replace(LEDGER, instructions={"role_order": {"web": ["db"]}})
    assert refusal(fleet(none), OLD, none.instructions, rolls_back=none).code == "no_cap"


@pytest.mark.parametrize("state", [ABORTED, COMPLETE])
def test_the_next_rollout_is_under_the_rules_of_the_last_one_until_others_are_given(state: str) -> None:
    there = fleet(replace(LEDGER, state=state))
    assert desired(there, NEXT).ledger.instructions == ONE
    assert desired(there, NEXT, UNLIMITED).ledger.instructions == UNLIMITED


def test_an_upgrade_to_the_version_before_says_what_a_rollback_would_do() -> None:
    done = replace(LEDGER, state=COMPLETE)
    text = f"version: {OLD} is the version before the rollout to {NEW}. "

    def says(found: DesiredLedger) -> bool:
        assert found.begins
        return any(one.startswith(text) for one in found.warnings)

    assert says(desired(fleet(done), OLD))
    assert not says(desired(fleet(done), NEXT))
    assert not says(desired(fleet(done), OLD, ONE, rolls_back=done))
    # After a rollback, the version before is the newer one.
    assert not says(desired(fleet(replace(done, rollback=True)), OLD))


def test_rules_of_the_default_file_are_those_of_a_rollout_that_begins() -> None:
    adopted, first, next_one = fleet(None), fleet(None, OLD), fleet(replace(LEDGER, state=COMPLETE))
    for there, version in ((adopted, NEW), (first, NEW), (next_one, NEXT)):
        assert desired(there, version, rules_with_default=UNLIMITED).ledger.instructions == UNLIMITED
    # Rules of the call belong to the same rules as the file. A call that begins a rollout reads its own ledger before it admits a host.
    both = {**UNLIMITED, "failure_rules": {"fleet": 3}}
    for there in (first, fleet(replace(LEDGER, instructions=both))):
        assert desired(there, NEW, {"failure_rules": {"fleet": 3}}, rules_with_default=both).ledger.instructions == both
    # One that continues keeps its rules, and a rollback has those of the rollout before.
    for state in (RUNNING, PAUSED, COMPLETE):
        assert (
            desired(fleet(replace(LEDGER, state=state)), NEW, rules_with_default=UNLIMITED).ledger.instructions == ONE
        )
    assert desired(fleet(LEDGER), OLD, ONE, rules_with_default=UNLIMITED, rolls_back=LEDGER).ledger.instructions == ONE


# Replacing another rollout


@pytest.mark.parametrize("state", [RUNNING, PAUSED])
def test_a_rollout_under_way_is_replaced_by_name_alone(state: str) -> None:
    there = fleet(replace(LEDGER, state=state))
    unnamed = refusal(there, NEXT)
    assert unnamed.code == "rollout_under_way"
    assert f"The rollout under way goes to {NEW}: it was begun by ann and is {state}" in unnamed.message
    assert f"-e replace={NEW}" in unnamed.message
    # A run of a paused rollout would only wait.
    assert ("convoy.upgrade.resume, and finish it with" in unnamed.message) == (state == PAUSED)

    other = refusal(there, NEXT, replace=OLD, restart=True)
    assert other.code == "rollout_under_way"
    assert other.message.startswith(f"replace names {OLD}, but the rollout under way goes to {NEW}")

    found = desired(there, NEXT, replace=NEW)
    assert (found.begins, found.replaces) == (True, there.snapshot().ledger)
    assert found.ledger.instructions == ONE, "the rules in force are carried over"
    assert desired(there, NEXT, UNLIMITED, replace=NEW).ledger.instructions == UNLIMITED


@pytest.mark.parametrize("state", [ABORTED, COMPLETE])
def test_nothing_is_replaced_where_none_is_under_way(state: str) -> None:
    there = fleet(replace(LEDGER, state=state))
    for named in (None, NEW, OLD):
        assert desired(there, NEXT, replace=named).replaces is None


def test_the_same_command_again_goes_on_with_what_it_began() -> None:
    there = fleet(replace(LEDGER, version=NEXT, previous_version=NEW), NEXT)
    found = desired(there, NEXT, replace=NEW)
    assert (found.begins, found.replaces) == (False, None)


def test_a_rollback_begins_without_naming_the_rollout_that_it_replaces() -> None:
    there = fleet(LEDGER)
    found = desired(there, OLD, rolls_back=LEDGER)
    assert (found.begins, found.replaces) == (True, None)


def test_a_version_that_another_process_has_set_does_not_end_the_rollout_under_way() -> None:
    there = fleet(LEDGER, NEXT)
    assert refusal(there, NEXT).code == "rollout_under_way"
    found = desired(there, NEXT, replace=NEW)
    assert (found.begins, found.replaces) == (False, LEDGER)


@pytest.mark.parametrize("current", [NEW, OLD, NEXT])
def test_an_aborted_rollout_begins_again_only_on_request_whatever_the_current_version_is(current: str) -> None:
    there = fleet(replace(LEDGER, state=ABORTED), current)
    assert refusal(there, NEW).code == "aborted"
    assert desired(there, NEW, restart=True).begins
    assert desired(there, NEW, rolls_back=there.ledger).begins


@pytest.mark.parametrize("current", [OLD, NEXT])
def test_a_paused_rollout_keeps_its_pause_if_something_else_has_set_the_version(current: str) -> None:
    there = fleet(replace(LEDGER, state=PAUSED, command={"by": "ann", "reason": "logins fail"}), current)
    for more in ({}, {"restart": True}, {"replace": NEW}):
        error = refusal(there, NEW, **more)
        assert error.code == "foreign_version"
        assert "is paused by ann: logins fail" in error.message
        assert "convoy.upgrade.resume" in error.message
    assert desired(fleet(replace(LEDGER, state=PAUSED)), NEW).ledger.state == PAUSED
    assert desired(fleet(LEDGER, current), NEW).begins, "after the pause, it begins again"


# Names that the fleet does not have

TYPO = {"rolling_rules": {"global": "100%", "roles": {"wbe": 1}}}


@pytest.mark.parametrize("state", [ABORTED, COMPLETE])
def test_no_rollout_begins_under_rules_whose_names_fit_nothing(state: str) -> None:
    there = fleet(replace(LEDGER, state=state))
    error = refusal(there, NEXT, TYPO)
    assert error.code == "unknown_names"
    assert "did you mean 'web'?" in error.message
    assert desired(there, NEXT, {**TYPO, "optional_names": ["wbe"]}).begins
    # The rules of the last rollout are refused too, though an earlier release only warned of them.
    assert refusal(fleet(replace(LEDGER, state=state, instructions=TYPO)), NEXT).code == "unknown_names"


def test_rules_of_a_running_rollout_are_not_changed_to_such_ones() -> None:
    assert refusal(fleet(replace(LEDGER, instructions=UNLIMITED)), NEW, TYPO).code == "unknown_names"


def test_a_rollout_goes_on_and_back_though_a_host_of_its_rules_was_removed() -> None:
    rules = {
        "rolling_rules": {"global": 1},
        "stages": [{"name": "canary", "hosts": ["gone1", "web1"]}, {"name": "rest"}],
    }
    ledger = replace(LEDGER, instructions=rules)
    assert desired(fleet(ledger), NEW, rules).ledger.instructions == rules
    assert desired(fleet(ledger), OLD, rules, rolls_back=ledger).begins
    assert desired(fleet(ledger), OLD, {**rules, "rollback_order": "forward"}, rolls_back=ledger).begins
    # Other rules are checked.
    assert refusal(fleet(ledger), OLD, TYPO, rolls_back=ledger).code == "unknown_names"


def test_names_are_those_of_the_fleet_that_is_given_too() -> None:
    rules = {"rolling_rules": {"global": 1, "roles": {"cache": 1}}, "stages": [{"hosts": ["cache1"]}]}
    there = fleet(None, OLD)
    assert refusal(there, NEW, rules).code == "unknown_names"
    assert desired(there, NEW, rules, fleet={"cache1": "cache"}).begins


@pytest.mark.parametrize("place", ["host/wbe1", "role/wbe"])
def test_no_rollout_begins_while_a_hold_has_an_unknown_name(place: str) -> None:
    name = place.partition("/")[2]
    for there in (fleet(None, OLD).held(place), fleet(None).held(place)):
        error = refusal(there, NEW, UNLIMITED)
        assert (error.code, error.details["names"]) == ("unknown_names", [name])
        assert f"is a hold for an unknown {place.partition('/')[0]}; did you mean 'web" in error.message
        assert f"convoy.upgrade.unhold -e {place.replace('/', '=')}" in error.message
        assert desired(there, NEW, {**UNLIMITED, "optional_names": [name]}).rules
        assert desired(there, NEW, UNLIMITED, fleet={"wbe1": "wbe"}).rules
        there.holds[place] = replace(there.holds[place], allow_unknown=True)
        assert desired(there, NEW, UNLIMITED).rules
        there.holds[place] = replace(there.holds[place], allow_unknown=False, by=FIRST_ROLLOUT)
        assert desired(there, NEW, UNLIMITED).rules, "it was made of a gate, whose host may be gone"
    assert not desired(fleet(LEDGER).held(place), NEW).begins, "a rollout that has begun goes on"
    assert desired(fleet(LEDGER).held(place), OLD, ONE, rolls_back=LEDGER).begins, "a rollback warns"


def test_order_from_the_inventory_may_name_roles_without_hosts() -> None:
    assert desired(fleet(None, OLD), NEW, UNLIMITED, role_order={"web": ["network", "db"]}).begins


def test_the_tasks_of_services_stay_until_a_command_gives_others() -> None:
    begun = desired(fleet(None, OLD), NEW, UNLIMITED, services={"web": "a1"}).ledger
    assert begun.services == {"web": "a1"}
    there = fleet(begun)
    assert desired(there, NEW).ledger.services == {"web": "a1"}
    assert desired(there, NEW, services={"web": "a2"}).ledger.services == {"web": "a2"}
    assert desired(there, NEW, services={}).ledger.services == {}
    # They are those of one rollout.
    assert desired(fleet(replace(begun, state=COMPLETE)), NEXT).ledger.services == {}


@pytest.mark.parametrize(
    ("state", "command", "expected"),
    [
        (RUNNING, {}, NEW),
        (PAUSED, {}, OLD),
        (PAUSED, {"was": COMPLETE}, NEW),
        (ABORTED, {}, OLD),
        (COMPLETE, {}, NEW),
    ],
)
def test_the_version_before_is_that_of_a_rollout_which_every_host_has_ended(
    state: str, command: dict[str, Any], expected: str
) -> None:
    ledger = replace(LEDGER, state=state, command=command)
    there = fleet(ledger).upgraded("web1", "web2", "db1")
    assert desired(there, NEXT, replace=NEW).ledger.previous_version == expected
    # With health, a report is not enough: each host soaks, or has failed since.
    there = fleet(replace(ledger, instructions={**ONE, "health": {"soak": 60}})).upgraded("web1", "web2", "db1")
    assert desired(there, NEXT, replace=NEW).ledger.previous_version == (OLD if state == RUNNING else expected)
    there = fleet(ledger).upgraded("web1", "web2", "db1").failed("db1")
    there.records["db1"] = replace(there.records["db1"], index=10_000)
    assert desired(there, NEXT, replace=NEW).ledger.previous_version == (OLD if state == RUNNING else expected)


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (replace(LEDGER, state=COMPLETE, begun_index=50), (0, False)),
        (replace(LEDGER, version=NEXT, previous_version=NEW, state=ABORTED, begun_index=50), (0, False)),
        (replace(LEDGER, version=NEXT, previous_version=OLD, state=ABORTED, begun_index=50), (0, True)),
        (replace(LEDGER, state=ABORTED, begun_index=50), (50, False)),
        (replace(LEDGER, state=ABORTED, begun_index=50, all_soak=True), (50, True)),
    ],
)
def test_a_rollout_that_begins_again_does_not_end_the_soaks_of_its_hosts(
    ledger: Ledger, expected: tuple[int, bool]
) -> None:
    there = fleet(ledger, ledger.version)
    again = desired(there, NEW, restart=True)
    if ledger.state == COMPLETE:
        again = desired(there, NEXT)
    assert again.begins and (again.ledger.begun_index, again.ledger.all_soak) == expected


def test_a_complete_rollout_begins_again_on_request_if_hosts_are_not_part_of_it() -> None:
    there = fleet(replace(LEDGER, state=COMPLETE)).upgraded("web1", "web2", "db1")
    assert not desired(there, NEW, restart=True).begins
    assert not desired(there, NEW, fleet={"db2": "db"}).begins
    again = desired(there, NEW, fleet={"db2": "db"}, restart=True)
    assert (again.begins, again.ledger.state, again.ledger.previous_version) == (True, RUNNING, OLD)
    assert desired(there.running(OLD, "web1"), NEW, restart=True).begins
    # So does one that other code has begun with open gates, and no other.
    adopted = fleet(LEDGER)
    assert not desired(adopted, NEW, restart=True).begins
    assert desired(adopted.gated("True", "global"), NEW, restart=True).begins


def test_another_inventory_does_not_move_hosts_to_roles_without_rules() -> None:
    rules = {"rolling_rules": {"global": 2, "roles": {"db": 1}}, "role_order": {"web": ["db"]}}
    ledger = replace(LEDGER, instructions=rules, members={"db": 2, "web": 2})
    hosts = {"srv1": "db", "srv2": "db", "web1": "web", "web2": "web"}
    there = Fleet({}, NEW, ledger=ledger).running(OLD, *hosts)
    assert desired(there, NEW, fleet=hosts).members == hosts
    error = refusal(there, NEW, fleet={"web1": "web", "web2": "web"})
    assert (error.code, "db" in error.message) == ("unknown_names", True)
    # A fleet that has become smaller has not moved.
    smaller = Fleet({}, NEW, ledger=ledger).running(OLD, "web1", "web2")
    assert desired(smaller, NEW, fleet={"web1": "web", "web2": "web"}).members == {"web1": "web", "web2": "web"}


@pytest.mark.parametrize(
    "ledger",
    [
        replace(LEDGER, version=NEW, previous_version=OLD, state=ABORTED),
        replace(LEDGER, version=OLD, previous_version=NEW, state=COMPLETE, rollback=True),
    ],
)
def test_only_a_rollback_has_an_incomplete_version_as_the_one_before(ledger: Ledger) -> None:
    there = Fleet({}, ledger.version, ledger=ledger).running(OLD, "web1", "web2").running(NEW, "db1")
    assert desired(there, OLD, restart=True).ledger.previous_version is None
    back = desired(there, OLD, rolls_back=ledger, restart=True).ledger
    assert (back.rollback, back.previous_version) == (True, NEW)
