# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version rules of a service: from which versions it may be upgraded to which, and whether downgrades are allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import UNQUOTED
from .._common.sanitize import truncated_repr
from .._common.versions import VersionOrder

_ANY = "*"
_BOUND = re.compile(r"(>=|<=|!=|==|>|<|=)?\s*([^\s<>=!,*](?:[^<>=!,*]*[^\s<>=!,*])?)")
# The results of VersionOrder.compare that fit each sign.
_FITS = {
    ">=": (0, 1),
    "<=": (0, -1),
    "!=": (1, -1),
    "==": (0,),
    "=": (0,),
    "": (0,),
    ">": (1,),
    "<": (-1,),
}


@dataclass(frozen=True, slots=True)
class Range:
    """A range of versions, such as ``>=2.4, <2.10``. A version alone means exactly that one, and ``*`` means any.

    :param bounds: sign and version of each bound; a version has to fit all of them.
    """

    text: str
    bounds: tuple[tuple[str, str], ...]

    def has(self, version: str, order: VersionOrder) -> bool:
        """Return whether a version is in the range.

        :raises UpgradeError: ``incomparable_versions``.
        """
        return all(order.compare(version, bound) in _FITS[sign] for sign, bound in self.bounds)


@dataclass(frozen=True, slots=True)
class OriginsOfVersions:
    """An entry of ``allowed_from``: from which versions a service may be upgraded to a range of versions.

    :param to: the targets that the entry is for; ``*`` if ``allowed_from`` is not a table.
    :param origins: the versions from which it may be upgraded; one of the ranges has to fit.
    """

    to: Range
    origins: tuple[Range, ...]

    def __str__(self) -> str:
        """Return it as it was written."""
        origins = " or ".join(one.text for one in self.origins) or "nothing"
        return origins if self.to.text == _ANY else f"{origins} to {self.to.text}"


@dataclass(frozen=True, slots=True)
class VersionRules:
    """Which versions of a service may be upgraded to which.

    :param file: the service's file, for messages.
    :param versions: all versions in their order; None if the names show the order.
    :param allowed_from: None if any version may be upgraded to any later one.
    :param allow_downgrade: whether each upgrade that is allowed may also be reversed.
    :param where: key -> file and line, for the keys that are given.
    """

    file: str = field(default="", compare=False)
    versions: tuple[str, ...] | None = None
    allowed_from: tuple[OriginsOfVersions, ...] | None = None
    allow_downgrade: bool = False
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    def at(self, key: str) -> str:
        """Return file and line of a key, or the file if the key is not given."""
        return self.where.get(key, self.file)

    def order(self) -> VersionOrder:
        """Return the order of the service's versions."""
        return VersionOrder(self.versions, self.at("versions"))

    def plain(self) -> dict[str, Any]:
        """Return the rules as plain data for :func:`version_rules_from`."""
        entries = self.allowed_from
        return {
            "file": self.file,
            "versions": None if self.versions is None else list(self.versions),
            "allowed_from": None
            if entries is None
            else [{"to": one.to.text, "from": [origin.text for origin in one.origins]} for one in entries],
            "allow_downgrade": self.allow_downgrade,
            "where": dict(self.where),
        }

    def refusal(self, start: str | None, end: str, order: VersionOrder) -> str | None:
        """Return why a host may not go from one version to another, None if it may.

        Unlike :meth:`comparison`, it also returns the reason if the versions can't be compared.
        """
        try:
            return self.comparison(start, end, order)
        except UpgradeError as error:
            return error.message.removesuffix(".")

    def comparison(self, start: str | None, end: str, order: VersionOrder) -> str | None:
        """Return why a host may not go from one version to another, None if it may.

        :param start: None if it is not known.
        :param order: the result of :meth:`order`, which the caller keeps because it caches parsed versions.
        :raises UpgradeError: ``incomparable_versions``.
        """
        if start is None:
            return None if self.allowed_from is None else self._unknown()
        # Versions that have no order are compared only if the answer depends on it.
        if start == end or (self.allow_downgrade and self.allowed_from is None):
            return None
        sign = order.compare(start, end)
        if sign > 0:
            return self._back(start, end, order)
        return self._up(start, end, order) if sign else None

    def _up(self, start: str, end: str, order: VersionOrder) -> str | None:
        if self.allowed_from is None:
            return None
        rule = f"allowed_from ({self.at('allowed_from')})"
        # The first entry that fits counts, as in a firewall's table, so that an exception can precede its rule.
        entry = next((one for one in self.allowed_from if one.to.has(end, order)), None)
        if entry is None:
            return f"it can't go from {start} to {end}, as {rule} has no entry for {end}"
        if not any(origin.has(start, order) for origin in entry.origins):
            return f"it can't go from {start} to {end}, as {rule} is {entry}"
        return None

    def _back(self, start: str, end: str, order: VersionOrder) -> str | None:
        if not self.allow_downgrade:
            return f"it can't go back from {start} to {end}, as allow_downgrade: true is not set ({self.at('allow_downgrade')})"
        why = self._up(start=end, end=start, order=order)
        return why and f"it can't go back from {start} to {end}: {why}, and a downgrade needs an allowed upgrade"

    def _unknown(self) -> str:
        return f"its version is not known, and allowed_from ({self.at('allowed_from')}) allows only some versions"


def parse_range(value: object) -> Range:
    """Return the range of versions that a text means.

    :raises ValueError: if it is not a range; the message begins with the value.
    """
    if not isinstance(value, str):
        raise ValueError(f"{truncated_repr(value)} {UNQUOTED}")
    if value.strip() == _ANY:
        return Range(_ANY, ())
    found = [_BOUND.fullmatch(part.strip()) for part in value.split(",")]
    bounds = tuple((one[1] or "", one[2]) for one in found if one is not None)
    if len(bounds) < len(found):
        raise ValueError(
            f"{truncated_repr(value)} is not a range of versions. Give a version, bounds such as '>=2.4, <2.10', a list of these, or '*'."
        )
    return Range(value.strip(), bounds)


def parse_allowed_from(value: object) -> tuple[OriginsOfVersions, ...]:
    """Return the entries of ``allowed_from``.

    :param value: a range, a list of ranges, or a mapping of a range of targets to one of these.
    :raises ValueError: if it is none of these; the message begins with the value.
    """
    if isinstance(value, Mapping):
        return tuple(OriginsOfVersions(parse_range(to), _ranges(origins)) for to, origins in value.items())
    return (OriginsOfVersions(Range(_ANY, ()), _ranges(value)),)


def _ranges(value: object) -> tuple[Range, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(parse_range, value))
    return (parse_range(value),)


def version_rules_from(data: Mapping[str, Any]) -> VersionRules:
    """Return the rules that :meth:`VersionRules.plain` returned as data."""
    entries = data["allowed_from"]
    return VersionRules(
        data["file"],
        None if data["versions"] is None else tuple(data["versions"]),
        None
        if entries is None
        else tuple(OriginsOfVersions(parse_range(one["to"]), tuple(map(parse_range, one["from"]))) for one in entries),
        bool(data["allow_downgrade"]),
        dict(data["where"]),
    )
