# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on a node, with real commands: what runs, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from convoy_node.jobs import job_run
from convoy_node.jobs.job_need import needs_run
from convoy_node.jobs.spool import DONE, JobEntry
from convoy_node.machine.errors import Denied
from convoy_node.node.consul import ConsulKey
from convoy_node.node.gate import admitted_job
from job_node import KEYS, OUTPUT, RECORD, Install, Node, needs_run_of


def test_an_admitted_node_runs_the_job_once(node: Node, install: Install, trusted: Path) -> None:
    install(
        "a", f'echo "$CONVOY_JOB $CONVOY_ARG_GRACE" | tee -a "{trusted}/ran"', properties={"grace": {"type": "integer"}}
    )
    node.admit("j1", args={"grace": 30})
    assert node.run() == 0
    assert (trusted / "ran").read_text() == "j1 30\n"
    record = node.record
    assert (record["job"], record["state"], record["exit_status"], record["attempt"]) == ("j1", "done", 0, 1)
    assert sorted(record["times"]) == ["done", "started"]
    (output,) = node.consul.data(OUTPUT)
    assert (output["job"], output["output"], output["exit_status"]) == ("j1", "j1 30\n", 0)
    assert node.run() == 0
    # Not even if its record is gone, as after convoy.upgrade.forget, or an older snapshot of Consul.
    del node.consul.keys[RECORD]
    assert node.run() == 1
    assert "The job has run on this node already" in node.record["error"]
    # So no retry is offered.
    assert node.record["repeatable"] is False
    assert (trusted / "ran").read_text() == "j1 30\n"


