# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a fleet with their facts, from the nodes of Consul's catalog and the hosts that reported."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_name, did_you_mean, in_order, listing
from .._common.sanitize import truncated_repr
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, Snapshot, compile_role_pattern, role_by_name
from .._fleet.gates import GateAnswer
from .._host_states.host_state import HostState
from .._host_states.states import read_states
from .._planner.plan import Plan
from .._planner.reconcile import make_plan
from .._rules.instructions import Instructions, parse
from .._state.store import Store

IGNORE, GROUP, FAIL = "ignore", "group", "fail"
LAN, WAN, NAME = "lan", "wan", "name"

# Consul's own health check of a node's agent.
_SERF = "serfHealth"
_DNS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GROUPS_OF_ANSIBLE = ("all", "ungrouped")

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InventoryOptions:
    """The options of an inventory file.

    :param roles: host -> role. Overrides Consul's metadata and the pattern.
    :param role_meta: the key of a node's metadata that holds its role; empty for none.
    :param role_pattern: derives the roles of other hosts from their names; None for the pattern of the ledger.
    :param planes: role -> plane, for all roles of ``upgrade_roles``; None if that is not set.
    :param unplaced: what to do with hosts without a role: ``ignore``, ``group`` or ``fail``.
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
    """The hosts of a fleet as plain data.

    :param hosts: host -> its facts, in natural order. The role is None for a host without one.
    :param left_out: nodes of the catalog that are not part of the fleet.
    :param warnings: sentences about roles and rules.
    """

    hosts: dict[str, Facts]
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def survey_fleet(store: Store, options: InventoryOptions) -> FleetSurvey:
    """Return all hosts with their facts. Three requests for any number of hosts.

    :raises UpgradeError: what :meth:`Store.snapshot`, :meth:`ConsulClient.nodes` and :func:`combine` raise.
    """
    snapshot = store.snapshot(of_job=False)
    return combine(snapshot, store.client.nodes(), store.client.health(_SERF), options, store.keys.ledger)


def combine(
    snapshot: Snapshot,
    catalog: Iterable[Mapping[str, Any]],
    health: Mapping[str, str],
    options: InventoryOptions,
    ledger_key: str = "upgrade/ledger",
) -> FleetSurvey:
    """Return the facts of every host that is in the catalog, the reports or ``options.roles``.

    :param catalog: nodes as Consul's ``/v1/catalog/nodes`` returns them.
    :param health: node -> status of its serf check.
    :param ledger_key: the key of the ledger, for messages.
    :raises UpgradeError: ``bad_name``, ``bad_role_pattern``, ``bad_roles``, ``unplaced_hosts``.
    """
    nodes = {str(node["Node"]): node for node in catalog}
    members, without, warnings = _place(snapshot, nodes, options)
    plan, rules = _plan(snapshot, members, ledger_key, warnings)
    states = read_states(snapshot, members, rules.health)
    reported = snapshot.reports
    hosts: dict[str, Facts] = {}
    left_out: list[str] = []
    for host in in_order({*members, *without}):
        if host in members:
            facts = _facts(plan, states[host], (options.planes or {}).get(members[host]))
        elif options.unplaced == GROUP:
            facts = _no_facts(reported[host].version if host in reported else None)
        else:
            left_out.append(host)
            continue
        node = nodes.get(host)
        address = _address(node, options.address)
        if address and not _is_address(address):
            warnings.append(
                f"The address of node {host} is none, and ssh could take it for an option, so it is not used: {truncated_repr(address)}. Correct it in Consul."
            )
            address = None
        hosts[host] = facts | _node_facts(node, health.get(host), address)
    return FleetSurvey(hosts, left_out, warnings)


def _place(
    snapshot: Snapshot, nodes: Mapping[str, Mapping[str, Any]], options: InventoryOptions
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return host -> role in natural order, the hosts without a role, and warnings."""
    given = _given_roles(options)
    ledger = snapshot.ledger
    pattern = compile_role_pattern(
        options.role_pattern or (ledger.role_pattern if ledger else None) or DEFAULT_ROLE_PATTERN
    )
    seen = {*snapshot.reports, *snapshot.records}
    roles: dict[str, str] = {}
    without: list[str] = []
    unknown: dict[str, list[str]] = {}
    unreported_nodes: dict[str, list[str]] = {}
    ignored: list[str] = []
    # Other nodes of the catalog are no hosts of the inventory.
    names = {*seen, *given, *(host for host in nodes if role_by_name(host, pattern))}
    for host in in_order({*nodes, *seen, *given}):
        declared = None
        try:
            if host not in given:
                declared = _declared_role(host, nodes.get(host), options.role_meta, names)
        except UpgradeError as error:
            # The node itself may write its metadata, and must not take the inventory away from all others.
            ignored.append(f"{error.message} The node counts as if it had no role there. Correct its metadata.")
        role = given.get(host) or declared or role_by_name(host, pattern)
        if role is None or not (host in seen or _can_report(host)):
            without.append(host)
        elif options.planes is None or role in options.planes:
            roles[host] = role
        elif host in seen:
            roles[host] = role
            unknown.setdefault(role, []).append(host)
        else:
            without.append(host)
            if declared:
                unreported_nodes.setdefault(role, []).append(host)
    rules = (
        f"neither roles nor the key {options.role_meta!r} of its node's metadata nor role_pattern {pattern.pattern!r}"
    )
    _refuse_unplaced(without, seen, options, rules)
    return roles, without, [*ignored, *_warnings(unknown, unreported_nodes, options)]


