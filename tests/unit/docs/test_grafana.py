# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboard of Grafana: Prometheus' own tool evaluates each of its queries on the metrics of a fleet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import PAUSED, Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.metrics import AdmissionCounts, fleet_gauges
from devkit.agent import ROOT
from fleets import NEW, OLD, UNLIMITED, fleet
from missing import missing

BOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana.json").read_text())


def queries() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def promtool() -> str:
    found = subprocess.run([ROOT / "tools/monitoring.sh", "promtool"], capture_output=True, text=True, check=False)
    if found.returncode:
        missing(f"no promtool here: {found.stderr}")
    return found.stdout.strip()


def series() -> list[dict[str, str]]:
    """Return the metrics of a fleet in which something is shown by each query, as Prometheus stores them."""
    site = fleet(compute=5, controller=1).upgraded("controller1", "compute1").failed("compute2")
    site.opened("compute3")
    site.records["compute3"] = HostRecord(NEW, "started", times={"started": 9_000})
    site.ledger = Ledger(3, NEW, OLD, state=PAUSED, instructions=UNLIMITED, since=9_000)
    admissions = AdmissionCounts()
    admissions.add({"what": "open", "at": 9_000, "hosts": {"compute3": "because"}})
    gauges = fleet_gauges(site.snapshot(), site.plan(UNLIMITED), admissions, 0)
    found = []
    for gauge in gauges:
        for labels, value in gauge.samples:
            text = ", ".join(
                f"{name}={json.dumps(label)}" for name, label in {**labels, "instance": "deploy1:9100"}.items()
            )
            found.append({"series": f"{gauge.name}{{{text}}}", "values": f"{value:.0f}x5"})
    return found


def test_each_query_shows_something(promtool: str, tmp_path: Path) -> None:
    tests = [
        {
            "expr": f"count({query.replace('$instance', 'deploy1:9100')}) > bool 0",
            "eval_time": "2m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for _title, query in queries()
    ]
    (tmp_path / "rules.yml").write_text("groups: []\n")
    suite = {
        "rule_files": ["rules.yml"],
        "tests": [{"interval": "1m", "input_series": series(), "promql_expr_test": tests}],
    }
    (tmp_path / "suite.yml").write_text(yaml.safe_dump(suite))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "suite.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_a_dashboard_that_works_with_any_data_source() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"]) > 8
    assert {one["name"] for one in BOARD["templating"]["list"]} == {"datasource", "instance"}
    sources = {json.dumps(target["datasource"]) for panel in BOARD["panels"] for target in panel["targets"]}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    assert all('instance="$instance"' in query for _title, query in queries())
    # Nothing lies above anything else, and each panel says what it shows.
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _y in cells) < 24
    assert all(panel["description"] for panel in BOARD["panels"])