def test_a_job_that_ansible_runs_is_no_job_of_the_node(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1", by_ansible=True)
    assert needs_run_of(node, "j1") == ""
    assert node.run() == 0
    assert not (trusted / "ran").exists()
    assert RECORD not in node.consul.keys


def test_a_failed_command_reports_exit_status_and_its_last_lines(node: Node, install: Install) -> None:
    install("a", "echo first; echo disk full >&2; exit 3")
    node.admit("j1")
    assert node.run() == 1
    assert (node.record["state"], node.record["exit_status"]) == ("failed", 3)
    assert node.record["error"] == "a: exit status 3: first | disk full"
    # Not repeatable: a retry does not run it again, which the record says.
    assert node.record["repeatable"] is False
    node.retry()
    assert node.run() == 1
    assert "The job has failed on this node, and a is not repeatable" in node.record["error"]
    assert node.record["repeatable"] is False
    # Also if this node knows nothing of the run but its end, as after a loss of its entry.
    (entry,) = node.spool.entries()
    node.spool.save(replace(entry, state="lost", is_repeatable=True))
    node.retry()
    assert node.run() == 1
    assert "The job was lost on this node, and a is not repeatable" in node.record["error"]
    assert node.record["repeatable"] is False


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_start_without_an_entry_is_lost_and_says_whether_a_retry_would_run_it(
    node: Node, install: Install, trusted: Path, repeatable: bool
) -> None:
    install("a", f"echo x >>'{trusted}/ran'; exit 3", repeatable=repeatable)
    node.admit("j1")
    assert node.run() == 1
    # The disk of the node was restored, and Consul has the start only.
    for path in node.spool.folder.iterdir():
        path.unlink()
    started = {name: value for name, value in node.record.items() if name not in ("error", "repeatable", "exit_status")}
    node.consul.keys[RECORD] = replace(
        node.consul.keys[RECORD], value=json.dumps({**started, "state": "started"}).encode()
    )
    assert node.run() == 1
    assert node.record["state"] == "lost"
    assert node.record.get("repeatable", True) is repeatable
    node.retry()
    assert node.run() == 1
    assert (trusted / "ran").read_text() == "x\n" * (2 if repeatable else 1)


def test_a_repeatable_command_that_failed_waits_for_a_retry_also_if_consul_has_lost_its_record(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"echo x >>'{trusted}/ran'; exit 3", repeatable=True)
    node.admit("j1")
    assert node.run() == 1
    assert "repeatable" not in node.record
    del node.consul.keys[RECORD]
    assert node.run() == 1
    assert node.record["state"] == "failed"
    assert "Run ansible-playbook convoy.upgrade.retry -e host=web1." in node.record["error"]
    assert (trusted / "ran").read_text() == "x\n"
    node.retry()
    assert node.run() == 1
    assert (trusted / "ran").read_text() == "x\nx\n"


def test_what_fails_after_the_start_of_a_command_does_not_count_as_if_it_never_ran(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> None:
        raise OSError(24, "Too many open files")

    install("a", f"echo x >>'{trusted}/ran'; exec sleep 60", timeout=0.5)
    node.admit("j1")
    with monkeypatch.context() as changed:
        changed.setattr("convoy_node.jobs.execution.kill_tree", fail)
        assert node.run() == 1
    (entry,) = node.spool.entries()
    assert entry.state == "started" and entry.has_run
    # The process that ran it is this one, which lives on, so the entry is given another.
    node.spool.save(replace(entry, pid=1))
    assert node.run() == 0
    assert (node.record["state"], node.record["repeatable"]) == ("lost", False)
    node.retry()
    assert node.run() == 1
    assert (trusted / "ran").read_text() == "x\n"


def test_an_end_is_reported_while_puppet_is_disabled_and_no_other_job_is_refused_for_that(
    node: Node, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", "true")
    node.admit("j1")
    assert node.run() == 0
    (entry,) = node.spool.entries()
    node.spool.save(replace(entry, is_reported=False))
    node.consul.put(RECORD, json.dumps({**node.record, "state": "started"}))
    node.admit("j2")
    monkeypatch.setattr("convoy_node.jobs.job_run.puppet.disabled_by_operator", lambda: "its disk")
    assert needs_run(KEYS, node.consul, node.spool, "j2").is_end
    assert node.run() == 0
    assert (node.record["job"], node.record["state"]) == ("j1", "done")


def test_a_repeatable_command_runs_again_after_a_failure_and_not_after_a_success(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"echo x >>'{trusted}/ran'; test $(wc -l <'{trusted}/ran') -gt 1", repeatable=True)
    node.admit("j1")
    assert (node.run(), node.record["state"]) == (1, "failed")
    assert node.run() == 0
    assert node.record["state"] == "failed"
    node.retry()
    assert (node.run(), node.record["state"], node.record["attempt"]) == (0, "done", 2)
    node.retry()
    assert node.run() == 1
    assert (trusted / "ran").read_text() == "x\nx\n"


def test_a_command_that_can_t_be_started_or_takes_too_long_fails(node: Node, install: Install) -> None:
    install("a", "true").write_text("no interpreter\n")
    node.admit("j1")
    assert node.run() == 1
    assert "can't be started" in node.record["error"]
    install("b", "echo begun; sleep 60", timeout=0.5)
    node.admit("j2", "b")
    assert node.run() == 1
    assert node.record["error"] == "b: killed after 0.5 s, its time limit: begun"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"command": "missing"}, "This node has no command missing"),
        ({"command": "../a"}, "can't be the name of a command"),
        ({"args": {"x": 1}}, 'The argument "x" is not one of this command'),
        ({"expires": 1000}, "The job expired"),
        ({"roles": ["db"]}, "The job is not for web1 with role web"),
        ({"hosts": ["web2"]}, "The job is not for web1"),
        ({"id": "j2"}, "its id is another one"),
    ],
)
def test_what_a_node_refuses_is_reported_and_nothing_runs(
    facts: dict[str, Any], message: str, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    job = {"id": "j1", "command": "a", "expires": int(time.time()) + 600, **facts}
    node.consul.put("upgrade/jobs/j1", json.dumps(job))
    assert node.run() == 1
    assert node.record["state"] == "failed"
    assert node.record["error"].startswith("refused: ") and message in node.record["error"]
    assert not (trusted / "ran").exists()
    # Once it is corrected, an operator's retry lets it run.
    node.consul.put(
        "upgrade/jobs/j1",
        json.dumps(
            {**job, "id": "j1", "command": "a", "expires": int(time.time()) + 600, "args": {}, "roles": [], "hosts": []}
        ),
    )
    node.retry()
    assert node.run() == 0
    assert (trusted / "ran").exists()


def test_a_missing_job_and_a_node_in_noop_are_refusals(node: Node, install: Install) -> None:
    install("a", "true")
    node.admit("j1")
    del node.consul.keys["upgrade/jobs/j1"]
    assert node.run() == 1
    assert "upgrade/jobs/j1 is missing" in node.record["error"]
    node.settings = replace(node.settings, noop=True)
    node.admit("j2")
    assert node.run() == 1
    assert "puppet_gate_noop" in node.record["error"]


def test_a_node_whose_puppet_is_disabled_refuses(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    monkeypatch.setattr(job_run.puppet, "disabled_by_operator", lambda: "its disk")
    assert node.run() == 1
    assert "Puppet is disabled on this host: its disk. Enable it" in node.record["error"]
    assert not (trusted / "ran").exists()
    monkeypatch.setattr(job_run.puppet, "disabled_by_operator", lambda: None)
    node.retry()
    assert node.run() == 0


def test_a_node_that_demands_signatures_refuses_jobs_without_one(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.settings = replace(node.settings, require_signed_jobs=True, allowed_signers=str(trusted / "signers"))
    node.admit("j1")
    assert node.run() == 1
    assert "The job is not signed" in node.record["error"]
    # A signature counts wherever there is a file of signers, demanded or not.
    (trusted / "signers").write_text("")
    node.settings = replace(node.settings, require_signed_jobs=False)
    node.admit("j2", signature="nonsense")
    assert node.run() == 1
    assert "is signed with a key that is not in" in node.record["error"]
    assert not (trusted / "ran").exists()


def test_a_signed_job_is_refused_where_there_are_no_temporary_files(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    (trusted / "signers").write_text("")
    node.settings = replace(node.settings, require_signed_jobs=True, allowed_signers=str(trusted / "signers"))
    monkeypatch.setattr(tempfile, "tempdir", str(trusted / "missing"))
    node.admit("j1", signature="nonsense")
    assert node.run() == 1
    assert node.record["error"].startswith(
        "refused: The signature can't be verified: no temporary files can be written"
    )


def fail_in(place: str, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a run in which a function of the agent raises an unexpected error."""

    def fail(*_arguments: Any, **_named: Any) -> None:
        raise RuntimeError("it is broken")

    with monkeypatch.context() as changed:
        changed.setattr(f"convoy_node.jobs.job_run.{place}", fail)
        assert node.run() == 1


@pytest.mark.parametrize("place", ["find_command", "new_entry", "check_time", "Spool.recover"])
def test_an_unexpected_error_before_the_command_starts_is_a_refusal(
    place: str, node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    fail_in(place, node, monkeypatch)
    assert node.record["state"] == "failed"
    assert node.record["error"].startswith("refused: The agent failed with RuntimeError: it is broken.")
    assert "journalctl -u convoy-node-job" in node.record["error"]
    assert not (trusted / "ran").exists()
    node.retry()
    assert node.run() == 0


def test_an_unexpected_error_after_the_command_has_started_is_no_refusal(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    fail_in("next_outputs", node, monkeypatch)
    assert (trusted / "ran").exists()
    assert node.record["state"] == "started"
    assert node.run() == 0
    assert node.record["state"] == "done"


def test_a_job_that_ansible_runs_is_not_refused_by_a_node_that_can_t_run_jobs(node: Node, trusted: Path) -> None:
    node.admit("j1", by_ansible=True)
    (trusted / "spool").mkdir()
    (trusted / "spool").chmod(0o777)
    assert node.run() == 1
    assert RECORD not in node.consul.keys


@pytest.mark.parametrize(
    ("key", "value", "flags"),
    [
        ("upgrade/job_gates/host/web1", "False", 1),
        ("upgrade/job_gates/host/web1", "True", 0),
        ("upgrade/job_gates/host/web1", "v2", 1),
        ("upgrade/hold/global", "{}", 0),
        ("upgrade/hold/role/web", "{}", 0),
        ("upgrade/hold/host/web1", "no", 0),
        ("config_state/enable_puppet/x", "", 0),
        ("config_state/global/enable_puppet", "False", 0),
        ("upgrade/current_job", "job/../j1", 0),
        ("upgrade/current_job", "j1", 0),
        ("upgrade/current_job", "", 0),
        ("upgrade/schema", "99", 0),
    ],
)
def test_a_node_that_is_not_admitted_does_nothing(
    key: str, value: str, flags: int, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    is_other = key.endswith("/x")
    node.consul.put(key, value, flags)
    assert (admitted_job(KEYS, node.consul.keys) == "j1") == is_other
    assert node.run() == 0
    assert (trusted / "ran").exists() == is_other


def test_the_gate_of_its_role_admits_a_node_too_and_its_own_decides_first(node: Node) -> None:
    node.admit("j1")
    node.consul.put("upgrade/job_gates/role/web", "True", flags=1)
    node.consul.put("upgrade/job_gates/host/web1", "False", flags=1)
    assert admitted_job(KEYS, node.consul.keys) is None
    del node.consul.keys["upgrade/job_gates/host/web1"]
    assert admitted_job(KEYS, node.consul.keys) == "j1"


def test_a_node_whose_role_changed_starts_no_job_by_the_gate_of_its_new_role(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    own = node.consul.keys["upgrade/job_gates/host/web1"]

    def started(record: dict[str, str]) -> bool:
        node.consul.put(KEYS.record, json.dumps({"version": "1", "state": "upgraded", **record}))
        node.run()
        return (trusted / "ran").exists()

    # Planners know it with another role, also if its own gate admits it.
    assert not started({"role": "db"})
    assert "ansible-playbook convoy.upgrade.enroll --limit web1" in node.lines[-1]
    # Planners may have opened this gate when they knew it with another role.
    del node.consul.keys["upgrade/job_gates/host/web1"]
    node.consul.put("upgrade/job_gates/role/web", "True", flags=1)
    assert not started({"role": "web", "former_role": "db"})
    node.consul.keys["upgrade/job_gates/host/web1"] = own
    node.consul.put("upgrade/hold/role/db", "{}")
    assert not started({"role": "web", "former_role": "db"})
    assert "that role is held" in node.lines[-1]
    assert RECORD not in node.consul.keys
    del node.consul.keys["upgrade/hold/role/db"]
    assert started({"role": "web", "former_role": "db"})


@pytest.mark.parametrize(("text", "is_admitted"), [("v2", True), ("v1", False), ("False", False), ("True", True)])
def test_a_gate_of_the_old_layout_that_has_the_version_is_no_pause(text: str, is_admitted: bool, node: Node) -> None:
    node.admit("j1")
    node.consul.put("current_version", "v2")
    node.consul.put(KEYS.legacy_gates[0], text)
    assert (admitted_job(KEYS, node.consul.keys) == "j1") is is_admitted


def test_a_node_whose_token_may_not_read_holds_any_more_starts_no_job(
    node: Node, install: Install, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    # Consul leaves out of a read what the token may not read.
    node.consul.keys.pop("upgrade/hold/", None)
    get = node.consul.get

    def refuse(key: str) -> ConsulKey | None:
        if key == "upgrade/hold/global":
            raise Denied("Consul refused the node's token.")
        return get(key)

    monkeypatch.setattr(node.consul, "get", refuse)
    with pytest.raises(Denied):
        node.run()
    assert not (trusted / "ran").exists()


def test_a_command_that_could_not_be_started_runs_after_its_repair(node: Node, install: Install, trusted: Path) -> None:
    program = install("a", "")
    program.write_text("#!/no/such/interpreter\n")
    node.admit("j1")
    assert node.run() == 1
    assert "can't be started" in node.record["error"]
    program.write_text(f"#!/bin/sh\necho x >>'{trusted}/ran'\n")
    node.retry()
    assert node.run() == 0
    assert (node.record["state"], node.record["attempt"]) == ("done", 2)
    assert (trusted / "ran").read_text() == "x\n"


def test_the_last_outputs_are_kept(node: Node, install: Install) -> None:
    install("a", "echo $CONVOY_JOB")
    for number in range(5):
        node.admit(f"j{number}")
        assert node.run() == 0
    assert [one["output"] for one in node.consul.data(OUTPUT)] == ["j4\n", "j3\n", "j2\n"]


def test_a_job_waits_while_an_agent_run_has_the_lock(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    holder = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,fcntl.LOCK_EX); print(1,flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder, str(trusted / "node.lock")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"1\n"
        assert node.run() == 75
        assert "is still held by an agent run" in node.lines[-1]
        other.kill()
    assert not (trusted / "ran").exists()
    assert node.run() == 0


@pytest.mark.parametrize("fault", ["folder", "link"])
def test_a_lock_that_others_could_hold_refuses_every_job(
    fault: str, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.lock_file, other = trusted / "run/node.lock", trusted / "other"
    other.write_text("its content")
    node.lock_file.parent.mkdir()
    if fault == "link":
        node.lock_file.symlink_to(other)
    else:
        node.lock_file.parent.chmod(0o777)
    assert node.run() == 1
    message = {"folder": "run can be written by other users", "link": f"is a symbolic link. Run rm {node.lock_file}"}
    assert node.record["error"].startswith("refused: ") and message[fault] in node.record["error"]
    assert (other.read_text(), (trusted / "ran").exists()) == ("its content", False)


def test_nothing_runs_while_the_clock_is_behind_that_of_consul(node: Node, install: Install, trusted: Path) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    # By the clock of Consul, the job has expired.
    node.consul.time = time.time() + 700
    assert node.run() == 1
    assert node.record["error"].startswith("refused: The clock of this node is behind by ")
    assert (
        "by the clock of Consul at http://127.0.0.1:1, so a job that has expired could begin. Correct the clock;"
        in node.record["error"]
    )
    assert not (trusted / "ran").exists()
    # An answer takes a moment.
    node.consul.time = time.time() + 30
    node.retry()
    assert node.run() == 0
    assert (trusted / "ran").exists()


@pytest.mark.parametrize("kept", ["at", "ended"])
def test_nothing_runs_while_the_clock_is_behind_what_this_node_has_done(
    kept: str, node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.spool.prepare()
    later = int(time.time()) + 300
    times = {"at": later, "ended": later - 200} if kept == "at" else {"at": later - 200, "ended": later}
    node.spool.add(JobEntry("j0", "a", later + 600, DONE, "r0", is_reported=True, **times))
    assert node.run() == 1
    file = trusted / "spool/j0.json"
    assert f"by {file}, so a job that has expired could begin. Correct the clock;" in node.record["error"]
    assert not (trusted / "ran").exists()


def test_a_job_that_expires_before_what_this_node_has_forgotten_is_refused(
    node: Node, install: Install, trusted: Path
) -> None:
    install("a", f"touch '{trusted}/ran'")
    node.admit("j1")
    node.spool.prepare()
    # The clock is behind, or was ahead when the node forgot a job. A later job can still begin.
    (trusted / "spool/forgotten").write_text(str(int(time.time()) + 86400 * 30))
    assert node.run() == 1
    assert "The job does not expire after the jobs that this node has run and forgotten" in node.record["error"]
    assert not (trusted / "ran").exists()
