# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a planner service while it can't be opened, while the fleet can't be read, and at the end of the service."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service import outputs as tested
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.log import Log
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.outputs import Outputs
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.settings import ServiceSettings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service.systemd import Systemd


def _until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[..., Iterator[Any]]], Outputs]:
    """Start outputs with a page, for which a function yields what was read."""
    monkeypatch.setattr(tested, "BlockingQueries", lambda *_given: None)
    monkeypatch.setattr(tested, "_AGAIN", 0.1)

    def begin(follow: Callable[..., Iterator[Any]]) -> Outputs:
        monkeypatch.setattr(tested, "follow", follow)
        settings = ServiceSettings("one", Settings(), {}, page=str(tmp_path / "page"))
        return Outputs(settings, Log(Systemd({}), is_json=True))

    return begin


def test_a_page_that_can_not_be_opened_is_tried_again_while_the_rollout_goes_on(
    outputs: Callable[[Any], Outputs], tmp_path: Path
) -> None:
    def follow(*_given: Any, **_more: Any) -> Iterator[None]:
        while True:
            time.sleep(0.02)
            yield None

    kept = outputs(follow)
    time.sleep(0.2)
    assert kept._page is None
    (tmp_path / "page").mkdir()
    _until(lambda: kept._page is not None)
    kept.close()


def test_an_error_with_which_the_fleet_can_not_be_read_is_on_the_page(
    outputs: Callable[[Any], Outputs], tmp_path: Path
) -> None:
    def fail(_read: int) -> None:
        raise UpgradeError("unreadable_ledger", "The ledger is broken.")

    def follow(*_given: Any, **_more: Any) -> Iterator[None]:
        return map(fail, [1])

    (tmp_path / "page").mkdir()
    kept = outputs(follow)
    _until((tmp_path / "page/index.html").exists)
    assert "The ledger is broken." in (tmp_path / "page/index.html").read_text()
    kept.close()


@pytest.mark.parametrize("error", [UpgradeError("denied", "ACL not found"), KeyError("x")])
def test_while_the_fleet_can_not_be_read_silences_are_only_renewed(
    error: Exception, outputs: Callable[[Any], Outputs]
) -> None:
    def follow(*_given: Any, **_more: Any) -> Iterator[None]:
        yield None
        raise error

    kept = outputs(follow)
    told: list[Any] = []
    maintenance: Any = SimpleNamespace(update=told.append, warning="")
    kept._maintenance = [maintenance]
    _until(lambda: None in told and error in told)
    kept.close()


def test_the_page_says_that_the_service_has_ended_although_a_notification_hangs(
    outputs: Callable[[Any], Outputs],
) -> None:
    kept = outputs(lambda *_given, **_more: map(time.sleep, itertools.repeat(0.02)))
    calls: list[Any] = []
    page: Any = SimpleNamespace(close=lambda: calls.append("page"))
    notifier: Any = SimpleNamespace(finish=lambda **given: calls.append(given))
    kept._page, kept._notifier = page, notifier
    kept.close()
    assert calls == ["page", {"wait_for_holder": 0, "most_seconds": 10.0}]


def test_each_notifier_uses_the_queries_of_the_service(
    outputs: Callable[[Any], Outputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(tested, "BlockingQueries", lambda *_given: made.append(object()) or made[-1])
    used: list[object] = []

    def follow(*_given: Any, queries: object, **_more: Any) -> Iterator[None]:
        used.append(queries)
        while True:
            time.sleep(0.02)
            yield None

    def notifier(_start: Any, queries: object = None, *_given: Any, **_more: Any) -> Any:
        """Fail, as a notifier whose hook fails."""
        used.append(queries)
        return SimpleNamespace(wait=lambda: None, finish=lambda **_given: None)

    monkeypatch.setattr(tested, "Notifier", notifier)
    kept = outputs(follow)
    messenger: Any = object()
    kept._settings = replace(kept._settings, messenger=messenger)
    runtime.start_thread(kept._notify)
    _until(lambda: len(used) > 3)
    kept.close()
    assert len(made) == 1
    assert {*map(id, used)} == {id(made[0])}


def test_the_metrics_have_the_last_change_before_a_silence_and_are_written_again_in_it(
    outputs: Callable[[Any], Outputs], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[str] = []
    monkeypatch.setattr(tested, "_METRICS_EVERY", 0.2)
    monkeypatch.setattr(tested, "_METRICS_REFRESH", 0.5)
    monkeypatch.setattr(tested, "metrics_text", lambda _store, view: view)
    monkeypatch.setattr(tested, "write_atomically", lambda _path, text, _option: written.append(text))
    monkeypatch.setattr(tested, "read_text", lambda *_given: "")
    monkeypatch.setattr(tested, "ProgressUpdate", SimpleNamespace)

    def follow(*_given: Any, **_more: Any) -> Iterator[Any]:
        for text in ("first", "second"):
            yield SimpleNamespace(view=text, progress=SimpleNamespace(version="2", over=False))
        while True:
            time.sleep(0.02)
            yield None

    kept = outputs(follow)
    kept._settings = replace(kept._settings, page="", metrics_file=str(tmp_path / "x.prom"))
    kept._page = None
    _until(lambda: written[-2:] == ["second", "second"])
    kept.close()


def test_a_fault_is_logged_and_tried_again(
    outputs: Callable[[Any], Outputs], capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[int] = []

    def follow(*_given: Any, **_more: Any) -> Iterator[Any]:
        tries.append(1)
        yield 1 // 0

    kept = outputs(follow)
    _until(lambda: len(tries) > 2)
    kept.close()
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("ZeroDivisionError") == 1
