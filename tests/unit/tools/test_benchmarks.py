# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arithmetic of the benchmarks, and the fleets that they store."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from benchmarks.agent_run import compare_with_timer
from benchmarks.original import OriginalLoop
from benchmarks.playbooks import _add, inventory_of
from benchmarks.processes import Cost, Measured
from benchmarks.simulated_nodes import ideal_seconds, latencies
from benchmarks.stored_fleets import ENTRIES_OF_ROLLOUT, KEYS, former_rollouts, under_way, waiting
from benchmarks.tables import Report, percentile
from devkit.agent import ROOT

pytestmark = pytest.mark.one_release


class CountedLoop(OriginalLoop):
    """The loop over keys in memory."""

    def __init__(self, keys: dict[str, str]) -> None:
        super().__init__(0, "v2", 40, sleep=0)
        self.keys, self.asked = keys, list[str]()

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        self.asked.append(f"{method} {path}")
        prefix = path.removesuffix("?recurse")
        if method == "PUT":
            self.keys[path] = body or ""
        found = {key: value for key, value in self.keys.items() if key.startswith(prefix)}
        return json.dumps(
            [{"Key": key, "Value": base64.b64encode(text.encode()).decode()} for key, text in found.items()]
        ).encode()


def test_a_pass_of_the_original_takes_six_requests_and_two_for_each_gate() -> None:
    keys = {key: text for key, text in under_way(5000) if key.startswith(("running/", "config_state/", "current_"))}
    loop = CountedLoop(keys)
    loop.run(most_passes=1)
    assert len(loop.asked) == 6 + 2 * 40
    assert sum(one.startswith("PUT config_state/enable_puppet/host/compute") for one in loop.asked) == 40
    # It has read the version already, and those that it admitted fill the cap.
    del loop.asked[:]
    assert not loop._pass()
    assert len(loop.asked) == 5


def test_the_ideal_is_a_sliding_window() -> None:
    assert ideal_seconds([3, 1, 1, 1, 2], 2) == 5
    assert ideal_seconds([3, 1, 1, 1, 2], 9) == 3
    assert ideal_seconds([3, 1, 1, 1, 2], 1) == 8


def test_a_latency_is_from_a_report_to_the_gate_that_it_frees() -> None:
    # Two places: the third gate waits for the first report, and the last two reports free no gate.
    assert latencies([0, 0, 5.5, 7], [5, 6, 9, 9], 2) == [0.5, 1]


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4, 1, 3, 2], percent) for percent in (1, 50, 95, 100)] == [1, 2, 4, 4]


def test_a_history_of_earlier_rollouts_has_every_entry_once() -> None:
    stored = dict(former_rollouts(3 * ENTRIES_OF_ROLLOUT, 100))
    entries = [json.loads(text) for key, text in stored.items() if key.startswith(KEYS.history)]
    assert [one["epoch"] for one in entries] == list(range(1, 3 * ENTRIES_OF_ROLLOUT + 1))
    assert [one["what"] for one in entries].count("begin") == 3
    admitted = [host for one in entries[:ENTRIES_OF_ROLLOUT] for host in one.get("hosts", ())]
    assert len(set(admitted)) == len(admitted) == 100
    assert json.loads(stored[KEYS.ledger])["epoch"] == len(entries)


def test_the_history_of_a_fleet_under_way_admits_the_upgraded_hosts() -> None:
    stored = dict(under_way(1000))
    entries = [json.loads(text) for key, text in stored.items() if key.startswith(KEYS.history)]
    admitted = {host for one in entries for host in one.get("hosts", ())}
    assert admitted == {
        key.removeprefix(KEYS.report("v2", "")) for key in stored if key.startswith(KEYS.report("v2", ""))
    }
    assert json.loads(stored[KEYS.ledger])["epoch"] == len(entries)


def test_processor_time_includes_orphaned_child_processes() -> None:
    orphan = "import os, time\nif os.fork() == 0 and os.fork() == 0:\n    while time.process_time() < 0.3: pass\n"
    cost = Measured(lambda: subprocess.run([sys.executable, "-c", orphan], check=True).returncode).end()
    assert cost.found == 0
    assert cost.busy >= 0.3


def test_a_process_that_fails_shows_its_output() -> None:
    with pytest.raises(RuntimeError, match="the reason"):
        Measured(lambda: sys.exit("the reason")).end()


def test_a_table_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path / "tables.md")
    report.table("What it takes.", ["way", "hosts", "seconds"]).add("a pass", 1000)
    report.least({"seconds": {"ours": 2, "theirs": 1}})
    expected = "\nWhat it takes.\n\n| way | hosts | seconds |\n| :--- | ---: | ---: |\n| a pass | 1,000 |  |\n\nLeast seconds: theirs.\n"
    assert capsys.readouterr().out == expected == (tmp_path / "tables.md").read_text()


@pytest.mark.parametrize(
    ("waiting", "idle", "is_kept"), [(300, 0.0128, True), (300, 0.0131, False), (30, 0.0131, False)]
)
def test_a_waiting_agent_that_takes_more_than_one_percent_of_a_timer_is_a_mistake(
    waiting: int, idle: float, is_kept: bool
) -> None:
    report = Report()
    compare_with_timer(report, idle, waiting, run_seconds=1.29)
    assert (report.mistakes == []) is is_kept


def test_an_inventory_names_the_hosts_that_consul_knows() -> None:
    (group,) = yaml.safe_load(inventory_of(12))["all"]["children"].values()
    reports = [key.rpartition("/")[2] for key, _text in waiting(12) if key.startswith(KEYS.reports)]
    assert [*group["hosts"]] == reports


def test_commands_are_compared_with_an_empty_playbook(tmp_path: Path) -> None:
    costs = {"empty playbook": [Cost(2, 1, 50, "")], "status.yml": [Cost(5, 1.304, 90, "")]}
    _add(Report(tmp_path / "tables.md"), "Commands.", costs)
    rows = [
        [*map(str.strip, line.split("|"))] for line in (tmp_path / "tables.md").read_text().splitlines() if "|" in line
    ]
    assert [*zip(rows[0], rows[3], strict=True)][2:8] == [
        ("seconds", "5.00 s"), ("beyond empty", "3.00 s"), ("times empty", "2.50"),
        ("processor", "1.30 s"), ("beyond empty", "0.30 s"), ("times empty", "1.30"),
    ]  # fmt: skip


def test_an_unknown_part_is_refused() -> None:
    command = [sys.executable, ROOT / "tests/benchmarks", "grwoth"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "There is no part 'grwoth'. Next: .venv/bin/python tests/benchmarks --list\n"
