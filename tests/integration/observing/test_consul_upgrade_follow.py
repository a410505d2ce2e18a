# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_follow: how it ends, that it writes nothing, and what it refuses. What it shows is in test_live_view.py."""

from __future__ import annotations

import json
import threading
import time

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import ProgressUpdate
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import follow as follow_in_process
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.control import Command, abort
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import names, seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, Task

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release


def follow(**options: object) -> Task:
    return {"convoy.upgrade.consul_upgrade_follow": options}


@pytest.mark.thorough
def test_without_a_rollout_there_is_nothing_to_follow(run: Runner, consul: RawKV) -> None:
    (found,) = run([follow()])

    assert (found["failed"], found["changed"], found["version"], found["ended"]) == (False, False, "", "nothing")
    assert consul.tree() == {}


@pytest.mark.thorough
def test_it_ends_with_an_abort_and_counts_who_failed(run: Runner, store: Store, consul: RawKV) -> None:
    hosts = names(compute=3)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", error="no space left"))
    abort(store, Command(by="ann", reason="logins fail"))
    before = consul.tree()

    found, checked = played = run([follow(fleet={"web1": "web"}), {**follow(), "check_mode": True}])
    assert (found["version"], found["ended"], found["failed_hosts"]) == ("2", "aborted", 1)
    assert (checked["ended"], checked["changed"]) == ("aborted", False)
    assert "compute1 failed: no space left" in played.stdout
    # Hosts that never reported are part of it where the fleet names them.
    assert "web 0/1" in played.stdout
    assert consul.tree() == before


def test_it_ends_when_all_are_upgraded_and_the_gates_are_open(run: Runner, store: Store, consul: RawKV) -> None:
    hosts = names(compute=2)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    for host in hosts:
        write_report(store, HostReport(host, "2", "upgraded"))
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts, converge=True))

    (found,) = played = run([follow()])
    assert (found["version"], found["ended"], found["failed_hosts"]) == ("2", "complete", 0)
    assert "The rollout to 2 is complete." in played.stdout
    # A host that never reported may start at any time, as the global gate is open. Nothing waits for it.
    (last,) = follow_in_process(store.settings, {**hosts, "web9": "web"}, until_hosts_finish=True)
    assert isinstance(last, ProgressUpdate)
    assert last.hosts["web9"].state == "upgrading"


def test_after_an_abort_it_follows_hosts_that_had_begun_if_asked(store: Store, consul: RawKV) -> None:
    hosts = names(compute=3)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    write_report(store, HostReport("compute1", "2", "started"))
    abort(store, Command(by="ann", reason="logins fail"))

    (once,) = follow_in_process(store.settings)
    assert isinstance(once, ProgressUpdate)
    assert [one.host for one in once.progress.flights] == ["compute1"]

    reads = follow_in_process(store.settings, until_hosts_finish=True)
    first = next(reads)
    write_report(store, HostReport("compute1", "2", "failed", error="no space left"))
    *_earlier, last = (one for one in reads if isinstance(one, ProgressUpdate))
    assert isinstance(first, ProgressUpdate)
    assert (first.progress.over, first.hosts["compute1"].state) == (True, "upgrading")
    assert (last.progress.flights, last.hosts["compute1"].state) == ((), "failed")


def test_what_has_not_changed_is_kept_from_read_to_read(store: Store, consul: RawKV) -> None:
    hosts = names(compute=3)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    for host in hosts:
        write_report(store, HostReport(host, "2", "started"))
    reads = follow_in_process(store.settings)
    first = next(reads)
    write_report(store, HostReport("compute1", "2", "failed", error="no space left"))
    second = next(one for one in reads if isinstance(one, ProgressUpdate))
    assert isinstance(first, ProgressUpdate)
    assert second.hosts["compute1"].state == "failed"
    # Reading and planning for a large fleet takes longer than finding out what has changed.
    assert second.view.snapshot.records["compute2"] is first.view.snapshot.records["compute2"]
    assert second.view.membership is first.view.membership


@pytest.mark.thorough
def test_it_keeps_a_page_and_says_where(run: Runner, store: Store, consul: RawKV) -> None:
    hosts = names(compute=2)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    abort(store, Command(by="ann", reason="logins fail"))
    before = consul.tree()
    page, other = run.folder / "page", run.folder / "other"
    page.mkdir()
    other.mkdir()
    (other / "index.html").write_text("<h1>Our team</h1>")

    checked, wrote, again, nowhere, foreign = run(
        [
            {**follow(page=str(page)), "check_mode": True},
            follow(page=str(page)),
            follow(page=str(page)),
            follow(page=str(run.folder / "gone")),
            follow(page=str(other)),
        ]
    )

    assert [(one["changed"], one["page"]) for one in (checked, wrote, again)] == [
        (True, f"{page}/index.html"),
        (True, f"{page}/index.html"),
        (False, f"{page}/index.html"),
    ]
    assert json.loads((page / "state.json").read_text())["rollout"]["state"] == "aborted"
    assert [one["failure"]["code"] for one in (nowhere, foreign)] == ["bad_folder", "bad_folder"]
    assert (other / "index.html").read_text() == "<h1>Our team</h1>"
    assert consul.tree() == before