def _warnings(
    unknown: Mapping[str, list[str]], unreported_nodes: Mapping[str, list[str]], options: InventoryOptions
) -> list[str]:
    """Return warnings on roles that are not in upgrade_roles.

    :param unknown: role -> hosts that have reported.
    :param unreported_nodes: role -> nodes of the catalog that have not.
    """

    def problem(role: str) -> str:
        return f"The role {role!r} is not in upgrade_roles{did_you_mean(role, options.planes or ()) or '.'}"

    return [
        f"{problem(role)} Hosts with that role have reported, so they belong to the fleet, and planners derive their roles from "
        f"their names: {listing(hosts)}. Add the role to upgrade_roles, or correct it."
        for role, hosts in unknown.items()
    ] + [
        f"{problem(role)} Nodes with that role in the key {options.role_meta!r} of their metadata are not part of the fleet: "
        f"{listing(hosts)}."
        for role, hosts in unreported_nodes.items()
    ]


def _given_roles(options: InventoryOptions) -> dict[str, str]:
    given = {}
    for host, role in options.roles.items():
        name = check_name("host", host, "roles")
        given[name] = check_name("role", role, f"roles.{host}")
        if options.planes is not None and role not in options.planes:
            raise UpgradeError(
                "bad_roles",
                f"roles.{host}: {role!r} is not in upgrade_roles{did_you_mean(given[name], options.planes) or '.'} "
                f"Known are: {listing(in_order(options.planes), 10) or 'none'}.",
            )
    return given


def _declared_role(host: str, node: Mapping[str, Any] | None, key: str, hosts: Collection[str]) -> str | None:
    """Return the role in a node's metadata; None for none.

    :param hosts: names of hosts, which no group of Ansible may have.
    :raises UpgradeError: ``bad_name``.
    """
    role = ((node or {}).get("Meta") or {}).get(key) if key else None
    if not role:
        return None
    place = f"the key {key!r} of the metadata of node {host!r}"
    name = check_name("role", role, place)
    if name in _GROUPS_OF_ANSIBLE or name in hosts:
        other = "a group of Ansible" if name in _GROUPS_OF_ANSIBLE else "a host"
        raise UpgradeError("bad_name", f"{place}: {name!r} is the name of {other}, and a role has a group of its own.")
    return name


def _can_report(host: str) -> bool:
    """Return whether a node can be part of the fleet, because its name can be part of a key."""
    try:
        check_name("host", host, "catalog")
    except UpgradeError:
        return False
    return True


def _refuse_unplaced(without: list[str], seen: set[str], options: InventoryOptions, rules: str) -> None:
    reported = [host for host in without if host in seen]
    if reported and options.unplaced != GROUP:
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {listing(reported)}: the host reported to Consul, and {rules} gives one. Name it in roles "
            "(host: role), set unplaced to group, or remove its keys if it is gone.",
            hosts=reported,
        )
    if without and options.unplaced == FAIL:
        among = " that is in upgrade_roles" if options.planes is not None else ""
        raise UpgradeError(
            "unplaced_hosts",
            f"No role for {listing(without)}: the node is in Consul's catalog, and {rules} gives one{among}. Name it in roles "
            "(host: role), or set unplaced to ignore or group.",
            hosts=without,
        )


def _plan(
    snapshot: Snapshot, members: Mapping[str, str], ledger_key: str, warnings: list[str]
) -> tuple[Plan, Instructions]:
    """Return the plan under the rules of the ledger, and these rules; without rules if they can't be applied."""
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
        "hold": state.hold.text() if state.hold else None,
    }


def _no_facts(version: str | None) -> Facts:
    names = ("role", "group", "plane", "state", "version", "reason", "gate", "gate_key", "hold")
    return dict.fromkeys(names) | {"version": version, "reason": "it has no role, so it is not part of the fleet"}


def _gate(gate: GateAnswer) -> str:
    if gate.scope == "unreadable":
        return gate.scope
    return "open" if gate.is_open else "closed"


def _address(node: Mapping[str, Any] | None, which: str) -> str | None:
    if node is None or which == NAME:
        return None
    return (node.get("TaggedAddresses") or {}).get(which) or node.get("Address") or None


def _is_address(text: object) -> bool:
    """Return whether a text is an IP address or a name in DNS. A node may write its own address, and ssh takes ``-o...`` for an option."""
    try:
        return isinstance(text, str) and bool(_DNS_NAME.fullmatch(text) or ipaddress.ip_address(text))
    except ValueError:
        return False


def _node_facts(node: Mapping[str, Any] | None, health: str | None, address: str | None) -> Facts:
    if node is None:
        return {"address": None, "registered": False, "datacenter": None, "meta": {}, "health": None}
    return {
        "address": address,
        "registered": True,
        "datacenter": node.get("Datacenter"),
        "meta": dict(node.get("Meta") or {}),
        "health": health,
    }
