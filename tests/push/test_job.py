# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs whose tasks Ansible runs: once on each host, within its slot, in the order of the rules."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from typing import Any

import pytest
from devkit.agent import ROOT
from integration.support.runs.hook import example, listening

from .site import Site, kill, most_at_once, spans, wait_for

WEB = [f"web{number}" for number in range(1, 6)]
ROLES = {"db": {"plane": "controlplane"}, "web": {"plane": "dataplane"}}
RULES: dict[str, Any] = {"rolling_rules": {"global": 2}, "role_order": {"web": "db"}}
LIVE = {"ANSIBLE_STDOUT_CALLBACK": "convoy.upgrade.rollout"}
_TASKS = """\
- name: Restart
  ansible.builtin.shell:
    cmd: |
      : {{ ansible_facts.pkg_mgr }}
      echo "$(date +%s.%N) begin {{ upgrade_job.args.grace | default('none') }} {{ upgrade_job.id }}" >> LOG/{{ inventory_hostname }}
      if test -e LOG/fail-{{ inventory_hostname }}-restart; then echo "restart is broken here" >&2; exit 3; fi
      sleep $(cat LOG/sleep-{{ inventory_hostname }} 2>/dev/null || cat LOG/sleep 2>/dev/null || echo 0.05)
      echo "$(date +%s.%N) end restart {{ upgrade_job.id }}" >> LOG/{{ inventory_hostname }}
"""


@pytest.fixture
def fleet(site: Site) -> Site:
    (site.folder / "restart.yml").write_text("---\n" + _TASKS.replace("LOG", str(site.log)))
    site.inventory(ROLES, {"db": ["db1"], "web": WEB})
    return site


def text(fleet: Site, key: str) -> str:
    """Return the value of a key, empty for none."""
    return (fleet.consul.get(key) or b"").decode()


def job_of(fleet: Site) -> str:
    """Return the ID of the job."""
    return text(fleet, "upgrade/current_job").removeprefix("job/")


def record(fleet: Site, host: str) -> dict[str, Any]:
    """Return what a host's run reported of the job."""
    found: dict[str, Any] = json.loads(text(fleet, f"upgrade/job_records/{host}") or "{}")
    return found


@pytest.mark.thorough
def test_the_tasks_run_once_on_each_host_under_the_caps_and_in_the_order_and_a_failed_host_is_retried(
    fleet: Site,
) -> None:
    fleet.sleep(1)
    broken = fleet.fail("web3", "restart")
    stopped = fleet.play(
        "command", run_tasks="restart.yml", args={"grace": 30}, instructions=RULES, reason="new key", code=2
    )
    job = job_of(fleet)
    assert job.startswith("restart-")
    found = spans(fleet.entries())
    assert all(found[host][0] >= found["db1"][1] for host in WEB)
    assert most_at_once(found, WEB) == 2
    assert {one.task for one in fleet.entries() if one.what == "begin"} == {"30"}
    assert record(fleet, "web3")["state"] == "failed"
    assert "restart is broken here" in record(fleet, "web3")["error"]
    assert {host: record(fleet, host)["state"] for host in ("db1", "web1", "web5")} == dict.fromkeys(
        ("db1", "web1", "web5"), "done"
    )
    assert "restart is broken here" in fleet.play("status", host="web3")
    # No gate of Puppet was touched, and the next commands are those of the job.
    assert fleet.consul.tree("config_state/") == {}
    assert "Next: " in stopped
    assert "/playbooks/retry.yml -e host=web3" in stopped
    broken.unlink()
    fleet.play("retry", host="web3")
    # Without its tasks it admits no host.
    refused = fleet.play("command", job=job, code=2)
    assert f"[needs_tasks] Ansible runs the tasks of job {job}" in " ".join(refused.split())
    again = fleet.play("command", job=job, run_tasks="restart.yml")
    assert fleet.done("web3") == ["restart"]
    assert fleet.done("web1") == ["restart"]
    assert "6 of 6" in again or "done" in again
    assert json.loads(text(fleet, "upgrade/ledger"))["state"] == "complete"


