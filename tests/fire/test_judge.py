# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge lets each process write only the keys that it is for: a node those of its own hosts, an operator those of its command."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest

from .facts import (
    APPROVALS,
    CURRENT,
    GATES,
    HANDOVER,
    HISTORY,
    HOLDS,
    LEASES,
    LEDGER,
    MARKS,
    NOTIFIED,
    ONCES,
    PLANNERS,
    RECORDS,
    REPORTS,
    WAKES,
)
from .findings import Findings
from .fleet import FLEET, NEW, OLD
from .journal import Reading, Write
from .judge import Judge
from .replay import Entry, State, Step
from .rules import CAPS, HEALTH, LONG_SOAKS, Rules
from .writers import mistakes

_BASE = {CURRENT: Entry(OLD, 1), **{f"{REPORTS}{OLD}/{host}": Entry("1", 2) for host in FLEET}}
_RECORD = json.dumps({"state": "failed", "version": OLD})
_PUT = Entry(_RECORD, 4)
_HOSTS_OF = {"nodes0": ["web1"], "push1": ["web1", "web2"]}
_ALLOWED = [
    ("planner1", f"{PLANNERS}planner1"),
    ("planner1", f"{WAKES}web1"),
    ("beginner", HANDOVER),
    ("notifier2", NOTIFIED),
    ("nodes0", f"{RECORDS}web1"),
    ("push1", f"{LEASES}web2"),
    ("holder", f"{HOLDS}global"),
]
_REFUSED = [
    *(
        (who, key)
        for who in ("nodes0", "nodes2")
        for key in (HANDOVER, f"{PLANNERS}one", f"{WAKES}web1", f"{ONCES}web1")
    ),
    ("planner1", HANDOVER),
    ("planner1", f"{RECORDS}web1"),
    ("planner1", f"{HOLDS}global"),
    ("operator", f"{REPORTS}{OLD}/web1"),
    ("reader", f"{WAKES}web1"),
    ("notifier1", f"{RECORDS}web1"),
]


def judged(who: str, *keys: str, after: Entry | None = _PUT) -> list[str]:
    """Return what the judge says of a write: an entry that is put, or None for one that is deleted."""
    before = {**_BASE, **{key: Entry("{}", 3) for key in keys}}
    left = {name: entry for name, entry in before.items() if name not in keys}
    step = Step(4, before, left if after is None else {**left, **dict.fromkeys(keys, after)}, Write(who, [], None))
    return [*mistakes(step, Write(who, [], None), _HOSTS_OF)]


def judged_event(who: str, what: str, *keys: str) -> list[str]:
    """Return what the judge says of a write with the ledger, whose event names web1."""
    event = json.dumps({"what": what, "hosts": {"web1": ""}})
    after = {**_BASE, **{key: Entry("{}", 4) for key in keys}, LEDGER: Entry("{}", 4), f"{HISTORY}1": Entry(event, 4)}
    write = Write(who, [], None)
    return [*mistakes(Step(4, _BASE, after, write), write, _HOSTS_OF)]


@pytest.mark.parametrize(("who", "key"), _REFUSED)
def test_no_process_writes_what_others_write(who: str, key: str) -> None:
    assert judged(who, key) == [f"{who} changed {key} beside the ledger"]


@pytest.mark.parametrize(("who", "key"), _ALLOWED)
def test_others_may(who: str, key: str) -> None:
    assert judged(who, key) == []


def test_a_planner_service_may_only_end_a_handover() -> None:
    assert judged("planner1", HANDOVER, after=None) == []


def test_no_process_writes_for_a_host_of_another() -> None:
    assert judged("nodes0", f"{RECORDS}web2") == [f"nodes0 changed {RECORDS}web2, and acts for web1"]
    assert judged("push1", f"{LEASES}web3") == [f"push1 changed {LEASES}web3, and acts for web1, web2"]
    assert judged("planner1", f"{PLANNERS}planner2") == [
        f"planner1 changed {PLANNERS}planner2, which is another planner's"
    ]


