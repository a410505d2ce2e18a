# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator takes a rollout back: to which version, under which rules, and once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.runs.commands import FLEET, RULES, control, fail, upgrade
from integration.support.runs.playbook import Runner, info

# On each release, test_playbooks_control.py and the examples of the documentation run the module.
pytestmark = pytest.mark.one_release


def test_a_rollback_takes_back_what_changed_last_under_the_same_rules(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES))
    upgrade(store, "controller1")
    make_pass(store, PassRequest())
    upgrade(store, "compute1")
    make_pass(store, PassRequest())
    fail(store, "compute2")
    run([control("abort")])
    dry = run([control("rollback", reason="logins fail")], check=True)[0]
    assert (dry["changed"], consul.get("current_version")) == (True, b"2")
    back, again = run([control("rollback", reason="logins fail"), control("rollback")])
    assert (back["changed"], back["version"], again["changed"]) == (True, "1", False)
    assert again["remarks"] == ["The rollback to 1 is under way already."]
    assert (ledger(consul)["instructions"], ledger(consul)["rollback"]) == (
        {"rolling_rules": {"global": 1}, "role_order": {"compute": ["controller"]}},
        True,
    )
    done = []
    for _pass in range(3):
        outcome = make_pass(store, PassRequest("1"))
        done.append([one.host for one in outcome.admissions])
        upgrade(store, *done[-1], version="1")
    assert done == [["compute1"], ["controller1"], ["compute2"]]
    assert make_pass(store, PassRequest("1")).plan.complete


def taken_back(store: Store, consul: RawKV) -> None:
    """Have a rollout to 2 that was taken back to 1."""
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES))
    upgrade(store, "controller1")
    operator.roll_back(store, operator.Command("logins fail", "ann"))


def test_a_rollback_goes_on_at_once_under_rules_without_windows(store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES))
    upgrade(store, "controller1")
    # Nothing may be admitted for as long as this test is kept.
    closed = {"freezes": [{"from": "2020-01-01", "to": "2099-01-01", "reason": "holidays"}]}
    make_pass(store, PassRequest("2", {**RULES, **closed}))
    operator.roll_back(store, operator.Command("logins fail", "ann"))
    waits = make_pass(store, PassRequest())
    assert (list(waits.admissions), waits.plan.blocker and waits.plan.blocker.code) == ([], "hours")
    outcome = make_pass(store, PassRequest("1", {**RULES, "freezes": []}))
    assert [one.host for one in outcome.admissions] == ["controller1"]
    assert ledger(consul)["rollback"] is True


def test_an_order_can_be_given_with_the_rollback_and_not_to_one_under_way(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES))
    upgrade(store, "controller1")
    make_pass(store, PassRequest())
    upgrade(store, "compute1")
    back = run([control("rollback", rollback_order="forward")])[0]
    assert back["instructions"]["rollback_order"] == "forward"
    assert [one.host for one in make_pass(store, PassRequest("1")).admissions] == ["controller1"]
    with pytest.raises(UpgradeError, match="the rollback to 1 is under way with forward") as caught:
        operator.roll_back(store, operator.Command(), rollback_order="reversed")
    assert caught.value.code == "bad_options"


