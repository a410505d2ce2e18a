# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_host_report: check, apply, repeat, and what each report of a node does to the keys."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import (
    MOST_ERROR,
    HostReport,
    write_report,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry_records import put_back_record
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import names, record, seed
from integration.support.runs import playbook
from integration.support.runs.playbook import Runner

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release


def say(store: Store, host: str, version: str, state: str, **more: Any) -> None:
    write_report(store, HostReport(host, version, state, **more))


@pytest.mark.thorough
def test_check_then_apply_then_repeat(run: Runner, consul: RawKV) -> None:
    seed(consul, ["compute7", "compute70"])
    before = consul.tree()
    reports = [
        playbook.report("compute7", "2", "started", service="nova_compute", step="stop", admitted=False),
        playbook.report("compute7", "2", "failed", step="upgrade", error="no space left"),
        playbook.report("compute7", "2", "started", admitted=False),
        playbook.report("compute7", "2", "upgraded"),
    ]
    shown = run([reports[0], reports[3]], check=True, diff=True)
    assert consul.tree() == before
    begun = int(time.time())
    done = run([one for one_report in reports for one in (one_report, one_report)], diff=True)
    started, failed, restarted, upgraded = done[::2]
    assert [one["changed"] for one in done] == [True, False] * 4
    assert all(again["record"] == first["record"] for first, again in zip(done[::2], done[1::2], strict=True))
    assert shown[0]["record"] == started["record"] | {name: shown[0]["record"][name] for name in ("times", "trail")}
    assert started["record"] == {
        "version": "2", "state": "started", "service": "nova_compute", "step": "stop", "attempt": 1, "error": None,
        "times": started["record"]["times"], "reported": None, "done": [], "post": None, "origin": None,
        "trail": [[started["record"]["times"]["started"], "nova_compute", "stop"]], "former": [], "held": None,
        "failures": [], "machine": None, "other_machine": None, "release": None, "role": None,
        "services": None, "next_step": None, "former_role": None,
    }  # fmt: skip
    assert begun <= started["record"]["times"]["started"] <= time.time()
    assert (failed["record"]["error"], failed["record"]["step"]) == ("no space left", "upgrade")
    assert (restarted["record"]["attempt"], restarted["record"]["error"]) == (2, None)
    assert set(upgraded["record"]["times"]) == {"started", "failed", "upgraded"}
    lines = [line.partition(" = ")[0] for line in upgraded["diff"]["after"].splitlines()]
    assert lines == ["upgrade/hosts/compute7", "running/versions/2/compute7"]
    assert "running/versions/1/compute7 = 1700000000" in upgraded["diff"]["before"]
    assert [line.partition(" = ")[0] for line in shown[1]["diff"]["after"].splitlines()] == lines
    assert set(consul.tree()) == {
        "current_version", "running/versions/1/compute70", "running/versions/2/compute7", "upgrade/hosts/compute7",
    }  # fmt: skip
    assert consul.get("running/versions/2/compute7") == str(upgraded["record"]["times"]["upgraded"]).encode()
    stored = {name: value for name, value in upgraded["record"].items() if value not in (None, [])}
    assert record(consul, "compute7") == stored


