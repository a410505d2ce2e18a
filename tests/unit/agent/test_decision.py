# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent does next: two clocks, and no upgrade in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from convoy_node.decision import (
    DOUBT,
    HOLD,
    PUPPET,
    UNHOLD,
    NextAction,
    NodeFacts,
    decide,
    own_share,
    puppet_due,
    unreachable,
)
from convoy_node.node.connection import Connection
from convoy_node.node.gate import Answer
from convoy_node.node.settings import NodeSettings
from devkit.agent import ROOT

SETTINGS = NodeSettings("compute7", "compute", Connection(), {})
OPEN = Answer(True, "open: gate is True", "v2")
CLOSED = Answer(False, "closed: gate is False", "v2")
PENDING = replace(CLOSED, is_pending=True)
DOUBTFUL = Answer(None, "the gate is neither True, False nor a version", "v2")
# The agent began at 1000, and Puppet ran at 1500.
FACTS = NodeFacts("v2", None, 2000.0, 1500.0, 1000.0)


def run(answer: Answer, facts: NodeFacts = FACTS, **settings: Any) -> str | None:
    return decide(replace(SETTINGS, **settings), answer, facts).run


def test_an_open_gate_starts_an_upgrade_if_the_node_has_another_version() -> None:
    for version in ("v1", "", None, "v3"):
        assert run(OPEN, replace(FACTS, version=version)) == "upgrade to v2"
    assert run(OPEN) is None
    assert run(replace(OPEN, version=None), replace(FACTS, version="v1")) is None
    assert run(OPEN, replace(FACTS, version="v1"), noop=True) is None


def test_a_node_whose_report_of_the_end_of_its_upgrade_was_lost_reports_again() -> None:
    lost = replace(OPEN, report=("started", "v2"))
    assert run(lost) == "report of v2"
    assert run(lost, replace(FACTS, tried="report of v2", not_before=2010.0)) is None
    # It reports that also with a closed gate, which keeps Puppet from running.
    for answer in (replace(CLOSED, report=("started", "v1")), replace(PENDING, report=("started", "v1"))):
        assert run(answer, replace(FACTS, version="v1")) == "report of v1"
    # Not one that is still in its upgrade, or must not report.
    assert run(lost, replace(FACTS, version="")) == "upgrade to v2"
    assert run(lost, noop=True) is None


@pytest.mark.parametrize(
    "report", [("", ""), ("retried", "v2"), ("upgraded", "v1"), ("failed", "v1"), ("started", "v3")]
)
def test_a_node_whose_record_does_not_have_its_version_reports_it_while_its_gate_is_open(
    report: tuple[str, str],
) -> None:
    assert run(replace(OPEN, report=report)) == "report of v2"
    assert run(replace(CLOSED, report=report)) is None
    assert run(replace(OPEN, report=report), replace(FACTS, version="v1")) == "upgrade to v2"


def test_a_failed_run_of_puppet_is_repeated_by_what_runs_puppet_next() -> None:
    failed = replace(OPEN, report=("failed", "v2"))
    assert run(failed) is None
    # With external, nothing else would report that the node is well again. What else runs Puppet goes on meanwhile.
    found = decide(replace(SETTINGS, puppet_interval=None), failed, FACTS)
    assert (found.run, found.keeps_puppet_out) == ("report of v2", False)
    for known in (None, ("upgraded", "v2")):
        assert run(replace(OPEN, report=known), puppet_interval=None) is None


def test_an_upgrade_whose_report_alone_failed_is_reported_again_soon() -> None:
    failed = replace(OPEN, report=("failed", "v2"), step="report")
    assert run(failed, replace(FACTS, tried="upgrade to v2", not_before=2300.0)) == "report of v2"
    for step in (None, "puppet", "validation"):
        assert run(replace(failed, step=step)) is None
    # An upgrade that has not ended, one to another version, a closed gate, and a node that must not report.
    assert run(failed, replace(FACTS, version="")) == "upgrade to v2"
    assert run(failed, replace(FACTS, version="v1")) == "upgrade to v2"
    assert run(replace(failed, is_open=False)) is None
    assert run(failed, noop=True) is None
    # Nor does the step of a record count that is no failure.
    assert run(replace(failed, report=("upgraded", "v2"))) is None
    assert "puppet_gate_step: report\n" in (ROOT / "roles/puppet_gate/tasks/run/finished.yml").read_text()


