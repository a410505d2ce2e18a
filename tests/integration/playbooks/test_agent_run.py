# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agent runs by a real Ansible that fail before Puppet: what Consul and the node have then. The lab's tests have those that get further."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.processes.agent_process import EVERYWHERE, HOST, RECORD
from integration.support.runs.playbook import Played, Runner, Task
from integration.support.runs.push import WATCHED, in_groups
from missing import missing
from thorough import quick
from written_services import POST, TASKS, Roles

ROLE = {"ansible.builtin.include_role": {"name": "convoy.upgrade.puppet_gate", "rolespec_validate": False}}


class AgentRun:
    """A node at v1 of a fleet that is to run v2, and agent runs on it."""

    def __init__(self, folder: Path, run: Runner, consul: RawKV, port: int) -> None:
        consul.put("current_version", "v2")
        self.folder, self._run, self._consul = folder, run, consul
        self.version = folder / "version"
        self.version.write_text("v1\n")
        self.settings: dict[str, Any] = {
            "puppet_gate_host": HOST,
            "puppet_gate_role": "compute",
            "puppet_gate_version_file": str(self.version),
            "puppet_gate_facts_file": str(folder / "facts.d/convoy.txt"),
            "puppet_gate_lock_file": str(folder / "run/node.lock"),
            "puppet_gate_hooks_dir": str(folder / "hooks"),
            "puppet_gate_validation_dir": str(folder / "validation.d"),
            "puppet_gate_upgrade_packages": False,
            "puppet_gate_health_critical": True,
            "puppet_gate_agent": {"port": port},
        }
        # Tasks before the agent run.
        self.before: list[Task] = []

    def file(self, name: str, text: str, mode: int = 0o755) -> Path:
        """Write a hook or a validation."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)
        return path

    def __call__(self, code: int = 0, **settings: Any) -> Played:
        """Make an agent run, which has to end with a code."""
        environ = {**WATCHED, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        played = self._run([*self.before, ROLE], environ=environ, extra_vars={**self.settings, **settings})
        assert played.code == code, played.stdout
        return played

    def add_service(self, files: Mapping[str, str]) -> None:
        """Let the node run the composed tasks of a service. Its name is then that of Ansible's inventory, as it is for convoy-node."""
        Roles(self.folder / "roles").add("shop", files)
        composed = str(self.folder / "composed")
        options = {
            "upgrade_roles": {"compute": {"plane": "dataplane", "pull": True, "services": ["shop"]}},
            "folder": composed,
            "roles_path": [str(self.folder / "roles")],
        }
        self.before = [in_groups({"localhost": "compute"}), {"convoy.upgrade.compose_upgrade_tasks": options}]
        services = {"puppet_gate_services": composed, "puppet_gate_services_tmp": str(self.folder / "tmp")}
        self.settings |= {"puppet_gate_host": "localhost", "upgrade_variables_of": "localhost", **services}
        self.settings["upgrade_fact_subset"] = ["!all", "!min"]

    @property
    def record(self) -> dict[str, Any]:
        key = f"upgrade/hosts/{self.settings['puppet_gate_host']}"
        return json.loads(self._consul.texts(key)[key])

    @property
    def checks(self) -> dict[str, str]:
        found = json.loads(self._consul.call("GET", "agent/checks")[2])
        return {name: found[name]["Status"] for name in ("puppet", "validation")}


def is_away(consul: RawKV) -> bool:
    """Return whether the node is in Consul's maintenance mode."""
    return "_node_maintenance" in json.loads(consul.call("GET", "agent/checks")[2])


@pytest.fixture
def agent_run(tmp_path: Path, run: Runner, consul: RawKV, agent: Agent) -> AgentRun:
    """A node with passing checks."""
    for name in ("puppet", "validation"):
        check = {"Name": name, "TTL": "3600s", "Status": "passing"}
        assert consul.call("PUT", "agent/check/register", json.dumps(check).encode())[0] == 200
    return AgentRun(tmp_path, run, consul, agent.http_port)


