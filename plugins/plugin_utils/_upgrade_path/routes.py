# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which way each host goes: the points between the version that it comes from and the one that it goes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import UNQUOTED, check_new_version, in_order, is_plain_version, listing, plural
from ...module_utils._common.versions import VersionOrder
from ...module_utils._fleet.checkpoints import checkpoint_name
from ...module_utils._fleet.providers import FAILED
from ...module_utils._rules.allowed_versions import version_rules_from
from .preflight import preflight_checkpoints

# Variables of an operator, by which versions are declared that no one has reported.
HOST_VARIABLE, PROVIDER_VARIABLE = "upgrade_version_from", "upgrade_provider_versions"


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the hosts of a run come from, and which checkpoints are on their way.

    :param origins: host -> the version that it comes from; empty where it is not known and not needed.
    :param checkpoints: host -> checkpoints such as ``nginx@2.4``, for hosts whose role has an upgrade path.
    :param ahead: the same without those that a host or a provider has behind it: only these are validated.
    :param providers: provider -> the version that it comes from.
    :param left_out: host -> why its route can't be computed.
    :param lines: all of it as text.
    """

    origins: Mapping[str, str]
    checkpoints: Mapping[str, Sequence[str]]
    ahead: Mapping[str, Sequence[str]]
    providers: Mapping[str, str]
    left_out: Mapping[str, str]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Path:
    """A service's path in a role.

    :param points: from the oldest version to the newest one.
    """

    service: str
    points: Sequence[str]
    order: VersionOrder
    is_provider: bool


def unknown_hosts(plan: Mapping[str, Any], composition: Mapping[str, Any]) -> list[str]:
    """Return the hosts of the fleet that have not reported a version, and whose services ask for it.

    :param plan: a result of ``consul_upgrade_plan``.
    :param composition: a result of ``compose_upgrade_tasks``.
    """
    having = {role for role, paths in _paths(composition).items() if any(not path.is_provider for path in paths)}
    having |= {
        role
        for role, what in composition["roles"].items()
        if any(one["allowed_from"] is not None for one in what.get("ways", {}).values())
    }
    return [host for host, view in plan["hosts"].items() if not _plain(view["version"]) and view["role"] in having]


def routes_of(
    plan: Mapping[str, Any],
    pushed: Sequence[str],
    composition: Mapping[str, Any],
    version: str,
    declared: Mapping[str, object] | None = None,
    providers: Mapping[str, object] | None = None,
) -> Routes:
    """Return where the hosts of a run come from, and which checkpoints are on their way.

    What a host reported counts, then what was declared when it began, then what is declared. One that was to go back and did
    not report comes from where that led, as it may be there already.

    :param pushed: the hosts.
    :param version: where they go.
    :param declared: host -> its version, for those that :func:`unknown_hosts` gives.
    :param providers: provider -> its version, for those of which Consul has none.
    :raises UpgradeError: ``unknown_version``, ``incomparable_versions``, ``bad_version``, ``unreadable_provider``; each names
        all offenders.
    """
    check_new_version(version, "version")
    hosts = plan["hosts"]
    paths = _paths(composition)
    declared = declared_versions(declared or {})
    troubles: dict[str, None] = {}
    odd: dict[str, str] = {}
    before = {}
    for host in pushed:
        own: dict[str, None] = {}
        mine = [path for path in paths.get(hosts[host]["role"], ()) if not path.is_provider]
        others = [one for one in (hosts[host].get("origin"), hosts[host].get("begun")) if one != version]
        before[host] = _start(mine, origin_of(hosts[host], declared.get(host)), others, own)
        if before[host] and not own:
            _way(mine, before[host], {}, version, own)
        if own:
            odd[host] = next(iter(own))
    if odd and len(odd) == len(pushed):
        troubles = dict.fromkeys(odd.values())
        raise UpgradeError("incomparable_versions", " ".join(troubles), reasons=list(troubles))
    pushed = [host for host in pushed if host not in odd]
    before = {host: before[host] for host in pushed}
    roles = {hosts[host]["role"] for host in pushed}
    places = _providers(
        plan,
        [path for role in in_order(roles & paths.keys()) for path in paths[role]],
        providers or {},
        version,
        troubles,
    )
    _refuse_unknown(
        {
            host: [path.service for path in paths.get(hosts[host]["role"], ()) if not path.is_provider]
            for host in pushed
        },
        before,
        version,
    )
    # Hosts of one role that come from one version go one way.
    found: dict[tuple[str, str], list[str]] = {}
    for host in pushed:
        role = hosts[host]["role"]
        if role in paths and (role, before[host]) not in found:
            found[role, before[host]] = _way(paths[role], before[host], places, version, troubles)
    if troubles:
        raise UpgradeError("incomparable_versions", " ".join(troubles), reasons=list(troubles))
    ways = {host: found[hosts[host]["role"], before[host]] for host in pushed if hosts[host]["role"] in paths}
    return Routes(
        before,
        ways,
        preflight_checkpoints(ways, plan, composition, places),
        places,
        odd,
        tuple(_lines(found, {host: (hosts[host]["role"], before[host]) for host in pushed}, version, places, paths)),
    )


def origin_of(view: Mapping[str, Any], declared: str | None) -> str:
    """Return the version that a host came from, empty where no one knows.

    One that has other characters than a version may have counts as not known: a host says of itself what it likes, and this goes into
    commands.

    :param view: the host in a result of ``consul_upgrade_plan`` or ``consul_upgrade_info``.
    :param declared: the version that an operator says it has. Of one that is midway, what was declared when it began counts.
    """
    origin = _plain(view.get("origin"))
    return _plain(view["version"]) or (view.get("begun") and origin) or declared or origin


def _plain(version: str | None) -> str:
    return version if version and is_plain_version(version) else ""


def _start(paths: Iterable[_Path], came: str, others: Iterable[str | None], troubles: dict[str, None]) -> str:
    """Return the oldest version that something may be at: the one that it came from, or one that it has begun to go to.

    :param others: versions that it has begun to go to, or came from before that.
    """
    path = next((path for path in paths if path.points), None)
    if path is None or not came:
        return came
    try:
        return path.order.in_order(dict.fromkeys((came, *filter(None, others))))[0]
    except UpgradeError as error:
        troubles[f"{path.service}: {error.message}"] = None
        return came


def _paths(composition: Mapping[str, Any]) -> dict[str, list[_Path]]:
    """Return role -> its paths, for the roles that have any, and providers without a path too."""
    return {
        role: [
            _Path(service, told["points"], version_rules_from(what["ways"][service]).order(), told["provider"])
            for service, told in what["paths"].items()
        ]
        for role, what in composition["roles"].items()
        if what.get("paths")
    }


def declared_versions(given: Mapping[str, object], variable: str = HOST_VARIABLE) -> dict[str, str]:
    """Return name -> version of what an operator declares, without those of whom nothing is said.

    :param variable: where it is declared, for messages.
    :raises UpgradeError: ``bad_version``, ``bad_name``.
    """
    found = {}
    for name, version in given.items():
        if version is None or version == "":
            continue
        if not isinstance(version, str):
            raise UpgradeError("bad_version", f"{variable} of {name}: {version!r} {UNQUOTED}")
        found[str(name)] = check_new_version(version.strip(), f"{variable} of {name}")
    return found


def _providers(
    plan: Mapping[str, Any],
    paths: Iterable[_Path],
    declared: Mapping[str, object],
    version: str,
    troubles: dict[str, None],
) -> dict[str, str]:
    """Return provider -> the version that it comes from, empty where no one knows and nothing depends on it."""
    known = plan.get("providers") or {}
    given = declared_versions(declared, PROVIDER_VARIABLE)
    found, unknown = {}, []
    for path in paths:
        if not path.is_provider or path.service in found:
            continue
        told = known.get(path.service) or {}
        if told.get("state") == FAILED and not told.get("target"):
            raise UpgradeError(
                "unreadable_provider", f"Nothing was touched: the provider {path.service}: {told['error']}"
            )
        came, begun = _plain(told.get("version")) or given.get(path.service) or "", told.get("target")
        found[path.service] = _start([path], came, [begun] if begun != version else [], troubles)
        if path.points and not found[path.service]:
            unknown.append(path.service)
    if unknown:
        raise UpgradeError(
            "unknown_version",
            f"Nothing was touched: Consul has no version of {plural(len(unknown), 'provider')}, {listing(unknown)}, and their paths "
            "lead from version to version. Declare which one each runs in the variable "
            f'{PROVIDER_VARIABLE}, such as -e \'{{"{PROVIDER_VARIABLE}": {{"{unknown[0]}": "2.4"}}}}\'.',
            providers=unknown,
        )
    return found


def _refuse_unknown(services: Mapping[str, Sequence[str]], before: Mapping[str, str], version: str) -> None:
    unknown = [host for host, having in services.items() if having and not before[host]]
    if unknown:
        names = list(dict.fromkeys(service for host in unknown for service in services[host]))
        raise UpgradeError(
            "unknown_version",
            f"Nothing was touched: {plural(len(unknown), 'host')} never reported a version, and the path of {listing(names)} leads "
            f"from version to version: {listing(unknown, 20)}. Declare which one each runs in its variable {HOST_VARIABLE}, or "
            f"for all of these by -e {HOST_VARIABLE}=X; for a new host, which has nothing to be brought along, that is "
            f"{version}. Or hold these hosts, or leave them out with upgrade_limit.",
            hosts=unknown,
        )


def _way(
    paths: Sequence[_Path], before: str, providers: Mapping[str, str], version: str, troubles: dict[str, None]
) -> list[str]:
    way = []
    for path in paths:
        start = providers[path.service] if path.is_provider else before
        try:
            way += [checkpoint_name(path.service, point) for point in path.order.between(start, version, path.points)]
        except UpgradeError as error:
            troubles[f"{path.service}: {error.message}"] = None
    return way


def _lines(
    found: Mapping[tuple[str, str], Sequence[str]],
    hosts: Mapping[str, tuple[str, str]],
    version: str,
    providers: Mapping[str, str],
    paths: Mapping[str, Sequence[_Path]],
) -> list[str]:
    """Return the ways in words: a line for the hosts of a role that come from one version, and one for each provider."""
    going: dict[tuple[str, str], list[str]] = {}
    for host, where in hosts.items():
        going.setdefault(where, []).append(host)
    lines = []
    told = {path.service for role in paths.values() for path in role if path.is_provider}
    for where, way in found.items():
        role, before = where
        own = [point for point in way if point.partition("@")[0] not in told]
        if not any(not path.is_provider for path in paths[role]):
            continue
        names = listing(in_order(going[where]))
        lines.append(f"{role} from {before} to {version} by {', '.join(own) or 'no checkpoint'}: {names}")
    every = dict.fromkeys(point for way in found.values() for point in way)
    for provider, before in providers.items():
        own = [point for point in every if point.partition("@")[0] == provider]
        lines.append(
            f"provider {provider} from {before or 'no known version'} to {version} by {', '.join(own) or 'no checkpoint'}"
        )
    return lines