def test_a_node_with_services_runs_its_post_upgrade_tasks_once_it_is_admitted() -> None:
    admitted = replace(OPEN, post_upgrade="v2")
    assert run(admitted, services="/etc/convoy/services") == "post-upgrade of v2"
    assert run(admitted) is None
    for answer in (
        replace(CLOSED, post_upgrade="v2"),
        replace(OPEN, post_upgrade="v1"),
        replace(OPEN, version=None, post_upgrade="v2"),
    ):
        assert run(answer, services="/etc/convoy/services") is None
    assert run(admitted, replace(FACTS, version="v1"), services="/etc/convoy/services") == "upgrade to v2"
    assert run(admitted, services="/etc/convoy/services", noop=True) is None


def test_a_closed_gate_starts_nothing_even_if_puppet_is_due() -> None:
    for answer in (CLOSED, PENDING):
        assert run(answer, replace(FACTS, version="v1", now=1e6)) is None


def test_a_pending_node_runs_puppet_only_if_its_settings_say_so_and_it_has_a_version() -> None:
    late = replace(FACTS, version="v1", now=9000.0)
    assert run(PENDING, late, puppet_pending=True) == PUPPET
    assert run(PENDING, replace(late, version=""), puppet_pending=True) is None
    assert run(PENDING, replace(late, version=None), puppet_pending=True) is None
    assert run(CLOSED, late, puppet_pending=True) is None


def test_puppet_is_due_at_its_own_interval() -> None:
    before = decide(SETTINGS, OPEN, replace(FACTS, now=3299.0))
    assert (before.run, before.seconds) == (None, 1.0)
    assert run(OPEN, replace(FACTS, now=3300.0)) == PUPPET
    # The gate is asked at its own interval, whatever Puppet's is.
    assert decide(SETTINGS, OPEN, FACTS).seconds == SETTINGS.interval
    assert run(OPEN, replace(FACTS, now=1e6), puppet_interval=None) is None


def test_puppet_that_could_not_run_is_not_kept_out_and_tried_again_later() -> None:
    due = replace(FACTS, now=3300.0, tried=PUPPET, not_before=3330.0)
    waiting = decide(SETTINGS, OPEN, due)
    assert (waiting.run, waiting.seconds, waiting.keeps_puppet_out) == (None, 30.0, False)
    assert run(OPEN, replace(due, now=3330.0)) == PUPPET


def test_the_nodes_of_a_fleet_spread_their_first_run() -> None:
    first = replace(FACTS, puppet_at=None, now=1000.0)
    dues = [puppet_due(replace(SETTINGS, host=f"compute{number}"), first) - 1000 for number in range(1000)]
    assert all(0 <= due < SETTINGS.puppet_splay for due in dues)
    assert 0.4 < sum(due < SETTINGS.puppet_splay / 2 for due in dues) / 1000 < 0.6
    # The same for each start of one node.
    assert own_share("compute7") == own_share("compute7")
    # After a long outage they are spread too.
    assert puppet_due(SETTINGS, replace(FACTS, puppet_at=-90_000.0)) >= 1000.0


def test_a_disabled_puppet_is_reported_once_and_holds_the_node() -> None:
    held = replace(FACTS, version="v1", disabled="its disk")
    for answer in (OPEN, CLOSED):
        assert run(answer, held) == HOLD
        known = replace(answer, held="its disk")
        assert run(known, held) is None
        # Its end is reported too.
        assert run(known, replace(held, disabled=None)) == UNHOLD
        # At once, also if the hold itself was reported just now.
        assert run(known, replace(held, disabled=None, tried=HOLD, not_before=9000.0)) == UNHOLD
        # The reason of a hold that bad settings left is replaced.
        assert run(replace(answer, held="its settings can't be used: node.json is empty"), held) == HOLD
        # Without a version there is no record to have it.
        assert run(replace(answer, version=None), held) is None