@pytest.mark.parametrize("name", quick(1, ["hooks/undrain.d/10-traffic", "validation.d/10-answers"]))
def test_a_hook_that_could_not_run_fails_the_upgrade_and_makes_no_check_critical(
    name: str, agent_run: AgentRun
) -> None:
    drained = agent_run.folder / "drained"
    agent_run.file("hooks/drain.d/10-note", f"touch '{drained}'")
    path = agent_run.file(name, "exit 0", 0o644)
    agent_run(2)
    # Nothing was touched, so its services must go on to get traffic.
    assert agent_run.checks == {"puppet": "passing", "validation": "passing"}
    record = agent_run.record
    assert (record["state"], record["step"], record["version"]) == ("failed", "hooks", "v2")
    assert f"{path} begins with #! and is not executable" in record["error"]
    assert (agent_run.version.read_text(), drained.exists()) == ("v1\n", False)
    assert "started" not in record["times"]


def test_a_lock_that_can_not_be_taken_is_reported(agent_run: AgentRun) -> None:
    lock = agent_run.folder / "run/node.lock"
    lock.parent.mkdir()
    lock.symlink_to("elsewhere")
    agent_run(2)
    record = agent_run.record
    assert (record["state"], record["step"], record["version"]) == ("failed", "ask", "v2")
    assert record["error"].startswith(f"[bad_lock_file] path: {lock} can't be opened")
    assert (agent_run.checks["puppet"], agent_run.version.read_text()) == ("critical", "v1\n")


@pytest.mark.thorough
def test_a_hook_that_hangs_is_ended_after_the_limit_in_the_settings(agent_run: AgentRun) -> None:
    agent_run.file("hooks/drain.d/10-hangs", "exec sleep 300")
    agent_run(2, puppet_gate_hooks_timeout=1)
    record = agent_run.record
    assert (record["state"], record["step"], agent_run.version.read_text()) == ("failed", "drain", "")
    assert "10-hangs took longer than 1 s and was ended" in record["error"]


def test_without_checks_and_behind_a_closed_gate_bad_settings_hold_the_host_until_they_are_right(
    agent_run: AgentRun, consul: RawKV, store: Store
) -> None:
    consul.put(EVERYWHERE, "False")
    bad = "node.json: puppet_gate_rle is not a setting; did you mean puppet_gate_role? Correct or remove it."
    upgraded = {"version": "v1", "state": "upgraded", "attempt": 1, "times": {"upgraded": 1}, "reported": "v1"}
    consul.put(RECORD, json.dumps(upgraded))
    consul.put(f"running/versions/v1/{HOST}", "1")
    agent_run(2, puppet_gate_unusable=bad, puppet_gate_health=False)
    # Nothing has failed, so it takes no slot.
    assert agent_run.record == {**upgraded, "held": f"its settings can't be used: {bad}"}
    host = make_pass(store, PassRequest("v2", {"rolling_rules": {"global": 1}})).plan.hosts[HOST]
    assert (host.state, host.holds_itself) == ("held", True)
    assert agent_run.checks == {"puppet": "passing", "validation": "passing"}
    agent_run()
    assert agent_run.record == upgraded
    # A hold for another reason stays. With checks, those say it.
    for record, health in (({**upgraded, "held": "its disk"}, False), (upgraded, True)):
        consul.put(RECORD, json.dumps(record))
        agent_run(2, puppet_gate_unusable=bad, puppet_gate_health=health)
        assert agent_run.record == record
    assert agent_run.checks["puppet"] == "critical"


@pytest.mark.thorough
@pytest.mark.parametrize("step", quick(1, ["validate", "upgrade", "post_upgrade"]))
def test_a_service_that_includes_a_role_that_is_not_found_is_reported_as_failed(
    step: str, agent_run: AgentRun, consul: RawKV
) -> None:
    # Ansible sets no failed result then. The composition can't find it, because the name comes from a variable.
    include = "- name: Include it\n  ansible.builtin.include_role: {name: '{{ \"not_there\" }}'}\n  tags: [TAG]\n"
    note = "- name: Do it\n  ansible.builtin.debug: {msg: it}\n  tags: [upgrade]\n"
    if step == "post_upgrade":
        agent_run.add_service({TASKS: note, POST: include.replace("  tags: [TAG]\n", "")})
        upgraded = {"version": "v2", "state": "upgraded", "reported": "v2", "post": "open"}
        consul.put("upgrade/hosts/localhost", json.dumps(upgraded))
        agent_run.version.write_text("v2\n")
        # Puppet comes before these tasks.
        agent_run.settings["puppet_gate_manifest"] = str(agent_run.file("bin/puppet", "exit 0"))
    else:
        agent_run.add_service({TASKS: note + include.replace("TAG", step)})
    agent_run(2)
    record = agent_run.record
    if step == "post_upgrade":
        assert (record["state"], record["post"]) == ("upgraded", "failed")
    else:
        assert (record["state"], record["version"]) == ("failed", "v2")
        assert record["step"] == ("services" if step == "validate" else "upgrade")
        assert record["error"].startswith(
            "Ansible failed it without a result, such as for a role or file that it can't include"
        )