@pytest.mark.thorough
def test_settings_of_maintenance_are_read_before_anything_begins(run: Runner, consul: RawKV) -> None:
    bad, good = run.folder / "bad.yml", run.folder / "good.yml"
    bad.write_text(json.dumps({"alertmanager": {"url": "am:9093"}}))
    good.write_text(json.dumps({"alertmanager": {"url": "http://127.0.0.1:1"}}))

    wrong, gone, fine = run([follow(maintenance=str(one)) for one in (bad, run.folder / "gone.yml", good)])

    assert [one["failure"]["code"] for one in (wrong, gone)] == ["bad_maintenance", "bad_maintenance"]
    assert "alertmanager.url is not a URL" in wrong["msg"]
    assert (fine["failed"], fine["ended"]) == (False, "nothing")
    assert consul.tree() == {}


@pytest.mark.thorough
def test_a_complete_rollout_whose_gates_stay_closed_is_over_when_nothing_follows(store: Store, consul: RawKV) -> None:
    hosts = names(compute=1)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    write_report(store, HostReport("compute1", "2", "upgraded"))
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    assert consul.get("config_state/enable_puppet/global") == b"False"

    # With what the post-upgrade tasks write, it goes on; once they are done and nothing comes after them, it is over.
    begun = time.monotonic()
    seen = []
    for found in follow_in_process(store.settings, hosts, patience=1.5):
        if isinstance(found, ProgressUpdate):
            seen.append((found.progress.done, found.hosts["compute1"].state))
        if len(seen) == 1 and isinstance(found, ProgressUpdate):
            report_after(consul, "started")
        elif found is None and seen[-1] == (False, "upgrading"):
            assert time.monotonic() - begun > 1.5
            report_after(consul, "done")
    assert (seen[0], seen[-1]) == ((True, "upgraded"), (True, "upgraded"))
    assert (False, "upgrading") in seen


@pytest.mark.thorough
def test_what_a_host_says_through_old_code_is_seen(store: Store, consul: RawKV) -> None:
    hosts = names(compute=1)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    seen: list[str] = []
    silent = 0
    for found in follow_in_process(store.settings, hosts, patience=0.5):
        silent += found is None
        if isinstance(found, ProgressUpdate):
            seen.append(found.hosts["compute1"].state)
        if found is None and silent == 2:
            consul.put("running_version/2/compute1", f"{time.time() + 60:.2f}")
        if seen[-1] == "upgraded" or silent == 20:
            break
    assert (seen[0], seen[-1]) == ("upgrading", "upgraded")


@pytest.mark.thorough
def test_what_is_no_part_of_it_does_not_keep_it_from_being_over(store: Store, consul: RawKV) -> None:
    hosts = names(compute=1)
    seed(consul, hosts)
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    write_report(store, HostReport("compute1", "2", "upgraded"))
    make_pass(store, PassRequest(version="2", rules=UNLIMITED, fleet=hosts))
    over = threading.Event()

    def go_on() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            consul.put("config_state/enable_puppet/stranger", str(count))

    stranger = threading.Thread(target=go_on)
    stranger.start()
    try:
        begun = time.monotonic()
        for _found in follow_in_process(store.settings, hosts, patience=1.5):
            assert time.monotonic() - begun < 30
    finally:
        over.set()
        stranger.join()


def report_after(consul: RawKV, state: str) -> None:
    """Let the host say where it is with its post-upgrade tasks."""
    record = json.loads(consul.get("upgrade/hosts/compute1") or b"{}")
    consul.put("upgrade/hosts/compute1", json.dumps({**record, "post": state}))


def test_a_ledger_that_can_not_be_read_is_a_sentence(run: Runner, consul: RawKV) -> None:
    consul.put("upgrade/ledger", "{}")

    (found,) = run([follow()])
    assert found["failed"]
    assert found["failure"]["code"] == "unreadable_ledger"
    assert found["msg"] == f"[unreadable_ledger] {found['failure']['message']}"
    assert "upgrade/ledger" in found["msg"]
    assert found["failure"]["details"] == {"key": "upgrade/ledger"}
