# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next step at the end of a run, from the results of its tasks."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from ansible import context
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import PreparedRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run import ansible_run
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.ansible_run import PlaybookRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import CONTROL, DATA, FIRST, RunScope
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import Routes

PLAYS: dict[str, tuple[str, ...]] = {FIRST: (), CONTROL: (), DATA: ("web1",)}
NONE_PUSHED = RunScope(dict.fromkeys(PLAYS, ()), (), (), PLAYS)
# Without task groups, web1 upgrades itself.
PREPARED = PreparedRun(
    "2", "/run/composed", {"web1": "web"}, {}, NONE_PUSHED, Routes({}, {}, {}, {}, {}, ()), (), False
)
PUSHED = replace(PREPARED, scope=RunScope(PLAYS, (), (), PLAYS), task_groups={"web": ()})
STATUS = {
    "counts": {"failed": 1},
    "reasons": [{"state": "failed", "cause": "", "hosts": ["web1"], "count": 1}],
    "can_move": False,
    "needs_operator": [{"code": "broken_hosts", "playbook": "retry", "variables": {"host": "web1"}}],
}
STUCK = {"failure": {"code": "stuck", "message": "", "details": {}}}


@pytest.mark.parametrize(
    ("results", "next_step"),
    [
        ([PUSHED.as_result()], "ansible-playbook convoy.upgrade.upgrade -e version=2 -e retry_failed=true"),
        # An earlier run recorded the failure of web1, so this one does not push it.
        (
            [replace(PUSHED, scope=NONE_PUSHED).as_result()],
            "ansible-playbook convoy.upgrade.upgrade -e version=2 -e retry_failed=true",
        ),
        # It upgrades itself, beside the hosts of this run.
        ([PREPARED.as_result()], "ansible-playbook convoy.upgrade.retry -e host=web1"),
        ([], "ansible-playbook convoy.upgrade.retry -e host=web1"),
    ],
)
def test_a_run_in_which_ansible_upgrades_hosts_retries_them_itself(
    monkeypatch: pytest.MonkeyPatch, results: list[dict[str, Any]], next_step: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "convoy.upgrade.upgrade", "-e", "version=2"])
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/upgrade.yml", lines.append)
    for result in [*results, STATUS, STUCK]:
        run.remember(result)
    run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines[0] == f"Next: {next_step}"


def test_a_run_that_left_out_post_upgrade_tasks_by_tags_names_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["ansible-playbook", "convoy.upgrade.upgrade", "-e", "version=2", "--tags", "redis"]
    monkeypatch.setattr(sys, "argv", command)
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/upgrade.yml", lines.append)
    run.remember({"partial": {"web1": ["post_upgrade"]}})
    run.end(has_succeeded=True)
    run._say_next(os.getpid())
    assert lines[-1] == "Next: ansible-playbook convoy.upgrade.upgrade -e version=2 --tags post_upgrade"


def test_a_run_for_a_part_of_the_fleet_retries_its_own_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["ansible-playbook", "convoy.upgrade.role", "-e", "version=2 role=web"]
    monkeypatch.setattr(sys, "argv", command)
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/role.yml", lines.append)
    # An earlier run recorded the failure of web1, so this one does not push it.
    for result in (replace(PUSHED, scope=NONE_PUSHED).as_result(), STATUS, STUCK):
        run.remember(result)
    run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines[0].startswith("Next: ansible-playbook convoy.upgrade.role ")
    assert lines[0].endswith(" -e retry_failed=true")


