# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates that an abort closes, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.operations import Change
from ansible_collections.convoy.upgrade.plugins.module_utils._passes import closed_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import abort
from ansible_collections.convoy.upgrade.plugins.module_utils._state.ledger_writer import MOST_GATES
from fleets import KEYS, OLD, Fleet, fleet


def closing(site: Fleet, *leases: str) -> list[tuple[str, str | None, str | None]]:
    """Return the gates that an abort writes, in order: name, before, after."""
    snapshot = replace(site.snapshot(), leases=frozenset(leases))
    found = closed_gates.gates_to_close(KEYS, snapshot, site.members)
    return [(one.key.removeprefix(KEYS.gates), one.before, one.after) for one in found]


def test_gates_of_admitted_hosts_are_closed_and_those_that_have_begun_go_on() -> None:
    site = fleet(compute=4).opened("compute1", "compute2", "compute3").started("compute2")
    assert closing(site) == [("host/compute1", "True", "False"), ("host/compute3", "True", "False")]


def test_a_lease_alone_is_no_start() -> None:
    site = fleet(compute=4).opened("compute1", "compute2").started("compute2")
    assert closing(site, "compute1", "compute2") == [("host/compute1", "True", "False")]


def test_a_host_that_has_begun_gets_a_gate_of_its_own_before_its_role_is_closed() -> None:
    site = fleet(compute=4).gated("True", "role/compute").started("compute1").upgraded("compute2").failed("compute4")
    assert closing(site, "compute3") == [
        *((f"host/compute{number}", None, "True") for number in (1, 2, 4)),
        ("role/compute", "True", "False"),
    ]


def test_gates_of_hosts_that_have_begun_are_left_as_they_are() -> None:
    site = fleet(compute=5).opened("compute1", "compute2", "compute3").gated("False", "host/compute4", "host/compute5")
    site.started("compute1", "compute4").failed("compute2", "compute5").upgraded("compute3")
    assert closing(site) == []


def test_a_host_that_was_admitted_and_is_silent_has_not_begun() -> None:
    assert closing(fleet(compute=2).opened("compute1")) == [("host/compute1", "True", "False")]


@pytest.mark.parametrize("wide", ["True", "true", "2.0", None])
def test_a_global_gate_that_is_open_or_missing_is_closed_last(wide: str | None) -> None:
    site = fleet(compute=4).gated("False", "host/compute3").opened("compute4").started("compute1").upgraded("compute2")
    site.gates.pop("global")
    if wide:
        site.gated(wide, "global")
    assert closing(site) == [
        ("host/compute1", None, "True"),
        ("host/compute2", None, "True"),
        ("host/compute4", "True", "False"),
        ("global", wide, "False"),
    ]


@pytest.mark.parametrize("wide", ["False", "1.0", "Flase", ""])
def test_a_global_gate_that_admits_no_host_is_left_as_it_is(wide: str) -> None:
    assert closing(fleet(compute=2).gated(wide, "global").started("compute1")) == []


def test_a_gate_that_is_open_for_the_version_is_open_and_one_for_another_is_not() -> None:
    site = fleet(compute=3).gated("2.0", "host/compute1").gated(OLD, "host/compute2", "role/compute")
    assert closing(site) == [("host/compute1", "2.0", "False")]


def test_gates_of_unknown_hosts_are_closed_too() -> None:
    assert closing(fleet(compute=1).opened("gone7").gated("true", "role/gone")) == [
        ("host/gone7", "True", "False"),
        ("role/gone", "true", "False"),
    ]


@pytest.mark.parametrize("text", ["", "Flase", None])
def test_unreadable_gates_admit_no_host_and_are_left_as_they_are(text: str | None) -> None:
    site = fleet(compute=2).gated(text, "host/compute1", "role/compute").opened("compute2")
    assert closing(site) == [("host/compute2", "True", "False")]


def test_where_all_is_closed_nothing_is_written() -> None:
    assert closing(fleet(compute=2).gated("False", "host/compute1", "role/compute").started("compute2")) == []


def test_the_history_says_of_each_gate_why_an_abort_wrote_it() -> None:
    gates = [
        Change(KEYS.gate("host", "compute1"), None, "True"),
        Change(KEYS.gate("host", "compute2"), "True", "False"),
        Change(KEYS.gate("role", "compute"), "True", "False"),
    ]
    assert closed_gates.closed_event(KEYS, gates) == {
        "hosts": {
            "compute1": "it has begun, so its gate stays open",
            "compute2": "the rollout was aborted",
        },
        "roles": {"compute": {"reason": "the rollout was aborted"}},
    }
    everywhere = [Change(KEYS.gate("global"), "True", "False")]
    assert list(closed_gates.closed_event(KEYS, everywhere)) == ["reason"]
    assert closed_gates.in_pieces(KEYS, [*gates, *everywhere], places=1) == [gates[:2], gates[2:], everywhere]


def test_records_of_hosts_that_a_shared_gate_admits_are_compared_before_it_closes() -> None:
    site = fleet(compute=4, web=2).gated("True", "role/compute", "global").started("compute1").opened("compute4")
    exposed = abort._admitted_by_shared_gates(site.snapshot(), site.members)
    assert exposed == {"compute2": "compute", "compute3": "compute", "web1": "web", "web2": "web"}
    places = (("role", "compute"), ("global",), ("host", "web1"))
    role, everywhere, host = (Change(KEYS.gate(*place), "True", "False") for place in places)
    assert abort._under(KEYS, [role], exposed) == ["compute2", "compute3"]
    assert abort._under(KEYS, [everywhere], exposed) == list(exposed)
    assert abort._under(KEYS, [host], exposed) == []


def test_each_gate_of_a_host_has_room_for_the_check_of_its_record() -> None:
    gates = [Change(KEYS.gate("host", f"compute{at}"), "True", "False") for at in range(100)]
    pieces = closed_gates.in_pieces(KEYS, gates, places=1)
    assert [one for piece in pieces for one in piece] == gates
    for piece in pieces:
        checks = abort._unchanged(KEYS, fleet().snapshot(), abort._closed_hosts(KEYS, piece))
        assert len(checks) == len(piece)
        assert len(checks) + len(piece) <= MOST_GATES
