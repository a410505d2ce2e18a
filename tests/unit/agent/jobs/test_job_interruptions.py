# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on a node that something interrupts: lost answers, outages, full disks, kills and restarts at any moment."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from convoy_node.jobs import job_run
from convoy_node.jobs.job_need import needs_run
from convoy_node.jobs.refusals import Refused
from convoy_node.jobs.spool import DONE, FAILED, LOST, STARTED, STARTING, JobEntry, Spool
from convoy_node.machine.errors import ConsulError
from convoy_node.machine.machine_id import machine_id
from convoy_node.node import state
from devkit.agent import ROOT
from job_node import KEYS, OUTPUT, RECORD, Install, Node, needs_run_of
from missing import missing


@pytest.mark.parametrize(
    "key", ["upgrade/hold/", "upgrade/hold/host/web1", "upgrade/current_job", "upgrade/job_gates/host/web1"]
)
def test_a_start_fails_if_the_admission_ends_in_the_same_moment(
    key: str, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")

    def end() -> None:
        node.consul.before_write = lambda: None
        if key == "upgrade/hold/":
            node.consul.put("upgrade/hold/global", "{}")
        node.consul.put(key, "False" if "gates" in key else "job/other")

    node.consul.before_write = end
    assert node.run() == 75
    assert not (trusted / "ran").exists()
    assert RECORD not in node.consul.keys or node.record["state"] != "started"


def test_a_start_whose_answer_was_lost_runs_once(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"echo x >>'{trusted}/ran'")
    node.admit("j1")
    node.consul.is_lossy = True
    assert node.run() == 75
    assert node.record["state"] == "started" and not (trusted / "ran").exists()
    assert node.run() == 0
    assert (trusted / "ran").read_text() == "x\n"
    assert (node.record["state"], node.record["attempt"]) == ("done", 1)


def test_a_start_whose_answer_was_lost_takes_no_slot_once_the_job_is_over(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"echo x >>'{trusted}/ran'")
    node.admit("j1")
    node.consul.is_lossy = True
    assert node.run() == 75
    assert node.record["state"] == "started"
    # While it is admitted, it starts again instead.
    assert needs_run(KEYS, node.consul, node.spool, "j1") == ("j1", "the node is admitted to the job j1", False)
    gate = node.consul.keys.pop("upgrade/current_job")
    undo = "the start of the job j1 has to be undone, because its command never ran"
    assert needs_run(KEYS, node.consul, node.spool, None) == ("j1", undo, False)
    assert node.run() == 0
    assert RECORD not in node.consul.keys
    assert needs_run_of(node) == ""
    # It has not run, so it may begin if it is admitted again.
    node.consul.keys["upgrade/current_job"] = gate
    assert [one.state for one in node.spool.entries()] == [STARTING]
    assert node.run() == 0
    assert (trusted / "ran").read_text() == "x\n"
    assert node.record["state"] == "done"


def test_a_report_that_consul_does_not_take_is_made_later(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/away'")
    node.admit("j1")
    consul = node.consul
    real = consul.get

    def get(key: str) -> Any:
        consul.is_away = (trusted / "away").exists()
        return real(key)

    consul.get = get
    assert node.run() == 0
    assert node.consul.data(RECORD)["state"] == "started"
    (trusted / "away").unlink()
    consul.is_away = False
    # Also if the node is not admitted any more.
    del consul.keys["upgrade/current_job"]
    assert needs_run(KEYS, consul, node.spool, None) == ("j1", "the end of the job j1 has to be reported", True)
    assert node.run() == 0
    assert node.record["state"] == "done"
    assert needs_run(KEYS, consul, node.spool, None) == ("", "", False)


@pytest.mark.parametrize("is_repeatable", [False, True])
@pytest.mark.parametrize("is_failed", [False, True])
def test_an_end_that_consul_does_not_take_is_never_replaced_by_a_refusal(
    is_failed: bool, is_repeatable: bool, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'; echo worked; exit {3 * is_failed}", repeatable=is_repeatable)
    node.admit("j1")

    def take_only_starts() -> None:
        if (trusted / "ran").exists():
            raise ConsulError("Consul answered 500: no leader.")

    node.consul.before_write = take_only_starts
    assert node.run() == is_failed
    (trusted / "ran").rename(trusted / "ran before")
    node.consul.before_write = refuse
    # Not even what else it is admitted to begins, as its start would take the place of that end.
    for identifier in ("j1", "j2"):
        node.admit(identifier)
        assert node.run() == 75
        assert (node.record["job"], node.record["state"]) == ("j1", "started")
    node.consul.before_write = lambda: None
    node.admit("j1")
    assert node.run() == 0
    assert not (trusted / "ran").exists()
    state, code = ("failed", 3) if is_failed else ("done", 0)
    assert (node.record["state"], node.record["exit_status"]) == (state, code)
    (output,) = node.consul.data(OUTPUT)
    assert (output["state"], output["output"]) == (state, "worked\n")


@pytest.mark.parametrize("is_failed", [False, True])
def test_an_end_that_comes_after_a_retry_counts(is_failed: bool, node: Node, install: Install, trusted: Path) -> None:
    install("a", f"echo x >>'{trusted}/ran'; exit {3 * is_failed}")
    node.admit("j1")

    def retry_after_the_start() -> None:
        if (trusted / "ran").exists():
            node.consul.before_write = lambda: None
            node.retry()

    # An operator took the host for lost while its command still ran.
    node.consul.before_write = retry_after_the_start
    assert node.run() == is_failed
    assert node.record["state"] == "retried"
    assert node.run() == 0
    state, code = ("failed", 3) if is_failed else ("done", 0)
    assert (node.record["state"], node.record["exit_status"]) == (state, code)
    assert node.run() == 0
    assert (trusted / "ran").read_text() == "x\n"


def fill_disk(node: Node, changed: pytest.MonkeyPatch, is_full: Callable[[JobEntry], bool]) -> None:
    """Let the disk take no entry for which it is full."""
    save = node.spool.save

    def full(one: JobEntry) -> None:
        if is_full(one):
            raise Refused("the disk is full")
        save(one)

    changed.setattr(node.spool, "save", full)


def test_a_disk_that_stays_full_is_reported_for_the_next_job(
    node: Node, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", "true")
    node.admit("j1")
    node.spool.prepare()
    node.spool.add(replace(entry("j1", int(time.time()) + 600, STARTED), pid=2**22 + 1))
    fill_disk(node, monkeypatch, lambda _entry: True)
    node.admit("j2")
    assert node.run() == 1
    assert (node.record["job"], node.record["state"]) == ("j2", "failed")
    assert "The end of job j1 can't be noted" in node.record["error"]


def test_a_job_that_a_full_disk_stopped_before_its_command_may_begin_after_a_retry(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"echo x >>'{trusted}/ran'", repeatable=False)
    node.admit("j1")
    with monkeypatch.context() as during:
        fill_disk(node, during, lambda one: one.state == STARTED)
        assert node.run() == 1
    assert (node.record["state"], node.record["error"]) == ("failed", "refused: the disk is full")
    node.retry()
    assert node.run() == 0
    assert (trusted / "ran").read_text() == "x\n"


def refuse() -> None:
    raise ConsulError("Consul answered 500: no leader.")


def test_an_end_in_consul_that_a_full_disk_did_not_take_is_not_replaced_by_lost(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'", repeatable=True)
    node.admit("j1")
    with monkeypatch.context() as during:
        fill_disk(node, during, lambda _one: (trusted / "ran").exists())
        assert node.run() == 0
    assert node.record["state"] == "done"
    (one,) = node.spool.entries()
    # As after a restart: the process that ran it is gone.
    node.spool.save(replace(one, pid=2**22 + 1))
    assert node.run() == 0
    assert node.record["state"] == "done"
    assert [(one.state, one.is_reported) for one in node.spool.entries()] == [(DONE, True)]


_KILLED = """
import sys
sys.path[:0] = [{agent!r}, {tests!r}, {unit!r}]
from dataclasses import replace
from pathlib import Path
from agent_consul import AgentConsul
from convoy_node.node.consul import ConsulKey
from convoy_node.jobs import job_run
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings
from convoy_node.jobs.spool import Spool
import json
folder = Path({folder!r})
consul = AgentConsul()
for key, (value, index, flags) in json.loads((folder / "keys").read_text()).items():
    consul.keys[key] = ConsulKey(value.encode(), index, flags)
consul.index = 1000
def dump():
    (folder / "keys").write_text(json.dumps({{k: (e.value.decode(), e.index, e.flags) for k, e in consul.keys.items()}}))
real = consul.write
def write(operations):
    found = real(operations)
    dump()
    return found
consul.write = write
job_run.Consul = lambda _c: consul
connection = Connection(host="127.0.0.1", port=1)
settings = NodeSettings("web1", "web", connection, {{}}, commands_dir=str(folder / "commands.d"))
sys.exit(job_run.JobRun(settings, folder / "node.lock", "test", Spool(str(folder / "spool"))).run())
"""


@pytest.mark.parametrize("is_repeatable", [False, True])
def test_a_run_that_is_killed_is_lost_and_its_command_is_killed(
    is_repeatable: bool, node: Node, install: Install, trusted: Path
) -> None:
    orphan = f"(sleep 300 & echo $! >'{trusted}/orphan')"
    script = f"echo $$ >>'{trusted}/ran'; test -e '{trusted}/again' && exit; {orphan}; exec sleep 300"
    install("a", script, repeatable=is_repeatable)
    node.admit("j1")
    keys = {key: (one.value.decode(), one.index, one.flags) for key, one in node.consul.keys.items()}
    (trusted / "keys").write_text(json.dumps(keys))
    code = _KILLED.format(
        agent=str(ROOT / "agent"), tests=str(ROOT / "tests"), unit=str(ROOT / "tools"), folder=str(trusted)
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (
            any(one.child for one in node.spool.entries()) and (trusted / "orphan").exists()
        ):
            time.sleep(0.05)
        (entry,) = node.spool.entries()
        assert entry.state == STARTED and entry.is_running and needs_run_of(node) == ""
        process.send_signal(signal.SIGKILL)
        process.wait()
    for key, (value, _index, flags) in json.loads((trusted / "keys").read_text()).items():
        node.consul.put(key, value, flags)
    assert node.record["state"] == "started"
    assert needs_run_of(node) == "j1"
    node.run()
    # One that it left to init is in its session.
    for one in (entry.child, int((trusted / "orphan").read_text())):
        assert not Path(f"/proc/{one}").exists() or " Z " in Path(f"/proc/{one}/stat").read_text()
    assert node.record["state"] == "lost"
    assert node.record["error"].startswith("lost: the process that ran it ended, and its command was killed")
    assert len((trusted / "ran").read_text().split()) == 1
    # An operator's retry runs it again only if that is safe.
    (trusted / "again").touch()
    node.retry()
    assert node.run() == (0 if is_repeatable else 1)
    assert node.record["state"] == ("done" if is_repeatable else "failed")


def test_a_kill_at_any_step_neither_repeats_a_command_nor_invents_its_end(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"echo x >>'{trusted}/ran'")
    ran = trusted / "ran"
    states = []
    code = -signal.SIGKILL
    while code == -signal.SIGKILL:
        fatal = len(states) + 1
        ran.write_text("")
        shutil.rmtree(node.spool.folder, ignore_errors=True)
        node.consul.keys.clear()
        node.admit(f"j{fatal}")
        child = os.fork()
        if not child:
            kill_at(fatal, node)
            os._exit(node.run())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        node.consul.keys = pickle.loads((trusted / "keys").read_bytes())
        before = ran.read_text()
        for _turn in range(2):
            node.run()
        states.append(node.record["state"])
        # What had begun does not begin again, and its end is only known if it was written down.
        assert ran.read_text() in ([before] if before else ["x\n", ""]), fatal
        assert states[-1] == LOST or (states[-1] == DONE and ran.read_text() == "x\n"), (fatal, node.record)
    assert code == 0
    assert {DONE, LOST} == set(states) and len(states) > 20, states


def kill_at(fatal: int, node: Node) -> None:
    """Kill this process at a step: before or after it sends something to Consul, writes to its disk, or runs the command."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        (node.folder / "keys").write_bytes(pickle.dumps(node.consul.keys))
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            step()
            found = real(*given, **named)
            step()
            return found

        setattr(owner, name, watched)

    for owner, name in ((node.consul, "write"), (job_run, "execute"), (os, "fsync"), (os, "link"), (Path, "replace")):
        watch(owner, name)


def test_a_node_that_rebooted_in_the_middle_reports_lost(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.spool.prepare()
    node.spool.add(JobEntry("j1", "a", int(time.time()) + 600, STARTED, "r1", boot="another", pid=os.getpid(), at=1))
    node.consul.put(RECORD, json.dumps({"job": "j1", "state": "started", "run": "r1"}))
    node.run()
    assert node.record["state"] == "lost" and "the node restarted" in node.record["error"]
    assert not (trusted / "ran").exists()


@pytest.mark.parametrize("problem", ["", "not repeatable", "no command", "expired", "unreadable"])
@pytest.mark.parametrize("written", ["another", "hash", "content"])
def test_a_start_that_this_node_does_not_remember_is_lost_even_if_it_would_refuse_the_job(
    written: str, problem: str, node: Node, install: Install, trusted: Path
) -> None:
    if problem != "no command":
        install("a", f"touch '{trusted}/ran'", repeatable=problem != "not repeatable")
    node.admit("j1", **({"expires": int(time.time()) - 1} if problem == "expired" else {}))
    if problem == "unreadable":
        node.spool.prepare()
        (trusted / "spool/j1.json").write_text("")
    if not machine_id():
        missing("This machine has no /etc/machine-id.")
    # An agent of an older release may have begun it, which wrote the content of the file.
    machine = {"hash": machine_id(), "content": Path("/etc/machine-id").read_text().strip()}.get(written, written)
    start = {"job": "j1", "command": "a", "state": "started", "run": "r1", "machine": machine}
    node.consul.put(RECORD, json.dumps(start))
    assert node.run() == 1
    assert not (trusted / "ran").exists()
    if written == "another":
        # Its slot is not given away, and its end can still be reported.
        assert node.record == start
        assert "The machine another has begun the job" in node.lines[-1]
        return
    assert (node.record["state"], node.record["run"], node.record["command"]) == ("lost", "r1", "a")
    # It is remembered until any job that began before now has expired.
    assert node.run() == 0
    (one,) = node.spool.entries()
    assert (one.state, one.is_reported) == (LOST, True)
    assert one.expires >= int(time.time()) + 31 * 86400 + 3600 - 60
    if problem in ("not repeatable", "unreadable"):
        node.retry()
        assert node.run() == (1 if problem == "not repeatable" else 0)


@pytest.mark.parametrize("is_repeatable", [False, True])
@pytest.mark.parametrize("state", [DONE, FAILED, LOST])
@pytest.mark.parametrize("run", ["r1", "r0"])
def test_an_end_that_consul_has_forgotten_is_reported_again_and_nothing_runs_again(
    run: str, state: str, is_repeatable: bool, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'", repeatable=is_repeatable)
    node.admit("j1")
    node.spool.prepare()
    # As after an older snapshot of Consul was restored, which has only this start or an earlier one, or as a stolen token would write it.
    one = JobEntry("j1", "a", int(time.time()) + 600, state, "r1", at=1, ended=2, error="its error", is_reported=True)
    node.spool.add(one)
    node.consul.put(RECORD, json.dumps({"job": "j1", "state": "started", "run": run}))
    assert node.run() == (0 if state == DONE else 1)
    assert (node.record["state"], node.record["error"]) == (state, "its error")
    assert [(found.state, found.is_reported) for found in node.spool.entries()] == [(state, True)]
    assert not (trusted / "ran").exists()
    if state == DONE:
        node.retry()
        assert node.run() == 1, "what is done runs no second time"
        assert not (trusted / "ran").exists()


def entry(identifier: str, expires: int, entry_state: str = DONE, **facts: Any) -> JobEntry:
    return JobEntry(identifier, "a", expires, entry_state, "r", **facts)


def test_the_spool_forgets_expired_jobs_and_refuses_older_ones_from_then_on(trusted: Path) -> None:
    spool = Spool(str(trusted / "spool"))
    spool.prepare()
    spool.add(entry("old", 100, is_reported=True))
    spool.add(entry("unreported", 100, FAILED))
    spool.add(entry("starting", 90, STARTING))
    spool.add(entry("new", 300, is_reported=True))
    spool.prune(200)
    assert sorted(one.id for one in spool.entries()) == ["new", "unreported"]
    for late in ("old", "another"):
        with pytest.raises(Refused, match="it may have run here already"):
            spool.add(entry(late, 100))
    spool.add(entry("next", 101))
    with pytest.raises(Refused, match="The job next has run on this node already"):
        spool.add(entry("next", 101))


def test_after_a_clock_error_a_node_says_how_long_the_next_job_has_to_be_valid(
    trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(trusted / "spool"))
    spool.prepare()
    now = 1_800_000_000
    spool.add(entry("j1", now + 5 * 86400, is_reported=True))
    # The clock was ahead for a while.
    spool.prune(now + 9 * 86400)
    monkeypatch.setattr(time, "time", lambda: now)
    with pytest.raises(Refused) as refused:
        spool.add(entry("j2", now + 86400))
    assert str(refused.value) == (
        "The job does not expire after the jobs that this node has run and forgotten (2027-01-20 08:00:00 UTC), so it may have run here already. Begin a "
        "new job that expires after that: -e expires=121h."
    )
    spool.add(entry("j2", now + 121 * 3600))
    (trusted / "spool/forgotten").write_text(str(now + 400 * 86400))
    with pytest.raises(Refused, match=r"so a clock was wrong.* write the present time in unix seconds to .*forgotten"):
        spool.add(entry("j3", now + 31 * 86400))


def test_a_start_that_never_ran_gives_its_slot_back_also_after_the_job_has_expired(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.consul.is_lossy = True
    assert node.run() == 75
    del node.consul.keys["upgrade/current_job"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 700)
    assert node.run() == 0
    assert RECORD not in node.consul.keys
    assert not (trusted / "ran").exists() and not list(node.spool.entries())


def test_the_first_entry_of_a_job_is_there_whole_or_not_at_all(trusted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(str(trusted / "spool"))
    spool.prepare()
    monkeypatch.setattr(os, "link", lambda *_paths: os._exit(9))
    # As after a loss of power in the middle.
    child = os.fork()
    if not child:
        spool.add(entry("j1", 100))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.undo()
    assert spool.read("j1") is None
    spool.add(entry("j1", 100))
    assert [one.id for one in spool.entries()] == ["j1"]
    assert sorted(path.name for path in (trusted / "spool").iterdir()) == ["j1.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"id": "j1"}', "x", "[" * 100_000], ids=range(5))
def test_an_entry_that_can_t_be_read_counts_as_one_that_ran(
    text: str, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.spool.prepare()
    (trusted / "spool/j1.json").write_text(text)
    assert node.run() == 1
    assert "the job may have run here already" in node.record["error"]
    assert not (trusted / "ran").exists()


def test_a_spool_that_others_can_change_refuses_every_job(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    (trusted / "spool").mkdir()
    (trusted / "spool").chmod(0o777)
    assert node.run() == 1
    assert "can be written by other users" in node.record["error"]
    assert not (trusted / "ran").exists()


def test_a_spool_that_can_t_be_used_does_not_replace_the_start_of_a_run_whose_end_it_may_have(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.spool.prepare()
    node.spool.add(entry("j1", int(time.time()) + 600, DONE))
    node.consul.put(RECORD, json.dumps({"job": "j1", "state": "started", "run": "r"}))
    (trusted / "spool").chmod(0o777)
    assert node.run() == 1
    assert "can be written by other users" in node.lines[-1]
    assert node.record["state"] == "started"
    (trusted / "spool").chmod(0o700)
    assert node.run() == 0
    assert node.record["state"] == "done"


def test_a_pid_of_another_process_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        one = entry("j1", 1, STARTED, boot=state.boot_id(), child=other.pid, child_ticks=1)
        assert not one.kill_command()
        assert other.poll() is None
        other.kill()


def test_lost_is_never_done(node: Node) -> None:
    node.spool.prepare()
    node.spool.add(entry("j1", int(time.time()) + 99, STARTED, boot="other"))
    node.spool.recover(5)
    (found,) = node.spool.entries()
    assert (found.state, found.ended) == (LOST, 5)
