# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the live page while a job is under way: the terms of jobs, its command, and the output of each host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.job import Job
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.job_details import JobDetails
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from devkit.agent import ROOT
from job_fleet import FLEET, begin, complete_fleet, go_on, job, reports
from jsonschema import Draft7Validator
from memory_consul import MemoryConsul

SCHEMA = Draft7Validator(json.loads((ROOT / "schemas/page.json").read_text()))
HOSTILE = "</pre><script>alert(1)</script>\x1b[31m"


class Site:
    """A fleet in a Consul in memory that runs a job, and its page."""

    def __init__(self, consul: MemoryConsul, folder: Path) -> None:
        self.consul, self.folder = consul, folder
        self.store = consul.store()
        self.page = LivePage(self.store, str(folder))

    def begin(self, one: Job | None = None) -> None:
        begin(self.store, one, rules={"rolling_rules": {"global": "unlimited"}, "failure_rules": {"fleet": 5}})

    def update(self) -> None:
        go_on(self.store)
        self.page.update(progress_update(read_fleet(self.store, fleet=FLEET)))
        assert self.page.warning == ""

    def ends(self, host: str, state: str, **facts: Any) -> None:
        """Let a host report the end of the job as its agent does."""
        error = {"error": facts["error"]} if facts.get("error") else {}
        reports(self.consul, host, state, **error)
        output = {"job": "j1", "command": "restart", "state": state, "attempt": 1, "at": 5, "seconds": 2, **facts}
        self.consul.write(f"upgrade/job_output/{host}", [output])

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    @property
    def index(self) -> str:
        return one_line((self.folder / "index.html").read_text())

    def host(self, name: str) -> dict[str, Any]:
        """Return what the data have on a host."""
        part = json.loads((self.folder / "hosts/index.json").read_text())[name]
        found: dict[str, Any] = json.loads((self.folder / f"hosts/{part}.json").read_text())[name]
        return found

    def details(self, name: str) -> str:
        """Return what the page of hosts has on a host."""
        part = json.loads((self.folder / "hosts/index.json").read_text())[name]
        text = (self.folder / f"hosts/{part}.html").read_text()
        (found,) = re.findall(f'<article id="h-{name}">.*?</article>', text, re.S)
        return one_line(found)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    consul = complete_fleet()
    with consul.in_place():
        found = Site(consul, tmp_path)
        yield found
        found.page.close()


@pytest.fixture
def midway(site: Site) -> Site:
    """A job that is done on web1, has failed on web2, runs on web3, and waits on db1."""
    site.consul.write("upgrade/hold/host/db1", {"reason": "a disk is being replaced", "by": "bob"})
    site.begin()
    site.ends("web1", "done", exit_status=0, output="restarted\nall is well\n")
    site.ends("web2", "failed", exit_status=3, error="restart: exit status 3: no disk", output="no disk\n")
    reports(site.consul, "web3", "started")
    site.update()
    return site


def test_the_overview_names_the_job_its_command_and_the_states_of_jobs(midway: Site) -> None:
    assert [error.message for error in SCHEMA.iter_errors(midway.state)] == []
    found = midway.state["rollout"]["job"]
    assert found.pop("expires") > 1_700_000_000
    assert found == {
        "id": "j1", "command": "restart", "args": '{"grace": 30}', "by_ansible": False,
        "done": 1, "running": 1, "failed": 1, "waiting": 1,
    }  # fmt: skip
    text = midway.index
    assert "<title>Job j1: 1 of 4 done</title>" in text
    assert "<h1>Job j1</h1>" in text
    assert "Command <b>restart</b>, arguments <code>{&#34;grace&#34;: 30}</code>" in text
    assert 'aria-label="1 done, 1 failed, 1 running"' in text
    assert 'aria-label="web1 to web3: 1 done, 1 failed, 1 running"' in text
    legend = text.partition('<ul class="legend">')[2].partition("</ul>")[0]
    assert re.findall(r"</svg> ([a-z ]+)</li>", legend) == ["done", "running", "failed or lost", "held", "pending"]
    failure = text.partition('<ul class="fails">')[2].partition("</ul>")[0]
    assert "restart: exit status 3: no disk" in failure
    # No comma without a service before it.
    assert re.search(r'failed</span> ?<span class="n" data-since="\d+" aria-live="off">[^<]*<', failure), failure


def test_no_page_describes_a_job_as_a_version(midway: Site) -> None:
    for file in ("index.html", *(f"hosts/{one.name}" for one in (midway.folder / "hosts").glob("*.html"))):
        text = (midway.folder / file).read_text().partition("<body>")[2].partition("<script>")[0]
        shown = one_line(re.sub(r"<[^>]*>", " ", text))
        assert "job/" not in shown, file
        assert re.findall(r"[Uu]pgrad(?:ed|ing)|[Nn]ever reported|Runs [^t]", shown) == [], file


def test_each_host_has_its_state_and_its_last_output(midway: Site) -> None:
    done, failed, running, held = (midway.details(host) for host in ("web1", "web2", "web3", "db1"))
    assert '<span class="pill">done</span>' in done
    assert "Has run the job j1." in done
    assert "<b>done</b>, exit status 0, " in done and "took 2s" in done
    assert "<pre>restarted all is well </pre>" in done
    assert "reported <b>done</b> job j1" in done
    assert '<span class="pill">failed</span>' in failed
    assert "<pre>restart: exit status 3: no disk</pre>" in failed
    assert "<b>failed</b>, exit status 3, " in failed and "<pre>no disk </pre>" in failed
    assert '<span class="pill">running</span>' in running
    assert "Started." in running and "Last output" not in running
    assert '<span class="pill">held</span>' in held and "Has not run the job j1." in held

    assert [midway.host(host)["state_text"] for host in ("web1", "web2", "web3", "db1")] == [
        "done", "failed", "running", "held",
    ]  # fmt: skip
    assert midway.host("web3")["jobs"] == []
    (output,) = midway.host("web2")["jobs"]
    assert (output["state"], output["exit_status"], output["error"], output["output"], output["left_out"]) == (
        "failed",
        3,
        "restart: exit status 3: no disk",
        "no disk\n",
        0,
    )


