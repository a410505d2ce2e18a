# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may not go where a rollout goes: the services of the hosts say from which version they can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..module_utils._model.names import some
from ..module_utils._model.versions import VersionOrder
from ..module_utils._model.ways import Ways, ways_from
from ._routes import declared_versions

_MOST_HOSTS = 20


def forbidden_moves(
    standing: Mapping[str, Any],
    composition: Mapping[str, Any],
    version: str,
    declared: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the hosts of the fleet that may not go to a version, all of them, and why.

    A host that is midway counts from where it came, and from where it was going, as it may have some of either. Those that are held
    do not go, and those without services bring themselves there.

    :param standing: a result of ``consul_upgrade_plan`` or ``consul_upgrade_info``.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param declared: host -> the version that an operator says it has, where it reported none.
    :returns: ``hosts``, by name, and ``reasons``, a sentence for all hosts that have the same, and one for each provider that may
        not go there from its own version.
    """
    found: dict[tuple[str, str, str | None, str], list[str]] = {}
    roles = {
        role: {
            name: (ways, ways.order())
            for name, one in what.get("ways", {}).items()
            if not _is_provider(what, name)
            for ways in [ways_from(one)]
        }
        for role, what in composition["roles"].items()
    }
    said = declared_versions(declared or {})
    known: dict[tuple[str, str | None], list[tuple[str, str]]] = {}
    for host, view in standing["hosts"].items():
        role = view["role"]
        if view["held"] or role not in roles:
            continue
        came = view["version"] or said.get(host) or view.get("origin")
        for start in dict.fromkeys((came, *([view["begun"]] if view["begun"] else ()))):
            if (role, start) not in known:
                known[role, start] = _refusals(roles[role], start, version)
            for service, why in known[role, start]:
                found.setdefault((role, service, start, why), []).append(host)
    providers = _providers(standing, composition, version)
    return {
        "hosts": list(dict.fromkeys(host for hosts in found.values() for host in hosts)),
        "reasons": [
            f"{some(hosts, _MOST_HOSTS)} ({start or 'never reported'}): {service} of the role {role}: {why}."
            for (role, service, start, why), hosts in found.items()
        ]
        + [f"the provider {name}: {why}." for name, why in providers.items()],
    }


def _is_provider(role: Mapping[str, Any], service: str) -> bool:
    return bool(role.get("paths", {}).get(service, {}).get("provider"))


def _providers(standing: Mapping[str, Any], composition: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return provider -> why it may not go to a version; where nobody knows its own, nothing is said."""
    found: dict[str, str] = {}
    for what in composition["roles"].values():
        for name, one in what.get("ways", {}).items():
            start = (standing.get("providers") or {}).get(name, {}).get("version")
            if start and _is_provider(what, name):
                ways = ways_from(one)
                why = ways.refusal(start, version, ways.order())
                if why:
                    found[name] = why
    return found


def _refusals(
    services: Mapping[str, tuple[Ways, VersionOrder]], start: str | None, version: str
) -> list[tuple[str, str]]:
    refusals = ((name, ways.refusal(start, version, order)) for name, (ways, order) in services.items())
    return [(name, why) for name, why in refusals if why]
