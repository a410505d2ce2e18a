# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of a host's version reports counts: it may have several, in one or both layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .._fleet.fleet import HostRecord, VersionReport, is_outdated


class VersionReports:
    """The version reports of a fleet, some of which may change.

    Old nodes write the new report and remove the former one in two requests, so a host may have reports of two versions. The latest
    counts; at the same time, the one that is not the current version, so that no upgrade is left out, and then the one written last.
    If a time can't be read, it may be any, so the one written last counts. Nodes with the old code go on writing to the legacy layout, so
    the later one of both layouts counts.
    """

    def __init__(self) -> None:
        """Create an empty collection."""
        # For the current and for the legacy layout: host -> key -> report.
        self._found: tuple[dict[str, dict[str, VersionReport]], ...] = ({}, {})
        # Host -> the report that counts, and host -> sentences on reports that do not.
        self._counting: dict[str, VersionReport] = {}
        self._warnings: dict[str, list[str]] = {}
        self._changed: set[str] = set()
        self._current: str | None = None

    @property
    def legacy_hosts(self) -> frozenset[str]:
        """The hosts that have a report in the legacy layout."""
        return frozenset(self._found[1])

    def put(self, host: str, report: VersionReport) -> None:
        """Take a report as it is now."""
        self._found[report.is_legacy].setdefault(host, {})[report.key] = report
        self._changed.add(host)

    def remove(self, host: str, key: str, *, is_legacy: bool) -> None:
        """Forget a report."""
        found = self._found[is_legacy]
        found.get(host, {}).pop(key, None)
        if not found.get(host):
            found.pop(host, None)
        self._changed.add(host)

    def record_changed(self, host: str) -> None:
        """Note that a host's record has changed, because it tells which of its reports is outdated."""
        if host in self._found[1]:
            self._changed.add(host)

    def counting(
        self, current: str | None, records: Mapping[str, HostRecord]
    ) -> tuple[dict[str, VersionReport], list[str]]:
        """Return host -> the report that counts, and warnings on those that do not. Takes time for what has changed, but for a copy.

        :param current: ``current_version``.
        """
        if current != self._current:
            self._changed |= {host for found in self._found for host, reports in found.items() if len(reports) > 1}
            self._current = current
        for host in self._changed:
            self._choose(host, records.get(host))
        self._changed.clear()
        return dict(self._counting), [one for found in self._warnings.values() for one in found]

    def _choose(self, host: str, record: HostRecord | None) -> None:
        warnings: list[str] = []
        new, old = (self._latest(host, found.get(host, {}), warnings) for found in self._found)
        self._warnings.pop(host, None)
        if warnings:
            self._warnings[host] = warnings
        if new is not None and old is not None:
            self._counting[host] = _later(old, new, record)
        elif found := new or old:
            self._counting[host] = found
        else:
            self._counting.pop(host, None)

    def _latest(self, host: str, reports: Mapping[str, VersionReport], warnings: list[str]) -> VersionReport | None:
        if len(reports) < 2:
            return next(iter(reports.values()), None)
        has_times = _have_times(reports.values())
        *others, chosen = sorted(
            reports.values(),
            key=lambda one: (_time(one) if has_times else one.index, one.version != self._current, one.index),
        )
        ignored = ", ".join(one.key for one in others)
        warnings.append(f"{host} reported several versions; {chosen.version!r} counts. Ignored: {ignored}.")
        return chosen


def _later(old: VersionReport, new: VersionReport, record: HostRecord | None) -> VersionReport:
    """Return the one of a host's two reports that counts.

    :param old: its report in layout 0.
    :param new: its report in layout 1.
    """
    if (old.version, old.at) == (new.version, new.at):
        # A migration has copied the report, so it is as old as the first of the two.
        return replace(new, index=min(old.index, new.index))
    if is_outdated(old.index, new.index, record.index if record is not None and record.has_reported else 0):
        return new
    has_times = _have_times((old, new))
    return max(old, new, key=lambda one: (_time(one) if has_times else one.index, one.index))


def _have_times(reports: Iterable[VersionReport]) -> bool:
    return all(one.at is not None for one in reports)


def _time(report: VersionReport) -> float:
    return report.at or 0