@pytest.mark.parametrize(
    ("playbook", "options", "next_step"),
    [
        (
            "controlplane",
            ["-e", "version=2", "-e", "upgrade_version_from=1", "-e", "nginx_port=81"],
            "-e upgrade_version_from=1 -e nginx_port=81 -e version=2",
        ),
        (
            "role",
            ["-e", "role=web version=2 upgrade_folder=/x", "--tags=all", "-e", "retry_failed=true", "-f", "9"],
            "-e upgrade_folder=/x -f 9 -e version=2",
        ),
        ("dataplane", ["-e", '{"version": "2", "pin": ["a"], "token": "s3cret"}'], """-e '{"pin": ["a"]}' -e token="$TOKEN" -e version=2"""),
    ],
)  # fmt: skip
def test_the_command_for_the_rest_of_the_fleet_has_the_variables_of_the_run(
    monkeypatch: pytest.MonkeyPatch, playbook: str, options: list[str], next_step: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", f"convoy.upgrade.{playbook}", *options])
    monkeypatch.setattr(context, "CLIARGS", {})
    lines: list[str] = []
    run = PlaybookRun(f"/collection/playbooks/{playbook}.yml", lines.append)
    run.remember({"version": "2", "counts": {"upgraded": 1, "pending": 1}, "can_move": True})
    run.end(has_succeeded=True)
    run._say_next(os.getpid())
    assert lines == [f"Next: ansible-playbook convoy.upgrade.upgrade {next_step}"]


def test_a_failure_that_names_a_playbook_is_followed_by_that_and_then_by_the_same_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "convoy.upgrade.upgrade", "-e", "version=3"])
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/upgrade.yml", lines.append)
    run.remember(
        UpgradeError("post_upgrade_pending", "", playbook="post_upgrade", variables={"version": "2"}).as_result()
    )
    run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines == [
        "Next: ansible-playbook convoy.upgrade.post_upgrade -e version=2",
        "Then: ansible-playbook convoy.upgrade.upgrade -e version=3",
    ]


@pytest.mark.parametrize(
    ("is_interrupted", "next_step"),
    [
        # It may have begun, and the same command would begin another one.
        (True, "-e job=restart-1"),
        # A refusal, before the job began.
        (False, "-e run=restart"),
    ],
)
def test_an_interrupted_run_for_a_job_of_the_nodes_is_continued_by_its_id(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool, next_step: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "convoy.upgrade.command", "-e", "run=restart"])
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/command.yml", lines.append)
    run.remember({"pushes": False, "job": {"id": "restart-1"}})
    if not is_interrupted:
        run.remember({"failure": {"code": "bad_instructions", "message": "", "details": {}}})
        run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines[-1] == f"Next: ansible-playbook convoy.upgrade.command {next_step}"
    # The command for a job that had not begun.
    assert [one.endswith("convoy.upgrade.command -e run=restart") for one in lines[:-1]] == [True] * is_interrupted


@pytest.mark.parametrize(
    ("playbook", "variables", "next_step"),
    [
        # A role is no host, and the status has the names of those that failed.
        ("retry", ["role=web"], "status"),
        ("retry", ["role=web", "host=web1"], "retry -e host=web1"),
        ("enroll", ["host=web1"], "enroll -e upgrade_nodes=web1"),
        ("enroll", ["host=web1", "upgrade_nodes=web"], "enroll -e upgrade_nodes=web"),
        # If a role is no group of the inventory, no host would be enrolled.
        ("enroll", ["role=web"], "enroll -e upgrade_nodes=NAME"),
        # The same command without the variable would stop Puppet everywhere.
        ("global_disable", ["host=web1"], "status"),
        ("abort", ["role=web"], "status"),
    ],
)
def test_a_run_with_a_variable_that_it_would_ignore_ends_with_a_command_that_does_not(
    monkeypatch: pytest.MonkeyPatch, playbook: str, variables: list[str], next_step: str
) -> None:
    options = [word for one in variables for word in ("-e", one)]
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", f"convoy.upgrade.{playbook}", *options])
    monkeypatch.setattr(context, "CLIARGS", {"extra_vars": variables})
    lines: list[str] = []
    run = PlaybookRun(f"/collection/playbooks/{playbook}.yml", lines.append)
    with pytest.raises(SystemExit):
        run.check_options(dict(one.split("=") for one in variables))
    assert lines[-1] == f"Next: ansible-playbook convoy.upgrade.{next_step}"


@pytest.mark.parametrize(
    ("limit", "has_failed", "prints"), [("web1", True, True), ("web1", False, False), (None, True, False)]
)
def test_an_agent_run_over_ssh_that_failed_ends_with_its_command_and_one_of_a_timer_does_not(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, has_failed: bool, prints: bool
) -> None:
    command = ["ansible-playbook", "convoy.upgrade.node", *(["--limit", limit] if limit else [])]
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(context, "CLIARGS", {"subset": limit})
    monkeypatch.setattr(atexit, "register", lambda *given: at_exit.append(given))
    monkeypatch.setattr(ansible_run, "call_when_closed", lambda _call: None)
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/node.yml", lines.append)
    run.begin()
    run.end(has_succeeded=not has_failed)
    for call, *given in at_exit:
        call(*given)
    assert lines == [f"Next: {' '.join(command)}"] * prints


