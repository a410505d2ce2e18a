# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory from Consul: the hosts of the fleet, their roles and their facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import STATES
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import (
    FleetSurvey,
    InventoryOptions,
    combine,
)
from fleets import NEW, OLD, Fleet, fleet
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_fleets

Node = dict[str, Any]
PLANES = {"controller": "controlplane", "compute": "dataplane", "tools": None}


def node(name: str, address: str = "10.0.0.1", **meta: str) -> Node:
    """Return a node of the catalog."""
    return {"Node": name, "Address": address, "Datacenter": "dc1", "TaggedAddresses": None, "Meta": meta or None}


def no_hosts(**ledger: Any) -> Snapshot:
    """Return a snapshot without reports."""
    return Snapshot(ledger=Ledger(1, NEW, **ledger) if ledger else None)


def survey(snapshot: Snapshot, *catalog: Node, health: Mapping[str, str] | None = None, **options: Any) -> FleetSurvey:
    return combine(snapshot, catalog, health or {}, InventoryOptions(**options))


def roles(found: FleetSurvey) -> dict[str, Any]:
    return {host: facts["role"] for host, facts in found.hosts.items()}


def refusal(snapshot: Snapshot, *catalog: Node, **options: Any) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        survey(snapshot, *catalog, **options)
    return caught.value


def test_a_host_of_the_catalog_the_reports_or_the_records_is_there_in_natural_order() -> None:
    there = Fleet({}).running(OLD, "compute10", "compute1").started("compute3").snapshot()
    found = survey(there, node("compute2"), node("compute1"), roles={"zeta": "tools"})
    assert list(found.hosts) == ["compute1", "compute2", "compute3", "compute10", "zeta"]
    assert [facts["registered"] for facts in found.hosts.values()] == [True, True, False, False, False]
    assert [facts["version"] for facts in found.hosts.values()] == [OLD, None, None, OLD, None]


def test_all_that_is_reported_of_a_host() -> None:
    there = fleet(compute=2).held("host/compute2").gated("Flase", "host/compute1").snapshot()
    catalog = {**node("compute1", rack="7"), "TaggedAddresses": {"lan": "10.0.0.7"}}
    found = survey(there, catalog, health={"compute1": "passing"}, planes=PLANES)
    gate = "config_state/enable_puppet/"
    reason = found.hosts["compute1"].pop("reason")
    assert "holds 'Flase'" in reason
    assert "no cap limits role compute" in reason
    assert found.hosts == {
        "compute1": {
            "role": "compute", "group": None, "plane": "dataplane", "state": "pending", "version": OLD,
            "gate": "unreadable", "gate_key": f"{gate}host/compute1", "hold": None, "address": "10.0.0.7", "registered": True,
            "datacenter": "dc1", "meta": {"rack": "7"}, "health": "passing",
        },
        "compute2": {
            "role": "compute", "group": None, "plane": "dataplane", "state": "held", "version": OLD,
            "reason": "held by ann since noon: RAM test (ends with ansible-playbook convoy.upgrade.unhold -e host=compute2)",
            "gate": "closed", "gate_key": f"{gate}global",
            "hold": "held by ann since noon: RAM test (ends with ansible-playbook convoy.upgrade.unhold -e host=compute2)",
            "address": None, "registered": False, "datacenter": None, "meta": {}, "health": None,
        },
    }  # fmt: skip
    assert (found.left_out, found.warnings) == ([], [])


def test_the_role_is_the_one_given_else_the_nodes_own_else_the_names() -> None:
    catalog = [node("a1", role="b"), node("c1", role="d"), node("e1"), node("f1", role="")]
    assert roles(survey(no_hosts(), *catalog, roles={"a1": "given"})) == {
        "a1": "given",
        "c1": "d",
        "e1": "e",
        "f1": "f",
    }
    assert roles(survey(no_hosts(), node("a1", kind="b", role="c"), role_meta="kind")) == {"a1": "b"}
    assert roles(survey(no_hosts(), node("a1", role="c"), role_meta="")) == {"a1": "a"}


def test_the_pattern_is_the_one_given_else_the_ledgers() -> None:
    catalog = node("x1-compute")
    assert roles(survey(no_hosts(role_pattern=r"-(\w+)"), catalog)) == {"x1-compute": "compute"}
    assert roles(survey(no_hosts(role_pattern=r"-(\w+)"), catalog, role_pattern="^(.)")) == {"x1-compute": "x"}
    assert roles(survey(no_hosts(), catalog)) == {"x1-compute": "x"}
    assert refusal(no_hosts(), catalog, role_pattern="x").code == "bad_role_pattern"