def test_one_write_is_for_one_host() -> None:
    found = judged("push1", f"{RECORDS}web1", f"{LEASES}web2")
    assert found == ["push1 changed keys of web1, web2 in one write"]


def test_a_write_counts_also_if_it_changes_nothing() -> None:
    write = Write("nodes0", [{"Verb": "check-index", "Key": CURRENT}, {"Verb": "set", "Key": CURRENT}], None)
    assert [*mistakes(Step(4, _BASE, _BASE, write), write, _HOSTS_OF)] == [
        f"nodes0 changed {CURRENT} beside the ledger"
    ]


@pytest.mark.parametrize(
    ("who", "what", "key"),
    [
        ("planner1", "open", f"{GATES}host/web1"),
        ("operator", "retry", f"{RECORDS}web1"),
        ("holder", "hold", f"{HOLDS}host/web1"),
        ("push1", "retry", f"{RECORDS}web1"),
    ],
)
def test_with_the_ledger_each_event_has_its_keys(who: str, what: str, key: str) -> None:
    assert judged_event(who, what, key) == []
    other = f"{REPORTS}{OLD}/web1"
    assert judged_event(who, what, key, other) == [f"{who} wrote {other} with an event {what}"]


def test_each_event_has_its_writers() -> None:
    for who, what in (
        ("nodes0", "open"),
        ("planner1", "pause"),
        ("holder", "retry"),
        ("beginner", "open"),
        ("reader", "rules"),
    ):
        assert judged_event(who, what) == [f"{who} wrote an event {what}"]
    assert judged_event("operator", "retry", f"{RECORDS}web2") == [
        f"operator wrote {RECORDS}web2 with an event retry, which does not name that host"
    ]


@pytest.mark.parametrize(
    ("rules", "gate", "record", "is_wrong"),
    [
        (CAPS, "True", None, True),
        (HEALTH, "True", None, False),
        (HEALTH, "False", None, True),
        (HEALTH, "False", "started", False),
        (HEALTH, "False", "failed", False),
        (HEALTH, "False", "upgraded", True),
    ],
)
def test_hosts_are_retried_that_are_neither_failed_nor_lost(
    rules: Rules, gate: str, record: str | None, is_wrong: bool
) -> None:
    before = {**_BASE, CURRENT: Entry(NEW, 1), f"{GATES}host/web1": Entry(gate, 2)}
    if record is not None:
        before[f"{RECORDS}web1"] = Entry(json.dumps({"state": record, "version": NEW, "times": {}}), 3)
    ledger = {"epoch": 1, "version": NEW, "state": "running", "instructions": {}, "admitted": {"web1": 2}}
    event = {"what": "retry", "epoch": 1, "hosts": {"web1": ""}}
    after = {LEDGER: Entry(json.dumps(ledger), 4), f"{HISTORY}1": Entry(json.dumps(event), 4)}
    findings = Findings()
    Judge(
        before,
        [Step(4, before, {**before, **after}, Write("operator", [], None))],
        lambda _given: rules,
        lambda _who, _at: 0.0,
        lambda _who, _at: 0.0,
        steady=True,
    ).judge(findings)
    assert any("web1 was retried" in one for one in findings.sentences()) == is_wrong


@pytest.mark.parametrize(
    ("what", "after", "is_wrong"),
    [("rules", Entry(NEW, 4), False), ("pause", Entry(NEW, 4), True), ("rules", Entry(OLD, 4), True)],
)
def test_other_rules_change_the_flags_of_the_version_alone(what: str, after: Entry, is_wrong: bool) -> None:
    ledger = {"epoch": 0, "version": NEW, "state": "running", "instructions": {}}
    before = {**_BASE, CURRENT: Entry(NEW, 1, 1), LEDGER: Entry(json.dumps(ledger), 2)}
    event = {"what": what, "epoch": 1}
    keys = {
        LEDGER: Entry(json.dumps({**ledger, "epoch": 1}), 4), f"{HISTORY}1": Entry(json.dumps(event), 4),
    }  # fmt: skip
    step = Step(4, before, {**before, **keys, CURRENT: after}, Write("operator", [], None))
    findings = Findings()
    Judge(before, [step], lambda _given: CAPS, lambda _who, _at: 0.0, lambda _who, _at: 0.0, steady=True).judge(
        findings
    )
    assert any(f"an event {what} changed current_version" in one for one in findings.sentences()) == is_wrong