@pytest.mark.parametrize("check", [False, True])
def test_facts_in_a_cache_are_gathered_again_as_the_host_may_be_another_machine(fleet: Site, *, check: bool) -> None:
    cache = fleet.folder / "cache"
    (fleet.folder / "ansible.cfg").write_text(
        f"[defaults]\nfact_caching = jsonfile\nfact_caching_connection = {cache}\n"
    )
    fleet.inventory({"web": {"plane": "dataplane"}}, {"web": ["web1"]})
    (fleet.folder / "show.yml").write_text("- ansible.builtin.debug: {msg: 'found {{ ansible_facts.pkg_mgr }}'}\n")
    fleet.play("command", run_tasks="show.yml")
    (file,) = (one for one in cache.iterdir() if one.name.endswith("web1"))
    # Newer releases of ansible-core keep it as JSON within JSON.
    stale, edits = re.subn(r'(ansible_pkg_mgr\\*": *\\*")[a-z0-9]+', r"\1of another machine", file.read_text())
    assert edits == 1
    file.write_text(stale)
    shown = fleet.play("command", *(["--check"] if check else []), run_tasks="show.yml")
    assert "found " in shown
    assert "of another machine" not in shown


@pytest.mark.thorough
def test_a_killed_run_of_a_job_is_continued_and_only_hosts_that_did_not_end_run_it_again(fleet: Site) -> None:
    fleet.sleep(60, "web2")
    process = fleet.start("command", run_tasks="restart.yml", instructions={"rolling_rules": {"global": 1}})
    wait_for(lambda: fleet.entries("web2"), "web2 has begun")
    kill(process)
    job = job_of(fleet)
    assert record(fleet, "web2")["state"] == "started"
    fleet.sleep(0.05, "web2")
    fleet.play("command", job=job, run_tasks="restart.yml")
    begins = {host: sum(1 for one in fleet.entries(host) if one.what == "begin") for host in ("db1", *WEB)}
    assert begins == {"db1": 1, "web1": 1, "web2": 2, "web3": 1, "web4": 1, "web5": 1}
    assert {record(fleet, host)["state"] for host in ("db1", *WEB)} == {"done"}


def test_a_host_that_can_t_be_reached_fails_and_the_others_go_on(site: Site) -> None:
    (site.folder / "restart.yml").write_text("---\n" + _TASKS.replace("LOG", str(site.log)))
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    site.inventory(ROLES, {"db": ["db1"], "web": WEB}, web2=gone)
    printed = site.play("command", run_tasks="restart.yml", instructions=RULES, code=4)
    assert record(site, "web2")["state"] == "failed"
    assert "unreachable" in record(site, "web2")["error"]
    assert {record(site, host)["state"] for host in ("db1", "web1", "web3", "web4", "web5")} == {"done"}
    assert f"{shlex.quote(str(ROOT / 'playbooks/retry.yml'))} -e host=web2" in printed


@pytest.mark.parametrize("ending", ["end_host", pytest.param("end_play", marks=pytest.mark.thorough)])
def test_a_host_whose_tasks_end_without_a_report_fails_and_the_run_ends(fleet: Site, ending: str) -> None:
    tasks = fleet.folder / "roles/hidden/tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(f"---\n- ansible.builtin.meta: {ending}\n  when: inventory_hostname == 'web1'\n")
    hidden = f"- ansible.builtin.include_role: {{name: {tasks.parent}}}\n"
    (fleet.folder / "restart.yml").write_text("---\n" + hidden + _TASKS.replace("LOG", str(fleet.log)))
    given = {"run_tasks": "restart.yml", "only": "web", "upgrade_wait_timeout": 300}
    began = time.monotonic()
    printed = " ".join(fleet.play("command", **given, instructions={"rolling_rules": {"global": 1}}, code=2).split())
    assert time.monotonic() - began < 240
    assert (record(fleet, "web1")["state"], fleet.done("web1")) == ("failed", [])
    assert record(fleet, "web1")["error"].startswith("its tasks ended without a report")
    assert "No host can continue without an operator" in printed
    assert not fleet.entries("web2")
    assert fleet.consul.tree("upgrade/drivers/") == {}


def test_a_host_that_fails_without_a_result_of_a_task_is_reported(fleet: Site) -> None:
    (fleet.folder / "restart.yml").write_text("---\n- ansible.builtin.include_role: {name: no_such_role}\n")
    fleet.play("command", run_tasks="restart.yml", only="web1", instructions=RULES, upgrade_wait_timeout=300, code=2)
    assert record(fleet, "web1")["error"].startswith("Ansible failed it without a result")