def test_a_rollback_passes_over_what_was_not_completed_and_says_so(run: Runner, store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    rules = {"rolling_rules": {"global": 1}}
    make_pass(store, PassRequest("2", rules))
    fail(store, "compute1")
    operator.abort(store, operator.Command("2 is bad"))
    make_pass(store, PassRequest("3", rules))
    upgrade(store, "compute2", version="3")
    # Nor is one on the way that another took the place of.
    make_pass(store, PassRequest("4", rules, replace="3"))
    assert ledger(consul)["previous_version"] == "1"
    shown, back = run([{**control("rollback"), "check_mode": True}, control("rollback", reason="4 is bad too")])
    for one in (shown, back):
        assert one["version"] == "1"
        assert one["remarks"] == [
            "The fleet rolls back to 1, the version before the rollout to 4. Hosts have also reported 3: to roll back to one of these, give version."
        ]
    # A rollback that was cut short was on its way to a version that is well.
    operator.abort(store, operator.Command("wait"))
    make_pass(store, PassRequest("5", rules))
    assert (ledger(consul)["version"], ledger(consul)["previous_version"]) == ("5", "1")
    upgrade(store, "compute1", version="5")
    make_pass(store, PassRequest())
    upgrade(store, "compute2", version="5")
    assert make_pass(store, PassRequest()).plan.complete
    make_pass(store, PassRequest("6", rules))
    assert ledger(consul)["previous_version"] == "5"
    # Who goes forward to where the fleet was does not come from what was cut short: a rollback would go there as to a version that is well.
    make_pass(store, PassRequest("5", rules, replace="6"))
    assert "previous_version" not in ledger(consul)


def test_a_rollback_after_an_unknown_beginning_is_not_to_what_was_aborted(store: Store, consul: RawKV) -> None:
    seed(consul, ["compute1"], "0")
    seed(consul, ["compute2"], "1", current="2")
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}}))
    operator.abort(store, operator.Command("2 is bad"))
    make_pass(store, PassRequest("3", {"rolling_rules": {"global": 1}}))
    assert "previous_version" not in ledger(consul)
    with pytest.raises(UpgradeError) as caught:
        operator.roll_back(store, operator.Command("3 is bad too"))
    assert caught.value.code == "no_previous_version"


def test_a_rollback_that_is_complete_is_not_reversed_by_repeating_the_command(
    run: Runner, store: Store, consul: RawKV
) -> None:
    taken_back(store, consul)
    make_pass(store, PassRequest("1"))
    upgrade(store, "controller1", version="1")
    assert make_pass(store, PassRequest("1")).plan.complete
    before = consul.tree()
    again, named = run([control("rollback"), control("rollback", version="1")])
    assert [(one["changed"], one["version"], one["state"]) for one in (again, named)] == [(False, "1", "complete")] * 2
    assert again["remarks"] == ["The rollback to 1 is complete already. To roll back to another version, give version."]
    assert consul.tree() == before
    # Forward goes an upgrade, with its order, stages and approvals.
    with pytest.raises(UpgradeError, match="so to go there is an upgrade") as caught:
        operator.roll_back(store, operator.Command(), version="2")
    assert caught.value.code == "no_previous_version"
    assert caught.value.message.endswith(" Run ansible-playbook convoy.upgrade.upgrade -e version=2.")
    assert consul.tree() == before
    assert make_pass(store, PassRequest("2")).ledger is not None
    assert ledger(consul)["version"] == "2"
    assert not ledger(consul).get("rollback")


def test_a_rollback_that_was_aborted_begins_again_to_the_same_version(run: Runner, store: Store, consul: RawKV) -> None:
    taken_back(store, consul)
    paused = run([control("pause"), control("rollback")])[1]
    assert paused["remarks"] == [
        "The rollback to 1 is under way already, and it is paused: continue with ansible-playbook convoy.upgrade.resume."
    ]
    operator.abort(store, operator.Command("wait"))
    # As an ordinary rollout, it would go on in the order of an upgrade.
    with pytest.raises(UpgradeError, match=r"The rollback to 1 was aborted.* convoy\.upgrade\.rollback -e version=1\."):
        make_pass(store, PassRequest("1", restart=True))
    back, again = run([control("rollback", reason="on again"), control("rollback")])
    assert (back["changed"], back["version"], back["state"]) == (True, "1", "running")
    assert back["remarks"] == ["The rollback to 1 was aborted, and begins again."]
    assert (ledger(consul)["rollback"], ledger(consul)["previous_version"]) == (True, "2")
    assert (again["changed"], again["version"]) == (False, "1")


