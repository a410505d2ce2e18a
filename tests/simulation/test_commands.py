# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command returns is compared with the keys: a success without its effect is found, and so is a failure after a write."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.hold import HoldTargets
from fire.facts import APPROVALS, CURRENT, GATES, HISTORY, HOLDS, LEDGER, RECORDS, WAKES
from fire.fleet import NEW, OLD
from fire.journal import Write
from fire.replay import Entry, State, Step
from fire.rules import CAPS, LOOSE
from greenlet import getcurrent

from .commands import CommandJudge
from .network import Network, StateReading
from .stand_ins import BEGIN

_WHOM = {"whom": HoldTargets(hosts=["web1"], roles=["web"])}
_HELD = {f"{HOLDS}host/web1": "{}", f"{HOLDS}role/web": "{}"}
# Command, what it is about, the keys with its effect, and such without it.
_EFFECTS: tuple[tuple[str, dict[str, Any], dict[str, str], dict[str, str]], ...] = (
    ("pause", {}, {"state": "paused"}, {"state": "running"}),
    ("resume", {}, {"state": "running"}, {"state": "paused"}),
    ("begin", {}, {"state": "running"}, {"state": "aborted"}),
    ("rollback", {}, {"state": "running", "version": OLD, "rollback": "yes"}, {"state": "running"}),
    ("abort", {}, {"state": "aborted"}, {"state": "running"}),
    ("abort", {}, {"state": "aborted"}, {"state": "aborted", f"{GATES}host/web1": "True"}),
    ("approve", {}, {f"{APPROVALS}canary": "{}"}, {}),
    ("change", {"rules": CAPS}, {"rules": "caps"}, {"rules": "loose"}),
    ("hold", _WHOM, _HELD, {f"{HOLDS}role/web": "{}"}),
    ("unhold", _WHOM, {}, {f"{HOLDS}role/web": "{}"}),
)


def keys(given: dict[str, str], index: int = 1) -> State:
    """Return keys: those with a slash as they are given, and the others as fields of the ledger."""
    ledger = {"version": NEW, "state": "running", **{key: one for key, one in given.items() if "/" not in key}}
    ledger["instructions"] = {"rules": ledger.pop("rules", "")}
    found = {CURRENT: NEW, f"{GATES}global": "False", LEDGER: json.dumps(ledger)}
    return {key: Entry(value, index) for key, value in {**found, **given}.items() if key in found or "/" in key}


class _Site:
    """A network, and an operator whose commands write what a test says."""

    def __init__(self, before: dict[str, str]) -> None:
        self.network = SimpleNamespace(world=SimpleNamespace(now=1.0), steps=[], now=keys(before), lines={})
        self.said: list[str] = []
        rules = {"caps": CAPS, "loose": LOOSE}
        self.judge = CommandJudge(
            cast(Network, self.network), "operator", lambda given: rules.get(given.get("rules", "")), self.said.append
        )

    def write(self, given: dict[str, str], who: str = "operator", at: float = 1.0) -> None:
        """Write keys in place of all others."""
        index = len(self.network.steps) + 2
        after = keys(given, index)
        self.network.steps.append(Step(index, self.network.now, after, Write(who, [], None, BEGIN + at)))
        self.network.now = after


def event(what: str, *hosts: str) -> dict[str, str]:
    return {f"{HISTORY}2": json.dumps({"what": what, "hosts": dict.fromkeys(hosts, "")})}


@pytest.mark.parametrize(("name", "about", "right", "wrong"), _EFFECTS)
def test_a_success_has_its_effect(
    name: str, about: dict[str, Any], right: dict[str, str], wrong: dict[str, str]
) -> None:
    of_pass = {"change": "rules", "begin": "begin", "rollback": "begin"}
    for at_first, written, found in ((wrong, right, 0), (right, None, 0), (wrong, None, 1), (right, wrong, 1)):
        site = _Site(at_first)
        if written is None:
            site.judge.give(name, lambda: None, about)
        else:
            given = {**written, **event(of_pass.get(name, name))}
            site.judge.give(name, lambda site=site, given=given: site.write(given), about)
        assert len(site.said) == found, site.said


def test_what_others_undo_later_is_no_mistake() -> None:
    site = _Site({"state": "running"})

    def act() -> None:
        site.write({"state": "paused"})
        site.write({"state": "running"}, who="planner1")

    site.judge.give("pause", act, {})
    assert site.said == []


@pytest.mark.parametrize("has_read", [True, False])
def test_an_abort_leaves_hosts_that_it_has_read_as_begun(has_read: bool) -> None:
    site = _Site({"state": "running"})
    started = {f"{RECORDS}web1": json.dumps({"state": "started", "version": NEW})}
    reading = StateReading(1, BEGIN, keys(started if has_read else {}))

    site.network.lines[1] = SimpleNamespace(name="operator", readings={getcurrent(): reading})
    site.judge.give("abort", lambda: site.write({"state": "aborted", f"{GATES}host/web1": "True"}), {})
    assert bool(site.said) != has_read


def test_a_write_of_an_earlier_command_does_not_count() -> None:
    site = _Site({"state": "running"})
    site.judge.give("pause", lambda: site.write({"state": "paused"}, at=0.5), {})
    assert site.said == []
    site = _Site({"state": "running"})

    def act() -> None:
        site.write({"state": "paused"}, at=0.5)
        raise UpgradeError("not_running", "It is over.")

    with pytest.raises(UpgradeError):
        site.judge.give("pause", act, {})
    assert site.said == []


@pytest.mark.parametrize(
    ("code", "name", "found"),
    [("not_running", "pause", 1), ("unreachable", "pause", 0), ("busy", "pause", 1), ("busy", "abort", 0)],
)
def test_a_failure_has_changed_nothing(code: str, name: str, found: int) -> None:
    site = _Site({"state": "running"})

    def act() -> None:
        site.write({"state": "paused"})
        raise UpgradeError(code, "It failed.")

    with pytest.raises(UpgradeError):
        site.judge.give(name, act, {})
    assert len(site.said) == found, site.said


def test_a_failed_pass_may_have_admitted_hosts_and_not_changed_the_rules() -> None:
    for what, found in (("open", 0), ("rules", 1)):
        site = _Site({"rules": "loose"})

        def act(site: _Site = site, what: str = what) -> None:
            site.write({"rules": "caps", **event(what)})
            raise UpgradeError("overtaken", "Another rollout was begun.")

        with pytest.raises(UpgradeError):
            site.judge.give("change", act, {"rules": CAPS})
        assert len(site.said) == found, site.said


def test_what_wakes_agents_is_no_effect() -> None:
    site = _Site({"state": "running"})
    site.judge.give("resume", lambda: site.write({"state": "running", f"{WAKES}web1": "1"}), {})
    assert site.said == []


@pytest.mark.parametrize(
    ("reset", "says", "more", "found"),
    [
        (["web1"], ["web1"], {}, 0),
        ([], ["web1"], {}, 1),
        (["web1"], [], {}, 1),
        (["web1"], ["web1"], {f"{GATES}host/web1": "True"}, 1),
        (["web1"], ["web1"], {f"{RECORDS}web1": json.dumps({"state": "failed", "version": NEW})}, 1),
    ],
)
def test_a_retry_has_reset_the_hosts_that_it_names(
    reset: list[str], says: list[str], more: dict[str, str], found: int
) -> None:
    site = _Site({})

    def act() -> Any:
        site.write({**event("retry", *reset), **more})
        return SimpleNamespace(hosts=says)

    site.judge.give("retry", act, {})
    assert len(site.said) == found, site.said
