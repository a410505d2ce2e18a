# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics of a real fleet in a file, judged by promtool and by the parser of Prometheus' own client."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import ROOT
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, ledger, names, record, seed
from integration.support.runs.in_process import call
from integration.support.runs.playbook import Runner
from integration.support.runs.shipped import Shipped
from missing import missing
from prometheus_client.openmetrics.parser import text_string_to_metric_families

# What it is about is not Ansible, so one release will do.
pytestmark = pytest.mark.one_release

ALERTS = ROOT / "docs/alerts.yml"


@pytest.fixture(scope="module")
def promtool() -> str:
    found = subprocess.run([ROOT / "tools/monitoring.sh", "promtool"], capture_output=True, text=True, check=False)
    if found.returncode:
        missing(f"no promtool here: {found.stderr}")
    return found.stdout.strip()


def checked(promtool: str, *arguments: str | Path, text: str = "") -> None:
    """Let promtool judge."""
    done = subprocess.run([promtool, *arguments], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def read(text: str) -> dict[tuple[str, ...], float]:
    """Return (name, labels' values...) -> value."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name.removeprefix("convoy_upgrade_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def begin(store: Store, consul: RawKV) -> None:
    """Leave a fleet with a failed host, one at work, and an exhausted budget."""
    seed(consul, names(compute=4, controller=1))
    rules = {"rolling_rules": {"global": 2}, "role_order": {"compute": "controller"}, "failure_rules": {"fleet": 1}}
    make_pass(store, PassRequest(version="2", rules=rules))
    write_report(store, HostReport("controller1", "2", "started"))
    write_report(store, HostReport("controller1", "2", "upgraded"))
    make_pass(store, PassRequest())
    write_report(store, HostReport("compute1", "2", "failed", service="nova", step='say "no"\\', error="no space left"))
    write_report(store, HostReport("compute2", "2", "started"))
    make_pass(store, PassRequest())


def test_the_file_has_what_consul_has(run: Runner, store: Store, consul: RawKV, promtool: str) -> None:
    begin(store, consul)
    file = run.folder / "convoy.prom"
    before = consul.tree()

    tasks = [
        {"convoy.upgrade.consul_upgrade_metrics": {"path": str(path), "fleet": {"compute5": "compute"}}}
        for path in (file, run.folder)
    ]
    result, refused = run(tasks)

    text = file.read_text()
    found = read(text)
    assert result["metrics"] == text
    assert result["changed"]
    assert consul.tree() == before
    assert refused["failure"]["code"] == "bad_metrics_file"
    assert {key: value for key, value in found.items() if key[0] == "hosts" and value} == {
        ("hosts", "controller", "upgraded"): 1,
        ("hosts", "compute", "failed"): 1,
        ("hosts", "compute", "upgrading"): 1,
        ("hosts", "compute", "pending"): 3,
    }
    assert {key: value for key, value in found.items() if key[0] == "stopped" and value} == {
        ("stopped", "failure_budget"): 1
    }
    assert found["admitted_hosts", "compute"] == 2
    assert found["admitted_hosts", "controller"] == 1
    opened = [event["at"] for event in history(consul) if event["what"] == "open"]
    assert found["last_admission_timestamp_seconds",] == opened[-1]
    failed, started = (record(consul, host)["times"] for host in ("compute1", "compute2"))
    broken = ("failed_host_timestamp_seconds", "compute1", "compute", "failed", "nova", 'say "no"\\')
    assert found[broken] == failed["failed"]
    assert found["oldest_upgrading_timestamp_seconds", "compute"] == started["started"]
    assert found["rollout_info", "2", "1", "running"] == 1
    assert found["rollout_begun_timestamp_seconds",] == ledger(consul)["since"]
    assert found["planner_writes",] == found["history_entries",] == ledger(consul)["epoch"]
    assert (found["complete",], found["can_move",], found["needs_approval",]) == (0, 1, 0)
    documented = (ROOT / "docs/watching.md").read_text()
    assert [name for name, *_labels in found if f"`{name}`" not in documented] == []
    checked(promtool, "check", "metrics", text=text)


def test_a_second_call_changes_nothing_and_check_mode_reports_the_same(
    store: Store, consul: RawKV, tmp_path: Path
) -> None:
    begin(store, consul)
    file = tmp_path / "convoy.prom"
    options = {"host": "127.0.0.1", "port": store.settings.port, "path": str(file)}

    would = call("consul_upgrade_metrics", options, check=True)
    assert not file.exists()
    did = call("consul_upgrade_metrics", options)
    os.utime(file, (1, 1))
    text, again = file.read_text(), call("consul_upgrade_metrics", options)

    assert [one["changed"] for one in (would, did, again)] == [True, True, False]
    assert would["diff"] == did["diff"] == {**did["diff"], "before": "", "after": text}
    assert file.read_text() == text
    assert file.stat().st_mtime > 1, "it is known that somebody looked"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["convoy.prom"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("gone/convoy.prom", "gone is not a folder; create it, or correct the path."),
        (".", "it is not a regular file;"),
        # Something where not even a look is possible, for root too.
        ("x" * 300 + "/convoy.prom", "x/convoy.prom can't be written: "),
    ],
)
def test_a_place_where_no_file_can_be_is_refused(store: Store, tmp_path: Path, path: str, why: str) -> None:
    options = {"host": "127.0.0.1", "port": store.settings.port, "path": str(tmp_path / path)}

    for check in (True, False):
        found = call("consul_upgrade_metrics", options, check=check)
        assert found["failure"]["code"] == "bad_metrics_file"
        assert why in found["msg"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_playbook_writes_it(play: Shipped, store: Store, consul: RawKV, tmp_path: Path) -> None:
    begin(store, consul)
    file = tmp_path / "c.prom"
    roles = {role: {"plane": "dataplane"} for role in ("compute", "controller")}

    ran = play("metrics", inventory={"compute": ["compute9"]}, upgrade_roles=roles, metrics_file=str(file))

    assert ran.returncode == 0, ran.stdout
    assert read(file.read_text())["hosts", "compute", "pending"] == 3


def test_nothing_is_reported_of_what_is_not_there(store: Store, consul: RawKV, promtool: str, tmp_path: Path) -> None:
    file = tmp_path / "convoy.prom"

    call("consul_upgrade_metrics", {"host": "127.0.0.1", "port": store.settings.port, "path": str(file)})

    found = read(file.read_text())
    assert found["rollout_info", "", "", "none"] == 1
    assert {name for name, *_labels in found} >= {"complete", "stopped"}
    assert not {name for name, *_labels in found} & {"hosts", "admitted_hosts", "rollout_begun_timestamp_seconds"}
    checked(promtool, "check", "metrics", text=file.read_text())
    assert consul.tree() == {}


def test_the_alerts_ring_when_they_should(store: Store, consul: RawKV, promtool: str, tmp_path: Path) -> None:
    begin(store, consul)
    file = tmp_path / "convoy.prom"
    call("consul_upgrade_metrics", {"host": "127.0.0.1", "port": store.settings.port, "path": str(file)})
    checked(promtool, "check", "rules", ALERTS)
    series = [line.rpartition(" ") for line in file.read_text().splitlines() if not line.startswith("#")]
    # promtool's clock begins at 0. So times of hosts are 0, and what is read is of two hours.
    input_series: list[dict[str, Any]] = [
        {"series": name, "values": "0x120" if "timestamp" in name else f"{value}x120"} for name, _space, value in series
    ]
    input_series.append({"series": 'node_textfile_mtime_seconds{file="/x/convoy.prom"}', "values": "0x120"})
    expected = {
        "ConvoyUpgradeHostsBroken": (["4m"], ["6m"]),
        "ConvoyUpgradeBudgetExhausted": ([], ["0m"]),
        "ConvoyUpgradeHostSlow": (["59m"], ["61m"]),
        "ConvoyUpgradeStuck": (["0m", "2h"], []),
        "ConvoyUpgradeNeedsApproval": (["0m", "2h"], []),
        "ConvoyUpgradeMetricsStale": (["14m"], ["16m"]),
    }
    rules = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    assert set(rules) == set(expected)

    def judged(series: list[dict[str, Any]], at: str, alert: str) -> bool:
        """Return whether the alert rings at that time."""
        test = {"interval": "1m", "input_series": series, "alert_rule_test": [{"eval_time": at, "alertname": alert}]}
        (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [test]}))
        done = subprocess.run(
            [promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, check=False
        )
        assert re.search(r"SUCCESS|got:\[", re.sub(r"\s", "", done.stdout + done.stderr)), done.stdout + done.stderr
        return done.returncode != 0

    for alert, (silent, ringing) in expected.items():
        assert [at for at in silent if judged(input_series, at, alert)] == [], alert
        assert [at for at in ringing if not judged(input_series, at, alert)] == [], alert
    for state, rings in (("running", True), ("aborted", False), ("none", False)):
        stuck = [
            {"series": f'{name}{{instance="ops",job="node"{labels}}}', "values": f"{value}x120"}
            for name, labels, value in (
                ("convoy_upgrade_can_move", "", 0),
                ("convoy_upgrade_complete", "", 0),
                ("convoy_upgrade_rollout_info", f',version="2",previous_version="1",state="{state}"', 1),
            )
        ]
        assert judged(stuck, "16m", "ConvoyUpgradeStuck") is rings, state
    assert judged([{"series": "convoy_upgrade_needs_approval", "values": "1x120"}], "1m", "ConvoyUpgradeNeedsApproval")
