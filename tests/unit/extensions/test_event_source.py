# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source of Event-Driven Ansible, loaded from its file as ansible-rulebook does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._queries import notifications
from devkit.agent import ROOT
from memory_consul import MemoryConsul
from templates import trusted

FILE = ROOT / "extensions/eda/plugins/event_source/rollout.py"


def ledger(epoch: int, state: str) -> bytes:
    return json.dumps({"epoch": epoch, "version": "2", "previous_version": "1", "state": state, "since": 1}).encode()


@pytest.fixture
def consul() -> Iterator[MemoryConsul]:
    keys = {
        "current_version": b"2",
        "running/versions/1/compute1": b"1700000000",
        "upgrade/ledger": ledger(1, "running"),
        "upgrade/history/1": json.dumps({"epoch": 1, "what": "begin", "version": "2", "at": 1}).encode(),
    }
    with MemoryConsul(keys).in_place() as found:
        yield found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    loaded = runpy.run_path(str(FILE))
    # The Consul in memory has no blocking queries.
    still = SimpleNamespace(mark=lambda: 1, wait=lambda _mark, _seconds: True, close=lambda: None)
    monkeypatch.setitem(loaded["main"].__globals__, "Watch", lambda *_given: still)
    monkeypatch.setitem(loaded["main"].__globals__, "_LEAST_PAUSE", 0.01)
    return loaded["main"]


def pause(consul: MemoryConsul) -> None:
    entry = {"epoch": 2, "what": "pause", "version": "2", "at": 5, "by": "ann", "reason": "logins fail"}
    consul.keys |= {"upgrade/ledger": ledger(2, "paused"), "upgrade/history/2": json.dumps(entry).encode()}


def events_of(source: Any, args: dict[str, Any], *steps: Any, count: int = 1) -> list[dict[str, Any]]:
    """Return the first events after some steps, each made once the source has read."""

    async def play() -> list[dict[str, Any]]:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        task = asyncio.create_task(source(queue, args))
        found = []
        for step in steps:
            await asyncio.sleep(0.3)
            step()
        with contextlib.suppress(asyncio.TimeoutError):
            for _event in range(count):
                found.append(await asyncio.wait_for(queue.get(), 3))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return found

    return asyncio.run(play())


def test_what_happens_from_its_start_on_is_an_event(source: Any, consul: MemoryConsul) -> None:
    (found,) = events_of(source, {"host": "127.0.0.1"}, lambda: pause(consul))
    assert (found["event"], found["by"], found["reason"]) == ("pause", "ann", "logins fail")
    assert found["text"] == "The rollout to 2 was paused by ann: logins fail."
    json.dumps(found)


@pytest.mark.parametrize(
    "error",
    [
        "{{ 1 + 1 }}",
        "{% if true %}2{% endif %}",
        "{# nothing #}",
        "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n[[ 1 + 1 ]]",
    ],
)
def test_no_text_of_a_host_is_a_template(error: str, source: Any, consul: MemoryConsul) -> None:
    def fails() -> None:
        record = {"version": "2", "state": "failed", "role": "{{ role }}", "error": error, "times": {"failed": 3}}
        consul.keys["upgrade/hosts/compute1"] = json.dumps(record).encode()

    (found,) = events_of(source, {"events": ["failure"], "fleet": {"compute1": "compute"}}, fails)
    given = as_extra_variables(found)
    assert Templar(None, variables=given).template(given) == found


def as_extra_variables(value: Any) -> Any:
    """Return an event as ansible-rulebook gives it to Ansible: as JSON in a file with extra variables."""
    return DataLoader().load(trusted(json.dumps(value)))


def test_only_the_events_that_are_asked_for(source: Any, consul: MemoryConsul) -> None:
    assert events_of(source, {"events": ["failure"]}, lambda: pause(consul)) == []


@pytest.mark.parametrize(
    "error", [Unreachable("unreachable", "It is away."), UpgradeError("unreadable_ledger", "It has no JSON.")]
)
def test_what_was_missed_while_nothing_could_be_read_is_sent(
    error: UpgradeError,
    source: Any,
    consul: MemoryConsul,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = notifications.read_rollout

    def away() -> None:
        def fails(*_given: Any) -> Any:
            raise error

        monkeypatch.setattr(notifications, "read_rollout", fails)
        pause(consul)

    (found,) = events_of(source, {}, away, lambda: monkeypatch.setattr(notifications, "read_rollout", read))
    assert found["event"] == "pause"
    assert caplog.text.count("It is tried again.") == 1


def test_what_can_not_be_read_at_the_start_ends_it(source: Any, consul: MemoryConsul) -> None:
    consul.keys["upgrade/ledger"] = b"no JSON"
    with pytest.raises(UpgradeError, match="upgrade/ledger"):
        asyncio.run(source(asyncio.Queue(), {}))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hosts": "x"}, "hosts: there is no such argument"),
        ({"events": ["failed"]}, "events: 'failed' is not one of begin"),
    ],
)
def test_wrong_arguments_are_refused(source: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(UpgradeError, match=message):
        asyncio.run(source(asyncio.Queue(), args))


def test_it_finds_its_collection_without_the_loader_of_ansible(tmp_path: Path) -> None:
    # As it is installed: below a folder ansible_collections that is not on the path of Python.
    installed = tmp_path / "ansible_collections/convoy/upgrade"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(ROOT)
    file = installed / FILE.relative_to(ROOT)
    code = f"import runpy, sys; print(runpy.run_path({str(file)!r})['main'].__name__, sys.path[-1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"main {tmp_path}\n", 0), done.stderr
