# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that each host may go to the target: its services declare from which versions that is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._common.versions import VersionOrder
from ...module_utils._rules.allowed_versions import VersionRules, version_rules_from
from .routes import HOST_VARIABLE, PROVIDER_VARIABLE, declared_versions, origin_of, unusable_version

_MOST_HOSTS = 20


@dataclass(frozen=True, slots=True)
class ForbiddenUpgrades:
    """The hosts that may not go to a version.

    :param reasons: a sentence for all hosts with the same reason, and one for each provider that may not go there.
    :param left_out: host -> why its version can't be compared, if other hosts can still go.
    """

    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def forbidden_upgrades(
    progress: Mapping[str, Any],
    composition: Mapping[str, Any],
    version: str,
    declared: Mapping[str, object] | None = None,
    providers: Mapping[str, object] | None = None,
) -> ForbiddenUpgrades:
    """Return all hosts of the fleet that may not go to a version, and why.

    - If a host has an unfinished upgrade, both its origin and the target of that upgrade must be allowed.
    - Hosts that an operator holds are not checked, nor are pull hosts that never reported a version.
    - A host whose version can't be compared, or is none, is left out, and the others go. If no other host goes, all these hosts are forbidden.

    :param progress: a result of ``consul_upgrade_plan`` or ``consul_upgrade_info``.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param declared: host -> the version that an operator declares, for hosts that reported none.
    :param providers: the same for providers.
    """
    pull_roles: Mapping[str, Any] = composition.get("pull_roles", {})
    roles = {
        role: {name: (rules, rules.order()) for name, rules in _version_rules(data) if not _is_provider(data, name)}
        for role, data in {**composition["roles"], **pull_roles}.items()
    }
    declared_hosts = declared_versions(declared or {})
    found: dict[tuple[str, str | None, str], tuple[dict[str, None], dict[str, None]]] = {}
    known: dict[tuple[str, str | None], list[_Refusal]] = {}
    incomparable: dict[str, str] = {}
    any_goes = False
    for host, view in progress["hosts"].items():
        role = view["role"]
        if _is_held_by_operator(view) or role not in roles:
            continue
        origin = origin_of(view, declared_hosts.get(host)) or None
        if origin is None and role in pull_roles:
            continue
        starts = list(dict.fromkeys((origin, *([view["begun"]] if view["begun"] else ()))))
        for start in starts:
            if (role, start) not in known:
                known[role, start] = _refusals(roles[role], start, version)
            for service, why, is_incomparable in known[role, start]:
                services, hosts = found.setdefault((role, start, why), ({}, {}))
                services[service] = hosts[host] = None
                odd = unusable_version(view, declared_hosts.get(host))
                if is_incomparable or odd:
                    incomparable.setdefault(host, f"{service} of the role {role}: {odd or why}")
        any_goes = any_goes or (host not in incomparable and starts != [version])
    left_out = incomparable if any_goes else {}
    forbidden = {
        key: (services, [host for host in hosts if host not in left_out]) for key, (services, hosts) in found.items()
    }
    reasons = [
        f"{listing(hosts, _MOST_HOSTS)} ({start or 'never reported'}): {', '.join(services)} of the role {role}: {why}."
        + ("" if start else f" Declare it in the host's variable {HOST_VARIABLE}.")
        for (role, start, why), (services, hosts) in forbidden.items()
        if hosts
    ]
    reasons += _of_providers(progress, composition, version, declared_versions(providers or {}, PROVIDER_VARIABLE))
    every = dict.fromkeys(host for _services, hosts in forbidden.values() for host in hosts)
    return ForbiddenUpgrades(tuple(every), tuple(reasons), left_out)


class _Refusal(NamedTuple):
    """Why a service does not allow an upgrade.

    :param is_incomparable: whether the versions can't be compared.
    """

    service: str
    why: str
    is_incomparable: bool


def _is_held_by_operator(view: Mapping[str, Any]) -> bool:
    """Return whether an operator holds a host. A host that holds itself may end that in this rollout."""
    return bool(view["held"]) and not view["holds_itself"]


def _version_rules(role: Mapping[str, Any]) -> Iterator[tuple[str, VersionRules]]:
    return ((name, version_rules_from(one)) for name, one in role.get("version_rules", {}).items())


def _is_provider(role: Mapping[str, Any], service: str) -> bool:
    return bool(role.get("paths", {}).get(service, {}).get("provider"))


def _of_providers(
    progress: Mapping[str, Any], composition: Mapping[str, Any], version: str, declared: Mapping[str, str]
) -> list[str]:
    """Return why providers may not go to a version, from their origins and the targets of unfinished upgrades.

    A provider whose hosts are all held by operators is not checked.
    """
    roles_that_go = {view["role"] for view in progress["hosts"].values() if not _is_held_by_operator(view)}
    found: dict[tuple[str, str | None, str], dict[str, None]] = {}
    for role, data in {**composition["roles"], **composition.get("pull_roles", {})}.items():
        for name, rules in _version_rules(data):
            if role not in roles_that_go or not _is_provider(data, name):
                continue
            state = (progress.get("providers") or {}).get(name, {})
            origin = state.get("version") or declared.get(name)
            for start in dict.fromkeys((origin, *([state["target"]] if state.get("target") else ()))):
                why = rules.refusal(start, version, rules.order())
                if why:
                    found.setdefault((name, start, why), {})[role] = None
    return [
        f"The provider {name}: {why}. "
        + (
            f"Allow it in its entry of upgrade_roles (allow_downgrade, allowed_from), or hold all hosts of {listing([*roles])}."
            if start
            else f"Declare it in the variable {PROVIDER_VARIABLE}."
        )
        for (name, start, why), roles in found.items()
    ]


def _refusals(
    services: Mapping[str, tuple[VersionRules, VersionOrder]], start: str | None, version: str
) -> list[_Refusal]:
    found = []
    for name, (rules, order) in services.items():
        try:
            why, is_incomparable = rules.comparison(start, version, order), False
        except UpgradeError as error:
            why, is_incomparable = error.message.removesuffix("."), True
        if why:
            found.append(_Refusal(name, why, is_incomparable))
    return found