def test_a_node_that_reports_nothing_starts_nothing_for_a_hold() -> None:
    held = replace(FACTS, version="v1", disabled="its disk")
    for answer in (OPEN, CLOSED):
        waiting = decide(replace(SETTINGS, noop=True), answer, held)
        assert (waiting.run, waiting.reason) == (None, "held: Puppet is disabled on this host: its disk")
        # What the record still says of a hold before does not let Puppet run more often.
        left = replace(answer, held="its disk")
        assert run(left, FACTS, noop=True) is None
    assert run(replace(OPEN, held="its disk"), replace(FACTS, now=3300.0), noop=True) == PUPPET


def test_a_doubt_starts_no_upgrade_and_is_reported_if_it_lasts() -> None:
    outdated = replace(FACTS, version="v1")
    at_once = decide(SETTINGS, DOUBTFUL, outdated)
    assert (at_once.run, at_once.seconds) == (None, 10.0)
    assert run(DOUBTFUL, replace(outdated, doubt_since=1971.0)) is None
    assert run(DOUBTFUL, replace(outdated, doubt_since=1970.0)) == DOUBT
    # `convoy-node once` reads only once.
    assert run(DOUBTFUL, replace(outdated, patience=0.0)) == DOUBT
    again = replace(outdated, doubt_since=1.0, tried=DOUBT, not_before=3000.0)
    assert run(DOUBTFUL, again) is None


def test_what_failed_is_tried_again_after_the_interval_but_something_else_at_once() -> None:
    failed = replace(FACTS, version="", tried="upgrade to v2", not_before=2100.0)
    waiting = decide(SETTINGS, OPEN, failed)
    assert (waiting.run, waiting.seconds) == (None, 100.0)
    assert "tried again later" in waiting.reason
    assert run(OPEN, replace(failed, now=2100.0)) == "upgrade to v2"
    assert run(replace(OPEN, version="v3"), failed) == "upgrade to v3"


def test_puppet_that_something_else_runs_is_kept_out_unless_the_gate_is_open_and_nothing_is_to_be_done() -> None:
    external = replace(SETTINGS, puppet_interval=None)

    def keeps_out(answer: Answer, facts: NodeFacts = FACTS) -> bool:
        return decide(external, answer, facts).keeps_puppet_out

    assert not keeps_out(OPEN)
    assert keeps_out(CLOSED)
    assert keeps_out(DOUBTFUL)
    assert keeps_out(OPEN, replace(FACTS, version="v1"))
    assert keeps_out(PENDING)
    pending = decide(replace(external, puppet_pending=True), PENDING, replace(FACTS, version="v1"))
    assert not pending.keeps_puppet_out


def without_consul(facts: NodeFacts, failures: int, **settings: Any) -> NextAction:
    return unreachable(replace(SETTINGS, **settings), "Consul can't be reached.", facts, failures)


def test_without_consul_nothing_is_started_except_a_first_run_that_is_allowed() -> None:
    for version in ("v1", "", None):
        assert without_consul(replace(FACTS, version=version), 9).run is None
    new = replace(FACTS, version=None, puppet_at=None, now=2800.0)
    assert without_consul(new, 9, bootstrap=True).run == PUPPET
    assert without_consul(new, 1, bootstrap=True).run is None
    assert without_consul(replace(FACTS, version=""), 9, bootstrap=True).run is None
    assert without_consul(replace(FACTS, version=None, disabled="x"), 9, bootstrap=True).run is None
    assert "The node stays at v2." in without_consul(FACTS, 9).reason
    assert without_consul(FACTS, 9).keeps_puppet_out