def test_a_host_that_holds_itself_counts_as_held_and_stays_what_it_was(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    rules = {"rolling_rules": {"global": 2}}
    say(store, "compute1", "2", "held", reason="disk\x1b[2J " + "x" * 400)
    say(store, "compute1", "2", "held", reason="its disk is being replaced")
    before = consul.tree()
    say(store, "compute1", "2", "held", reason="its disk is being replaced")
    assert consul.tree() == before
    hosts = make_pass(store, PassRequest("2", rules)).plan.hosts
    assert (hosts["compute1"].state, hosts["compute2"].state) == ("held", "pending")
    assert (
        "held by puppet agent --disable: its disk is being replaced (ends with 'puppet agent --enable' on"
        in hosts["compute1"].reason
    )
    assert (hosts["compute1"].held, hosts["compute1"].holds_itself, hosts["compute2"].holds_itself) == (
        True,
        True,
        False,
    )
    consul.put("upgrade/hold/host/compute1", '{"by": "ann"}')
    by_operator = make_pass(store, PassRequest("2", rules)).plan.hosts["compute1"]
    assert (by_operator.held, by_operator.holds_itself) == (True, False)
    consul.delete("upgrade/hold/host/compute1")
    assert ask_gate(store, {"compute1": "compute"})["compute1"].held == "its disk is being replaced"
    # It does not free the slot of one that has begun, and ends with any other report.
    say(store, "compute2", "2", "started")
    say(store, "compute2", "2", "held", reason="disk")
    hosts = make_pass(store, PassRequest("2", rules)).plan.hosts
    assert (hosts["compute2"].state, record(consul, "compute2")["state"]) == ("upgrading", "started")
    say(store, "compute2", "2", "upgraded")
    assert "held" not in record(consul, "compute2")
    say(store, "compute1", "2", "released")
    assert make_pass(store, PassRequest("2", rules)).plan.hosts["compute1"].state == "pending"
    say(store, "compute3", "2", "released")
    assert consul.get("upgrade/hosts/compute3") is None
    for report in (HostReport("compute1", "2", "held"), HostReport("compute1", "2", "started", reason="disk")):
        with pytest.raises(UpgradeError, match="reason is valid only with state: held"):
            write_report(store, report)


@pytest.mark.thorough
def test_what_it_refuses(run: Runner, consul: RawKV) -> None:
    tasks = [
        (playbook.report("a/b", "2", "started"), "name: the host 'a/b' has a '/'"),
        (playbook.report("compute7", "2/3", "started"), "version: the version '2/3' has a '/'"),
        (playbook.report("compute7", "false", "upgraded"), "version: the version can't be 'false'"),
        (
            playbook.report("compute7", "2", "started", error="x"),
            "error is valid only with state: failed; state is started.",
        ),
        (
            playbook.report("compute7", "2", "done"),
            "value of state must be one of: started, upgraded, failed, held, released, delivered, enrolled, got: done",
        ),
    ]
    played = run([task for task, _message in tasks])
    for result, (task, message) in zip(played, tasks, strict=True):
        assert result["failed"], task
        assert message in result["msg"], task
    assert [one["failure"]["code"] for one in played[:4]] == ["bad_name", "bad_name", "bad_name", "bad_report"]
    assert consul.tree() == {}


def test_upgraded_takes_the_host_from_all_versions_that_old_nodes_left_it_under(store: Store, consul: RawKV) -> None:
    for version in ("1.0", "1.1-rc 2", "2"):
        seed(consul, ["compute7", "compute70"], version)
    say(store, "compute7", "3", "upgraded")
    assert set(consul.tree("running/")) == {
        "running/versions/1.0/compute70", "running/versions/1.1-rc 2/compute70", "running/versions/2/compute70",
        "running/versions/3/compute7",
    }  # fmt: skip


def test_going_back_is_a_report_like_any_other(store: Store, consul: RawKV) -> None:
    for version in ("1", "2", "1"):
        say(store, "compute7", version, "started")
        say(store, "compute7", version, "upgraded")
        assert set(consul.tree("running/")) == {f"running/versions/{version}/compute7"}
    assert record(consul, "compute7")["attempt"] == 1


def test_a_new_rollout_clears_the_times_and_the_attempts_of_the_last_one(store: Store, consul: RawKV) -> None:
    for state in ("started", "failed", "started", "upgraded"):
        say(store, "compute7", "1", state)
    say(store, "compute7", "2", "started", service="nova")
    found = record(consul, "compute7")
    assert (found["attempt"], found["reported"], set(found["times"])) == (1, "1", {"started"})


def test_the_next_step_of_a_start_keeps_its_time(store: Store, consul: RawKV) -> None:
    say(store, "compute7", "2", "started", step="stop")
    consul.put("upgrade/hosts/compute7", '{"version": "2", "state": "started", "attempt": 1, "times": {"started": 5}}')
    say(store, "compute7", "2", "started", step="start")
    assert record(consul, "compute7") == {
        "version": "2", "state": "started", "step": "start", "attempt": 1, "times": {"started": 5},
        "trail": [[record(consul, "compute7")["trail"][0][0], "", "start"]],
    }  # fmt: skip


def test_the_steps_of_a_rollout_are_kept_until_the_next_one(store: Store, consul: RawKV) -> None:
    begun = int(time.time())
    for step in ("stop", "stop", "upgrade"):
        say(store, "compute7", "2", "started", service="nova", step=step)
    say(store, "compute7", "2", "failed", service="nova", step="upgrade", error="no space left")
    say(store, "compute7", "2", "started", service="nova", step="upgrade")
    say(store, "compute7", "2", "upgraded")
    trail = record(consul, "compute7")["trail"]
    assert [one[1:] for one in trail] == [
        ["nova", "stop"],
        ["nova", "upgrade"],
        ["", ""],
        ["nova", "upgrade"],
        ["", ""],
    ]
    times = [begun, *(one[0] for one in trail), time.time()]
    assert times == sorted(times)
    say(store, "compute7", "3", "started")
    assert "trail" not in record(consul, "compute7")


def test_of_a_long_error_the_end_is_kept(store: Store, consul: RawKV) -> None:
    say(store, "compute7", "2", "failed", error="x" * 9000 + "the end")
    error = record(consul, "compute7")["error"]
    assert error.startswith("[the first 5007 characters are left out] x")
    assert error.endswith("the end")
    assert len(error) < MOST_ERROR + 100


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"\xff", b'{"version": 2}'])
def test_a_record_that_cannot_be_read_is_replaced(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, ["compute7"])
    consul.put("upgrade/hosts/compute7", value)
    say(store, "compute7", "2", "upgraded")
    assert record(consul, "compute7")["state"] == "upgraded"
    assert set(consul.tree("running/")) == {"running/versions/2/compute7"}


