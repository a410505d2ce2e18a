# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs on six real nodes: a restart two at a time and in order, refusals, signatures, and what is killed at each stage."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from integration.support.runs.playbook import Live
from lab.node import Node

from .conftest import MakeFleet
from .fleet import Fleet, enrolled, wait_for

ROLES = {**{f"controller{n}": "controller" for n in (1, 2)}, **{f"compute{n}": "compute" for n in range(1, 5)}}
RULES = {"rolling_rules": {"global": 2}, "role_order": {"compute": "controller"}, "failure_rules": {"fleet": 1}}
pytestmark = pytest.mark.thorough

COMMANDS = "/etc/convoy/commands.d"
SCHEMA = {
    "timeout": 60,
    "properties": {"grace": {"type": "number", "minimum": 0, "maximum": 60}},
    "required": ["grace"],
}
# It restarts a service of the node, and notes when it began and ended.
RESTART = """#!/bin/sh
echo "begin $(date +%s.%N)" >>/root/restarts
sleep "$CONVOY_ARG_GRACE"
systemctl restart cron
echo "end $(date +%s.%N)" >>/root/restarts
"""
ARGS = {"grace": 0.5}


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Fleet:
    """Six enrolled nodes at one version, with a command."""
    fleet = enrolled(make_fleet, ROLES)
    for node in fleet.lab.nodes.values():
        install(node, "restart", RESTART)
    return fleet


def install(node: Node, name: str, script: str, schema: dict[str, Any] | None = None, mode: int = 0o755) -> None:
    node.write(f"{COMMANDS}/{name}", script, mode)
    node.write(f"{COMMANDS}/{name}.json", json.dumps(SCHEMA if schema is None else schema), 0o644)


def command(fleet: Fleet, *, code: int = 0, **variables: Any) -> str:
    given: dict[str, Any] = {"run": "restart", "args": ARGS, "instructions": RULES, **variables}
    return fleet.play("command", code=code, **{name: value for name, value in given.items() if value is not None})


def abort(fleet: Fleet) -> None:
    fleet.play("abort", reason="the test goes on")


def one_line(text: str) -> str:
    return " ".join(text.split())


def spans(fleet: Fleet) -> dict[str, list[tuple[float, float]]]:
    """Return node -> when each of its restarts began and ended."""
    found = {}
    for name, node in fleet.lab.nodes.items():
        at = [float(one) for one in re.findall(r"[\d.]+$", node.read("/root/restarts") or "", re.M)]
        found[name] = list(zip(at[::2], at[1::2], strict=False))
    return found


def job_record(fleet: Fleet) -> dict[str, Any]:
    """Return what compute1 reported of its last job."""
    found: dict[str, Any] = json.loads(fleet.consul.get("upgrade/job_records/compute1") or b"{}")
    return found


def clear(fleet: Fleet) -> None:
    for node in fleet.lab.nodes.values():
        node.run("rm", "-f", "/root/restarts")


def test_a_service_is_restarted_two_at_a_time_and_in_order(fleet: Fleet) -> None:
    clear(fleet)
    before = fleet.consul.tree("config_state/")
    shown = command(fleet, args={"grace": 3})
    assert "6 of 6 hosts done" in shown
    assert fleet.consul.tree("config_state/") == before
    found = spans(fleet)
    assert {name: len(one) for name, one in found.items()} == dict.fromkeys(ROLES, 1)
    for role in ("controller", "compute"):
        mine = [one[0] for name, one in found.items() if ROLES[name] == role]
        assert max(sum(begin <= at < end for begin, end in mine) for at, _end in mine) == 2
    last_controller = max(end for name, one in found.items() if ROLES[name] == "controller" for _at, end in one)
    assert all(one[0][0] >= last_controller for name, one in found.items() if ROLES[name] == "compute")


def test_a_failing_command_spends_the_budget_and_a_node_without_it_says_so(fleet: Fleet) -> None:
    for node in fleet.lab.nodes.values():
        install(node, "fail", "#!/bin/sh\necho no disk\nexit 3\n")
    failed = command(fleet, run="fail", code=2)
    assert "[failure_budget]" in failed and "fail: exit status 3: no disk" in one_line(failed)
    abort(fleet)
    fleet.lab.nodes["compute2"].run("rm", f"{COMMANDS}/fail")
    refused = command(fleet, run="fail", only="compute2", code=2)
    assert "refused: This node has no command fail" in one_line(refused)
    abort(fleet)


