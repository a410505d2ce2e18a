# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One throw-away Consul for all of these tests, wiped before each, and a way to run playbooks on it."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.watch import BlockingQueries
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.agent import Agent, consul_binary
from devkit.kv import RawKV
from devkit.wipe import wipe
from integration.support.fleets.catalog import Catalog
from integration.support.fleets.fleet import seed
from integration.support.processes.agent_process import EVERYWHERE, Node
from integration.support.processes.guarded import guarded_agent
from integration.support.processes.planner_service import Service
from integration.support.runs.commands import FLEET, RULES
from integration.support.runs.coverage import Coverage
from integration.support.runs.inventories import Inventories
from integration.support.runs.playbook import Runner
from integration.support.runs.shipped import Shipped
from missing import missing

HERE = Path(__file__).parent
_LAST = "test_reference.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seen",
        type=Path,
        metavar="FOLDER",
        help="where sessions note which options and results they have seen, so that test_reference.py, in a session of its "
        "own after all others, can look back on them; without it that takes one session with all the tests",
    )
    parser.addoption(
        "--in-process",
        action="store_true",
        help="call modules directly where Ansible would do no more than that, which is a hundred times as quick",
    )


@pytest.fixture(scope="session")
def agent() -> Iterator[Agent]:
    try:
        consul_binary()
    except (OSError, subprocess.CalledProcessError) as error:
        missing(f"no Consul here: {error}")
    with Agent() as running:
        # What is there by now stays, so that a collection after each test is quick.
        gc.freeze()
        yield running


@pytest.fixture(autouse=True)
def queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BlockingQueries]]:
    """Blocking queries of a test end with it, or each write of the tests after it would wake them."""
    made: list[BlockingQueries] = []
    begin = BlockingQueries.__init__

    def begin_and_remember(self: BlockingQueries, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more)
        made.append(self)

    monkeypatch.setattr(BlockingQueries, "__init__", begin_and_remember)
    yield made
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Agent]:
    """A Consul of its own for a file, which allows nothing without a token."""
    with guarded_agent() as running:
        yield running


@pytest.fixture
def consul(agent: Agent) -> RawKV:
    """Consul as seen without the collection, and empty."""
    # Consul accepts 200 connections from one address. Those of earlier tests end with the objects that have them.
    gc.collect()
    wipe(agent.kv)
    return agent.kv


@pytest.fixture
def store(agent: Agent, consul: RawKV) -> Store:  # noqa: ARG001  it wipes
    """The collection's own store, for what a playbook would only make slower to show."""
    return Store(Settings(port=agent.http_port))


@pytest.fixture
def begun(store: Store, consul: RawKV) -> Store:
    """A rollout in which the controller may go."""
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", RULES))
    return store


@pytest.fixture(scope="session")
def seen(pytestconfig: pytest.Config) -> Iterator[Coverage]:
    """What all tests have used and seen, with what those of earlier sessions have noted in the folder --seen."""
    folder = pytestconfig.getoption("seen")
    found = Coverage()
    if folder is not None:
        found.load(folder)
    yield found
    if folder is not None:
        found.save(folder / f"{os.getpid()}.json")


@pytest.fixture
def run(agent: Agent, consul: RawKV, tmp_path: Path, seen: Coverage, pytestconfig: pytest.Config) -> Runner:  # noqa: ARG001  it wipes
    return Runner(tmp_path, agent.environ, seen, in_process=pytestconfig.getoption("in_process"))


@pytest.fixture
def play(agent: Agent, consul: RawKV, tmp_path: Path, seen: Coverage) -> Shipped:  # noqa: ARG001  it wipes
    return Shipped(tmp_path, agent, seen)


@pytest.fixture
def shelf(agent: Agent, consul: RawKV, tmp_path: Path, seen: Coverage) -> Inventories:  # noqa: ARG001  it wipes
    return Inventories(tmp_path, agent.environ, seen)


@pytest.fixture
def catalog(consul: RawKV) -> Catalog:
    return Catalog(consul)


@pytest.fixture
def whole_session(request: pytest.FixtureRequest) -> None:
    """Skip what only means something when all tests of this folder have run, in this session or in earlier ones."""
    if not request.config.stash.get(_WHOLE, False) and request.config.getoption("seen") is None:
        pytest.skip("only says something after all the integration tests")


_WHOLE = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the test that looks back on all others at the end."""
    items.sort(key=lambda item: item.path.name == _LAST)
    files = {item.path for item in items}
    config.stash[_WHOLE] = files >= set(HERE.rglob("test_*.py")) and not any(
        config.getoption(option) for option in ("keyword", "markexpr", "deselect")
    )


@pytest.fixture
def service(tmp_path: Path, store: Store) -> Iterator[Callable[..., Service]]:
    """Starts services, and ends them."""
    started: list[Service] = []

    def begin(name: str = "one", **settings: Any) -> Service:
        port = settings.pop("port", store.settings.port)
        started.append(Service(tmp_path, port, name, **settings))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.resume()
            one.kill()


@pytest.fixture
def node(consul: RawKV, agent: Agent, tmp_path: Path) -> Iterator[Node]:
    """A node at v1 of a fleet that is to run v2, not admitted yet."""
    consul.put("current_version", "v2")
    consul.put(EVERYWHERE, "False")
    found = Node(tmp_path, agent.http_port)
    found.install("r1")
    yield found
    found.stop()
    (tmp_path / "what").unlink(missing_ok=True)
