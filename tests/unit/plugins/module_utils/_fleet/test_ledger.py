# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: invalid values are refused when it is created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import before_job
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import (
    COMPLETE,
    RUNNING,
    STATES,
    Handover,
    Ledger,
    names_that_fit,
)


def test_a_ledger_needs_an_epoch_and_a_version_only() -> None:
    ledger = Ledger(1, "2.0")

    assert (ledger.state, ledger.instructions, ledger.members) == (RUNNING, {}, {})


def test_a_full_ledger() -> None:
    ledger = Ledger(9, "2.0", "1.0", COMPLETE, {"rolling_rules": {"global": 1}}, r"(\w+?)\d", {"compute": 3}, "ann", 7)

    assert (ledger.previous_version, ledger.members["compute"]) == ("1.0", 3)


def test_a_job_that_names_many_hosts_has_room_after_a_rollback_with_as_many_broken_ones_as_fit() -> None:
    rules = {"rolling_rules": {"global": 1}}
    ledger, many = Ledger(1, "1.0", instructions=rules, rollback=True), [f"compute{number}" for number in range(20_000)]
    broken = tuple(names_that_fit(many, ledger.room_for_broken))
    assert len(broken) > 5_000
    hosts = tuple(names_that_fit(many, 60_000))
    job = Ledger(
        1, "job/1", instructions=rules, before=before_job(replace(ledger, broken=broken)), targets={"hosts": hosts}
    )
    assert 0 <= job.room_for_names < 5_000
    # More admitted hosts leave less.
    assert replace(ledger, admitted=dict.fromkeys(many[:8_000], 1)).room_for_broken < 60_000


@pytest.mark.parametrize("state", STATES)
def test_a_rollout_may_be_in_any_of_four_states(state: str) -> None:
    assert STATES == ("running", "paused", "aborted", "complete")
    assert Ledger(1, "2.0", state=state).state == state


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("epoch", "3"),
        ("epoch", True),
        ("version", ""),
        ("version", 2.0),
        ("previous_version", 1.0),
        ("state", "asleep"),
        ("command", "ann"),
        ("rollback", 1),
        ("stage", [1]),
        ("stage", {"number": "1"}),
        ("stage", {"number": True}),
        ("command", ["by"]),
        ("rollback", "yes"),
        ("instructions", []),
        ("role_pattern", "(["),
        ("role_pattern", 3),
        ("members", ["compute"]),
        ("members", {"compute": "3"}),
        ("since", "noon"),
    ],
)
def test_an_invalid_field_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is ") as caught:
        Ledger(**{"epoch": 1, "version": "2.0", name: value})

    assert str(caught.value) == f"{name} is {value!r}"


@pytest.mark.parametrize(
    ("limit", "text", "is_of_all"),
    [
        (None, "all hosts", True),
        ((), "no host", False),
        (("web", "db1"), "web, db1", False),
        (("!~web1$",), "all hosts but web1", True),
        (("web", "!~fe80[:]1$", "!db*"), "web but fe80:1, db*", False),
        (("&~(web)$",), "&~(web)$", False),
    ],
)
def test_the_limit_of_a_handover_is_named_in_words(limit: tuple[str, ...] | None, text: str, is_of_all: bool) -> None:
    handover = Handover("2", 1, limit, "h1", "ann@desk", 2)
    assert (handover.limit_text(), handover.is_of_all) == (text, is_of_all)
