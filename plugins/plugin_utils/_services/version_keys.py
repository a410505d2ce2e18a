# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a service's version rules: ``versions``, ``allowed_from`` and ``allow_downgrade``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import UNQUOTED, check_new_version
from ...module_utils._rules.allowed_versions import OriginsOfVersions, VersionRules, parse_allowed_from
from .refusal import refusal

WAY_KEYS = ("versions", "allowed_from", "allow_downgrade")


def read_version_rules(data: Mapping[Any, Any], at: Callable[[str], str], file: str) -> VersionRules:
    """Return the version rules of a mapping with these keys.

    :param at: key -> its file and line, for messages.
    :param file: the file of the mapping, for keys that it lacks.
    :raises UpgradeError: ``bad_service``.
    """
    where = {key: at(key) for key in WAY_KEYS if data.get(key) is not None}
    rules = VersionRules(
        file,
        _versions(data.get("versions"), at("versions")),
        _allowed_from(data.get("allowed_from"), at("allowed_from")),
        _flag(data.get("allow_downgrade"), at("allow_downgrade")),
        where,
    )
    _refuse_unordered(rules)
    return rules


def merged_version_rules(rules: VersionRules, given: VersionRules) -> VersionRules:
    """Return the version rules of a service, with the keys of its use in place of its own.

    :param rules: the rules of the service.
    :param given: the rules of its use.
    :raises UpgradeError: ``bad_service`` if they do not fit together.
    """
    if not given.where:
        return rules
    found = replace(rules, **{key: getattr(given, key) for key in given.where}, where={**rules.where, **given.where})
    _refuse_unordered(found)
    return found


def _versions(value: object, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise refusal(where, f"versions: {value!r} is not a list of versions, from the oldest to the newest.")
    for at, version in enumerate(value):
        if not isinstance(version, str):
            raise refusal(
                where,
                f"versions: {version!r} {UNQUOTED}",
            )
        try:
            check_new_version(version, "versions")
        except UpgradeError as error:
            raise refusal(where, error.message) from error
        if version in value[:at]:
            raise refusal(where, f"versions: {version!r} is listed twice. Remove one of them.")
    return tuple(value)


def _allowed_from(value: object, where: str) -> tuple[OriginsOfVersions, ...] | None:
    if value is None:
        return None
    try:
        entries = parse_allowed_from(value)
    except ValueError as error:
        raise refusal(where, f"allowed_from: {error}") from error
    if not entries or not all(one.origins for one in entries):
        raise refusal(
            where, f"allowed_from: {value!r} allows no upgrade. Name the versions to upgrade from, or remove the key."
        )
    return entries


def _flag(value: object, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise refusal(where, f"allow_downgrade: {value!r} is neither true nor false.")
    return bool(value)


def _refuse_unordered(rules: VersionRules) -> None:
    """Refuse versions in ``allowed_from`` that can't be compared."""
    order = rules.order()
    named = [
        version
        for entry in rules.allowed_from or ()
        for one in (entry.to, *entry.origins)
        for _sign, version in one.bounds
    ]
    for version in named:
        if rules.versions is not None and version not in rules.versions:
            raise refusal(
                rules.at("allowed_from"),
                f"allowed_from: {version} is not in the list of {rules.at('versions')}. Add it to that list.",
            )
        try:
            order.compare(named[0], version)
        except UpgradeError as error:
            raise refusal(rules.at("allowed_from"), f"allowed_from: {error.message}") from error