def test_a_node_without_a_role_is_ignored_grouped_or_refused() -> None:
    catalog = [node("compute1"), node("consul", rack="7"), node("db")]
    assert survey(no_hosts(), *catalog).left_out == ["consul", "db"]
    grouped = survey(no_hosts(), *catalog, unplaced="group")
    assert roles(grouped) == {"compute1": "compute", "consul": None, "db": None}
    assert grouped.left_out == []
    assert grouped.hosts["consul"]["state"] is None
    assert grouped.hosts["consul"]["reason"] == "it has no role, so it is not part of the fleet"
    assert grouped.hosts["consul"]["meta"] == {"rack": "7"}
    assert grouped.hosts["consul"].keys() == grouped.hosts["compute1"].keys()
    error = refusal(no_hosts(), *catalog, unplaced="fail")
    assert error.code == "unplaced_hosts"
    assert error.details == {"hosts": ["consul", "db"]}
    assert error.message == (
        "No role for consul, db: the node is in Consul's catalog, and neither roles nor the key 'role' of its node's metadata "
        r"nor role_pattern '([a-z]+)(\\d+)(-.*)?' gives one. Name it in roles (host: role), or set unplaced to ignore or group."
    )


def test_where_the_roles_are_known_nodes_of_others_are_none_of_the_fleet() -> None:
    catalog = [node("compute1"), node("consul1"), node("gw", role="computer")]
    found = survey(no_hosts(), *catalog, planes=PLANES)
    assert roles(found) == {"compute1": "compute"}
    assert found.left_out == ["consul1", "gw"]
    assert found.warnings == [
        "The role 'computer' is not in upgrade_roles; did you mean 'compute'? Nodes with that role in the key 'role' of their "
        "metadata are not part of the fleet: gw."
    ]
    assert roles(survey(no_hosts(), *catalog)) == {"compute1": "compute", "consul1": "consul", "gw": "computer"}
    assert (
        "gives one that is in upgrade_roles. Name it"
        in refusal(no_hosts(), *catalog, planes=PLANES, unplaced="fail").message
    )


def test_a_host_that_reported_is_never_left_out() -> None:
    there = Fleet({}).running(OLD, "enigma", "network1").snapshot()
    error = refusal(there, planes=PLANES)
    assert error.details == {"hosts": ["enigma"]}
    assert "No role for enigma: the host reported to Consul, and neither roles nor the key 'role'" in error.message
    assert error.message.endswith("set unplaced to group, or remove its keys if it is gone.")
    found = survey(there, planes=PLANES, roles={"enigma": "tools"})
    assert roles(found) == {"enigma": "tools", "network1": "network"}
    assert found.hosts["network1"]["plane"] is None
    assert found.warnings == [
        "The role 'network' is not in upgrade_roles. Hosts with that role have reported, so they belong to the fleet, and planners "
        "derive their roles from their names: network1. Add the role to upgrade_roles, or correct it."
    ]
    grouped = survey(there, unplaced="group").hosts["enigma"]
    assert (grouped["role"], grouped["version"]) == (None, OLD)


def test_a_node_whose_name_can_be_no_key_is_none_of_the_fleet() -> None:
    assert survey(no_hosts(), node("rack/compute1"), node(" compute1"), node("")).left_out == [
        "",
        " compute1",
        "rack/compute1",
    ]


@pytest.mark.parametrize(
    ("options", "catalog", "sentence"),
    [
        (
            {"roles": {"gw": "computer"}, "planes": PLANES},
            [],
            "roles.gw: 'computer' is not in upgrade_roles; did you mean 'compute'? Known are: compute, controller, tools.",
        ),
        ({"roles": {"gw": ["compute"]}}, [], "roles.gw: a role must be text that is not empty, not ['compute']."),
        ({"roles": {"gw": None}}, [], "roles.gw: a role must be text that is not empty, not None."),
        ({"roles": {"a/b": "compute"}}, [], "roles: the host 'a/b' has a '/'"),
    ],
)
def test_roles_that_cannot_be_right(options: dict[str, Any], catalog: Iterable[Node], sentence: str) -> None:
    assert sentence in refusal(no_hosts(), *catalog, **options).message


