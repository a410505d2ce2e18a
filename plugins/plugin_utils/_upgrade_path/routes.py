# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The upgrade path of each host: the checkpoints between the version that it comes from and the target."""

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

# Variables in which an operator declares versions that were never reported.
HOST_VARIABLE, PROVIDER_VARIABLE = "upgrade_version_from", "upgrade_provider_versions"


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the hosts of a run come from, and which checkpoints are on their upgrade paths.

    :param origins: host -> the version that it comes from; empty if it is neither known nor needed.
    :param checkpoints: host -> checkpoints such as ``nginx@2.4``, for hosts whose role has an upgrade path.
    :param ahead: the same without those that the host or the provider has finished. Only these are validated.
    :param providers: provider -> the version that it comes from.
    :param left_out: host -> why its route can't be computed.
    :param lines: all of this as text.
    """

    origins: Mapping[str, str]
    checkpoints: Mapping[str, Sequence[str]]
    ahead: Mapping[str, Sequence[str]]
    providers: Mapping[str, str]
    left_out: Mapping[str, str]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Path:
    """A service's upgrade path in a role.

    :param versions: the versions of its checkpoints, from the oldest to the newest.
    """

    service: str
    versions: Sequence[str]
    order: VersionOrder
    is_provider: bool


def unknown_hosts(plan: Mapping[str, Any], composition: Mapping[str, Any]) -> list[str]:
    """Return the hosts of the fleet that have not reported a version, but whose services need one.

    :param plan: a result of ``consul_upgrade_plan``.
    :param composition: a result of ``compose_upgrade_tasks``.
    """
    with_version = {role for role, paths in _paths(composition).items() if any(not path.is_provider for path in paths)}
    with_version |= {
        role
        for role, data in composition["roles"].items()
        if any(one["allowed_from"] is not None for one in data.get("version_rules", {}).values())
    }
    return [
        host for host, view in plan["hosts"].items() if not _plain(view["version"]) and view["role"] in with_version
    ]


def routes_of(
    plan: Mapping[str, Any],
    pushed: Sequence[str],
    composition: Mapping[str, Any],
    version: str,
    declared: Mapping[str, object] | None = None,
    providers: Mapping[str, object] | None = None,
) -> Routes:
    """Return where the hosts of a run come from, and which checkpoints are on their upgrade paths.

    A host comes from the version that it reported, else the one declared when it began, else the one declared now. If it has begun
    an upgrade to another version, it may already be there. Its path then begins at the oldest of these versions.

    :param pushed: the hosts that Ansible upgrades.
    :param version: the target.
    :param declared: host -> its version, for the hosts that :func:`unknown_hosts` returns.
    :param providers: provider -> its version, for providers without a version in Consul.
    :raises UpgradeError: ``unknown_version``, ``incomparable_versions``, ``bad_version``, ``unreadable_provider``. The first two name all
        hosts or services.
    """
    check_new_version(version, "version")
    hosts = plan["hosts"]
    paths = _paths(composition)
    declared = declared_versions(declared or {})
    problems: dict[str, None] = {}
    incomparable: dict[str, str] = {}
    before = {}
    for host in pushed:
        own_problems: dict[str, None] = {}
        own_paths = [path for path in paths.get(hosts[host]["role"], ()) if not path.is_provider]
        begun = [one for one in (hosts[host].get("origin"), hosts[host].get("begun")) if one != version]
        before[host] = _start(own_paths, origin_of(hosts[host], declared.get(host)), begun, own_problems)
        if own_paths and (odd := unusable_version(hosts[host], declared.get(host))):
            own_problems[odd] = None
        if before[host] and not own_problems:
            _path_checkpoints(own_paths, before[host], {}, version, own_problems)
        if own_problems:
            incomparable[host] = next(iter(own_problems))
    if incomparable and len(incomparable) == len(pushed):
        problems = dict.fromkeys(incomparable.values())
        raise UpgradeError("incomparable_versions", " ".join(problems), reasons=list(problems))
    pushed = [host for host in pushed if host not in incomparable]
    before = {host: before[host] for host in pushed}
    roles = {hosts[host]["role"] for host in pushed}
    provider_origins = _providers(
        plan,
        [path for role in in_order(roles & paths.keys()) for path in paths[role]],
        providers or {},
        version,
        problems,
    )
    _refuse_unknown(
        {
            host: [path.service for path in paths.get(hosts[host]["role"], ()) if not path.is_provider]
            for host in pushed
        },
        before,
        version,
    )
    # Hosts of the same role and origin have the same path.
    found: dict[tuple[str, str], list[str]] = {}
    for host in pushed:
        role = hosts[host]["role"]
        if role in paths and (role, before[host]) not in found:
            found[role, before[host]] = _path_checkpoints(
                paths[role], before[host], provider_origins, version, problems
            )
    if problems:
        raise UpgradeError("incomparable_versions", " ".join(problems), reasons=list(problems))
    checkpoints = {host: found[hosts[host]["role"], before[host]] for host in pushed if hosts[host]["role"] in paths}
    return Routes(
        before,
        checkpoints,
        preflight_checkpoints(checkpoints, plan, composition, provider_origins),
        provider_origins,
        incomparable,
        tuple(
            _lines(
                found, {host: (hosts[host]["role"], before[host]) for host in pushed}, version, provider_origins, paths
            )
        ),
    )


def origin_of(view: Mapping[str, Any], declared: str | None) -> str:
    """Return the version that a host comes from, empty if it is not known.

    A reported version with characters that no version has counts as unknown, because a host can report any text and versions become part
    of commands.

    :param view: the host in a result of ``consul_upgrade_plan`` or ``consul_upgrade_info``.
    :param declared: the version that an operator declares. If the host has begun, the version that was declared then counts.
    """
    origin = _plain(view.get("origin"))
    return _plain(view["version"]) or (view.get("begun") and origin) or declared or origin


def unusable_version(view: Mapping[str, Any], declared: str | None) -> str:
    """Return why a version that a host reported can't be used, without a full stop; empty if each can be one, or the host reported none.

    :param declared: what counts instead of its own version. That of an unfinished upgrade counts in any case.
    """
    reported = ("" if declared else view["version"], view.get("begun"))
    version = next((one for one in reported if one and not _plain(one)), "")
    return version and f"it reported the version {version!r}, which is not safe in a command"


def _plain(version: str | None) -> str:
    return version if version and is_plain_version(version) else ""


def _start(paths: Iterable[_Path], origin: str, begun: Iterable[str | None], problems: dict[str, None]) -> str:
    """Return the oldest version that a host or provider may be at: its origin, or the target of an unfinished upgrade.

    :param begun: targets of unfinished upgrades, and origins before them.
    """
    path = next((path for path in paths if path.versions), None)
    if path is None or not origin:
        return origin
    try:
        return path.order.in_order(dict.fromkeys((origin, *filter(None, begun))))[0]
    except UpgradeError as error:
        problems[f"{path.service}: {error.message}"] = None
        return origin


def _paths(composition: Mapping[str, Any]) -> dict[str, list[_Path]]:
    """Return role -> the paths of its services, including providers without a path."""
    return {
        role: [
            _Path(
                service,
                path["checkpoints"],
                version_rules_from(data["version_rules"][service]).order(),
                path["provider"],
            )
            for service, path in data["paths"].items()
        ]
        for role, data in composition["roles"].items()
        if data.get("paths")
    }


def declared_versions(given: Mapping[str, object], variable: str = HOST_VARIABLE) -> dict[str, str]:
    """Return name -> the declared version, without empty ones.

    :param variable: the variable in which the versions are declared, for messages.
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
    problems: dict[str, None],
) -> dict[str, str]:
    """Return provider -> the version that it comes from, empty if it is neither known nor needed."""
    known = plan.get("providers") or {}
    given = declared_versions(declared, PROVIDER_VARIABLE)
    found, unknown = {}, []
    for path in paths:
        if not path.is_provider or path.service in found:
            continue
        state = known.get(path.service) or {}
        if state.get("state") == FAILED and not state.get("target"):
            raise UpgradeError(
                "unreadable_provider", f"Nothing was touched: the provider {path.service}: {state['error']}"
            )
        origin, begun = _plain(state.get("version")) or given.get(path.service) or "", state.get("target")
        found[path.service] = _start([path], origin, [begun] if begun != version else [], problems)
        if path.versions and not found[path.service]:
            unknown.append(path.service)
    if unknown:
        raise UpgradeError(
            "unknown_version",
            f"Nothing was touched: Consul has no version of {plural(len(unknown), 'provider')}, {listing(unknown)}, but the upgrade "
            "path depends on it. Declare which one each runs in the variable "
            f'{PROVIDER_VARIABLE}, such as -e \'{{"{PROVIDER_VARIABLE}": {{"{unknown[0]}": "2.4"}}}}\'.',
            providers=unknown,
        )
    return found


