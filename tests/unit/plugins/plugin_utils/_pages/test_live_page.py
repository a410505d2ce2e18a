# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the live page: what is written when, and who may write them. What a browser shows is in the integration tests."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import ProgressUpdate, progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages import live_page
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.page_folder import PageFolder
from devkit.agent import ROOT
from integration.support.fleets.scenes import Scene
from job_fleet import FLEET, complete_fleet
from jsonschema import Draft7Validator
from memory_consul import MemoryConsul

SCHEMA = Draft7Validator(json.loads((ROOT / "schemas/page.json").read_text()))


class Site:
    """A fleet in a Consul in memory, and its page."""

    def __init__(self, consul: MemoryConsul, folder: Path, fleet: Mapping[str, str]) -> None:
        self.consul, self.folder, self.fleet = consul, folder, fleet
        self.store = Store(Settings())
        self.page = LivePage(self.store, str(folder))

    def read(self) -> ProgressUpdate:
        return progress_update(read_fleet(self.store, fleet=self.fleet))

    def update(self) -> None:
        self.page.update(self.read())
        assert self.page.warning == ""

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    @property
    def hosts_index(self) -> str:
        return (self.folder / "hosts/index.json").read_text()

    @property
    def changes(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "changes.json").read_text())
        return found

    @property
    def index(self) -> str:
        return (self.folder / "index.html").read_text()

    def times(self) -> dict[str, int]:
        """Return file -> its inode, which is another one after each write."""
        files = [one for one in self.folder.rglob("*") if one.is_file()]
        return {str(one.relative_to(self.folder)): one.stat().st_ino for one in files}

    def report(self, host: str, **fields: Any) -> None:
        key = f"upgrade/hosts/{host}"
        record = json.loads(self.consul.keys.get(key, b"{}")) | fields
        self.consul.keys[key] = json.dumps(record).encode()