def test_a_run_without_the_settings_of_the_node_does_not_leave_out_its_services(agent_run: AgentRun) -> None:
    agent_run.add_service({TASKS: "- name: Refuse\n  fail: {msg: not before noon}\n  tags: validate\n"})
    # As over SSH, where only the inventory counts.
    found = {"puppet_gate_services": agent_run.settings.pop("puppet_gate_services")}
    agent_run.settings["puppet_gate_settings_dir"] = str(agent_run.folder / "etc")
    (agent_run.folder / "etc").mkdir()
    (agent_run.folder / "etc/node.json").write_text(json.dumps(found))
    agent_run(2)
    record = agent_run.record
    assert (record["state"], record["step"]) == ("failed", "services")
    assert "not before noon" in record["error"]
    assert "started" not in record["times"]


@pytest.mark.thorough
def test_post_upgrade_tasks_that_can_not_begin_are_reported_as_failed(agent_run: AgentRun, consul: RawKV) -> None:
    note = "- name: Do it\n  ansible.builtin.debug: {msg: it}\n"
    agent_run.add_service({TASKS: f"{note}  tags: [upgrade]\n", POST: note})
    upgraded = {"version": "v2", "state": "upgraded", "reported": "v2"}
    agent_run.version.write_text("v2\n")
    agent_run.settings["puppet_gate_manifest"] = str(agent_run.file("bin/puppet", "exit 0"))
    agent_run.settings["puppet_gate_services"] = str(agent_run.folder / "gone")
    for post in ("open", "failed"):
        consul.put("upgrade/hosts/localhost", json.dumps({**upgraded, "post": post}))
        agent_run(2)
        record = agent_run.record
        assert (record["state"], record["post"], "post_failed" in record["times"]) == ("upgraded", "failed", True)
        assert record["error"].startswith("[bad_folder] ")


@pytest.mark.parametrize(
    ("task", "code"),
    quick(1, [("not_a_module: {}", 4), ("ansible.builtin.include_role: {name: ends}", 0)]),
    ids=["module that is not found", "end_host"],
)
def test_an_upgrade_that_ansible_ends_by_itself_leaves_a_note_and_the_next_run_reports_it(
    task: str, code: int, agent_run: AgentRun, consul: RawKV
) -> None:
    note = agent_run.folder / "run/last_run"
    agent_run.add_service({TASKS: f"- name: Do it\n  {task}\n  tags: [upgrade]\n"})
    Roles(agent_run.folder / "roles").add("ends", {"tasks/main.yml": "- ansible.builtin.meta: end_host\n"})
    agent_run(code, puppet_gate_run="12-34", puppet_gate_maintenance=True)
    assert (agent_run.record["state"], agent_run.version.read_text()) == ("started", "")
    assert (note.read_text(), is_away(consul)) == ("working 12-34\n", True)
    # As convoy-node does then. Before it takes the lock, so it can't leave a note.
    why = f"Ansible ended the agent run (exit code {code}) without a report."
    agent_run(2, puppet_gate_cut_short=why, puppet_gate_maintenance=True)
    record = agent_run.record
    assert (record["state"], record["version"], record["step"], record["error"]) == ("failed", "v2", "ask", why)
    assert (agent_run.checks["puppet"], is_away(consul)) == ("critical", False)


@pytest.mark.thorough
def test_a_run_that_ends_with_its_last_tasks_leaves_no_such_note(agent_run: AgentRun) -> None:
    agent_run.file("hooks/drain.d/10-fails", "exit 1")
    agent_run(2, puppet_gate_run="12-34")
    assert (agent_run.record["step"], (agent_run.folder / "run/last_run").read_text()) == ("drain", "ended\n")
    # Nor does one that finds the lock.
    lock = agent_run.folder / "run/node.lock"
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        agent_run(puppet_gate_run="56-78")
    assert (agent_run.folder / "run/last_run").read_text() == "locked\n"