@pytest.mark.thorough
def test_a_host_that_is_left_over_by_a_killed_run_keeps_its_slot_and_runs_no_job_that_is_not_for_it(
    fleet: Site,
) -> None:
    fleet.sleep(30, "web1")
    process = fleet.start("command", run_tasks="restart.yml", only="web1", instructions=RULES)
    wait_for(lambda: fleet.entries("web1"), "web1 has begun")
    kill(process)
    fleet.play("abort", reason="wrong file")
    one = {"rolling_rules": {"global": 1}}
    given = {"run_tasks": "restart.yml", "only": "web3", "instructions": one, "upgrade_wait_timeout": 5}
    printed = " ".join(fleet.play("command", **given, code=2).split())
    assert "run ansible-playbook convoy.upgrade.retry -e host=web1" in printed
    assert "web1 is not admitted" not in printed
    assert not fleet.entries("web3")
    fleet.play("retry", host="web1")
    fleet.play("command", job=job_of(fleet), run_tasks="restart.yml")
    assert fleet.done("web3") == ["restart"]
    assert sum(1 for entry in fleet.entries("web1") if entry.what == "begin") == 1


@pytest.mark.thorough
def test_after_an_interrupt_the_next_command_continues_the_job(fleet: Site) -> None:
    fleet.sleep(30, "web1")
    process = fleet.start("command", run_tasks="restart.yml", only="web", instructions=RULES)
    wait_for(lambda: fleet.entries("web1"), "web1 has begun")
    process.send_signal(signal.SIGINT)
    printed = " ".join(fleet.end(process).stdout.split())
    again = printed.rpartition("Next: ")[2]
    assert "playbooks/command.yml" in again
    assert f"-e job={job_of(fleet)}" in again
    assert "run_tasks=restart.yml" in again
    assert "only" not in again
    # The command as it was begins no second job, and names the one that continues.
    refused = " ".join(fleet.play("command", run_tasks="restart.yml", only="web", code=2).split())
    assert (
        f"continue it with ansible-playbook convoy.upgrade.command -e job={job_of(fleet)} -e run_tasks=FILE" in refused
    )


@pytest.mark.thorough
def test_a_job_waits_for_the_one_before_on_request(fleet: Site) -> None:
    fleet.sleep(10, "db1")
    first = fleet.start("command", run_tasks="restart.yml", instructions=RULES)
    wait_for(lambda: fleet.entries("db1"), "db1 has begun")
    (fleet.folder / "again.yml").write_text((fleet.folder / "restart.yml").read_text())
    assert "[job_under_way]" in fleet.play("command", run_tasks="again.yml", code=2)
    second = fleet.start("command", run_tasks="again.yml", instructions=RULES, wait_for_other=True)
    fleet.sleep(0.05, "db1")
    for one in (first, second):
        ended = fleet.end(one)
        assert ended.code == 0, ended.stdout
    assert "This run waits for its end." in ended.stdout
    assert {host: fleet.done(host) for host in ("db1", *WEB)} == {host: ["restart"] * 2 for host in ("db1", *WEB)}


@pytest.mark.thorough
def test_check_mode_runs_the_tasks_in_check_mode_and_begins_nothing(fleet: Site) -> None:
    (fleet.folder / "restart.yml").write_text(
        f"---\n- name: Write\n  ansible.builtin.copy:\n    content: new\n    dest: {fleet.folder}/new-{{{{ inventory_hostname }}}}\n"
    )
    shown = fleet.play("command", "--check", run_tasks="restart.yml", only="web[0:2]", instructions=RULES)
    assert shown.count("changed: [web") == 3
    assert not [*fleet.folder.glob("new-*")]
    assert fleet.consul.tree("upgrade/") == {}


@pytest.mark.thorough
def test_a_task_that_fails_in_check_mode_names_the_command_as_it_was_given(fleet: Site) -> None:
    (fleet.folder / "restart.yml").write_text("---\n- ansible.builtin.fail:\n    msg: no disk\n")
    shown = " ".join(
        fleet.play("command", "--check", run_tasks="restart.yml", only="web[0:2]", instructions=RULES, code=2).split()
    )
    again = shown.rpartition("Next: ")[2]
    assert all(one in again for one in ("--check", '"run_tasks": "restart.yml"', '"only": "web[0:2]"'))
    assert "job=" not in again
    assert fleet.consul.tree("upgrade/") == {}


@pytest.mark.thorough
def test_the_tasks_may_be_those_of_a_role(fleet: Site) -> None:
    tasks = fleet.folder / "own/restart/tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text((fleet.folder / "restart.yml").read_text())
    fleet.play("command", run_tasks="restart", upgrade_roles_path=[str(fleet.folder / "own")], instructions=RULES)
    assert {host: fleet.done(host) for host in ("db1", *WEB)} == {host: ["restart"] for host in ("db1", *WEB)}
    assert record(fleet, "web1")["state"] == "done"