def test_the_judge_says_so() -> None:
    key = f"{RECORDS}web2"
    step = Step(4, _BASE, {**_BASE, key: Entry(_RECORD, 4)}, Write("nodes0", [], None))
    findings = Findings()
    Judge(
        _BASE,
        [step],
        lambda _given: None,
        lambda _who, _at: 0.0,
        lambda _who, _at: 0.0,
        steady=True,
        hosts_of=_HOSTS_OF,
    ).judge(findings)
    assert findings.sentences() == [f"at index 4: nodes0 changed {key}, and acts for web1"]


@pytest.mark.parametrize(
    ("who", "value", "after", "is_forgiven"),
    [
        ("nodes0", "", 3.0, True),
        ("nodes0", "", 20.0, False),
        ("nodes1", "", 3.0, False),
        ("nodes0", _RECORD, 3.0, False),
    ],
)
def test_only_its_writer_takes_a_forbidden_start_back_and_soon(
    who: str, value: str, after: float, is_forgiven: bool
) -> None:
    key = f"{RECORDS}web1"
    before = {**_BASE, f"{GATES}global": Entry("False", 3)}
    started = {**before, key: Entry(json.dumps({"state": "started", "version": OLD}), 4)}
    then = {**before, key: Entry(value, 5)} if value else before
    first, second = Write("nodes0", [], None, at=100.0), Write(who, [], None, at=100.0 + after)
    first.answered_at, second.answered_at = 100.0, 100.0 + after
    findings = Findings()
    Judge(
        _BASE,
        [Step(4, before, started, first), Step(5, started, then, second)],
        lambda _given: None,
        lambda _who, _at: 0.0,
        lambda _who, _at: 0.0,
        steady=True,
    ).judge(findings)
    found = [one for one in findings.sentences() if "web1 started" in one]
    assert found == ([] if is_forgiven else [f"at index 4: web1 started {OLD} behind a closed gate"])


def test_a_start_that_is_taken_back_leaves_an_earlier_one_that_is_no_new_start() -> None:
    key = f"{RECORDS}web1"
    before = {
        **_BASE,
        f"{GATES}global": Entry("False", 3),
        key: Entry(json.dumps({"state": "started", "version": NEW}), 3),
    }
    started = {**before, key: Entry(json.dumps({"state": "started", "version": OLD}), 4)}
    steps = [
        Step(4, before, started, Write("nodes0", [], None, at=100.0)),
        Step(5, started, before, Write("nodes0", [], None, at=101.0)),
    ]

    def starts() -> list[str]:
        findings = Findings()
        Judge(before, steps, lambda _given: None, lambda _who, _at: 0.0, lambda _who, _at: 0.0, steady=True).judge(
            findings
        )
        return [one for one in findings.sentences() if "web1 started" in one]

    assert starts() == []
    # It is one if another writer does it.
    steps[1] = Step(5, started, before, Write("nodes1", [], None, at=101.0))
    assert [one.split(" started ")[0] for one in starts()] == ["at index 4: web1", "at index 5: web1"]


# When a planner read and wrote (unix seconds).
_AT = 1_000_020.5


