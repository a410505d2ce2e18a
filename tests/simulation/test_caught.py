# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A night fails by a crash that the product catches to go on, and by an actor that never gets an answer from Consul."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.notifier import Notifier
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.waiting_hosts import RunAdmission
from fire.actors import patience
from greenlet import GreenletExit

from . import night
from .start import simulated
from .world import Process, World


def _raise(error: BaseException) -> None:
    raise error


def _process(world: World, act: Callable[[], object]) -> Process:
    """Return a process after two minutes."""
    process = Process(world, "one")
    process.start(act)
    world.run(120, lambda: False)
    return process


def test_a_night_in_which_a_notifier_crashes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "_WITH_NOTIFIERS", 1.0)
    monkeypatch.setattr(Notifier, "_send_new", lambda _notifier: _raise(KeyError("epoch")))
    first, *_others = night.run(4).violations
    assert first.startswith("notifier1 ended with CaughtByTheProduct(KeyError('epoch'))")
    assert "in _send_all" in first


@pytest.mark.parametrize(
    ("error", "is_crash"),
    [(KeyError("host"), True), (Unreachable("unreachable", "Consul is away."), False), (GreenletExit(), False)],
    ids=["crash", "answer", "kill"],
)
def test_a_pass_that_crashes_ends_its_push_run(error: BaseException, is_crash: bool) -> None:
    hosts = SimpleNamespace(
        _pass=lambda: _raise(error),
        _queued=[],
        _waiting={},
        _failure="",
        _changed=SimpleNamespace(notify_all=lambda: None),
    )
    with simulated("a pass") as world:
        process = _process(world, lambda: RunAdmission._try_pass(cast(RunAdmission, hosts)))
        assert repr(process.error) == ("CaughtByTheProduct(KeyError('host'))" if is_crash else "None")
        assert ("_try_pass" in process.stack) == is_crash


@pytest.mark.parametrize("answers_at", [50.0, None])
def test_an_actor_to_which_consul_is_away_for_a_minute_ends(answers_at: float | None) -> None:
    began: list[float] = []

    def ask() -> None:
        began.append(runtime.monotonic())
        while True:
            with patience():
                runtime.sleep(1)
                if answers_at is None or (runtime.monotonic() - began[0]) % answers_at > 3:
                    raise Unreachable("unreachable", "Consul is away.")

    with simulated("away") as world:
        process = _process(world, ask)
        assert isinstance(process.error, Unreachable) == (answers_at is None)