# A Python for modules with a file system of its own, in which Puppet is disabled.
DISABLED = """\
#!/bin/sh
exec unshare --mount sh -c '
  mount -t tmpfs tmpfs /var/cache && mkdir -p /var/cache/puppet/state &&
  echo "{\\"disabled_message\\": \\"its disk\\"}" >/var/cache/puppet/state/agent_disabled.lock &&
  exec "$0" "$@"' "{python}" "$@"
"""


def test_a_host_whose_puppet_is_disabled_is_held_also_if_its_last_report_was_lost(
    agent_run: AgentRun, consul: RawKV
) -> None:
    python = agent_run.folder / "python"
    python.write_text(DISABLED.replace("{python}", sys.executable))
    python.chmod(0o755)
    if subprocess.run([python, "-c", ""], check=False).returncode:
        missing("This process may not mount a file system for a child.")
    agent_run.version.write_text("v2\n")
    consul.put(RECORD, json.dumps({"version": "v2", "state": "started", "attempt": 1, "times": {"started": 1}}))
    for _run in range(2):
        agent_run(ansible_python_interpreter=str(python))
        record = agent_run.record
        assert (record["state"], record["version"], record["held"]) == ("upgraded", "v2", "its disk")


@pytest.mark.thorough
@pytest.mark.parametrize("is_there", quick(1, [False, True]))
def test_only_a_release_that_is_there_is_left_to_convoy_node_to_try(is_there: bool, agent_run: AgentRun) -> None:
    home = agent_run.folder / "opt"
    (home / "releases").mkdir(parents=True)
    (home / "next").symlink_to("releases/r2")
    if is_there:
        (home / "releases/r2").mkdir()
    agent_run.settings |= {
        "puppet_gate_home": str(home),
        "puppet_gate_release": "r1",
        "puppet_gate_facts_file": str(agent_run.folder / "facts.txt"),
        "puppet_gate_manifest": str(agent_run.file("bin/puppet", "exit 0")),
    }
    agent_run(puppet_gate_run="12-34")
    assert (home / "trial").exists() == is_there
    assert not is_there or (home / "trial").read_text() == "r2 12-34\n"
    record = agent_run.record
    assert (record["state"], agent_run.version.read_text()) == (("started", "") if is_there else ("upgraded", "v2\n"))


# It finds a lock of the package manager in its first runs, and the global gate has another value after the first.
LOCKED = """echo run >>'{runs}'
runs=$(wc -l <'{runs}')
[ $runs -gt {locked} ] && exit 0
[ $runs = 1 ] && '{python}' -c '
import urllib.request as web
web.urlopen(web.Request("{url}/v1/kv/config_state/enable_puppet/global", b"{gate}", method="PUT")).close()'
echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"
exit 4"""


@pytest.mark.parametrize(
    ("is_upgrade", "gate", "seconds", "code", "count"),
    quick(
        1,
        [
            # The gate is closed, so Puppet does not run again.
            (False, "False", 600, 0, 1),
            # An upgrade waits by itself, and goes on.
            (True, "False", 600, 0, 3),
            (False, "True", 600, 0, 3),
            (False, "True", 4, 2, 2),
        ],
    ),
)
def test_puppet_that_is_locked_runs_again_only_as_long_as_the_gate_stays_open(
    is_upgrade: bool, gate: str, seconds: int, code: int, count: int, agent_run: AgentRun, consul: RawKV
) -> None:
    agent_run.version.write_text("v1\n" if is_upgrade else "v2\n")
    consul.put("config_state/enable_puppet/global", "True")
    runs = agent_run.folder / "runs"
    body = LOCKED.format(runs=runs, locked=2, python=sys.executable, url=consul.url, gate=gate)
    manifest = str(agent_run.file("bin/puppet", body))
    done = agent_run(code, puppet_gate_manifest=manifest, puppet_gate_lock_timeout=seconds)
    assert runs.read_text().count("run") == count
    why = "the gate has changed while Puppet waited for another run, or for the package manager"
    assert (f"{HOST}: {why}" in done.stdout) == (count == 1)
    assert agent_run.checks["puppet"] == ("critical" if code else "passing")
    if code:
        assert (agent_run.record["step"], agent_run.record["state"]) == ("puppet", "failed")
        assert "Could not get lock" in agent_run.record["error"]