def soaked(what: str, before: State, key: str, now: Mapping[str, object], ledger: Mapping[str, object]) -> list[str]:
    """Return what the judge says of what a planner with a right clock writes of soaks."""
    base = {"version": NEW, "state": "running", "instructions": {}, "begun_index": 3}
    was = {**_BASE, CURRENT: Entry(NEW, 1), **before}
    was.setdefault(LEDGER, Entry(json.dumps({**base, "epoch": 0}), 4))
    event = {"what": what, "epoch": 1, "at": int(_AT)}
    keys = {
        LEDGER: Entry(json.dumps({**base, "epoch": 1, **ledger}), 9),
        f"{HISTORY}1": Entry(json.dumps(event), 9),
        **({key: Entry(json.dumps(now), 9)} if key else {}),
    }
    read = [
        {"KV": {"Key": name, "Value": base64.b64encode(entry.value.encode()).decode(), "ModifyIndex": entry.index}}
        for name, entry in was.items()
    ]
    write = Write("planner1", [], Reading(1, _AT, json.dumps({"Results": read}).encode()), at=_AT)
    findings = Findings()
    judge = Judge(
        was,
        [Step(9, was, {**was, **keys}, write)],
        lambda _given: LONG_SOAKS,
        lambda _who, _at: 0.0,
        lambda _who, _at: 0.0,
        steady=True,
    )
    judge.judge(findings)
    return [one for one in findings.sentences() if "taken for well" in one or "the stage" in one]


@pytest.mark.parametrize(
    ("was", "since", "reported", "is_wrong"),
    [
        ({"version": NEW, "since": 1_000_011, "upgraded": False}, 1_000_011, 5, False),
        ({"version": NEW, "since": 1_000_019, "since_behind": 1_000_011, "upgraded": False}, 1_000_011, 5, False),
        # At first sight, as a host may only that had reported before the rollout began.
        ({}, 1_000_011, 5, True),
        ({}, 1_000_011, 3, False),
        ({"version": OLD, "since": 1_000_011, "upgraded": False}, 1_000_011, 5, True),
        ({"version": NEW, "since": None, "upgraded": False}, 1_000_011, 5, True),
        # Too early.
        ({"version": NEW, "since": 1_000_012, "upgraded": False}, 1_000_012, 5, True),
    ],
)
def test_a_host_counts_as_upgraded_once_a_planner_has_seen_it_soak(
    was: Mapping[str, object], since: int, reported: int, is_wrong: bool
) -> None:
    before = {f"{REPORTS}{NEW}/web1": Entry("1000010", reported)}
    if was:
        before[f"{MARKS}web1"] = Entry(json.dumps(was), 6)
    mark = {"version": NEW, "since": since, "upgraded": True}
    assert bool(soaked("health", before, f"{MARKS}web1", mark, {})) == is_wrong


@pytest.mark.parametrize(
    ("was", "now", "is_wrong"),
    [
        ({"number": 0}, {"number": 0, "done_at": 1_000_020}, False),
        ({"number": 0}, {"number": 0, "done_at": 1_000_011}, True),
        ({"number": 0, "done_at": 1_000_011}, {"number": 1}, False),
        ({"number": 0, "done_at": 1_000_012}, {"number": 1}, True),
        ({"number": 0, "done_at": 1_000_099, "behind": 1_000_011}, {"number": 1}, False),
        ({"number": 0, "done_at": 1_000_099}, {"number": 1}, True),
    ],
)
def test_a_stage_ends_after_it_has_soaked(was: dict[str, int], now: Mapping[str, int], is_wrong: bool) -> None:
    hosts = ("controller1", "compute1", "storage1", "web1")
    mark = json.dumps({"version": NEW, "since": 1_000_000, "upgraded": True})
    ledger = {"version": NEW, "state": "running", "instructions": {}, "begun_index": 3, "epoch": 0, "stage": {**was}}
    if "behind" in was:
        ledger = {**ledger, "stage": {"number": 0, "done_at": was["done_at"]}, "stage_behind": was["behind"]}
    before = {
        **{f"{REPORTS}{NEW}/{host}": Entry("1000000", 5) for host in hosts},
        **{f"{MARKS}{host}": Entry(mark, 5) for host in hosts},
        f"{APPROVALS}canary": Entry("{}", 5),
        LEDGER: Entry(json.dumps(ledger), 4),
    }
    assert bool(soaked("stage", before, "", {}, {"stage": now})) == is_wrong
