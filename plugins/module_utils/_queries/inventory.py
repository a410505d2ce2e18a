# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet as Consul knows it: the nodes of its catalog and the hosts that reported, as one list of plain facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_name, did_you_mean, in_order, listing
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, Snapshot, compile_role_pattern, role_by_name
from .._fleet.gates import GateAnswer
from .._host_states.states import HostState, read_states
from .._planner.plan import Plan
from .._planner.reconcile import make_plan
from .._rules.instructions import Instructions, parse
from .._state.store import Store

IGNORE, GROUP, FAIL = "ignore", "group", "fail"
LAN, WAN, NAME = "lan", "wan", "name"

# Consul's own check of whether a node's agent is there.
_SERF = "serfHealth"

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InventoryOptions:
    """What an inventory file asks for.

    :param roles: host -> role. Wins over what Consul tells.
    :param role_meta: the key of a node's metadata that holds its role, empty for none.
    :param role_pattern: places by their names those that are left; None for the pattern of the ledger.
    :param planes: role -> plane, for all roles that the fleet has; None where no one says which these are.
    :param unplaced: what becomes of hosts without a role: ``ignore``, ``group`` or ``fail``.
    :param address: which address of a node to use: ``lan``, ``wan``, or ``name`` for none.
    """

    roles: Mapping[str, Any] = field(default_factory=dict)
    role_meta: str = "role"
    role_pattern: str | None = None
    planes: Mapping[str, str | None] | None = None
    unplaced: str = IGNORE
    address: str = LAN


@dataclass(frozen=True, slots=True)
class FleetSurvey:
    """What there is, as plain data.

    :param hosts: host -> its facts, in natural order. The role of a host that has none is None.
    :param left_out: nodes of the catalog that are not part of the fleet.
    :param warnings: sentences on what is odd.
    """

    hosts: dict[str, Facts]
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def survey_fleet(store: Store, wanted: InventoryOptions) -> FleetSurvey:
    """Return all hosts with their facts. Three requests, at any number of hosts.

    :raises UpgradeError: what :meth:`Store.snapshot`, :meth:`ConsulClient.nodes` and :func:`combine` raise.
    """
    snapshot = store.snapshot()
    return combine(snapshot, store.client.nodes(), store.client.health(_SERF), wanted, store.keys.ledger)


def combine(
    snapshot: Snapshot,
    catalog: Iterable[Mapping[str, Any]],
    health: Mapping[str, str],
    wanted: InventoryOptions,
    ledger_key: str = "upgrade/ledger",
) -> FleetSurvey:
    """Return the facts of every host that the catalog, the reports or ``wanted.roles`` name.

    :param catalog: nodes as Consul's ``/v1/catalog/nodes`` gives them.
    :param health: node -> status of its serf check.
    :param ledger_key: where the ledger stands, for messages.
    :raises UpgradeError: ``bad_name``, ``bad_role_pattern``, ``bad_roles``, ``unplaced_hosts``.
    """
    nodes = {str(node["Node"]): node for node in catalog}
    members, without, warnings = _place(snapshot, nodes, wanted)
    plan, rules = _plan(snapshot, members, ledger_key, warnings)
    states = read_states(snapshot, members, rules.health)
    reported = snapshot.reports
    hosts: dict[str, Facts] = {}
    left_out: list[str] = []
    for host in in_order({*members, *without}):
        if host in members:
            facts = _facts(plan, states[host], (wanted.planes or {}).get(members[host]))
        elif wanted.unplaced == GROUP:
            facts = _no_facts(reported[host].version if host in reported else None)
        else:
            left_out.append(host)
            continue
        hosts[host] = facts | _node_facts(nodes.get(host), health.get(host), wanted.address)
    return FleetSurvey(hosts, left_out, warnings)