class _Keys:
    """What a scene writes its keys to."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}

    def load(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.keys |= {key: value.encode() for key, value in pairs}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    keys: Any = _Keys()
    fleet = Scene(computes=100).write(keys)
    consul = MemoryConsul(keys=keys.keys)
    with consul.in_place():
        found = Site(consul, tmp_path, fleet)
        yield found
        found.page.close()


def test_its_data_follow_the_schema_and_say_what_consul_has(site: Site) -> None:
    site.update()

    assert [error.message for error in SCHEMA.iter_errors(site.state)] == []
    rollout = site.state["rollout"]
    assert (rollout["version"], rollout["previous_version"], rollout["state"], rollout["who"]) == (
        "2.10",
        "2.8",
        "running",
        "ann",
    )
    assert sum(rollout["counts"].values()) == 123
    assert [one["host"] for one in rollout["failures"]] == ["compute31"]
    assert [(one["name"], one["state"], one["approved_by"]) for one in rollout["stages"]] == [
        ("canary", "done", "ann"), ("early", "done", ""), ("rest", "current", ""),
    ]  # fmt: skip
    assert [(one["code"], one["playbook"], one["variables"]) for one in rollout["needs_operator"]] == [
        ("broken_hosts", "retry", {"host": "compute31"})
    ]
    details = json.loads((site.folder / "hosts/1.json").read_text())
    assert details["compute31"]["state"] == "failed"
    assert details["compute31"]["record"]["step"] == "start"
    assert [one["what"] for one in details["compute31"]["events"]] == ["open"]


def test_the_history_says_admitted_and_complete_as_the_rest_of_the_page(site: Site) -> None:
    ledger = json.loads(site.consul.keys["upgrade/ledger"])
    common = {"at": int(site.read().view.snapshot.now), "version": ledger["version"], "who": "ann"}
    for what, more in (("open", {"hosts": {"compute31": "slot 1 of 3"}}), ("publish", {}), ("converge", {})):
        ledger["epoch"] += 1
        entry = {**common, "epoch": ledger["epoch"], "what": what, **more}
        site.consul.keys[f"upgrade/history/{ledger['epoch']}"] = json.dumps(entry).encode()
    site.consul.keys["upgrade/ledger"] = json.dumps(ledger).encode()
    site.update()
    assert [one["what"] for one in site.state["rollout"]["history"]][:3] == ["converge", "publish", "open"]
    part = json.loads(site.hosts_index)["compute31"]
    history = site.index.partition('id="history"')[2]
    for page in (history, (site.folder / f"hosts/{part}.html").read_text()):
        assert "<b>admitted</b>" in page
        assert not re.search("<b>(open|publish|converge|after)</b>", page)
    admitted = history.partition("<b>admitted</b>")[2].partition("</li>")[0]
    assert ">compute31</a>" in admitted
    assert "slot 1 of 3" in admitted
    assert "<b>upgraded</b>" in history
    assert "<b>complete</b>" in history


def test_steps_and_failures_of_an_earlier_rollout_are_not_in_the_history_of_this_one(site: Site) -> None:
    def shown(host: str) -> str:
        site.update()
        page = (site.folder / f"hosts/{json.loads(site.hosts_index)[host]}.html").read_text()
        (found,) = re.findall(f'<article id="h-{host}">.*?</article>', page, re.S)
        return str(found)

    failures = [[150, 1, "nova", "stop", "no disk", 1]]
    record = {"state": "upgraded", "trail": [[100, "nova", "stop"]], "failures": failures}
    site.report("compute90", version="2.8", times={"upgraded": 200}, **record)
    assert not [text for text in ("<summary>Steps", "no disk", "reported <b>upgraded") if text in shown("compute90")]
    site.report("compute90", version="2.10")
    assert not [
        text for text in ("<summary>Steps", "no disk", "reported <b>upgraded") if text not in shown("compute90")
    ]


def test_a_retry_is_offered_only_for_a_host_on_which_nothing_can_run_any_more(site: Site) -> None:
    site.update()
    part = json.loads(site.hosts_index)["compute31"]
    page = site.folder / f"hosts/{part}.html"
    retry = "convoy.upgrade.retry -i inventory.yml -e host=compute31"
    assert retry in page.read_text()
    details = site.page._host_details["compute31"]
    assert details.record is not None
    for silent in (
        replace(details, record=replace(details.record, state="started")),
        replace(details, view=replace(details.view, busy=True)),
    ):
        assert (silent.may_still_run, silent.next_playbook) == (True, "status")
    assert replace(details, record=replace(details.record, repeatable=False)).next_playbook == "status"

    # It would be refused.
    ledger = json.loads(site.consul.keys["upgrade/ledger"])
    site.consul.keys["upgrade/ledger"] = json.dumps({**ledger, "state": "aborted"}).encode()
    site.update()
    assert retry not in page.read_text()
    assert "convoy.upgrade.status -i inventory.yml -e host=compute31" in page.read_text()


def test_only_what_has_changed_is_written(site: Site) -> None:
    site.update()
    before = site.times()

    site.report(
        "compute90", version="2.10", state="failed", error="no space", times={"failed": 1_800_000_000}, attempt=1
    )
    site.update()

    parts = json.loads((site.folder / "hosts/index.json").read_text())
    part = parts["compute90"]
    changed = {name for name, inode in site.times().items() if before.get(name) != inode}
    assert changed == {"index.html", "state.json", "changes.json", f"hosts/{part}.html", f"hosts/{part}.json"}
    assert f"hosts/{part}.html#h-compute90" in site.index
    assert site.changes["written"] >= site.state["at"]
    assert {name for name in site.changes if name.startswith("hosts/")} == {
        f"hosts/{one}.html" for one in set(parts.values())
    }


def test_if_the_hosts_of_all_parts_change_all_the_time_each_part_has_its_turn(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.update()
    monkeypatch.setattr(live_page, "_HOST_DETAILS_TIME", -1.0)
    monkeypatch.setattr(live_page, "_LEAST_AT_ONCE", 1)
    parts = json.loads(site.hosts_index)
    first_of = {part: host for host, part in reversed(parts.items())}
    assert len(first_of) > 3
    for number in range(len(first_of)):
        for host in first_of.values():
            site.report(host, version="2.10", state="failed", error=f"no space {number}", attempt=number + 1)
        before = site.times()
        site.update()
        # One at a time.
        changed = {name for name, inode in site.times().items() if before.get(name) != inode}
        assert len([name for name in changed if name.startswith("hosts/")]) == 2
    for part in first_of:
        assert "no space" in (site.folder / f"hosts/{part}.json").read_text(), part
    # In quiet, the rest follows.
    site.page.update(None)
    for part in first_of:
        assert f"no space {number}" in (site.folder / f"hosts/{part}.json").read_text(), part


def test_a_page_without_changes_is_written_once_a_minute(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.update()
    before = site.times()
    site.page.update(None)
    assert site.times() == before

    later = live_page.runtime.monotonic() + 61
    at = live_page.runtime.now() + 61
    monkeypatch.setattr(live_page.runtime, "monotonic", lambda: later)
    monkeypatch.setattr(live_page.runtime, "now", lambda: at)
    site.page.update(None)
    assert site.times()["index.html"] != before["index.html"]
    assert site.state["at"] == int(at)

    # Consul is away: the state gets older, and the page is still written.
    site.page.update(Unreachable("unreachable", "Consul does not answer."))
    read, written = site.state["at"], site.times()["index.html"]
    later, at = later + 61, at + 61
    site.page.update(Unreachable("unreachable", "Consul does not answer."))
    assert (site.state["at"], site.times()["index.html"] != written) == (read, True)


def test_it_says_that_consul_is_away_and_that_no_one_writes_it_any_more(site: Site) -> None:
    # Nothing was read yet, so there is only the error. The page is loaded again without a script.
    site.page.update(Unreachable("unreachable", "Consul at 127.0.0.1:8500 does not answer."))
    assert "Consul at 127.0.0.1:8500 does not answer." in site.index
    assert '\n<meta http-equiv="refresh" content="10; url=index.html">\n' in site.index
    assert site.changes["error"] == "Consul at 127.0.0.1:8500 does not answer."

    site.update()
    assert "does not answer" not in site.index
    site.page.update(Unreachable("unreachable", "Consul at 127.0.0.1:8500 does not answer."))
    assert "does not answer. The page shows the last known state." in site.index
    assert site.state["error"].endswith("does not answer.")
    # Pages of hosts, which are written only if these change, find it here.
    assert site.changes["error"].endswith("does not answer.")
    site.update()
    assert "does not answer" not in site.index

    assert (site.changes["error"], site.changes["ended"]) == ("", False)

    site.page.close()
    assert site.changes["ended"]
    assert "This page is no longer updated." in site.index
    assert 'http-equiv="refresh"' not in site.index


def test_the_last_pages_of_hosts_are_not_loaded_again(site: Site) -> None:
    """Otherwise browsers without scripts would load them for ever. The next process that writes them changes that."""
    site.update()
    parts = [*(site.folder / "hosts").glob("*.html")]
    refresh, last = 'http-equiv="refresh"', ". This page is no longer updated."
    assert len(parts) > 3
    assert [one.name for one in parts if refresh not in one.read_text() or last in one.read_text()] == []
    before = site.changes

    # Also those of hosts that have not changed since.
    site.page.close()
    assert [one.name for one in parts if refresh in one.read_text() or last not in one.read_text()] == []
    assert {one.name for one in parts if site.changes[f"hosts/{one.name}"] != before[f"hosts/{one.name}"]} == {
        one.name for one in parts
    }
    assert [one.name for one in site.folder.rglob("*.html") if refresh in one.read_text()] == []

    again = Site(site.consul, site.folder, site.fleet)
    again.update()
    assert [one.name for one in parts if refresh not in one.read_text() or last in one.read_text()] == []
    again.page.close()


def test_an_error_other_than_an_outage_is_on_the_page_too(site: Site, tmp_path: Path) -> None:
    site.update()
    site.page.update(UpgradeError("unreadable_ledger", "upgrade/ledger can't be read."))
    assert "upgrade/ledger can&#39;t be read. The page shows the last known state." in site.index

    (tmp_path / "other").mkdir()
    page = LivePage(site.store, str(tmp_path / "other"))
    page.update(UpgradeError("denied", "The token <b>x</b> may not read upgrade/ledger."))
    page.close()
    text = (tmp_path / "other/index.html").read_text()
    assert "The token &lt;b&gt;x&lt;/b&gt; may not read upgrade/ledger." in text
    assert "This page is no longer updated." in text


def test_one_process_writes_a_folder_and_no_other_page_is_replaced(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UpgradeError, match="another process writes a page there"):
        LivePage(site.store, str(site.folder))
    # Who only looks does not mind.
    LivePage(site.store, str(site.folder), dry=True).close()
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("<h1>Our team</h1>")
    with pytest.raises(UpgradeError, match=re.escape("its index.html is not a page of convoy.upgrade")) as found:
        LivePage(site.store, str(other))
    assert found.value.code == "bad_folder"
    assert (other / "index.html").read_text() == "<h1>Our team</h1>"
    with pytest.raises(UpgradeError, match="is not a folder"):
        LivePage(site.store, str(tmp_path / "gone"))
    site.page.close()
    LivePage(site.store, str(site.folder)).close()


@pytest.mark.parametrize("name", [".convoy-page.lock", "hosts"])
def test_links_that_another_user_left_in_the_folder_are_not_followed(name: str, site: Site, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    folder.mkdir()
    if name == "hosts":
        elsewhere.mkdir()
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(UpgradeError, match=r"symbolic link") as found:
        LivePage(site.store, str(folder))
    assert found.value.code == "bad_folder"
    assert not elsewhere.exists() or not [*elsewhere.iterdir()]


def test_a_folder_that_is_lost_is_a_warning_and_written_again_when_it_is_back(site: Site, tmp_path: Path) -> None:
    site.update()
    away = tmp_path.parent / f"{tmp_path.name}-away"
    site.folder.rename(away)
    site.report(
        "compute90", version="2.10", state="failed", error="no space", times={"failed": 1_800_000_000}, attempt=1
    )
    site.page.update(site.read())
    assert "The page is not up to date: page: " in site.page.warning
    assert "can't be written" in site.page.warning
    away.rename(site.folder)
    site.update()
    assert "no space" in site.index


@contextmanager
def full_disk_for(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let one file of the page find no space on the disk."""
    write = PageFolder.write

    def fails(folder: PageFolder, file: str, text: str) -> bool:
        if file == name:
            raise UpgradeError("bad_folder", "page: no space left.")
        return write(folder, file, text)

    with monkeypatch.context() as patched:
        patched.setattr(PageFolder, "write", fails)
        yield


