# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in explanations, reports and metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import LAST_JOB, read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.metrics import metrics_text
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.rollout_report import read_rollout_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.report_page import html_page
from job_fleet import FLEET, RULES, FlaggedConsul, begin, complete_fleet, go_on, reports


@pytest.fixture
def consul() -> Iterator[FlaggedConsul]:
    with complete_fleet().in_place() as found:
        yield found


@pytest.fixture
def store(consul: FlaggedConsul) -> Store:  # noqa: ARG001  the store talks to it
    return Store(Settings())


def explanation(store: Store, host: str) -> str:
    story = read_fleet(store, fleet=FLEET, name=host, job=LAST_JOB).story
    assert story is not None
    return " ".join(story["explanation"])


def test_a_host_is_explained_in_words_of_a_job(store: Store, consul: FlaggedConsul) -> None:
    begin(store)
    assert "Next: it starts, runs the command and reports." in explanation(store, "web1")
    assert "if all commands succeed, it is admitted in wave" in explanation(store, "web3")
    reports(consul, "web1", "started")
    assert "It has been running since" in explanation(store, "web1")
    assert "Next: it reports the end of the command." in explanation(store, "web1")
    reports(consul, "web1", "done")
    assert "It has been done since" in explanation(store, "web1")
    assert "when it reported the end of the command" in explanation(store, "web1")
    assert "Next: the next pass of command.yml -e job=j1 admits it." in explanation(store, "web2")


def test_only_the_last_job_can_be_shown(store: Store, consul: FlaggedConsul) -> None:
    with pytest.raises(UpgradeError, match="'j1' is no job of this rollout"):
        read_fleet(store, fleet=FLEET, job="j1")
    begin(store)
    assert read_fleet(store, fleet=FLEET, job="j1").plan.version == "job/j1"
    with pytest.raises(UpgradeError, match="'j2' is not the last job, which is j1") as refused:
        read_fleet(store, fleet=FLEET, job="j2")
    assert refused.value.code == "unknown_job"
    for host in FLEET:
        reports(consul, host, "done")
        go_on(store)
    assert read_fleet(store, fleet=FLEET, job="j1").plan.version == "job/j1"


def test_the_report_of_a_job_has_what_hosts_reported_of_it(store: Store, consul: FlaggedConsul) -> None:
    begin(store)
    for host in FLEET:
        reports(consul, host, "done")
        go_on(store)
    complete = read_rollout_report(store, fleet=FLEET)
    assert (complete["version"], complete["state"], complete["whole"]) == ("job/j1", "complete", True)
    assert {one["host"]: one["phase"] for one in complete["hosts"]} == dict.fromkeys(FLEET, "upgraded")
    page = html_page(complete)
    assert "<h1>Job j1</h1>" in page
    assert "<b>4 of 4</b>hosts done" in page
    # The metrics are those of the rollout to a version again, which admitted no host.
    view = read_fleet(store, fleet=FLEET)
    assert 'convoy_upgrade_admitted_hosts{role="web"} 0' in metrics_text(store, view)
    make_pass(store, PassRequest(version="3.0", rules=RULES, fleet=FLEET))
    begun = read_rollout_report(store, fleet=FLEET)
    assert (begun["version"], begun["whole"], begun["state"]) == ("3.0", True, "running")
    assert read_rollout_report(store, "job/j1", FLEET)["whole"] is False
