# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics, parsed by the OpenMetrics parser of the Prometheus client."""

from __future__ import annotations

import math
import re
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import STATES
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.metrics import AdmissionCounts, fleet_gauges
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.openmetrics import Gauge, gauges_as_text
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.reconcile import make_plan
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from devkit.agent import ROOT
from fleets import Fleet, fleet
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from strategies import any_fleets


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return name -> its labels and values."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def metrics(found: Fleet, *events: dict[str, Any]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the metrics of a fleet without rules, by name without the prefix."""
    snapshot = found.snapshot()
    admissions = AdmissionCounts()
    for event in events:
        admissions.add(event)
    text = gauges_as_text(fleet_gauges(snapshot, make_plan(snapshot, found.members, parse({})), admissions, 0))
    return {name.removeprefix("convoy_upgrade_"): each for name, each in samples(text).items()}


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_text_and_number_comes_back_as_it_was(text: str, number: float) -> None:
    shown = gauges_as_text([Gauge("a", "A.", [({"x": text, "y": "1"}, number)]), Gauge("none", "None.", [])])

    ((labels, value),) = samples(shown)["a"]
    assert labels == {"x": text, "y": "1"}
    assert math.isclose(value, number)
    assert not any(line.startswith(("# HELP none", "# TYPE none", "none")) for line in shown.split("\n"))


@given(any_fleets())
def test_every_host_is_counted_once(found: Fleet) -> None:
    samples = metrics(found).get("hosts", [])

    roles = set(found.members.values())
    assert {(labels["role"], labels["state"]) for labels, _count in samples} == {(r, s) for r in roles for s in STATES}
    assert len(samples) == len(roles) * len(STATES)
    assert sum(count for _labels, count in samples) == len(found.members)
    for role in roles:
        mine = sum(count for labels, count in samples if labels["role"] == role)
        assert mine == sum(its == role for its in found.members.values())


def test_stopped_has_a_sample_for_each_blocker_of_a_rollout_in_the_docs() -> None:
    reasons = [labels["reason"] for labels, _value in metrics(fleet(compute=1))["stopped"]]

    (row,) = re.findall(r"^\| `stopped` .*", (ROOT / "docs/watching.md").read_text(), re.MULTILINE)
    blockers = (ROOT / "docs/errors.md").read_text().partition("# What blocks a rollout")[2].partition("\n# ")[0]
    assert reasons == re.findall(r"`(\w+)`", row)[2:] == re.findall(r"^\| `(\w+)` ", blockers, re.MULTILINE)


def test_admissions_are_counted_once_for_each_host_and_by_role() -> None:
    found = fleet(compute=3, controller=2)
    newest: dict[str, Any] = {"what": "open", "at": 300, "hosts": {"compute1": "again", "gone1": "left"}, "roles": {}}
    first: dict[str, Any] = {"what": "open", "at": 200, "hosts": {"compute1": "slot", "compute2": "slot"}}
    by_role: dict[str, Any] = {"what": "open", "at": 100, "roles": {"controller": {"hosts": 2, "reason": "no limit"}}}
    odd: list[dict[str, Any]] = [
        {"what": "health", "hosts": {"compute3": "x"}},
        {"what": "open", "hosts": 3, "roles": [1]},
    ]

    samples = metrics(found, newest, first, by_role, *odd)

    assert {labels["role"]: count for labels, count in samples["admitted_hosts"]} == {"compute": 2, "controller": 2}
    assert samples["last_admission_timestamp_seconds"] == [({}, 300)]
    assert "last_admission_timestamp_seconds" not in metrics(found)


def test_hosts_that_a_job_is_not_for_are_not_counted() -> None:
    hosts = {
        "web1": HostView("web", None, "pending", None, ""),
        "db1": HostView("db", None, "upgraded", None, "the job is not for it", outside=True),
    }
    text = gauges_as_text(fleet_gauges(fleet(web=1).snapshot(), Plan(hosts=hosts), AdmissionCounts(), 0))

    counts = {(one["role"], one["state"]): count for one, count in samples(text)["convoy_upgrade_hosts"]}
    assert {key for key, count in counts.items() if count} == {("web", "pending")}
    assert ("db", "upgraded") in counts