def test_a_host_that_waits_is_described_in_terms_of_jobs(site: Site) -> None:
    begin(site.store)
    reports(site.consul, "web1", "started")
    ledger = site.consul.data("upgrade/ledger")
    site.consul.write("upgrade/ledger", {**ledger, "state": "paused", "command": {"by": "ann", "at": 7}})
    site.update()
    waiting = [site.details(host) for host in FLEET if '<span class="pill">pending</span>' in site.details(host)]
    assert waiting
    assert all("Has not run the job j1. " in one and "The job is paused." in one for one in waiting)


def test_hosts_that_a_job_is_not_for_have_no_part_in_it(site: Site) -> None:
    site.begin(job(roles=("web",)))
    site.update()
    assert '<span class="pill">left out</span>' in site.details("db1")
    assert "The job j1 is not for it, so it does nothing and takes no slot." in site.details("db1")
    assert site.host("db1")["outside"] is True
    assert 'aria-label="db1: 1 left out"' in site.index
    assert "</svg> left out</li>" in site.index
    assert "all 3 hosts" in site.index


def test_an_output_is_only_text_and_truncated(site: Site) -> None:
    site.begin(job("j1", hosts=("web1",)))
    site.ends("web1", "failed", exit_status=1, error=HOSTILE, output=HOSTILE + "x" * 10_000)
    site.update()
    details = site.details("web1")
    assert "<script>" not in details and "\x1b" not in details
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;?[31m" in details
    assert len(details) < 6000
    assert "characters are left out of its middle. See all of it:" in details
    assert "convoy.upgrade.status -i inventory.yml -e host=web1" in details
    for file in site.folder.rglob("*.html"):
        assert "alert(1)</script>" not in file.read_text()


_WELL = {"job": "j1", "command": "restart", "state": "done"}


@pytest.mark.parametrize(
    "value",
    [
        b"\xff", b"", b"{}", b"[1]", b"[" * 50 + b"]" * 50, b'[{"job": "j1"}]', b'[{"job": ["j1"]}]',
        json.dumps([{**_WELL, "output": {"a": 1}, "exit_status": "x", "seconds": "long", "at": -1}]).encode(),
        json.dumps([{**_WELL, "output": "\ud800\x00", "exit_status": True, "seconds": float("nan"), "error": 7}]).encode(),
        json.dumps([{**_WELL, "output": "x" * 300_000, "command": HOSTILE, "error": HOSTILE * 1000}]).encode(),
    ],
)  # fmt: skip
def test_garbage_in_an_output_or_the_job_breaks_no_page(site: Site, value: bytes) -> None:
    site.begin()
    reports(site.consul, "web1", "done")
    site.consul.keys["upgrade/job_output/web1"] = value
    site.consul.keys["upgrade/jobs/j1"] = value
    site.update()
    for file in (one for one in site.folder.rglob("*") if one.is_file()):
        text = file.read_text()
        assert all(map(str.isprintable, text.split("\n"))), file
        assert len(text) < 60_000, file
    assert '<span class="pill">done</span>' in site.details("web1")
    assert site.state["rollout"]["job"]["command"] == ""


def test_a_host_that_runs_it_again_shows_how_it_ended_before(midway: Site) -> None:
    reports(midway.consul, "web2", "started", attempt=2, times={"failed": 4, "started": 9})
    midway.update()
    details = midway.details("web2")
    assert '<span class="pill">running</span>' in details
    assert "<b>failed</b>, exit status 3" in details
    assert "<pre>restart: exit status 3: no disk</pre>" in details


def test_a_change_of_one_host_writes_only_its_page_and_reads_only_its_output(midway: Site) -> None:
    before = {one: one.stat().st_ino for one in (midway.folder / "hosts").iterdir()}
    asked = midway.consul.requests
    midway.update()
    without = midway.consul.requests - asked
    midway.ends("web3", "done", exit_status=0, output="late")
    asked = midway.consul.requests
    midway.page.update(progress_update(read_fleet(midway.store, fleet=FLEET)))
    # The fleet, and the output.
    assert midway.consul.requests - asked == 2
    assert without > 0
    changed = {one.name for one, inode in before.items() if one.stat().st_ino != inode}
    part = json.loads((midway.folder / "hosts/index.json").read_text())["web3"]
    assert changed == {f"{part}.html", f"{part}.json"}


def test_the_table_of_rollouts_names_jobs(midway: Site) -> None:
    table = midway.index.partition('id="rollouts"')[2]
    assert re.findall(r'<tr><td>(?:<a href="[^"]*">)?(.*?)(?:</a>)?</td>', table)[0] == "job j1"
    assert "Rules of this job" in midway.index


def test_a_token_that_may_not_read_outputs_has_a_page_with_a_warning(
    midway: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_given: Any) -> None:
        raise UpgradeError("denied", "Consul refused to get upgrade/job_output/web1.")

    monkeypatch.setattr(JobDetails, "refresh", refused)
    midway.update()
    assert midway.state["warnings"] == [
        "The outputs of the job are not shown: Consul refused to get upgrade/job_output/web1."
    ]
    assert "The outputs of the job are not shown" in midway.index
