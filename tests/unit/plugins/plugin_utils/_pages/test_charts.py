# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The charts of a rollout: what is where."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.charts import (
    axis,
    bands,
    clock_text,
    curve,
    duration_text,
    legend,
    phases_over_time,
    timeline,
)
from hypothesis import given
from hypothesis import strategies as st


def host(name: str, *phases: tuple[str, int, int], role: str = "web") -> dict[str, Any]:
    return {
        "host": name,
        "role": role,
        "phase": phases[-1][0],
        "error": "",
        "phases": [[phase, start, end, "", ""] for phase, start, end in phases],
    }


def report(*hosts: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {
        "version": "2",
        "begun": 0,
        "end": 1200,
        "hosts": hosts,
        "steps": [],
        "stages": [],
        "concurrency": {},
        "caps": {},
    }
    return {**found, **more}


def test_places_along_the_time_are_in_percent() -> None:
    found = report(
        host("web1", ("waiting", 0, 300), ("admitted", 300, 600), ("upgraded", 600, 1200)),
        host("db1", ("waiting", 0, 1200), role="db"),
    )
    db, web = timeline(found)
    assert (db.role, web.role, web.has_names, web.height) == ("db", "web", True, 18)
    assert [(one.kind, one.x, one.width) for one in web.hosts[0].bars] == [("w", 0, 25), ("po", 25, 25), ("d", 50, 50)]
    assert [one.role for one in timeline(found, {"web1"})] == ["web"]


@pytest.mark.parametrize(
    ("end", "times"),
    [
        (0, ["00:00:00", "", "", "", ""]),
        (2, ["00:00:00", "", "00:00:01", "", "00:00:02"]),
        (1200, ["01-01 00:00", "01-01 00:05", "01-01 00:10", "01-01 00:15", "01-01 00:20"]),
    ],
)
def test_no_time_is_there_twice_in_the_first_seconds(end: int, times: list[str]) -> None:
    assert axis(report(end=end)) == times


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2", ["waiting", "admitted", "upgrading", "failed", "upgraded"]),
        ("job/restart-1", ["waiting", "admitted", "running", "failed", "done"]),
    ],
)
def test_hosts_run_a_job_and_are_upgraded_to_a_version(version: str, names: list[str]) -> None:
    found = report(host("web1", ("upgrading", 0, 600), ("upgraded", 600, 1200)), version=version)
    assert [one.name for one in legend(found)] == names
    row = timeline(found)[0].hosts[0]
    assert [one.tooltip.split(",")[0] for one in row.bars] == [f"web1: {names[2]}", f"web1: {names[4]}"]
    assert row.title == f"web1: {names[4]}"
    assert [one.name for one in phases_over_time(found)] == [names[4], names[2]]


def test_stages_are_bands() -> None:
    stages = [{"name": "canary", "begun": 0, "end": 300}, {"name": "rest", "begun": 300, "end": 1200}]
    assert [(one.name, one.x, one.width) for one in bands(report(stages=stages))] == [
        ("canary", 0, 25),
        ("rest", 25, 75),
    ]
    assert bands(report(stages=stages))[0].tooltip == "stage canary, from 1970-01-01 00:00:00 UTC, 5m"


def test_hosts_in_each_phase_are_areas_above_each_other() -> None:
    found = phases_over_time(
        report(host("web1", ("waiting", 0, 600), ("upgrading", 600, 1200)), host("web2", ("upgraded", 0, 1200)))
    )
    assert [one.kind for one in found] == ["d", "k"]
    done, moving = (dict(one.points[:121]) for one in found)
    assert {done[x] for x in done} == {50.0}
    # At the end, both are shown.
    assert (moving[0.0], moving[50.0], moving[100.0]) == (50.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 50)), min_size=1, max_size=3000))
def test_a_line_of_many_steps_keeps_its_highest_and_has_few_points(steps: list[tuple[int, int]]) -> None:
    steps = sorted(dict(steps).items())
    found = curve(report(end=100_000, concurrency={"the fleet": steps}, caps={"the fleet": 40}), "the fleet")
    assert len(found.points) <= 4 * 502
    most = max(down for _at, down in steps)
    assert found.text == f"at most {most}, cap 40"
    assert min(y for _x, y in found.points) == pytest.approx(95 - most / max(most, 40) * 90)
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in found.points)


def test_short_texts_of_times() -> None:
    assert [duration_text(seconds) for seconds in (0, 0.4, 59, 125, 7300)] == ["<1s", "<1s", "59s", "2m 5s", "2h 1m"]
    assert (clock_text(1_800_000_000), clock_text(1_800_000_000, "seconds")) == ("01-15 08:00", "01-15 08:00:00")