@pytest.mark.parametrize("name", ["index.html", "hosts/1.html", "hosts/index.json"])
def test_what_could_not_be_written_is_tried_again_although_nothing_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with full_disk_for(name, monkeypatch):
        site.page.update(site.read())
        assert site.page.warning
        assert not (site.folder / name).exists()
    site.page.update(None)
    assert site.page.warning == ""
    assert {name, "index.html"} <= site.times().keys()
    assert len([*(site.folder / "hosts").glob("*.html")]) == len({*json.loads(site.hosts_index).values()})


@pytest.mark.parametrize("name", ["index.html", "state.json", "changes.json"])
def test_an_error_that_could_not_be_written_is_tried_again_and_stays_a_warning_until_then(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    site.update()
    # Until the pages of all hosts are written.
    while site.page._is_behind:
        site.page.update(None)
    with full_disk_for(name, monkeypatch):
        for read in (Unreachable("unreachable", "Consul does not answer."), None):
            site.page.update(read)
            assert "no space left" in site.page.warning
    site.page.update(None)
    assert site.page.warning == ""
    assert "Consul does not answer." in site.index
    assert [site.state["error"], site.changes["error"]] == ["Consul does not answer."] * 2


def test_a_dry_run_writes_nothing(tmp_path: Path, site: Site) -> None:
    folder = tmp_path / "dry"
    folder.mkdir()
    with LivePage(site.store, str(folder), dry=True) as page:
        page.update(site.read())
        assert page.warning == ""
        assert page.has_changed
    assert [*folder.iterdir()] == []


def test_the_same_state_is_no_change_for_who_writes_it_again(site: Site) -> None:
    site.update()
    assert site.page.has_changed
    site.page.close()
    again = Site(site.consul, site.folder, site.fleet)
    again.update()
    assert not again.page.has_changed
    again.page.close()


def test_a_fleet_that_shrinks_leaves_no_outdated_pages(site: Site) -> None:
    site.update()
    assert (site.folder / "hosts/6.html").exists()
    for key in [one for one in site.consul.keys if "compute" in one.rpartition("/")[2]]:
        del site.consul.keys[key]
    site.fleet = {host: role for host, role in site.fleet.items() if role != "compute"}
    site.update()
    left = {one.name for one in (site.folder / "hosts").iterdir()}
    assert left == {"index.json", "1.html", "1.json", "2.html", "2.json"}
    assert "compute31" not in site.index.replace("history", "")[: site.index.index('id="history"')]


def test_reports_of_the_rollouts_that_began_last_are_kept(site: Site) -> None:
    mark = '<meta name="generator" content="convoy.upgrade">'
    of_rollouts = [f"rollout-1.{number}-{1_700_000_000 + number}.html" for number in range(20)]
    for name, text in (
        *((one, mark) for one in of_rollouts),
        ("rollout-1.html", mark),
        ("rollout-x-1700000000.html", "x"),
        # After a restore of Consul, this is all that is left of its rollout.
        ("rollout-3.0-9700000000.html", mark),
    ):
        (site.folder / name).write_text(text)
    # One that this user can't read is left alone. This is a folder, which root can't read as a file either.
    (site.folder / "rollout-2.0-1700000000.html").mkdir()
    site.update()
    (current,) = [one for one in site.changes if one.startswith("rollout-")]
    assert {one.name for one in site.folder.glob("rollout-*")} == {
        current, *of_rollouts[1:], "rollout-1.html", "rollout-x-1700000000.html", "rollout-3.0-9700000000.html",
        "rollout-2.0-1700000000.html",
    }  # fmt: skip
    site.page._folder.keep_reports(0)
    # Nor are they kept in memory.
    assert not [one for one in site.page.texts if one.startswith("rollout-")]
    assert not (site.folder / current).exists()


def test_a_file_that_another_user_has_written_is_named(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path, *_rest: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "other").mkdir()
    monkeypatch.setattr("os.open", refuses)
    lock = tmp_path / "other/.convoy-page.lock"
    with pytest.raises(UpgradeError, match=re.escape(f"can't be written: Permission denied: {lock}")):
        LivePage(site.store, str(tmp_path / "other"))


def test_a_page_that_could_not_be_read_keeps_no_other_one_out(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    (folder / live_page.DATA).mkdir(parents=True)
    with pytest.raises(UpgradeError, match=live_page.DATA):
        LivePage(site.store, str(folder))
    (folder / live_page.DATA).rmdir()
    with LivePage(site.store, str(folder)):
        pass


def test_its_files_can_be_read_by_a_web_server_and_have_no_inline_code_but_their_own(site: Site) -> None:
    site.update()
    assert (site.folder / "hosts").stat().st_mode & 0o777 == 0o755
    for file in site.folder.rglob("*.html"):
        assert file.stat().st_mode & 0o777 == 0o644
        text = file.read_text()
        assert " style=" not in text
        assert re.findall(r" on[a-z]+=", text) == []
        (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert text.count("<script") == (0 if file.name.startswith("rollout-") else 1)
    assert re.findall(r'(?:src|href)="(?:https?:)?//', site.index) == []


def test_a_fault_of_the_page_is_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any, **_options: Any) -> str:
        raise ZeroDivisionError("division by zero")

    with monkeypatch.context() as patched:
        patched.setattr(live_page, "bars_of", fails)
        site.page.update(site.read())
        assert site.page.warning.startswith(
            "The page is not up to date, because of a fault in convoy.upgrade: ZeroDivisionError"
        )
    site.update()


def test_before_the_first_rollout_it_says_so(site: Site) -> None:
    for key in [one for one in site.consul.keys if one.startswith("upgrade/")]:
        del site.consul.keys[key]
    site.update()
    assert "<h1>No rollout has begun</h1>" in " ".join(site.index.split("\n"))
    assert [error.message for error in SCHEMA.iter_errors(site.state)] == []
    assert site.state["rollouts"] == []


def test_a_rollback_and_a_complete_rollout_are_shown(site: Site) -> None:
    ledger = json.loads(site.consul.keys["upgrade/ledger"])
    site.consul.keys["upgrade/ledger"] = json.dumps(
        {**ledger, "rollback": True, "state": "paused", "command": {"by": "ann", "at": 7}}
    ).encode()
    site.update()
    assert "paused, a rollback" in site.index
    assert "ansible-playbook convoy.upgrade.resume -i inventory.yml" in site.index
    assert [error.message for error in SCHEMA.iter_errors(site.state)] == []


def test_a_folder_that_is_emptied_is_filled_again(tmp_path: Path) -> None:
    folder = PageFolder(str(tmp_path))
    assert folder.write("hosts/1.html", "x") and folder.write("index.html", "y")
    assert not folder.write("index.html", "y")
    shutil.rmtree(tmp_path / "hosts")
    (tmp_path / "index.html").unlink()
    assert folder.write("hosts/1.html", "x") and folder.write("index.html", "y")
    assert ((tmp_path / "hosts/1.html").read_text(), (tmp_path / "index.html").read_text()) == ("x", "y")
    folder.close()


def test_pages_of_hosts_that_were_removed_are_written_again(site: Site) -> None:
    site.update()
    before = {one.name for one in (site.folder / "hosts").iterdir()}
    (site.folder / "hosts/2.html").unlink()
    site.update()
    assert {one.name for one in (site.folder / "hosts").iterdir()} == before
    shutil.rmtree(site.folder / "hosts")
    # Also while nothing changes.
    site.page.update(None)
    assert {one.name for one in (site.folder / "hosts").iterdir()} == before


def test_the_report_of_a_rollout_is_written_once_more_when_another_one_begins(tmp_path: Path) -> None:
    with complete_fleet().in_place() as consul:
        site = Site(consul, tmp_path, FLEET)
        rules = {"rolling_rules": {"global": 1}}
        make_pass(site.store, PassRequest("2.1", rules, fleet=FLEET))
        site.update()
        (name,) = [one.name for one in tmp_path.glob("rollout-2.1-*")]
        assert "aborted" not in (tmp_path / name).read_text()
        control.abort(site.store, control.Command("bad"))
        # As in a restore key by key.
        ledger = consul.keys.pop("upgrade/ledger")
        site.update()
        consul.write("upgrade/ledger", ledger.decode())
        make_pass(site.store, PassRequest("2.2", rules, fleet=FLEET))
        site.update()
        assert "aborted" in (tmp_path / name).read_text()
        site.page.close()
