# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of real rollouts, in files, and as a real browser shows them."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, report
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.kv import RawKV
from integration.support.fleet import history, names, record, seed
from integration.support.playbook import Runner, Task
from integration.support.shipped import Shipped
from missing import missing

HOSTILE = "</title><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">=1+1"


def write(**options: object) -> Task:
    """Return a task that writes a report."""
    return {"convoy.upgrade.consul_upgrade_chronicle": options}


def rolled(store: Store, consul: RawKV) -> None:
    """Leave a rollout to 2 that is over, and one to 3 that is under way."""
    hosts = names(compute=4)
    seed(consul, hosts)
    make_pass(store, Request(version="2"))
    for host in hosts:
        report(store, Word(host, "2", "upgraded"))
    make_pass(store, Request())
    under_way(store, 4)


def under_way(store: Store, computes: int) -> None:
    """Begin a rollout in which a host fails with a hostile error."""
    make_pass(store, Request(version="3", rules={"rolling_rules": {"global": computes - 1}}))
    report(store, Word("compute1", "3", "failed", service="nova", step="stop", error=HOSTILE))
    report(store, Word("compute2", "3", "started"))


def test_the_files_tell_what_consul_has_and_a_second_time_nothing_changes(
    run: Runner, store: Store, consul: RawKV
) -> None:
    rolled(store, consul)
    before = consul.tree()
    folder = str(run.folder)

    would, did, former, again, gone, nowhere = run(
        [
            {**write(folder=folder, fleet={"compute9": "compute"}), "check_mode": True},
            write(folder=folder, fleet={"compute9": "compute"}),
            write(folder=folder, version="2", role_pattern="([a-z]+)"),
            write(folder=folder, version="2", role_pattern="([a-z]+)"),
            write(folder=folder, version="4"),
            write(folder=f"{folder}/gone"),
        ]
    )

    assert consul.tree() == before
    assert [one["changed"] for one in (would, did, former, again)] == [True, True, True, False]
    assert did["files"] == [f"{folder}/rollout-3.{end}" for end in ("html", "json", "csv")]
    told = json.loads(Path(did["files"][1]).read_text())
    phases = {one["host"]: one["phase"] for one in told["hosts"]}
    assert phases == {
        "compute1": "failed", "compute2": "at work", "compute3": "let through", "compute4": "waits", "compute9": "waits",
    }  # fmt: skip
    entries = history(consul)
    begun = max(event["at"] for event in entries if event["what"] == "begin")
    assert (told["begun"], told["version"], told["previous_version"]) == (begun, "3", "2")
    rows = {row["host"]: row for row in csv.DictReader(Path(did["files"][2]).read_text().splitlines())}
    assert rows["compute1"]["ended"] == str(record(consul, "compute1")["times"]["failed"])
    assert (rows["compute1"]["step"], rows["compute1"]["error"]) == ("stop", HOSTILE)
    assert json.loads((run.folder / "rollout-2.json").read_text())["state"] in ("complete", "converge")
    assert [gone["failure"]["code"], nowhere["failure"]["code"]] == ["no_rollout", "bad_folder"]
    assert "It has those to 3, 2." in gone["msg"]
    assert would["diff"]["after_header"] == did["files"][1]


def test_without_a_rollout_there_is_nothing_to_tell(run: Runner) -> None:
    (found,) = run([write(folder=str(run.folder))])

    assert found["failure"]["code"] == "no_rollout"


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        missing("no chromium here")
    return str(found)


def shown(chromium: str, file: Path, home: Path, *arguments: str) -> str:
    """Return the page as a browser has it after loading."""
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={home}"]
    done = subprocess.run(
        [*command, *arguments, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=90, check=True
    )
    return done.stdout


@pytest.mark.parametrize("computes", [10, 200, 2000])
def test_a_browser_shows_every_host_and_runs_nothing(
    play: Shipped, store: Store, consul: RawKV, tmp_path: Path, chromium: str, computes: int
) -> None:
    seed(consul, names(compute=computes), "2")
    under_way(store, computes)

    ran = play("report", report_folder=str(tmp_path))

    assert ran.returncode == 0, ran.stdout
    page = tmp_path / "rollout-3.html"
    assert str(page) in ran.stdout
    dom = shown(chromium, page, tmp_path / "profile")
    assert re.search("<title>(.*?)</title>", dom)[1] == "Rollout to 3 from 2"  # type: ignore[index]
    assert "<script" not in dom
    assert dom.count("<g><title>") == computes
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom


def test_it_follows_light_and_dark(store: Store, consul: RawKV, play: Shipped, tmp_path: Path, chromium: str) -> None:
    rolled(store, consul)
    play("report", report_folder=str(tmp_path))

    pictures = []
    for theme in ("0", "1"):
        picture = tmp_path / f"{theme}.png"
        screen = (f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={theme}", "--window-size=1280,900")
        shown(chromium, tmp_path / "rollout-3.html", tmp_path / "profile", *screen)
        pictures.append(picture.read_bytes())
    assert pictures[0] != pictures[1]