def test_a_node_that_never_had_a_version_runs_puppet_without_consul_at_puppet_s_interval() -> None:
    # The run at 1500 has failed, or was the first of several.
    new = replace(FACTS, version=None, tried=PUPPET, not_before=1800.0)
    waiting = without_consul(new, 9, bootstrap=True)
    # Consul is asked as often as by other nodes.
    assert (waiting.run, waiting.seconds, waiting.keeps_puppet_out) == (None, 60.0, False)
    assert without_consul(replace(new, now=3299.0), 9, bootstrap=True).run is None
    assert without_consul(replace(new, now=3300.0), 9, bootstrap=True).run == PUPPET
    # Something else runs it, and is let in.
    external = without_consul(replace(new, now=9000.0), 9, bootstrap=True, puppet_interval=None)
    assert (external.run, external.keeps_puppet_out) == (None, False)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 2), (2, 4), (5, 32), (6, 60), (1000, 60)])
def test_it_asks_less_and_less_often_while_consul_is_away(failures: int, seconds: int) -> None:
    assert without_consul(FACTS, failures).seconds == seconds


def test_a_job_runs_whatever_puppet_s_gate_says_but_not_while_puppet_is_disabled() -> None:
    facts = replace(FACTS, job="j1")
    for answer in (OPEN, CLOSED, PENDING, DOUBTFUL, replace(OPEN, version="v3")):
        found = decide(SETTINGS, answer, facts)
        assert (found.run, found.keeps_puppet_out) == ("job j1", True)
    assert run(CLOSED, replace(facts, disabled="its disk")) == HOLD
    # Where no record has the hold, the run of the job reports why it can't be.
    disabled = replace(facts, disabled="its disk")
    assert run(replace(CLOSED, version=None), disabled) == "job j1"
    assert run(CLOSED, disabled, noop=True) == "job j1"
    # An end is reported at once. A hold does not end with that.
    for answer in (CLOSED, replace(CLOSED, held="its disk")):
        assert run(answer, replace(disabled, reports_end=True)) == "job j1"
        refused = replace(disabled, reports_end=True, job_tried="j1", job_not_before=2010.0)
        assert run(answer, refused) == (HOLD if answer.held is None else None)
    # One that could not begin is tried again later, and at once if a planner wakes the node.
    tried = replace(facts, job_tried="j1", job_not_before=2010.0)
    assert (run(CLOSED, tried), run(CLOSED, replace(tried, job_not_before=0.0))) == (None, "job j1")
    assert run(CLOSED, replace(tried, job="j2")) == "job j2"


def test_a_job_that_waits_for_its_next_try_keeps_nothing_else_from_running() -> None:
    waiting = replace(FACTS, job="j1", job_tried="j1", job_not_before=2010.0)
    assert run(OPEN, replace(waiting, puppet_at=0.0)) == PUPPET
    assert run(OPEN, replace(waiting, version="v1")) == "upgrade to v2"
    assert run(replace(OPEN, post_upgrade="v2"), waiting, services="/etc/convoy/services") == "post-upgrade of v2"
    assert run(PENDING, replace(waiting, version="v1", puppet_at=0.0), puppet_pending=True) == PUPPET
    external = decide(replace(SETTINGS, puppet_interval=None), OPEN, waiting)
    assert not external.keeps_puppet_out
    # Until its next try at most.
    for answer in (OPEN, CLOSED):
        found = decide(SETTINGS, answer, waiting)
        assert (found.run, found.seconds) == (None, 10.0)
        assert found.reason == f"{answer.reason}; the job j1 is tried again later"
    assert decide(SETTINGS, DOUBTFUL, waiting).reason == f"closed: {DOUBTFUL.reason}; the job j1 is tried again later"
    # What failed beside it keeps a pause of its own.
    failed = replace(waiting, version="v1", tried="upgrade to v2", not_before=2005.0)
    assert (run(OPEN, failed), decide(SETTINGS, OPEN, failed).seconds) == (None, 5.0)
    assert run(OPEN, replace(failed, now=2005.0)) == "upgrade to v2"
    assert run(OPEN, replace(failed, now=2010.0)) == "job j1"
