# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python libraries: none, the old one, the new one; and the connection set once for all modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from devkit.agent import ROOT, Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, names, seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.environments import OLD_LIBRARY, environment
from integration.support.runs.playbook import Runner, gate, info, plan, report


@pytest.fixture(scope="module")
def without_library() -> str:
    return environment("bare")


@pytest.fixture(scope="module")
def with_old_library() -> str:
    return environment("python-consul", OLD_LIBRARY)


@pytest.mark.thorough
def test_without_the_library_every_module_says_what_to_install(run: Runner, without_library: str) -> None:
    tasks = [plan(version="2", instructions=UNLIMITED), info(), report("compute1", "2", "started"), gate(state="reset")]
    for result in run(tasks, python=without_library):
        assert result["failed"]
        assert result["failure"]["code"] == "missing_library"
        assert result["failure"]["message"] == (
            f"The Python library 'consul' is missing for {without_library}: install it there with "
            "'pip install py-consul' (Python 3.10 or later)."
        )


@pytest.mark.thorough
def test_the_old_library_does_all_that_the_new_one_does(run: Runner, consul: RawKV, with_old_library: str) -> None:
    seed(consul, names(compute=3))
    rules = {"rolling_rules": {"global": 1}}
    tasks = [
        plan(version="2", instructions=rules),
        report("compute1", "2", "started"),
        report("compute1", "2", "upgraded"),
        plan(since="{{ 1 }}", wait_timeout=5),
        gate(scope="role", name="compute", value=False),
        info(name="compute2"),
    ]
    first, _started, _upgraded, second, _gate, seen = run(tasks, python=with_old_library)
    assert [one["host"] for one in first["transitions"]] == ["compute1"]
    assert [one["host"] for one in second["transitions"]] == ["compute2"]
    assert seen["host"]["state"] == "upgrading"
    assert gates(consul) == {
        "global": "False",
        "role/compute": "False",
        "host/compute1": "True",
        "host/compute2": "True",
    }
    assert "running/versions/2/compute1" in consul.texts("running/")


@pytest.mark.thorough
def test_a_blocking_query_of_the_old_library_returns_at_a_change(
    run: Runner, consul: RawKV, with_old_library: str
) -> None:
    seed(consul, names(compute=1))
    (first,) = run([plan(version="2", instructions=UNLIMITED)], python=with_old_library)
    live = run.start([plan(since=first["index"] + 10, wait_timeout=30)], python=with_old_library)
    for number in range(20):
        consul.put("upgrade/hold/host/other", str(number))
    (played,) = live.end(25)
    assert not played["failed"]


@pytest.mark.thorough
def test_the_old_librarys_own_reading_of_the_environment_does_not_win(
    run: Runner, agent: Agent, consul: RawKV, with_old_library: str
) -> None:
    seed(consul, names(compute=1))
    wrong = {"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": "", "CONSUL_HTTP_SSL": "true"}
    (seen,) = run([info(host="127.0.0.1", port=agent.http_port, scheme="http")], environ=wrong, python=with_old_library)
    assert list(seen["hosts"]) == ["compute1"]


@pytest.mark.thorough
def test_module_defaults_of_the_group_set_the_connection_once(run: Runner, agent: Agent, consul: RawKV) -> None:
    seed(consul, names(compute=1), prefix="fleets/a/")
    connection = {"host": "127.0.0.1", "port": agent.http_port, "kv_prefix": "fleets/a"}
    tasks = [
        plan(version="2", instructions=UNLIMITED),
        info(),
        report("compute1", "2", "upgraded"),
        gate(scope="global", value=True),
    ]
    played = run(
        tasks,
        play={"module_defaults": {"group/convoy.upgrade.consul": connection}},
        environ={"CONSUL_HTTP_ADDR": "127.0.0.1:1"},
    )
    assert [result["failed"] for result in played] == [False] * 4
    assert all(key.startswith("fleets/a/") for key in consul.texts())
    assert gates(consul, "fleets/a/")["global"] == "True"


@pytest.mark.thorough
def test_a_file_of_the_collection_never_imports_the_library_where_it_is_not_needed(without_library: str) -> None:
    """The model is for the standard library alone."""
    packages = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    link = packages / "ansible_collections" / "convoy" / "upgrade"
    rooms = ("_common", "_fleet", "_rules", "_rule_checks", "_host_states", "_planner")
    modules = [
        f"{room}.{path.stem}" for room in rooms for path in (link / "plugins" / "module_utils" / room).glob("*.py")
    ]
    assert "_planner.reconcile" in modules
    lines = "\n".join(f"import ansible_collections.convoy.upgrade.plugins.module_utils.{name}" for name in modules)
    code = f"import sys; sys.path.append({str(ROOT / '.cache' / 'model-only')!r})\n{lines}"
    folder = ROOT / ".cache" / "model-only" / "ansible_collections" / "convoy"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "upgrade"
    if not target.is_symlink():
        target.symlink_to(ROOT)
    subprocess.run([without_library, "-c", code], check=True)