def test_who_takes_a_rollout_back_and_why_is_in_the_ledger_and_the_history(
    run: Runner, store: Store, consul: RawKV
) -> None:
    taken_back(store, consul)
    assert ledger(consul)["who"] == "ann"
    assert {**ledger(consul)["command"], "at": 0} == {"by": "ann", "at": 0, "reason": "logins fail"}
    seen = run([info(name="compute1")])[0]
    assert seen["ledger"]["command"]["reason"] == "logins fail"
    (event,) = [one for one in seen["host"]["events"] if one["what"] == "begin" and one["version"] == "1"]
    assert (event["by"], event["reason"]) == ("ann", "the fleet is rolled back: logins fail")


def test_a_rollout_that_was_restarted_after_an_abort_can_be_rolled_back(store: Store, consul: RawKV) -> None:
    # The versions of the hosts do not show it: two that were not upgraded are older.
    seed(consul, ["compute2", "compute3"], "0")
    seed(consul, ["controller1", "compute1"], "1")
    make_pass(store, PassRequest("2", RULES))
    upgrade(store, "controller1")
    operator.abort(store, operator.Command())
    assert make_pass(store, PassRequest("2", RULES, restart=True)).begun
    assert ledger(consul)["previous_version"] == "1"
    assert operator.roll_back(store, operator.Command()).ledger.version == "1"


def test_where_something_else_set_the_version_a_rollback_needs_one(run: Runner, begun: Store, consul: RawKV) -> None:
    assert begun is not None
    consul.put("current_version", "3")
    refused, back = run([control("rollback"), control("rollback", version="1")])
    assert refused["failure"]["code"] == "foreign_version"
    assert (
        "something other than a planner has set it, so the version to go back to is unknown. Give version"
        in refused["msg"]
    )
    assert back["version"] == "1"


@pytest.mark.parametrize(
    ("count", "width"), [(2000, 240), pytest.param(25_000, 12, marks=pytest.mark.thorough)], ids=["long names", "many"]
)
def test_a_rollback_begins_and_goes_on_however_many_hosts_are_broken(
    agent: Agent, consul: RawKV, count: int, width: int
) -> None:
    store = Store(Settings(port=agent.http_port, pass_limit=120))
    hosts = [f"{'compute':0<{width - 5}}{number:05}" for number in range(count)]
    seed(consul, hosts)
    make_pass(store, PassRequest("2", {"rolling_rules": {"global": 0}}))
    failed = json.dumps({"version": "2", "state": "failed", "error": "no disk"})
    consul.load((f"upgrade/hosts/{host}", failed) for host in hosts[:-1])
    upgrade(store, hosts[-1])
    dry = operator.roll_back(store, operator.Command(), dry=True)
    back = operator.roll_back(store, operator.Command())
    listed = ledger(consul)["broken"]
    assert back.remarks == dry.remarks
    assert back.remarks[-1] == (
        f"{count - 1} hosts are broken, and the ledger has room for the names of {len(listed)}. Of the other {count - 1 - len(listed)}, those that "
        "failed are admitted after all other hosts too. One that fails again takes a slot and counts for the failure budgets, and one that is lost has "
        "to be retried: fix it, and run ansible-playbook convoy.upgrade.retry -e host=HOST."
    )
    rules: dict[str, Any] = {"rolling_rules": {"global": 40}}
    assert [one.host for one in make_pass(store, PassRequest("1", rules)).admissions] == [hosts[-1]]
    upgrade(store, hosts[-1], version="1")
    admitted = [one.host for one in make_pass(store, PassRequest()).admissions]
    assert len(admitted) == 40
    known, other = listed[0], next(host for host in admitted if host not in listed)
    for host in (known, other):
        fail(store, host, version="1")
    full = len(make_pass(store, PassRequest()).admissions)
    # The slot of one that is listed is free.
    assert full == (1 if known in admitted else 0)
    operator.retry(store, operator.Command(), [other])
    assert len(make_pass(store, PassRequest()).admissions) == 1
