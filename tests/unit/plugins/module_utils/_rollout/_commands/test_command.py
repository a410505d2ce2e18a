# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's command in the form of the ledger."""

from __future__ import annotations

import time

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import (
    ABORTED,
    COMPLETE,
    PAUSED,
    RUNNING,
    Ledger,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import command, control
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.rollback import as_rollback
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import current_user
from job_fleet import FLEET, complete_fleet


def test_a_command_is_kept_with_who_and_when_and_with_a_reason_where_there_is_one() -> None:
    before = int(time.time())
    with_all, bare = command.Command("logins fail", "ann").plain(), command.Command().plain()
    assert {**with_all, "at": 0} == {"by": "ann", "at": 0, "reason": "logins fail"}
    assert {**bare, "at": 0} == {"by": current_user(), "at": 0}
    for stored in (with_all, bare):
        assert isinstance(stored["at"], int)
        assert before <= stored["at"] <= time.time()
        # A ledger accepts it.
        assert Ledger(1, "2", state=PAUSED, command=stored).command == stored


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (
            COMPLETE,
            "It is over; ansible-playbook convoy.upgrade.upgrade -e version=X begins another one.",
        ),
        (
            ABORTED,
            "It is over. ansible-playbook convoy.upgrade.upgrade -e version=2.0 -e restart=true begins it again, and "
            "ansible-playbook convoy.upgrade.upgrade -e version=X begins another one.",
        ),
        (PAUSED, "Look at it with ansible-playbook convoy.upgrade.status."),
        (RUNNING, "Look at it with ansible-playbook convoy.upgrade.status."),
    ],
)
def test_a_command_that_comes_too_late_is_refused_with_what_to_do_instead(state: str, hint: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        command.refuse_unless(Ledger(1, "2.0", state=state), (), "paused")
    assert caught.value.message == f"The rollout to 2.0 is {state}, so it can't be paused. {hint}"
    assert (caught.value.code, caught.value.details) == ("not_running", {"state": state})
    command.refuse_unless(Ledger(1, "2.0", state=state), (state,), "paused")


def test_an_aborted_rollback_is_begun_again_by_rollback() -> None:
    with pytest.raises(UpgradeError) as caught:
        command.refuse_unless(Ledger(1, "2.0", state=ABORTED, rollback=True), (), "resumed")
    assert (
        "It is over. ansible-playbook convoy.upgrade.rollback -e version=2.0 begins it again, and "
        in caught.value.message
    )


def test_a_pause_closes_the_gate_of_a_role_that_the_rollout_has_opened_as_hosts_that_join_read_it() -> None:
    with complete_fleet().in_place() as consul:
        store = consul.store()
        for host in FLEET:
            # Only a host that says which role it has reads its gate.
            consul.write(f"upgrade/hosts/{host}", consul.data(f"upgrade/hosts/{host}") | {"role": FLEET[host]})
            consul.keys.pop(f"config_state/enable_puppet/host/{host}", None)
        rules = {"rolling_rules": {"global": "unlimited"}}
        assert make_pass(store, PassRequest("2.1", rules, fleet=FLEET)).plan.role_gates
        write_report(store, HostReport("web1", "2.1", STARTED, role="web"))
        assert ask_gate(store, {"web9": "web"})["web9"].value
        paused = control.pause(store, command.Command("lunch"))
        assert "config_state/enable_puppet/role/web" in {one.key for one in paused.changes}
        gates = ask_gate(store, {"web1": "web", "web2": "web", "web9": "web"})
        assert [gates[host].value for host in ("web1", "web2", "web9")] == [True, False, False]
        # An interrupted pause is made good by the same command.
        assert control.pause(store, command.Command("lunch")).changes == []


def test_a_rollback_goes_only_to_a_version_that_the_fleet_had() -> None:
    with complete_fleet().in_place() as consul:
        store, before = consul.store(), dict(consul.keys)
        with pytest.raises(UpgradeError) as caught:
            control.roll_back(store, command.Command(), "1.O")
        assert (caught.value.code, consul.keys) == ("unknown_version", before)
        assert "neither a host nor the history has '1.O'; did you mean '1.0'?" in caught.value.message
        with pytest.raises(UpgradeError, match="neither a host nor the history has"):
            as_rollback(store, PassRequest("1.O"))
        # A host that has run it, and a rollout of the history.
        consul.write("running/versions/0.8/db1", "1700000000")
        consul.write("upgrade/history/1", {"what": "begin", "at": 1, "version": "0.9", "from": "0.7"})
        for version in ("0.8", "0.9", "0.7", "1.0"):
            assert control.roll_back(store, command.Command(), version, dry=True).ledger is not None