def _place(
    snapshot: Snapshot, nodes: Mapping[str, Mapping[str, Any]], wanted: InventoryOptions
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return host -> role in natural order, the hosts without a role, and warnings."""
    given = _given_roles(wanted)
    ledger = snapshot.ledger
    pattern = compile_role_pattern(
        wanted.role_pattern or (ledger.role_pattern if ledger else None) or DEFAULT_ROLE_PATTERN
    )
    seen = {*snapshot.reports, *snapshot.records}
    roles: dict[str, str] = {}
    without: list[str] = []
    unknown: dict[str, list[str]] = {}
    strangers: dict[str, list[str]] = {}
    for host in in_order({*nodes, *seen, *given}):
        told = None if host in given else _told_role(host, nodes.get(host), wanted.role_meta)
        role = given.get(host) or told or role_by_name(host, pattern)
        if role is None or not (host in seen or _can_report(host)):
            without.append(host)
        elif wanted.planes is None or role in wanted.planes:
            roles[host] = role
        elif host in seen:
            roles[host] = role
            unknown.setdefault(role, []).append(host)
        else:
            without.append(host)
            if told:
                strangers.setdefault(role, []).append(host)
    rules = (
        f"neither roles nor the key {wanted.role_meta!r} of its node's metadata nor role_pattern {pattern.pattern!r}"
    )
    _refuse_unplaced(without, seen, wanted, rules)
    return roles, without, _warnings(unknown, strangers, wanted)


def _warnings(
    unknown: Mapping[str, list[str]], strangers: Mapping[str, list[str]], wanted: InventoryOptions
) -> list[str]:
    """Return what is odd about roles that are not in upgrade_roles, of hosts that reported and of nodes that did not."""

    def unreported(role: str) -> str:
        return f"The role {role!r} is not in upgrade_roles{did_you_mean(role, wanted.planes or ()) or '.'}"

    return [
        f"{unreported(role)} Hosts that reported have it, so they belong to the fleet, and the planner will take their role from "
        f"their names: {listing(hosts)}. Add it there, or correct it."
        for role, hosts in unknown.items()
    ] + [
        f"{unreported(role)} Nodes have it by the key {wanted.role_meta!r} of their metadata, and are not part of the fleet: "
        f"{listing(hosts)}."
        for role, hosts in strangers.items()
    ]


def _given_roles(wanted: InventoryOptions) -> dict[str, str]:
    given = {}
    for host, role in wanted.roles.items():
        name = check_name("host", host, "roles")
        given[name] = check_name("role", role, f"roles.{host}")
        if wanted.planes is not None and role not in wanted.planes:
            raise UpgradeError(
                "bad_roles",
                f"roles.{host}: {role!r} is not in upgrade_roles{did_you_mean(given[name], wanted.planes) or '.'} "
                f"Known are: {listing(in_order(wanted.planes), 10) or 'none'}.",
            )
    return given


def _told_role(host: str, node: Mapping[str, Any] | None, key: str) -> str | None:
    role = ((node or {}).get("Meta") or {}).get(key) if key else None
    return check_name("role", role, f"the key {key!r} of the metadata of node {host!r}") if role else None


def _can_report(host: str) -> bool:
    """Return whether a node can ever be part of the fleet: no key is for one whose name can't be part of it."""
    try:
        check_name("host", host, "catalog")
    except UpgradeError:
        return False
    return True


def _refuse_unplaced(without: list[str], seen: set[str], wanted: InventoryOptions, rules: str) -> None:
    reported = [host for host in without if host in seen]
    if reported and wanted.unplaced != GROUP:
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {listing(reported)}: the host reported to Consul, and {rules} tells one. Name it in roles "
            "(host: role), set unplaced to group, or remove its keys if it is gone.",
            hosts=reported,
        )
    if without and wanted.unplaced == FAIL:
        among = " that is in upgrade_roles" if wanted.planes is not None else ""
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {listing(without)}: the node is in Consul's catalog, and {rules} tells one{among}. Name it in roles "
            "(host: role), or set unplaced to ignore or group.",
            hosts=without,
        )


def _plan(
    snapshot: Snapshot, members: Mapping[str, str], ledger_key: str, warnings: list[str]
) -> tuple[Plan, Instructions]:
    """Return the plan under the rules of the ledger, and these; under none where they can't be obeyed."""
    if snapshot.ledger is not None:
        try:
            rules = parse(snapshot.ledger.instructions)
            return make_plan(snapshot, members, rules), rules
        except UpgradeError as error:
            warnings.append(f"The rules in {ledger_key} can't be applied, so no host is admitted: {error.message}")
    return make_plan(snapshot, members, Instructions()), Instructions()


def _facts(plan: Plan, state: HostState, plane: str | None) -> Facts:
    view = plan.hosts[state.host]
    return {
        "role": view.role,
        "group": view.group,
        "plane": plane,
        "state": view.state,
        "version": view.version,
        "reason": view.reason,
        "gate": _gate(state.gate),
        "gate_key": state.gate.key,
        "hold": state.hold.words() if state.hold else None,
    }


def _no_facts(version: str | None) -> Facts:
    names = ("role", "group", "plane", "state", "version", "reason", "gate", "gate_key", "hold")
    return dict.fromkeys(names) | {"version": version, "reason": "it has no role, so it is not part of the fleet"}


def _gate(gate: GateAnswer) -> str:
    if gate.scope == "unreadable":
        return gate.scope
    return "open" if gate.is_open else "closed"


def _node_facts(node: Mapping[str, Any] | None, health: str | None, address: str) -> Facts:
    if node is None:
        return {"address": None, "registered": False, "datacenter": None, "meta": {}, "health": None}
    tagged = node.get("TaggedAddresses") or {}
    return {
        "address": None if address == NAME else tagged.get(address) or node.get("Address") or None,
        "registered": True,
        "datacenter": node.get("Datacenter"),
        "meta": dict(node.get("Meta") or {}),
        "health": health,
    }