def test_what_a_report_costs_does_not_grow_with_the_fleet(store: Store, consul: RawKV) -> None:
    costs = []
    for others in (20, 2000):
        consul.delete("", tree=True)
        seed(consul, names(compute=others))
        counts = []
        for version, state in (("2", "started"), ("2", "upgraded"), ("3", "started"), ("3", "upgraded")):
            before = store.client.requests
            say(store, "compute7", version, state)
            counts.append(store.client.requests - before)
        costs.append(counts)
    assert costs[0] == costs[1]
    assert costs[0] == [2, 4, 2, 3]


def test_two_reports_at_once_are_both_written(store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store.client.write
    other = Store(store.settings)

    def write_late(operations: list[dict[str, object]]) -> object:
        monkeypatch.setattr(store.client, "write", write)
        say(other, "compute7", "2", "failed", error="disk")
        return write(operations)

    monkeypatch.setattr(store.client, "write", write_late)
    say(store, "compute7", "2", "started")
    assert (record(consul, "compute7")["state"], record(consul, "compute7")["attempt"]) == ("started", 2)


def test_reports_that_always_come_too_late_end_with_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store.client.write
    other = Store(store.settings)
    count = iter(range(100))

    def write_late(operations: list[dict[str, object]]) -> object:
        say(other, "compute7", "2", "failed", error=str(next(count)))
        return write(operations)

    monkeypatch.setattr(store.client, "write", write_late)
    with pytest.raises(UpgradeError, match="upgrade/hosts/compute7 changed during each of 10 tries"):
        say(store, "compute7", "2", "started")


def test_an_error_of_several_lines_is_reported_once_and_shown_as_one(run: Runner, consul: RawKV) -> None:
    seed(consul, ["compute7"])
    failed = playbook.report("compute7", "2", "failed", error="it failed\nE: no \x1b[31mspace\r left")
    first, again = run([failed, failed])
    assert (first["changed"], again["changed"]) == (True, False)
    assert first["record"]["error"] == again["record"]["error"] == "it failed E: no ?[31mspace  left"


@pytest.mark.thorough
@pytest.mark.usefixtures("consul")
def test_a_report_of_the_controller_starts_no_process_of_its_own(run: Runner) -> None:
    task = playbook.report("compute7", "2", "upgraded")
    for more, is_process in (({}, False), ({"delegate_to": "localhost"}, False), ({"environment": {"A": "b"}}, True)):
        done = run.start([{**task, **more}], verbosity=3).end(90)
        assert not done[0].get("failed")
        assert ("EXEC" in done.stdout) == is_process
    # Another Python may not have what a module needs, so the module says so.
    other = run.start([{**task, "delegate_to": "localhost"}], python="/usr/bin/false").end(90)
    assert other[0]["failed"]


def test_the_record_keeps_which_tasks_of_services_a_host_has(run: Runner) -> None:
    played = run(
        [
            playbook.report("compute1", "1", "upgraded", services="1f0c2a7be5d94b1c"),
            playbook.report("compute1", "1", "failed", step="puppet"),
            playbook.report("compute1", "1", "upgraded", services=""),
        ]
    )
    assert [one["record"]["services"] for one in played] == ["1f0c2a7be5d94b1c", "1f0c2a7be5d94b1c", None]


def test_the_record_has_the_role_of_the_settings_only_if_a_node_agent_reports(run: Runner) -> None:
    agent: dict[str, Any] = {"release": "5.0.0"}
    played = run(
        [
            playbook.report("compute1", "1", "upgraded"),
            playbook.report("compute1", "1", "upgraded", **agent),
            playbook.report("compute2", "1", "upgraded", **agent, role="db"),
            playbook.report("compute3", "1", "upgraded", role="db"),
            playbook.report("compute4-a", "1", "upgraded", **agent, role_pattern=r".*-([a-z])"),
            # A start is compared with the role, and does not change it.
            playbook.report("compute2", "2", "started", **agent, role="compute", admitted=False),
        ]
    )
    assert [one["record"]["role"] for one in played] == [None, "compute", "db", "db", "a", "db"]


def test_tasks_of_services_that_are_delivered_change_nothing_else(run: Runner, consul: RawKV) -> None:
    failed, delivered, again, other, missing = run(
        [
            playbook.report("compute1", "2", "failed", step="puppet", services="a0"),
            playbook.report("compute1", "", "delivered", services="a1"),
            playbook.report("compute1", "", "delivered", services="a1"),
            playbook.report("compute2", "", "delivered", services="a1"),
            playbook.report("compute1", "", "delivered"),
        ]
    )
    assert delivered["record"] == {**failed["record"], "services": "a1"}
    assert [one["changed"] for one in (delivered, again, other)] == [True, False, False]
    assert consul.get("upgrade/hosts/compute2") is None
    assert missing["failure"]["code"] == "bad_report"


@pytest.mark.parametrize(
    ("state", "more"),
    [
        ("failed", {"step": "puppet", "error": "no space left"}),
        ("started", {}),
        ("held", {"reason": "its disk is being replaced"}),
    ],
)
@pytest.mark.parametrize("version", ["1", "2"])
def test_an_enrolment_ends_no_failure_and_no_hold(
    state: str, more: dict[str, str], version: str, store: Store, consul: RawKV
) -> None:
    say(store, "compute1", "2", "upgraded", machine="a", role="compute", services="a0", release="r1")
    say(store, "compute1", "2", state, machine="a", **more)
    before = consul.tree()
    say(store, "compute1", version, "enrolled", machine="a", role="compute", services="a1", release="r2")
    expected = {**json.loads(before["upgrade/hosts/compute1"]), "services": "a1", "release": "r2"}
    assert record(consul, "compute1") == expected
    assert {**consul.tree(), "upgrade/hosts/compute1": None} == {**before, "upgrade/hosts/compute1": None}


def test_an_enrolment_ends_no_retry_of_its_version_and_replaces_no_record_that_cannot_be_read(
    store: Store, consul: RawKV
) -> None:
    say(store, "compute1", "2", "upgraded")
    consul.put("upgrade/hosts/compute1", encode_record(put_back_record(None, "2", None, 9)))
    consul.put("upgrade/hosts/compute2", "{")
    before = consul.tree()
    say(store, "compute1", "2", "enrolled")
    say(store, "compute2", "2", "enrolled")
    assert consul.tree() == before
    # Its files say that it is not yet at the version to which an operator has retried it.
    say(store, "compute1", "1", "enrolled")
    assert (record(consul, "compute1")["version"], record(consul, "compute1")["state"]) == ("1", "upgraded")


def test_an_enrolment_reports_a_new_host_and_another_version_of_an_upgraded_one(store: Store, consul: RawKV) -> None:
    for version in ("1", "1", "2"):
        say(store, "compute1", version, "enrolled", machine="a", role="compute", services="a0", release="r1")
        assert (record(consul, "compute1")["version"], record(consul, "compute1")["state"]) == (version, "upgraded")
        assert [key for key in consul.tree() if key.startswith("running/")] == [f"running/versions/{version}/compute1"]