@pytest.mark.parametrize(
    ("role", "why"),
    [
        ("a/b", "the role 'a/b' has a '/'"),
        ("all", "'all' is the name of a group of Ansible"),
        ("compute2", "'compute2' is the name of a host"),
    ],
)
def test_a_role_that_a_node_can_not_have_does_not_take_the_inventory_from_the_others(role: str, why: str) -> None:
    found = survey(fleet(compute=2).snapshot(), node("compute1", role=role), node("compute2"), node("gw", role=role))
    # As if they had none: one gets its role from its name, and belongs to the fleet.
    assert {host: one["role"] for host, one in found.hosts.items()} == {"compute1": "compute", "compute2": "compute"}
    assert found.left_out == ["gw"]
    for host, warning in zip(("compute1", "gw"), found.warnings, strict=True):
        assert warning.startswith(f"the key 'role' of the metadata of node {host!r}: {why}")
        assert warning.endswith("The node counts as if it had no role there. Correct its metadata.")
    # A host that has reported has to have a role.
    there = Fleet({}).running(OLD, "gw").snapshot()
    assert (
        "No role for gw: the host reported to Consul" in refusal(there, node("gw", role=role), node("compute2")).message
    )


@pytest.mark.parametrize(
    ("tagged", "own", "addresses"),
    [
        ({"lan": "10.0.0.1", "wan": "192.0.2.1"}, "10.0.0.9", ("10.0.0.1", "192.0.2.1", None)),
        ({"lan": "10.0.0.1"}, "10.0.0.9", ("10.0.0.1", "10.0.0.9", None)),
        (None, "10.0.0.9", ("10.0.0.9", "10.0.0.9", None)),
        (None, "", (None, None, None)),
    ],
)
def test_the_address_is_the_one_asked_for(tagged: Any, own: str, addresses: tuple[str | None, ...]) -> None:
    one = {**node("compute1", own), "TaggedAddresses": tagged}
    found = tuple(survey(no_hosts(), one, address=kind).hosts["compute1"]["address"] for kind in ("lan", "wan", "name"))
    assert found == addresses


@pytest.mark.parametrize("text", ["-oProxyCommand=id", "web1 -v", "a/b", "$(id)", 7])
def test_an_address_that_ssh_could_take_for_an_option_is_not_used(text: Any) -> None:
    found = survey(no_hosts(), node("compute1", text), node("compute2"))
    assert [facts["address"] for facts in found.hosts.values()] == [None, "10.0.0.1"]
    (warning,) = found.warnings
    assert warning.startswith("The address of node compute1 is none, and ssh could take it for an option")


@pytest.mark.parametrize("text", ["db-1.example.com", "node_7", "fe80::1", "2001:db8::7"])
def test_names_and_ip_addresses_are_addresses(text: str) -> None:
    assert survey(no_hosts(), node("compute1", text)).hosts["compute1"]["address"] == text


def test_groups_and_reasons_are_those_of_the_rules_in_the_ledger() -> None:
    there = fleet(compute=2)
    there.ledger = Ledger(1, NEW, instructions={"rolling_rules": {"global": 1}, "group_mappings": {"hv": "comp"}})
    found = survey(there.snapshot())
    assert {facts["group"] for facts in found.hosts.values()} == {"hv"}
    assert found.hosts["compute2"]["reason"] == (
        "waits for a slot: rolling_rules.global admits 1 of group hv at once; slots are taken by compute1"
    )


@pytest.mark.parametrize("rules", [{"rolling": 1}, {"group_mappings": {"a": "comp", "b": "comp"}}])
def test_rules_that_cannot_be_obeyed_are_a_warning(rules: dict[str, Any]) -> None:
    there = fleet(compute=1)
    there.ledger = Ledger(1, NEW, instructions=rules)
    (warning,) = survey(there.snapshot()).warnings
    assert warning.startswith("The rules in upgrade/ledger can't be applied, so no host is admitted: instructions: ")


@given(any_fleets(), st.sets(st.sampled_from(["compute1", "compute99", "consul", "x/y", "controller1"])))
def test_every_host_that_reported_is_there_once_with_one_state(there: Fleet, nodes: set[str]) -> None:
    found = survey(there.snapshot(), *map(node, nodes), role_pattern=r"^(\w+?)\d")
    assert {*there.reports, *there.records} <= set(found.hosts)
    assert nodes <= {*found.hosts, *found.left_out}
    assert all(facts["state"] in STATES and facts["role"] for facts in found.hosts.values())
    states = {host: state.state for host, state in there.states().items()}
    assert all(facts["state"] == states[host] for host, facts in found.hosts.items() if host in there.members)
