# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of real rollouts, in files, and as a real browser shows them."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.plan import Request, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._ops.report import Word, report
from ansible_collections.convoy.upgrade.plugins.module_utils._store.store import Store
from devkit.kv import RawKV
from integration.support.browser import Browser, colours, lightness
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


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    try:
        return Browser(tmp_path)
    except OSError as error:
        missing(f"no browser here: {error}")


@pytest.mark.parametrize("computes", [10, 200, 2000])
def test_a_browser_shows_every_host_and_runs_nothing(
    play: Shipped, store: Store, consul: RawKV, tmp_path: Path, browser: Browser, computes: int
) -> None:
    seed(consul, names(compute=computes), "2")
    under_way(store, computes)

    ran = play("report", report_folder=str(tmp_path))

    assert ran.returncode == 0, ran.stdout
    page = tmp_path / "rollout-3.html"
    assert str(page) in ran.stdout
    dom = browser.dom(page)
    assert re.search("<title>(.*?)</title>", dom)[1] == "Rollout to 3 from 2"  # type: ignore[index]
    assert "<script" not in dom
    assert dom.count("<g><title>") == computes
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom


def test_what_it_shows_is_told_apart_in_light_in_dark_and_without_colours(
    store: Store, consul: RawKV, run: Runner, browser: Browser
) -> None:
    # A host in each state, and steps; so many that bars are too thin for a texture.
    seed(consul, names(compute=500))
    make_pass(store, Request(version="2", rules={"rolling_rules": {"global": 400}}))
    for host in range(1, 301):
        state = "upgraded" if host <= 100 else "failed" if host <= 200 else "started"
        step = None if state != "started" else "stop" if host <= 250 else "start"
        report(store, Word(f"compute{host}", "2", state, step=step))
    # All of it has happened within a few seconds, which fill the width of the page.
    began = json.loads(consul.get("upgrade/history/1") or b"{}")
    consul.put("upgrade/history/1", json.dumps(began | {"at": began["at"] - 20}))
    (done,) = run([write(folder=str(run.folder))])

    for dark in (False, True):
        found = colours(browser.picture(Path(done["files"][0]), dark=dark, height=1400))
        # Lines of text and their smoothed edges have fewer pixels of one colour.
        areas = sorted((lightness(colour), colour) for colour, pixels in found.items() if pixels > 5000)
        page = {colour for colour, pixels in found.most_common(1)}
        assert (lightness(page.pop()) < 50) == dark
        # The page itself, waits, let through, two steps, failed, upgraded.
        assert len(areas) >= 7, areas
        states = [light for light, _colour in areas]
        assert all(b - a > 3 for a, b in itertools.pairwise(states)), areas