def _refuse_unknown(services: Mapping[str, Sequence[str]], before: Mapping[str, str], version: str) -> None:
    unknown = [host for host, names in services.items() if names and not before[host]]
    if unknown:
        names = list(dict.fromkeys(service for host in unknown for service in services[host]))
        raise UpgradeError(
            "unknown_version",
            f"Nothing was touched: {plural(len(unknown), 'host')} never reported a version, but the upgrade path of {listing(names)} "
            f"depends on it: {listing(unknown, 20)}. Declare which one each runs in its variable {HOST_VARIABLE}, or for all of them "
            f"with -e {HOST_VARIABLE}=X. For a new host without data, declare {version}. Or hold these hosts, or leave them out with "
            "upgrade_limit.",
            hosts=unknown,
        )


def _path_checkpoints(
    paths: Sequence[_Path], before: str, providers: Mapping[str, str], version: str, problems: dict[str, None]
) -> list[str]:
    checkpoints: list[str] = []
    for path in paths:
        start = providers[path.service] if path.is_provider else before
        try:
            checkpoints += [
                checkpoint_name(path.service, one) for one in path.order.between(start, version, path.versions)
            ]
        except UpgradeError as error:
            problems[f"{path.service}: {error.message}"] = None
    return checkpoints


def _lines(
    found: Mapping[tuple[str, str], Sequence[str]],
    hosts: Mapping[str, tuple[str, str]],
    version: str,
    providers: Mapping[str, str],
    paths: Mapping[str, Sequence[_Path]],
) -> list[str]:
    """Return the paths as text: a line for the hosts of a role with the same origin, and one for each provider."""
    by_path: dict[tuple[str, str], list[str]] = {}
    for host, key in hosts.items():
        by_path.setdefault(key, []).append(host)
    lines = []
    provider_names = {path.service for role in paths.values() for path in role if path.is_provider}
    for key, path_checkpoints in found.items():
        role, before = key
        own = [one for one in path_checkpoints if one.partition("@")[0] not in provider_names]
        if not any(not path.is_provider for path in paths[role]):
            continue
        names = listing(in_order(by_path[key]))
        lines.append(f"{role} from {before} to {version} by {', '.join(own) or 'no checkpoint'}: {names}")
    every = dict.fromkeys(one for path_checkpoints in found.values() for one in path_checkpoints)
    for provider, before in providers.items():
        own = [one for one in every if one.partition("@")[0] == provider]
        lines.append(
            f"provider {provider} from {before or 'no known version'} to {version} by {', '.join(own) or 'no checkpoint'}"
        )
    return lines
