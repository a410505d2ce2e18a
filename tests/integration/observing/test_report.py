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
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control as operator
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import history, names, record, seed
from integration.support.processes.browser import Browser, colours, lightness
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, Task
from integration.support.runs.shipped import Shipped
from missing import missing

HOSTILE = "</title><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">=1+1"


def write(**options: object) -> Task:
    """Return a task that writes a report."""
    return {"convoy.upgrade.consul_upgrade_rollout_report": options}


def rolled(store: Store, consul: RawKV) -> None:
    """Leave a rollout to 2 that is over, and one to 3 that is under way."""
    hosts = names(compute=4)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED))
    for host in hosts:
        write_report(store, HostReport(host, "2", "upgraded"))
    make_pass(store, PassRequest())
    under_way(store, 4)


def under_way(store: Store, computes: int) -> None:
    """Begin a rollout in which a host fails with a hostile error."""
    make_pass(store, PassRequest(version="3", rules={"rolling_rules": {"global": computes - 1}}))
    write_report(store, HostReport("compute1", "3", "failed", service="nova", step="stop", error=HOSTILE))
    write_report(store, HostReport("compute2", "3", "started"))


@pytest.mark.thorough
def test_the_files_have_what_consul_has_and_a_second_time_nothing_changes(
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
    report = json.loads(Path(did["files"][1]).read_text())
    phases = {one["host"]: one["phase"] for one in report["hosts"]}
    assert phases == {
        "compute1": "failed", "compute2": "upgrading", "compute3": "admitted", "compute4": "waiting", "compute9": "waiting",
    }  # fmt: skip
    entries = history(consul)
    begun = max(event["at"] for event in entries if event["what"] == "begin")
    assert (report["begun"], report["version"], report["previous_version"]) == (begun, "3", "2")
    rows = {row["host"]: row for row in csv.DictReader(Path(did["files"][2]).read_text().splitlines())}
    assert rows["compute1"]["ended"] == str(record(consul, "compute1")["times"]["failed"])
    # Nothing in it ends a cell or begins a formula.
    assert rows["compute1"]["step"] == "stop"
    assert rows["compute1"]["error"].endswith("document.title='owned''>'=1+1")
    earlier = json.loads((run.folder / "rollout-2.json").read_text())
    assert earlier["state"] in ("complete", "converge")
    # Two of them have gone on since then, and keep when they were done with that.
    assert {one["host"]: (one["phase"], one["end_known"]) for one in earlier["hosts"]} == dict.fromkeys(
        names(compute=4), ("upgraded", True)
    )
    (over,) = record(consul, "compute1")["former"]
    assert (over["version"], over["state"]) == ("2", "upgraded")
    assert [gone["failure"]["code"], nowhere["failure"]["code"]] == ["no_rollout", "bad_folder"]
    assert "It has rollouts to 3, 2." in gone["msg"]
    assert would["diff"]["after_header"] == did["files"][1]


@pytest.mark.thorough
def test_a_host_that_failed_and_recovered_is_reported_in_all_three_files(
    run: Runner, store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=2))
    make_pass(store, PassRequest(version="2", rules=UNLIMITED))
    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", service="nova", step="stop", error="no space"))
    operator.retry(store, operator.Command("disk", "bob"), ["compute1"])
    make_pass(store, PassRequest())
    for state in ("started", "failed", "started", "upgraded"):
        write_report(store, HostReport("compute1", "2", state, error="no port" if state == "failed" else None))

    (done,) = run([write(folder=str(run.folder))])

    page, data, table = (Path(path).read_text() for path in done["files"])
    one = next(one for one in json.loads(data)["hosts"] if one["host"] == "compute1")
    kept = record(consul, "compute1")["failures"]
    assert [each[1:] for each in kept] == [[1, "nova", "stop", "no space", 1], [2, "", "", "no port", 1]]
    assert [list(each.values()) for each in one["failures"]] == kept
    assert [each["reason"].startswith("disk; it was: ") for each in one["retries"]] == [True]
    row = next(csv.DictReader(table.splitlines()))
    assert (row["phase"], row["failures"], row["retries"]) == ("upgraded", "2", "1")
    assert "failed nova stop no space / " in row["failures_and_retries"]
    admitted = [str(event["at"]) for event in history(consul) if event["what"] == "open"]
    assert row["admitted"] in admitted
    for tile in ("<b>0</b>failed now", "<b>2</b>failures in all", "<b>1</b>retry in all"):
        assert tile in page
    assert '<td>nova stop</td><td class="long">no space</td>' in page


@pytest.mark.thorough
def test_without_a_rollout_there_is_nothing_to_report(run: Runner, store: Store, consul: RawKV) -> None:
    rolled(store, consul)
    (found,) = run([write(folder=str(run.folder), kv_prefix="elsewhere")])

    assert found["failure"]["code"] == "no_rollout"
    assert "elsewhere/upgrade/history/" in found["msg"]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    try:
        return Browser(tmp_path)
    except OSError as error:
        missing(f"no browser here: {error}")


# A page is the same on every release of Ansible.
@pytest.mark.thorough
@pytest.mark.one_release
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
    assert re.findall("<title>(.*?)</title>", dom)[0] == "Rollout to 3 from 2"
    assert "<script" not in dom
    assert dom.count("<g><title>") == computes
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom


@pytest.mark.thorough
@pytest.mark.one_release
def test_what_it_shows_is_distinguished_in_light_in_dark_and_without_colours(
    store: Store, consul: RawKV, run: Runner, browser: Browser
) -> None:
    # Hosts in each state and at two steps, and so many that bars are too thin for textures and numbers.
    seed(consul, names(compute=450))
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 400}}))
    begun = history(consul)[0]["at"] - 20
    step = [[begun + 5, "", "stop"], [begun + 10, "", "start"]]
    kinds = [("upgraded", []), ("failed", []), ("started", step)]
    consul.load(
        [
            (f"upgrade/hosts/compute{host}", json.dumps(
                {"version": "2", "state": kind, "times": {"started": begun + 5, kind: begun + 15}, "trail": trail}
            ))
            for host in range(1, 301)
            for kind, trail in (kinds[host // 101],)
        ]
    )  # fmt: skip
    operator.abort(store, operator.Command("ann"))
    # What happened is a while ago.
    for event in history(consul):
        consul.put(f"upgrade/history/{event['epoch']}", json.dumps(event | {"at": begun}))
    (done,) = run([write(folder=str(run.folder))])
    page = Path(done["files"][0])
    style = re.findall(r"--(\w+):#(\w+)", page.read_text())
    steps = [bytes.fromhex(colour) for colour in re.findall(r"\.s[0-5]{fill:#(\w{6})}", page.read_text())]

    for dark in (False, True):
        seen = colours(browser.picture(page, dark=dark))
        # The dark ones come after the light ones.
        named = {
            name: bytes.fromhex(colour) for name, colour in (style if dark else reversed(style)) if len(colour) == 6
        }
        assert seen.most_common(1)[0][0] == (tuple(named["bg"]) if dark else (255, 255, 255))
        shown = [named["f"], named["d"], *steps[:2], named["o"], named["w"]]
        assert [colour.hex() for colour in shown if seen[tuple(colour)] < 500] == []
        light = {name: lightness(tuple(named[name])) for name in "fdow"}
        ranges = [(light[name], light[name]) for name in "fdow"] + [
            (min(lightness(tuple(one)) for one in steps), max(lightness(tuple(one)) for one in steps))
        ]
        ranges.sort()
        assert all(above[0] - below[1] > 8 for below, above in itertools.pairwise(ranges)), ranges