def test_what_others_can_write_is_refused(fleet: Fleet) -> None:
    node = fleet.lab.nodes["compute1"]
    node.run("chmod", "g+w", f"{COMMANDS}/restart")
    refused = command(fleet, only="compute1", code=2)
    assert f"{COMMANDS}/restart can be written by other users" in one_line(refused)
    node.run("chmod", "g-w", f"{COMMANDS}/restart")
    node.run("chmod", "o+w", "/etc/convoy")
    fleet.play("retry", host="compute1")
    assert "/etc/convoy can be written by other users" in one_line(
        fleet.play("command", job=current_job(fleet), code=2)
    )
    node.run("chmod", "o-w", "/etc/convoy")
    abort(fleet)


def current_job(fleet: Fleet) -> str:
    return (fleet.consul.get("upgrade/current_job") or b"").decode().removeprefix("job/")


@pytest.fixture
def keys(fleet: Fleet, tmp_path: Path) -> Any:
    """Keys of ann, who may sign, and of bob, who may not; compute1 demands signatures meanwhile."""
    for name in ("ann", "bob"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    node = fleet.lab.nodes["compute1"]
    node.write("/etc/convoy/allowed_signers", f"ann {(tmp_path / 'ann.pub').read_text()}", 0o644)
    settings = json.loads(node.read("/etc/convoy/node.json") or "")
    node.write("/etc/convoy/node.json", json.dumps({**settings, "puppet_gate_require_signed_jobs": True}), 0o644)
    yield tmp_path
    node.write("/etc/convoy/node.json", json.dumps(settings), 0o644)


def test_signed_jobs_only(fleet: Fleet, keys: Path) -> None:
    clear(fleet)
    only = {"only": "compute1"}
    assert "is not signed" in one_line(command(fleet, **only, code=2))
    abort(fleet)
    assert "is signed with a key that is not in" in one_line(
        command(fleet, **only, sign_with=str(keys / "bob"), code=2)
    )
    abort(fleet)
    node = fleet.lab.nodes["compute1"]
    signed = {"run": "restart", "args": {"grace": 3}, "instructions": RULES, "sign_with": str(keys / "ann")}
    run = fleet.start("command", **only, **signed)
    wait_for(lambda: node.read("/root/restarts"), "the command runs")
    job = current_job(fleet)
    # Replayed, as by a stolen token that may write all keys: the same signed job, and all that admitted the host to it.
    kept = [one for one in entries(fleet) if not one["Key"].startswith(("upgrade/job_records/", "upgrade/history/"))]
    assert run.end(300).code == 0
    assert len(spans(fleet)["compute1"]) == 1
    fleet.consul.delete("upgrade/job_records/compute1")
    for one in kept:
        value = base64.b64decode(one["Value"] or "")
        assert fleet.consul.call("PUT", f"kv/{one['Key']}?flags={one['Flags']}", value)[2] == b"true"
    fleet.consul.put("upgrade/wake/compute1", str(time.time()))
    refused = "The job has run on this node already"
    wait_for(lambda: refused in (fleet.consul.get("upgrade/job_records/compute1") or b"").decode(), "it is refused")
    assert len(spans(fleet)["compute1"]) == 1
    assert job in node.run("ls", "/var/lib/convoy/jobs").stdout
    abort(fleet)


def entries(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the keys of jobs, gates and the ledger as Consul has them, with their flags."""
    found: list[dict[str, Any]] = json.loads(fleet.consul.call("GET", "kv/upgrade/?recurse")[2])
    return [one for one in found if one["Key"].startswith(("upgrade/job", "upgrade/current_job", "upgrade/ledger"))]


def test_a_job_that_was_changed_or_has_expired_is_refused(fleet: Fleet, keys: Path) -> None:
    clear(fleet)
    # The hold keeps the host waiting until its job was changed. As no other host is left, the run ends, and says so.
    fleet.play("hold", host="compute1", reason="test")
    command(fleet, only="compute1", sign_with=str(keys / "ann"), code=2)
    key = f"upgrade/jobs/{current_job(fleet)}"
    job = json.loads(fleet.consul.get(key) or b"{}")
    fleet.consul.put(key, json.dumps({**job, "args": {"grace": 0}}))
    fleet.play("unhold", host="compute1")
    assert "does not fit the job" in one_line(fleet.play("command", job=job["id"], code=2))
    fleet.consul.put(key, json.dumps({**job, "expires": 1_000_000_000}))
    fleet.play("retry", host="compute1")
    assert "The job expired" in one_line(fleet.play("command", job=job["id"], code=2))
    assert spans(fleet)["compute1"] == []
    abort(fleet)


def restart_on_compute1(fleet: Fleet, *, grace: int) -> tuple[Node, Live]:
    """Begin a job that restarts the service there, and return the node and the run once the command runs.

    :param grace: how long the command takes (seconds).
    """
    clear(fleet)
    node = fleet.lab.nodes["compute1"]
    run = fleet.start("command", run="restart", args={"grace": grace}, instructions=RULES, only="compute1")
    wait_for(lambda: node.read("/root/restarts"), "the command runs")
    return node, run


@pytest.mark.parametrize("whom", ["agent", "job", "controller"])
def test_what_is_killed_in_the_middle(whom: str, fleet: Fleet) -> None:
    node, run = restart_on_compute1(fleet, grace=5)
    job = current_job(fleet)
    if whom == "controller":
        run.process.kill()
        fleet.play("command", job=job)
        assert len(spans(fleet)["compute1"]) == 1
        return
    unit = "convoy-node.service" if whom == "agent" else "convoy-node-job.service"
    node.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit)
    played = run.end(300)
    if whom == "agent":
        # The job is a unit of its own.
        assert played.code == 0, played.stdout
        assert len(spans(fleet)["compute1"]) == 1
        return
    assert "so its result is unknown" in one_line(played.stdout)
    assert (node.read("/root/restarts") or "").count("begin") == 1
    abort(fleet)


def test_agent_and_control_node_are_killed_before_the_start(fleet: Fleet) -> None:
    clear(fleet)
    node = fleet.lab.nodes["compute1"]
    node.run("systemctl", "stop", "convoy-node.service")
    run = fleet.start("command", run="restart", args=ARGS, instructions=RULES, only="compute1")
    wait_for(lambda: fleet.consul.get("upgrade/job_gates/host/compute1") == b"True", "compute1 is admitted")
    run.process.kill()
    assert job_record(fleet).get("job") != current_job(fleet)
    node.run("systemctl", "start", "convoy-node.service")
    node.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "convoy-node.service")
    fleet.play("command", job=current_job(fleet))
    assert len(spans(fleet)["compute1"]) == 1


def test_the_end_of_a_job_outlives_an_outage_and_a_kill_before_its_report(fleet: Fleet) -> None:
    node, run = restart_on_compute1(fleet, grace=3)
    node.run("systemctl", "stop", "consul")
    try:
        wait_for(lambda: "end" in (node.read("/root/restarts") or ""), "the command has ended")
        state = f"/var/lib/convoy/jobs/{current_job(fleet)}.json"
        wait_for(lambda: json.loads(node.read(state) or "{}").get("state") == "done", "the node remembers it")
        for unit in ("convoy-node-job.service", "convoy-node.service"):
            node.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit, check=False)
        run.process.kill()
    finally:
        node.run("systemctl", "start", "consul")
    fleet.play("command", job=current_job(fleet))
    record = job_record(fleet)
    assert (record["state"], record["job"]) == ("done", current_job(fleet))
    assert len(spans(fleet)["compute1"]) == 1


def test_a_node_that_dies_in_the_middle_is_lost(fleet: Fleet) -> None:
    node, run = restart_on_compute1(fleet, grace=30)
    node.kill()
    node.boot()
    assert "the node restarted" in one_line(run.end(300).stdout)
    assert (node.read("/root/restarts") or "").count("begin") == 1
    abort(fleet)


def test_jobs_a_rollout_and_global_disable_that_begin_together(fleet: Fleet) -> None:
    clear(fleet)
    disable = fleet.start("global_disable")
    rivals = [
        fleet.start("command", run="restart", args=ARGS, instructions=RULES),
        fleet.start("command", run="restart", args=ARGS, instructions=RULES),
        fleet.start("upgrade", version="v2", instructions=RULES),
    ]
    ended = [one.end(600) for one in rivals]
    winners = [one for one in ended if one.code == 0]
    assert len(winners) == 1, "\n".join(one.stdout for one in ended)
    for one in ended:
        assert one in winners or re.search(r"\[(job_under_way|rollout_under_way|overtaken)\]", one.stdout), one.stdout
    # It only closes gates: a job goes on without any, a rollout opens them again. It names the one that had begun.
    disabled = disable.end(60)
    assert disabled.code == 0, disabled.stdout
    gates = fleet.consul.tree("config_state/enable_puppet/")
    is_job = ended.index(winners[0]) < 2
    everything = "\n".join([str(gates), disabled.stdout, *(one.stdout for one in ended)])
    assert gates["config_state/enable_puppet/global"] == (b"False" if is_job else b"True"), everything
    shown = one_line(disabled.stdout)
    began = "The job restart-" if is_job else "The rollout to v2 "
    if began not in shown:
        # It came first.
        assert "was begun by" not in shown, disabled.stdout
        assert is_job or "was closed by hand" in one_line(winners[0].stdout), winners[0].stdout
    assert len(spans(fleet)["compute1"]) == is_job
