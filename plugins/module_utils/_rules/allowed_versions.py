# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways of a service: which of its versions may go to which, and whether any may go back."""

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
# What a comparison may come to, for each sign.
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
    """Versions within bounds, such as ``>=2.4, <2.10``; a version alone is that one, and ``*`` is any.

    :param bounds: sign and version of each; all of them have to hold.
    """

    text: str
    bounds: tuple[tuple[str, str], ...]

    def has(self, version: str, order: VersionOrder) -> bool:
        """Return whether a version is within.

        :raises UpgradeError: ``incomparable_versions``.
        """
        return all(order.compare(version, bound) in _FITS[sign] for sign, bound in self.bounds)


@dataclass(frozen=True, slots=True)
class OriginsOfVersions:
    """Which versions may go to some.

    :param to: those that may be reached; the versions of a range alone may go to all.
    :param origins: those from which; one of them has to have the version.
    """

    to: Range
    origins: tuple[Range, ...]

    def __str__(self) -> str:
        """Return it as it was written."""
        origins = " or ".join(one.text for one in self.origins) or "nothing"
        return origins if self.to.text == _ANY else f"{origins} to {self.to.text}"


@dataclass(frozen=True, slots=True)
class VersionRules:
    """Which versions of a service may go to which.

    :param file: where the service says so, for messages.
    :param versions: all versions in their order, where that can't be told from their names.
    :param allowed_from: None where any may go to any later one.
    :param allow_downgrade: whether what may go up may come back again.
    :param where: key -> file and line, for the keys that are given.
    """

    file: str = field(default="", compare=False)
    versions: tuple[str, ...] | None = None
    allowed_from: tuple[OriginsOfVersions, ...] | None = None
    allow_downgrade: bool = False
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    def at(self, key: str) -> str:
        """Return where a key is given, or where it could be."""
        return self.where.get(key, self.file)

    def order(self) -> VersionOrder:
        """Return the order among its versions."""
        return VersionOrder(self.versions, self.at("versions"))

    def plain(self) -> dict[str, Any]:
        """Return it as data, as :func:`version_rules_from` takes it."""
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
        """Return why a host may not go from one version to another, None where it may; so does :meth:`comparison`, but for the error."""
        try:
            return self.comparison(start, end, order)
        except UpgradeError as error:
            return error.message.removesuffix(".")

    def comparison(self, start: str | None, end: str, order: VersionOrder) -> str | None:
        """Return why a host may not go from one version to another, None where it may.

        :param start: None where no one knows it.
        :param order: that of :meth:`order`, kept by the caller as it remembers what it has read.
        :raises UpgradeError: ``incomparable_versions``.
        """
        if start is None:
            return None if self.allowed_from is None else self._unknown()
        # Without a comparison where the answer can't depend on one, as names may have no order.
        if start == end or (self.allow_downgrade and self.allowed_from is None):
            return None
        turn = order.compare(start, end)
        if turn > 0:
            return self._back(start, end, order)
        return self._up(start, end, order) if turn else None

    def _up(self, start: str, end: str, order: VersionOrder) -> str | None:
        if self.allowed_from is None:
            return None
        said = f"allowed_from ({self.at('allowed_from')})"
        # As in a table of a firewall, so that an exception can stand before its rule.
        entry = next((one for one in self.allowed_from if one.to.has(end, order)), None)
        if entry is None:
            return f"it can't go from {start} to {end}, as {said} has no entry for {end}"
        if not any(origin.has(start, order) for origin in entry.origins):
            return f"it can't go from {start} to {end}, as {said} is {entry}"
        return None

    def _back(self, start: str, end: str, order: VersionOrder) -> str | None:
        if not self.allow_downgrade:
            return f"it can't go back from {start} to {end}, as it does not say allow_downgrade: true ({self.at('allow_downgrade')})"
        why = self._up(start=end, end=start, order=order)
        return why and f"it can't go back from {start} to {end}: {why}, and what can't go up can't come back"

    def _unknown(self) -> str:
        return (
            f"no one knows which version it has, and allowed_from ({self.at('allowed_from')}) says from which it can go"
        )


def parse_range(value: object) -> Range:
    """Return a range of versions.

    :raises ValueError: with the end of a sentence on the value.
    """
    if not isinstance(value, str):
        raise ValueError(f"{truncated_repr(value)} {UNQUOTED}")
    if value.strip() == _ANY:
        return Range(_ANY, ())
    found = [_BOUND.fullmatch(part.strip()) for part in value.split(",")]
    bounds = tuple((one[1] or "", one[2]) for one in found if one is not None)
    if len(bounds) < len(found):
        raise ValueError(
            f"{truncated_repr(value)} is no range of versions. Give a version, bounds such as '>=2.4, <2.10', a list of these, or '*'."
        )
    return Range(value.strip(), bounds)


def parse_allowed_from(value: object) -> tuple[OriginsOfVersions, ...]:
    """Return what ``allowed_from`` says: a range, a list of ranges, or a table of versions and from which one may go there.

    :raises ValueError: with the end of a sentence on the value.
    """
    if isinstance(value, Mapping):
        return tuple(OriginsOfVersions(parse_range(to), _ranges(origins)) for to, origins in value.items())
    return (OriginsOfVersions(Range(_ANY, ()), _ranges(value)),)


def _ranges(value: object) -> tuple[Range, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(parse_range, value))
    return (parse_range(value),)


def version_rules_from(data: Mapping[str, Any]) -> VersionRules:
    """Return the ways that :meth:`VersionRules.plain` wrote down."""
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
