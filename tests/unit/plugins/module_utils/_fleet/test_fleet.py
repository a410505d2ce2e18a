# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet: roles that are given, and roles found in names of hosts."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.failures import Failure
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    DEFAULT_ROLE_PATTERN,
    HostRecord,
    compile_role_pattern,
    role_by_name,
    roles_of_hosts,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.step_trail import StepStart


@pytest.mark.parametrize(
    ("host", "role"),
    [
        ("compute1", "compute"),
        ("compute10-az2", "compute"),
        ("cp1", "cp"),
        ("gcp-compute7", "compute"),
        ("compute", None),
        ("42", None),
        ("", None),
    ],
)
def test_the_role_is_found_in_a_name_of_letters_and_digits(host: str, role: str | None) -> None:
    assert role_by_name(host, compile_role_pattern(DEFAULT_ROLE_PATTERN)) == role


def test_an_empty_group_finds_no_role() -> None:
    assert role_by_name("7", compile_role_pattern(r"([a-z]*)\d")) is None
    assert role_by_name("7", compile_role_pattern(r"([a-z])?\d")) is None


def test_hosts_stand_in_natural_order_wherever_they_come_from() -> None:
    placed = roles_of_hosts({"compute10": "compute", "db": "compute"}, ["compute2", "controller1", "compute10"])

    assert list(placed.items()) == [
        ("compute2", "compute"),
        ("compute10", "compute"),
        ("controller1", "controller"),
        ("db", "compute"),
    ]


def test_a_role_that_is_given_wins_over_the_one_in_the_name() -> None:
    assert roles_of_hosts({"compute1": "controller"}, ["compute1"]) == {"compute1": "controller"}


def test_another_pattern() -> None:
    assert roles_of_hosts({}, ["gb-01-compute"], r"-([a-z]+)$") == {"gb-01-compute": "compute"}


def test_a_fleet_may_be_empty() -> None:
    assert roles_of_hosts({}, []) == {}


def test_hosts_without_a_role_are_refused_together() -> None:
    with pytest.raises(UpgradeError) as caught:
        roles_of_hosts({}, ["puzzle", "compute1", "enigma"])

    assert caught.value.code == "unplaced_hosts"
    assert caught.value.message == (
        "No role for enigma, puzzle: the host reported to Consul, and role_pattern '([a-z]+)(\\\\d+)(-.*)?' finds none "
        "in its name. Name it in fleet (host: role), or remove its keys if it is gone."
    )
    assert caught.value.details == {"hosts": ["enigma", "puzzle"]}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"a/b": "compute"}, "fleet: the host 'a/b' has a '/'"),
        ({"compute1": "comp/ute"}, "fleet.compute1: the role 'comp/ute' has a '/'"),
        ({"compute1": ""}, "fleet.compute1: a role must be text that is not empty, not ''."),
        ({1: "compute"}, "fleet: a host must be text that is not empty, not 1."),
    ],
)
def test_names_that_can_not_be_part_of_a_key_are_refused(named: dict[str, str], message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        roles_of_hosts(named, [])

    assert caught.value.code == "bad_name"
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "role_pattern: '(' is not a valid regular expression: missing ), unterminated subpattern at position 0."),
        ("[a-z]+", "role_pattern: '[a-z]+' has no group; the first group is the role."),
    ],
)
def test_a_bad_pattern_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        roles_of_hosts({}, [], pattern)

    assert (caught.value.code, caught.value.message) == ("bad_role_pattern", message)


def test_a_record_is_shown_without_the_fields_of_its_read() -> None:
    record = HostRecord(
        "2.0", "started", "nova", "stop", 2, None, {"started": 7}, "1.0", ("stop/nova",), "open", "1.0", (StepStart(3, "nova", "stop"),),
        (HostRecord("1.0", "upgraded", times={"upgraded": 2}),), None, (Failure(7, 1, "nova", "stop", "no space"),),
    )  # fmt: skip

    assert record.plain() == {
        "version": "2.0",
        "state": "started",
        "service": "nova",
        "step": "stop",
        "attempt": 2,
        "error": None,
        "times": {"started": 7},
        "reported": "1.0",
        "done": ["stop/nova"],
        "post": "open",
        "origin": "1.0",
        "trail": [[3, "nova", "stop"]],
        "former": [{"version": "1.0", "state": "upgraded", "attempt": 1, "times": {"upgraded": 2}}],
        "held": None,
        "failures": [[7, 1, "nova", "stop", "no space", 1]],
        "machine": None,
        "other_machine": None,
        "release": None,
        "role": None,
        "services": None,
        "next_step": None,
        "former_role": None,
    }


@pytest.mark.parametrize(
    ("service", "step", "where"),
    [
        (None, None, ""),
        ("nova", None, ", service nova"),
        (None, "stop", ", step stop"),
        ("nova", "stop", ", service nova, step stop"),
    ],
)
def test_a_record_has_service_and_step(service: str | None, step: str | None, where: str) -> None:
    assert HostRecord("2.0", "started", service, step).where() == where