def test_check_mode_of_a_job_names_no_job_because_none_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["ansible-playbook", "convoy.upgrade.command", "--check", "-e", "run_tasks=x.yml", "-e", "only=web"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(context, "CLIARGS", {"check": True, "extra_vars": ["run_tasks=x.yml", "only=web"]})
    lines: list[str] = []
    run = PlaybookRun("/collection/playbooks/command.yml", lines.append)
    run.check_options({"run_tasks": "x.yml", "only": "web"})
    run.remember({"pushes": True, "job": {"id": "x-1"}})
    # A task failed in check mode.
    run.end(has_succeeded=False)
    run._say_next(os.getpid())
    assert lines == [f"Next: {' '.join(command)}"]


@pytest.mark.parametrize(("swallowed", "seconds", "code"), [(0, 30, 7), (1, 3, 7), (9, 0.3, 99)])
def test_a_run_whose_output_is_closed_ends_even_if_interrupts_are_swallowed(
    swallowed: int, seconds: float, code: int
) -> None:
    """Python ignores an exception in a hook of a fork or in a destructor, and with it an interrupt."""
    program = f"""
import signal, sys, time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run import ansible_run

left = {swallowed}

def interrupt(*_given):
    global left
    left -= 1
    if left < 0:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
ansible_run._SECONDS_TO_END = {seconds}
sys.argv = ["ansible-playbook", "convoy.upgrade.status", "-e", "follow=true"]
run = ansible_run.PlaybookRun("/collection/playbooks/status.yml", lambda line: print(line, file=sys.stderr, flush=True))
run.begin()
try:
    print("a line", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "a line\n"
        process.stdout.close()
        lines = process.stderr.read().splitlines()
    assert process.returncode == code, lines
    assert lines[0].startswith("The output was closed")
    assert lines[-1] == "Next: ansible-playbook convoy.upgrade.status -e follow=true"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_hangs_after_a_signal_ends_nevertheless(number: signal.Signals) -> None:
    """As Ansible does if a worker ended while it had the lock of the queue of results."""
    program = """
import multiprocessing, signal, sys, time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run import ansible_run

# It is ignored where the tests run in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
ansible_run._SECONDS_TO_END = 0.3
sys.argv = ["ansible-playbook", "convoy.upgrade.status", "-e", "follow=true"]
run = ansible_run.PlaybookRun("/collection/playbooks/status.yml", lambda line: print(line, flush=True))
run.begin()
lock = multiprocessing.Lock()
lock.acquire()
try:
    print("a line", flush=True)
    time.sleep(60)
finally:
    lock.acquire()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "a line\n"
        process.send_signal(number)
        lines = process.stdout.read().splitlines()
    assert process.returncode == 99
    assert lines == [
        "Ansible has not ended within 0 s after the interrupt, so this run was ended without it.",
        "Next: ansible-playbook convoy.upgrade.status -e follow=true",
    ]


@pytest.mark.parametrize("interrupt", ["SIG_IGN", "SIG_DFL", "default_int_handler"])
def test_a_signal_ends_a_run_also_in_the_background_where_interrupts_are_ignored(interrupt: str) -> None:
    program = f"""
import signal, sys, time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run import ansible_run

signal.signal(signal.SIGINT, signal.{interrupt})
sys.argv = ["ansible-playbook", "convoy.upgrade.status", "-e", "follow=true"]
run = ansible_run.PlaybookRun("/collection/playbooks/status.yml", lambda line: print(line, flush=True))
run.begin()
try:
    print("a line", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    # What Ansible still does must not be cut off by a second signal.
    print("ends", flush=True)
    time.sleep(1)
    sys.exit(7)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "a line\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "ends\n"
        process.send_signal(signal.SIGTERM)
        lines = process.stdout.read().splitlines()
    assert process.returncode == 7
    assert lines == ["Next: ansible-playbook convoy.upgrade.status -e follow=true"]