def test_a_job_fails_on_a_host_on_which_a_handler_of_its_role_fails(fleet: Site) -> None:
    role = fleet.folder / "own/restart"
    for folder, text in {
        "tasks": "- name: Configure\n  ansible.builtin.command: 'true'\n  notify: Restart\n",
        "handlers": (fleet.folder / "restart.yml").read_text(),
    }.items():
        (role / folder).mkdir(parents=True)
        (role / folder / "main.yml").write_text(text)
    fleet.fail("web3", "restart")
    given = {"upgrade_roles_path": [str(fleet.folder / "own")], "instructions": RULES}
    fleet.play("command", run_tasks="restart", code=2, **given)
    assert record(fleet, "web3")["state"] == "failed"
    assert "restart is broken here" in record(fleet, "web3")["error"]
    assert (record(fleet, "db1")["state"], fleet.done("db1")) == ("done", ["restart"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run_tasks": "restrt.yml"}, "run_tasks: restrt.yml can't be used"),
        ({"run_tasks": "no_such_role"}, "there is no such role"),
        ({"run_tasks": "inventory.yml"}, "is not a list of tasks"),
        ({"run_tasks": "play.yml"}, "is a playbook"),
        ({"run_tasks": "pause.yml"}, "pause.yml:3: pause does not work, because Ansible runs it once for all hosts"),
        ({"run_tasks": "restart.yml", "wait": False}, "run_tasks and wait=false can't be combined"),
        ({"run_tasks": "restart.yml", "once": True}, "run_tasks and once=true can't be combined"),
        ({"run_tasks": "restart.yml", "sign_with": "key"}, "sign_with: nodes do not verify"),
        ({"run_tasks": "restart.yml", "job": "nothing"}, "nothing"),
        ({"run_tasks": "restart.yml", "only": "wbe"}, "wbe"),
    ],
)
@pytest.mark.thorough
def test_bad_input_begins_nothing(fleet: Site, given: dict[str, Any], message: str) -> None:
    (fleet.folder / "play.yml").write_text("---\n- hosts: all\n  tasks: []\n")
    (fleet.folder / "pause.yml").write_text("---\n- block:\n    - ansible.builtin.pause: {seconds: 1}\n")
    printed = " ".join(fleet.play("command", **given, instructions=RULES, code=2).split())
    assert message in printed
    again = printed.rpartition("Next: ")[2]
    assert "playbooks/command.yml" in again or "playbooks/status.yml" in again
    # It does not fail in the same way.
    assert not [name for name in ("wait", "once", "sign_with") if name in given and name in again]
    assert fleet.consul.tree("upgrade/") == {}
    assert not fleet.entries()


@pytest.mark.thorough
def test_a_hook_is_notified_of_a_job_as_of_a_rollout(fleet: Site) -> None:
    fleet.fail("web3", "restart")
    with listening() as chat:
        given = {"upgrade_notify": str(example(fleet.folder)), "chat_webhook": chat.url}
        fleet.play("command", run_tasks="restart.yml", instructions=RULES, code=2, **given)
        assert (chat.events[0]["event"], chat.events[0]["hosts"]) == ("begin", 6)
        assert sorted(chat.names)[:2] == ["begin", "failure"]
        failure = next(one for one in chat.events if one["event"] == "failure")
        assert [one["host"] for one in failure["failures"]] == ["web3"]
        assert "restart is broken here" in failure["failures"][0]["error"]
        job = job_of(fleet)
        assert chat.events[0]["text"] == f"The job {job} was begun by {chat.events[0]['begun_by']}, for 6 hosts."
        assert failure["text"].startswith(f"The job {job}: 1 host failed or lost: web3 ")


@pytest.mark.thorough
def test_the_live_view_shows_where_the_hosts_of_a_job_are(fleet: Site) -> None:
    fleet.sleep(3)
    fleet.fail("web3", "restart")
    seen = fleet.on_terminal("command", environ=LIVE, run_tasks="restart.yml", instructions=RULES)
    try:
        seen.wait_for(lambda screen: re.search(r"job restart-.*: \d of 6 hosts done", screen))
        seen.wait_for(lambda screen: re.search(r"web +.* 2 running", screen))
        seen.wait_for(lambda screen: "restart is broken here" in screen)
        assert seen.end() == 2
    finally:
        seen.close()
    assert "upgrading" not in seen.text
