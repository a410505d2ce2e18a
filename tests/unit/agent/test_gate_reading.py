# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reading of the gate: what it makes of Consul's answers, without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from convoy_node.decision import HOLD, PUPPET, UNHOLD, own_share
from convoy_node.gate_reading import GateReading
from convoy_node.machine.errors import ConsulError, Denied
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul, ConsulKey
from convoy_node.node.settings import NodeSettings
from convoy_node.node.state import PuppetRuns

WAKE, RECORD = "upgrade/wake/compute7", "upgrade/hosts/compute7"


class Answers:
    """Consul, as far as a reading asks it."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {
            "current_version": b"v2",
            "config_state/enable_puppet/global": b"True",
            RECORD: b'{"version": "v2", "state": "upgraded"}',
        }
        self.indexes: dict[str, int] = {}
        self.error: ConsulError | None = None
        self.created: list[str] = []
        self.records = 0
        self.confirmed: list[str] = []
        # Whether the policy of the token was removed: reads of trees succeed, and are empty.
        self.is_hidden = False
        # Whether the token may not read what it is asked for singly.
        self.is_denied = False

    def put(self, key: str, value: bytes) -> None:
        self.found[key] = value
        self.indexes[key] = max(self.indexes.values(), default=1) + 1

    def entry(self, key: str, flags: int = 0) -> ConsulKey:
        return ConsulKey(self.found[key], self.indexes.get(key, 1), flags)

    def get(self, key: str) -> ConsulKey | None:
        if self.error is not None:
            raise self.error
        if self.is_hidden or self.is_denied:
            raise Denied(f"Consul refused the node's token: lacks permission 'key:read' on {key!r}.")
        self.records += key == RECORD
        self.confirmed += [key] * (key != RECORD)
        return self.entry(key) if key in self.found else None

    def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
        if self.error is not None:
            raise self.error
        return {} if self.is_hidden else {key: self.entry(key) for key in self.found if key in (*keys, folder)}

    def create(self, key: str, _value: str) -> None:
        if self.error is not None:
            raise self.error
        self.created.append(key)


@pytest.fixture
def answers() -> Answers:
    return Answers()


def gate_reading(
    folder: Path,
    # It has the methods of Consul that a reading calls.
    answers: Any,
    *,
    single: bool = False,
    splay: int = 1800,
    services: str = "",
    token: str | None = None,
    bootstrap: bool = False,
    is_external: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> GateReading:
    (folder / "version").write_text("v2\n")
    settings = NodeSettings(
        "compute7",
        "compute",
        Connection(token=token),
        {},
        version_file=str(folder / "version"),
        health=False,
        puppet_interval=None if is_external else 1800,
        puppet_splay=splay,
        bootstrap=bootstrap,
        services=services,
    )
    found = GateReading(settings, PuppetRuns(str(folder / "agent.json")), say=say, is_single=single)
    found.consul = answers
    return found


def test_runs_of_cron_spread_the_first_run_of_puppet_and_make_it(tmp_path: Path, answers: Answers) -> None:
    assert gate_reading(tmp_path, answers, single=True).read().run is None
    # The next read, of another process, when the node's share of the splay is over.
    PuppetRuns(str(tmp_path / "agent.json")).note(ago=1799)
    assert gate_reading(tmp_path, answers, single=True).read().run is None
    PuppetRuns(str(tmp_path / "agent.json")).note(ago=1800)
    assert gate_reading(tmp_path, answers, single=True).read().run == PUPPET
    assert own_share("compute7") * 1800 > 1


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 0), (0.25, 900), (0.5, 0), (0.75, 900), (0.9, 1440)])
def test_runs_of_cron_make_the_first_run_of_puppet_also_with_a_splay_above_its_interval(
    share: float, seconds: int, tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10_000.0
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now + 1e9)
    monkeypatch.setattr("convoy_node.node.state.time", clock)
    monkeypatch.setattr("convoy_node.gate_reading.time", clock)
    monkeypatch.setattr("convoy_node.gate_reading.own_share", lambda _host: share)
    runs = []
    for passed in range(0, 3600, 60):
        now = 10_000.0 + passed
        # Each is a process of its own.
        found = gate_reading(tmp_path, answers, single=True, splay=3600)
        if found.read().run == PUPPET:
            runs.append(passed)
            found.ended(PUPPET)
    assert runs == [seconds, seconds + 1800]


def test_without_a_splay_the_first_run_of_cron_runs_puppet(tmp_path: Path, answers: Answers) -> None:
    assert gate_reading(tmp_path, answers, single=True, splay=0).read().run == PUPPET


def test_each_request_comes_after_a_sign_of_life_also_with_changed_settings(tmp_path: Path) -> None:
    settings = NodeSettings("compute7", "compute", Connection(port=1), {}, consul_agent=Connection(port=1))
    lives: list[str] = []
    runs = PuppetRuns(str(tmp_path / "agent.json"))
    found = GateReading(settings, runs, say=lambda _text: None, alive=lambda: lives.append("alive"))
    for reading in (found, found.with_settings(settings)):
        lives.clear()
        with pytest.raises(ConsulError):
            reading.read_keys()
        with pytest.raises(ConsulError):
            reading._consul_agent.checks()
        assert lives == ["alive"] * 2


def test_a_maintenance_that_cannot_be_ended_is_said_once(tmp_path: Path, answers: Answers) -> None:
    lines: list[str] = []
    found = gate_reading(tmp_path, answers, say=lines.append)
    found.settings = replace(found.settings, maintenance=True)
    # Nothing listens at this port.
    found._consul_agent = Consul(Connection(port=1))
    for _time in range(3):
        found.read()
    (line,) = lines
    assert (
        "a maintenance in Consul that an upgrade may have left could not be ended: Consul at http://127.0.0.1:1" in line
    )


def test_status_changes_nothing(tmp_path: Path, answers: Answers) -> None:
    gate_reading(tmp_path, answers, single=True).read(only=True)
    assert not (tmp_path / "agent.json").exists()
    assert answers.created == []


def test_an_agent_without_an_answer_does_not_wait_with_queries(tmp_path: Path, answers: Answers) -> None:
    found = gate_reading(tmp_path, answers)
    found.read()
    assert found.is_answered
    for error in (ConsulError("Consul can't be reached."), Denied("Consul refused the node's token.")):
        answers.error = error
        assert found.read().run is None
        assert not found.is_answered
    answers.error = None
    found.read()
    assert found.is_answered
    assert found.ensure_wake_key()
    assert answers.created == ["upgrade/wake/compute7"]


def test_a_wake_key_that_consul_did_not_take_is_tried_again_soon(tmp_path: Path, answers: Answers) -> None:
    answers.found["current_version"] = b"v2"
    found = gate_reading(tmp_path, answers)
    found.read()
    answers.error = ConsulError("Consul can't be reached.")
    with pytest.raises(ConsulError, match="can't be reached"):
        found.ensure_wake_key()


def test_a_token_that_may_not_create_the_wake_key_is_reported_once(tmp_path: Path, answers: Answers) -> None:
    lines: list[str] = []
    found = gate_reading(tmp_path, answers, say=lines.append)
    found.read()
    answers.error = Denied("Consul refused the node's token.")
    assert [found.ensure_wake_key() for _each in range(3)] == [False] * 3
    assert lines == ["compute7: no key can wake it, so it reads its gate every 300 s: Consul refused the node's token."]


def test_a_refused_token_is_a_doubt_and_an_outage_is_none(tmp_path: Path, answers: Answers) -> None:
    found = gate_reading(tmp_path, answers)
    answers.error = ConsulError("Consul can't be reached.")
    found.read()
    assert found.facts.doubt_since is None
    answers.error = Denied("Consul refused the node's token.")
    found.read()
    assert found.facts.doubt_since is not None
    answers.error = None
    found.read()
    assert found.facts.doubt_since is None


def test_the_record_is_read_only_when_it_matters(
    tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled: list[str | None] = [None]
    monkeypatch.setattr("convoy_node.machine.puppet.disabled_by_operator", lambda: disabled[0])
    found = gate_reading(tmp_path, answers)
    for _time in range(3):
        found.read()
    assert answers.records == 1
    disabled[0] = "its disk"
    assert found.read().run == HOLD
    # The agent run has reported it.
    answers.found["upgrade/hosts/compute7"] = b'{"version": "v2", "state": "upgraded", "held": "its disk"}'
    assert found.read().run is None
    disabled[0] = None
    assert found.read().run == UNHOLD
    answers.found["upgrade/hosts/compute7"] = b'{"version": "v2", "state": "upgraded"}'
    found.read()
    before = answers.records
    found.read()
    assert answers.records == before
    # A new agent finds a hold that has ended meanwhile.
    answers.found["upgrade/hosts/compute7"] = b'{"version": "v2", "state": "upgraded", "held": "its disk"}'
    assert gate_reading(tmp_path, answers).read().run == UNHOLD


def test_a_hold_that_ends_before_the_next_read_is_found(
    tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled: list[str | None] = ["its disk"]
    monkeypatch.setattr("convoy_node.machine.puppet.disabled_by_operator", lambda: disabled[0])
    found = gate_reading(tmp_path, answers)
    assert found.read().run == HOLD
    # The agent run reports it, and then the operator enables Puppet.
    answers.found[RECORD] = b'{"version": "v2", "state": "upgraded", "held": "its disk"}'
    disabled[0] = None
    found.ended(HOLD)
    assert found.read().run == UNHOLD
    answers.found[RECORD] = b'{"version": "v2", "state": "upgraded"}'
    found.ended(UNHOLD)
    assert found.read().run is None


def test_an_admission_to_post_upgrade_tasks_that_comes_in_an_agent_run_is_found_after_it(
    tmp_path: Path, answers: Answers
) -> None:
    answers.put(WAKE, b"1700000000")
    found = gate_reading(tmp_path, answers, services="/etc/convoy/services", splay=0)
    assert found.read().run == PUPPET
    # A planner writes both in one transaction. No query waits during the run.
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded", "post": "open"}')
    answers.put(WAKE, b"1700000100")
    found.ended(PUPPET)
    assert found.read().run == "post-upgrade of v2"
    found.ended("post-upgrade of v2")
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded", "post": "done"}')
    assert found.read().run is None
    found.read()
    before = answers.records
    found.read()
    assert answers.records == before


def test_a_lost_report_is_made_up_for_until_the_record_has_it(tmp_path: Path, answers: Answers) -> None:
    answers.put(RECORD, b'{"version": "v2", "state": "started"}')
    found = gate_reading(tmp_path, answers, splay=0)
    assert found.read().run == "report of v2"
    found.ended("report of v2")
    assert found.read().reason.endswith("report of v2 is tried again later")
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded"}')
    assert found.read().reason == "open: config_state/enable_puppet/global is True"


@pytest.mark.parametrize(
    ("record", "is_external", "pause"),
    [
        (b'{"version": "v2", "state": "started"}', False, 300),
        (b'{"version": "v1", "state": "upgraded"}', False, 1800),
        (b'{"version": "v2", "state": "failed"}', True, 1800),
        (b"", False, 1800),
    ],
)
def test_a_report_that_is_refused_each_time_does_not_run_puppet_more_often(
    record: bytes, is_external: bool, pause: int, tmp_path: Path, answers: Answers
) -> None:
    answers.put(RECORD, record)
    found = gate_reading(tmp_path, answers, splay=0, is_external=is_external)
    for _time in range(2):
        assert found.read().run == "report of v2"
        found.ended("report of v2")
        assert pause - 1 < found.facts.not_before - time.monotonic() <= pause
        # It goes on looking whether the record has it.
        assert "report of v2 is tried again later" in found.read().reason
        found._facts = replace(found.facts, not_before=0.0)
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded"}')
    assert found.read().reason == "open: config_state/enable_puppet/global is True"


@pytest.mark.parametrize("is_external", [False, True])
def test_a_report_that_failed_at_the_end_of_an_upgrade_is_tried_again_soon_and_then_less_often(
    is_external: bool, tmp_path: Path, answers: Any
) -> None:
    answers.put(RECORD, b'{"version": "v2", "state": "failed", "step": "report"}')
    found = gate_reading(tmp_path, answers, splay=0, is_external=is_external)
    found.ended("upgrade to v2")
    for pause in (300, 600, 1200, 1800, 1800):
        assert found.read().run == "report of v2"
        found.ended("report of v2")
        assert pause - 1 < found.facts.not_before - time.monotonic() <= pause
        # A token that changes often makes it no sooner.
        other = replace(found.settings, data={**found.settings.data, "upgrade_consul_token": "another"})
        found = found.with_settings(other)
        found.consul = answers
        assert "report of v2 is tried again later" in found.read().reason
        found._facts = replace(found.facts, not_before=0.0)
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded", "step": ""}')
    assert found.read().reason == "open: config_state/enable_puppet/global is True"


def test_a_lost_report_with_a_closed_gate_counts_as_no_run_of_puppet(tmp_path: Path, answers: Answers) -> None:
    answers.put("config_state/enable_puppet/global", b"False")
    answers.put(RECORD, b'{"version": "v2", "state": "started"}')
    found = gate_reading(tmp_path, answers, splay=0)
    assert found.read().run == "report of v2"
    found.ended("report of v2")
    assert found.read().run is None and found.facts.puppet_at is None


def test_a_wake_is_noted_even_if_the_record_can_t_be_read_at_that_moment(tmp_path: Path) -> None:
    class Half(Answers):
        is_half = False

        def get(self, key: str) -> ConsulKey | None:
            if self.is_half:
                raise ConsulError("no answer in time")
            return super().get(key)

    answers = Half()
    found = gate_reading(tmp_path, answers, services="/etc/convoy/services", splay=0)
    found.read()
    answers.put(RECORD, b'{"version": "v2", "state": "upgraded", "post": "open"}')
    answers.put(WAKE, b"1700000100")
    answers.is_half = True
    assert found.read().run is None
    answers.is_half = False
    assert found.read().run == "post-upgrade of v2"


def test_what_failed_is_tried_again_at_once_if_the_node_was_woken_in_that_run(tmp_path: Path, answers: Answers) -> None:
    answers.found["current_version"] = b"v3"
    found = gate_reading(tmp_path, answers)
    assert found.read().run == "upgrade to v3"
    found.ended("upgrade to v3")
    assert found.read().run is None
    # What the agent itself writes wakes no one.
    answers.put(WAKE, b"enrolled")
    assert found.read().run is None
    answers.put(WAKE, b"1700000000")
    assert found.read().run == "upgrade to v3"
    answers.put(WAKE, b"1700000100")
    found.ended("upgrade to v3")
    assert found.read().run == "upgrade to v3"
    found.ended("upgrade to v3")
    assert found.read().run is None


def test_a_run_that_could_not_work_counts_as_none_and_is_tried_again_soon(tmp_path: Path, answers: Answers) -> None:
    found = gate_reading(tmp_path, answers, splay=0)
    assert found.read().run == PUPPET
    found.ended(PUPPET, has_worked=False)
    waiting = found.read()
    assert (waiting.run, 0 < waiting.seconds <= 30) == (None, True)
    assert waiting.reason == "open: config_state/enable_puppet/global is True; puppet is tried again later"
    assert PuppetRuns(str(tmp_path / "agent.json")).last() is None
    answers.put(WAKE, b"1700000000")
    assert found.read().run == PUPPET
    answers.found["current_version"] = b"v3"
    assert found.read().run == "upgrade to v3"
    found.ended("upgrade to v3", has_worked=False)
    waiting = found.read()
    assert (waiting.run, 0 < waiting.seconds <= 30) == (None, True)
    assert PuppetRuns(str(tmp_path / "agent.json")).last() is None


@pytest.mark.parametrize("role", ["compute", "storage"])
def test_changed_settings_or_another_token_end_no_pause_of_the_same_host(role: str, tmp_path: Path) -> None:
    answers: Any = Admitting()
    answers.found["current_version"] = b"v3"
    answers.found |= {"upgrade/current_job": b"job/j1", "upgrade/job_gates/host/compute7": b"True"}
    answers.put(WAKE, b"1700000000")
    before = gate_reading(tmp_path, answers)
    assert before.read().run == "job j1"
    before.ended("job j1")
    before.ended("job j1")
    assert before.read().run == "upgrade to v3"
    before.ended("upgrade to v3")
    assert before.read().run is None
    found = before.with_settings(replace(before.settings, role=role, connection=Connection(token="another")))
    found.consul = answers
    assert found.keys.role == role
    # With another role, the gates are others.
    assert found.read().run == (None if role == "compute" else "job j1")
    facts = found.facts
    assert (facts.started_at, facts.puppet_at) == (before.facts.started_at, before.facts.puppet_at)
    if role == "compute":
        found.ended("job j1")
        assert 35 < found.facts.job_not_before - facts.now < 45
        # A planner that wakes the node ends the pause, as before.
        answers.put(WAKE, b"1700000100")
        assert found.read().run == "job j1"


def test_a_hold_of_a_role_that_the_host_had_before_keeps_puppet_out(
    tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_out: list[str] = []
    monkeypatch.setattr("convoy_node.machine.puppet.keep_out", kept_out.append)
    monkeypatch.setattr("convoy_node.machine.puppet.let_in", lambda: False)
    answers.found[RECORD] = b'{"version": "v2", "state": "upgraded", "role": "compute", "former_role": "spare"}'
    answers.found["upgrade/hold/role/spare"] = b"{}"
    found = gate_reading(tmp_path, answers, is_external=True)
    for _time in range(2):
        decision = found.read()
        assert (decision.run, decision.keeps_puppet_out) == (None, True)
        assert "closed: its former role spare is held by upgrade/hold/role/spare" in decision.reason
    assert len(kept_out) == 2
    # An operator ends the hold of that role for this host, and the wake is lost.
    answers.found[RECORD] = b'{"version": "v2", "state": "upgraded", "role": "compute", "former_role": ""}'
    for _time in range(2):
        assert not found.read().keeps_puppet_out
    assert answers.records == 3


def test_a_gate_that_planners_opened_for_a_role_does_not_admit_a_host_that_had_another_one(tmp_path: Path) -> None:
    answers: Any = Admitting()
    answers.found |= {"current_version": b"v3", "config_state/enable_puppet/role/compute": b"True"}
    found = gate_reading(tmp_path, answers)
    assert found.read().run == "upgrade to v3"
    answers.found[RECORD] = b'{"version": "v2", "state": "upgraded", "role": "spare"}'
    changed = gate_reading(tmp_path, answers)
    assert changed.read().run is None
    assert "its own gate has to open" in changed.read().reason
    answers.found["config_state/enable_puppet/host/compute7"] = b"True"
    assert changed.read().run == "upgrade to v3"


def test_another_token_does_not_shorten_the_pause_of_a_run_that_found_the_lock(tmp_path: Path) -> None:
    answers: Any = Admitting()
    reading = gate_reading(tmp_path, answers)
    for number in range(3):
        reading.ended("upgrade to v3", has_worked=False)
        assert 25 * 2**number < reading.facts.not_before - time.monotonic() <= 30 * 2**number
        reading = reading.with_settings(replace(reading.settings, connection=Connection(token=f"token {number}")))
    reading = reading.with_settings(replace(reading.settings, data={**reading.settings.data, "puppet_gate_delay": 1}))
    reading.ended("upgrade to v3", has_worked=False)
    assert reading.facts.not_before - time.monotonic() <= 30


def test_a_first_run_of_puppet_is_not_put_off_by_a_token_that_changes(tmp_path: Path, answers: Any) -> None:
    before = gate_reading(tmp_path, answers)
    before.read()
    share = own_share("compute7") * 1800
    # The agent began so long ago.
    before._facts = replace(before._facts, started_at=before._facts.started_at - share - 1)
    found = before.with_settings(replace(before.settings, connection=Connection(token="another")))
    found.consul = answers
    assert found.read().run == PUPPET


def test_pauses_of_jobs_and_of_agent_runs_do_not_end_each_other(tmp_path: Path) -> None:
    answers = Admitting()
    answers.found |= {"upgrade/current_job": b"job/j1", "upgrade/job_gates/host/compute7": b"True"}
    answers.found["current_version"] = b"v3"
    found = gate_reading(tmp_path, answers)
    assert found.read().run == "job j1"
    found.ended("job j1")
    assert found.read().run == "upgrade to v3"
    found.ended("upgrade to v3")
    assert found.read().run is None
    facts = found.facts
    assert 0 < facts.job_not_before - facts.now <= 10 < 200 < facts.not_before - facts.now


def test_a_job_that_can_t_begin_is_tried_less_and_less_often(tmp_path: Path) -> None:
    answers = Admitting()
    answers.found |= {"upgrade/current_job": b"job/j1", "upgrade/job_gates/host/compute7": b"True"}
    found = gate_reading(tmp_path, answers)

    def pause(job: str) -> float:
        found.ended(f"job {job}")
        found.read()
        return round(found.facts.job_not_before - found.facts.now)

    assert [pause("j1") for _try in range(7)] == [10, 20, 40, 80, 160, 300, 300]
    # A planner that wakes the node, or another job, is a new reason to try soon.
    answers.put(WAKE, b"1700000000")
    assert found.read().run == "job j1"
    assert [pause("j1"), pause("j1"), pause("j2")] == [10, 20, 10]


class Admitting(Answers):
    """Consul with gates that planners wrote."""

    def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
        return {key: self.entry(key, 1) for key in self.found if key in (*keys, folder) and key != "upgrade/schema"}


def test_an_admitted_node_runs_a_job_until_it_has_ended(tmp_path: Path) -> None:
    answers = Admitting()
    answers.found |= {"upgrade/current_job": b"job/j1", "upgrade/job_gates/host/compute7": b"True"}
    answers.found["config_state/enable_puppet/global"] = b"False"
    found = gate_reading(tmp_path, answers)
    decision = found.read()
    assert (decision.run, decision.reason) == ("job j1", "the node is admitted to the job j1")
    found.ended("job j1")
    # A job is no run of Puppet.
    assert PuppetRuns(str(tmp_path / "agent.json")).last() is None
    assert found.read().run is None
    answers.put(WAKE, b"1700000000")
    assert found.read().run == "job j1"
    answers.found["upgrade/job_records/compute7"] = b'{"job": "j1", "state": "done"}'
    assert found.read().run is None
    answers.found["upgrade/current_job"] = b"job/j2"
    assert found.read().run == "job j2"


@pytest.mark.parametrize("token", ["the token of the node", None])
def test_keys_that_the_token_may_no_longer_read_are_unknown_and_keep_puppet_out(
    token: str | None, tmp_path: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_out: list[str] = []
    monkeypatch.setattr("convoy_node.machine.puppet.keep_out", kept_out.append)
    monkeypatch.setattr("convoy_node.machine.puppet.let_in", lambda: pytest.fail("Puppet is let in"))
    answers.found["config_state/enable_puppet/global"] = b"False"
    found = gate_reading(tmp_path, answers, token=token, is_external=True)
    assert found.read().keeps_puppet_out
    answers.is_hidden = True
    decision = found.read()
    assert decision.keeps_puppet_out
    assert decision.reason.startswith("closed: Consul refused the node's token: lacks permission")
    assert found.facts.doubt_since is not None
    assert len(kept_out) == 2


@pytest.mark.parametrize("token", [None, "the token of the node"])
def test_holds_may_be_hidden_only_if_their_folder_came_back_empty(
    token: str | None, tmp_path: Path, answers: Answers
) -> None:
    answers.found["upgrade/schema"] = b"1"
    # Each rollout and each hold writes it.
    answers.found["upgrade/hold/"] = b"0123"
    found = gate_reading(tmp_path, answers, token=token)
    assert found.read().reason == "open: config_state/enable_puppet/global is True"
    assert answers.confirmed == []
    del answers.found["upgrade/hold/"]
    assert found.read().reason == "open: config_state/enable_puppet/global is True"
    assert answers.confirmed == ["upgrade/hold/global"]
    answers.is_denied = True
    assert found.read().reason.startswith("closed: Consul refused the node's token")


def test_gates_that_are_missing_are_read_singly_only_with_a_token(tmp_path: Path, answers: Answers) -> None:
    answers.found["upgrade/schema"] = b"1"
    guarded = gate_reading(tmp_path, answers, token="the token of the node")
    guarded.read()
    assert answers.confirmed == ["upgrade/hold/global"]
    # In the layout of python-jiocloud, an operator's pause could be hidden too.
    del answers.found["upgrade/schema"], answers.found["config_state/enable_puppet/global"]
    assert guarded.read().reason == "open: no gate is set for compute7"
    assert answers.confirmed[1:] == [
        "config_state/enable_puppet/global",
        "upgrade/hold/global",
        "config_state/global/enable_puppet",
    ]


def test_a_hold_that_is_set_while_the_gates_are_read_counts(tmp_path: Path) -> None:
    class Late(Answers):
        def read(self, keys: Sequence[str], folder: str = "") -> dict[str, ConsulKey]:
            return {key: one for key, one in super().read(keys, folder).items() if key != "upgrade/hold/global"}

    late = Late()
    late.found["upgrade/hold/global"] = b"{}"
    guarded = gate_reading(tmp_path, late, token="the token of the node")
    assert guarded.read().reason == "closed: held by upgrade/hold/global"


def test_cron_too_runs_puppet_on_a_node_that_may_do_so_without_consul(tmp_path: Path, answers: Answers) -> None:
    def reaction(*, single: bool, bootstrap: bool = True) -> str | None:
        found = gate_reading(tmp_path, answers, single=single, bootstrap=bootstrap, splay=0)
        (tmp_path / "version").unlink()
        return found.read().run

    answers.error = ConsulError("Consul can't be reached.")
    assert reaction(single=True) == PUPPET
    assert reaction(single=True, bootstrap=False) is None
    # A resident agent asks once more, because Consul may only be starting again.
    assert reaction(single=False) is None
    PuppetRuns(str(tmp_path / "agent.json")).note()
    assert reaction(single=True) is None
