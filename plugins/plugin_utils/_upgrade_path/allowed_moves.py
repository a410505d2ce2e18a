# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may not go where a rollout goes: the services of the hosts say from which version they can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._common.versions import VersionOrder
from ...module_utils._rules.allowed_versions import VersionRules, version_rules_from
from .routes import HOST_VARIABLE, PROVIDER_VARIABLE, declared_versions, origin_of

_MOST_HOSTS = 20


@dataclass(frozen=True, slots=True)
class ForbiddenMoves:
    """The hosts that may not go to a version.

    :param reasons: a sentence for all hosts that have the same one, and one for each provider that may not go there.
    :param left_out: host -> why its version can't be compared, where other hosts go all the same.
    """

    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def forbidden_moves(
    progress: Mapping[str, Any],
    composition: Mapping[str, Any],
    version: str,
    declared: Mapping[str, object] | None = None,
    providers: Mapping[str, object] | None = None,
) -> ForbiddenMoves:
    """Return the hosts of the fleet that may not go to a version, all of them, and why.

    A host that is midway counts from where it came, and from where it was going, as it may have some of either. Those that are held
    do not go, and those without services bring themselves there. A host whose version can't be compared is left out, and keeps no
    other from going; where that leaves none that goes, all of these are forbidden.

    :param progress: a result of ``consul_upgrade_plan`` or ``consul_upgrade_info``.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param declared: host -> the version that an operator says it has, where it reported none.
    :param providers: the same for providers.
    """
    roles = {
        role: {name: (ways, ways.order()) for name, ways in _ways(what) if not _is_provider(what, name)}
        for role, what in composition["roles"].items()
    }
    said = declared_versions(declared or {})
    found: dict[tuple[str, str | None, str], tuple[dict[str, None], dict[str, None]]] = {}
    known: dict[tuple[str, str | None], list[_Refusal]] = {}
    odd: dict[str, str] = {}
    going = False
    for host, view in progress["hosts"].items():
        role = view["role"]
        if view["held"] or role not in roles:
            continue
        came = origin_of(view, said.get(host)) or None
        starts = list(dict.fromkeys((came, *([view["begun"]] if view["begun"] else ()))))
        for start in starts:
            if (role, start) not in known:
                known[role, start] = _refusals(roles[role], start, version)
            for service, why, is_odd in known[role, start]:
                services, hosts = found.setdefault((role, start, why), ({}, {}))
                services[service] = hosts[host] = None
                if is_odd:
                    odd.setdefault(host, f"{service} of the role {role}: {why}")
        going = going or (host not in odd and starts != [version])
    left_out = odd if going else {}
    told = {
        what: (services, [host for host in hosts if host not in left_out]) for what, (services, hosts) in found.items()
    }
    reasons = [
        f"{listing(hosts, _MOST_HOSTS)} ({start or 'never reported'}): {', '.join(services)} of the role {role}: {why}."
        + ("" if start else f" Declare it in the host's variable {HOST_VARIABLE}.")
        for (role, start, why), (services, hosts) in told.items()
        if hosts
    ]
    reasons += _of_providers(progress, composition, version, declared_versions(providers or {}, PROVIDER_VARIABLE))
    every = dict.fromkeys(host for _services, hosts in told.values() for host in hosts)
    return ForbiddenMoves(tuple(every), tuple(reasons), left_out)


class _Refusal(NamedTuple):
    """Why a service does not let a host go.

    :param is_odd: whether that is because its version can't be compared.
    """

    service: str
    why: str
    is_odd: bool


def _ways(role: Mapping[str, Any]) -> Iterator[tuple[str, VersionRules]]:
    # A composition of an older release has none.
    return ((name, version_rules_from(one)) for name, one in role.get("ways", {}).items())


def _is_provider(role: Mapping[str, Any], service: str) -> bool:
    return bool(role.get("paths", {}).get(service, {}).get("provider"))


def _of_providers(
    progress: Mapping[str, Any], composition: Mapping[str, Any], version: str, declared: Mapping[str, str]
) -> list[str]:
    """Return why providers may not go to a version: each counts from where it came, and from where it was going.

    Those whose hosts are all held do not go either.
    """
    going = {view["role"] for view in progress["hosts"].values() if not view["held"]}
    found: dict[tuple[str, str | None, str], dict[str, None]] = {}
    for role, what in composition["roles"].items():
        for name, ways in _ways(what):
            if role not in going or not _is_provider(what, name):
                continue
            told = (progress.get("providers") or {}).get(name, {})
            came = told.get("version") or declared.get(name)
            for start in dict.fromkeys((came, *([told["target"]] if told.get("target") else ()))):
                why = ways.refusal(start, version, ways.order())
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
    for name, (ways, order) in services.items():
        try:
            why, is_odd = ways.comparison(start, version, order), False
        except UpgradeError as error:
            why, is_odd = error.message.removesuffix("."), True
        if why:
            found.append(_Refusal(name, why, is_odd))
    return found
