# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of python-jiocloud that layout 1 does not have: layout version 0."""

from __future__ import annotations

from dataclasses import dataclass

from .keys import SCOPES

_GATE = "enable_puppet"


@dataclass(frozen=True, slots=True)
class LegacyKeys:
    """Key layout 0 under a prefix, which is empty or ends with a slash.

    Its gates are either in the keys of layout 1 or in ``config_state/<scope>/<name>/enable_puppet``. This class has only the
    latter. The same folders may have other settings of hosts and roles.
    """

    prefix: str = ""

    @property
    def reports(self) -> str:
        """The folder of the versions that hosts report."""
        return f"{self.prefix}running_version/"

    def report(self, version: str, host: str) -> str:
        """A host's report that it runs a version; the value is a unix time."""
        return f"{self.reports}{version}/{host}"

    def report_of(self, key: str) -> tuple[str, str] | None:
        """Return version and host of a report's key, None for other keys."""
        version, _slash, host = key.removeprefix(self.reports).partition("/")
        if not key.startswith(self.reports) or not version or not host or "/" in host:
            return None
        return version, host

    @property
    def gates(self) -> str:
        """The folder that has the gates, and also those of layout 1."""
        return f"{self.prefix}config_state/"

    def gate(self, scope: str, name: str | None = None) -> str:
        """One gate: ``global``, or that of a role or a host."""
        return f"{self.gates}{scope}/{_GATE}" if name is None else f"{self.gates}{scope}/{name}/{_GATE}"

    def gate_of(self, key: str) -> tuple[str, str | None] | None:
        """Return scope and name of a gate's key, None for other keys. The name of ``global`` is None."""
        if not key.startswith(self.gates):
            return None
        match key.removeprefix(self.gates).split("/"):
            case ["global", "enable_puppet"]:
                return "global", None
            case [("role" | "host") as scope, name, "enable_puppet"] if name:
                return scope, name
        return None

    @property
    def gate_folders(self) -> tuple[str, ...]:
        """The folders of the gates, one for each scope, without those of layout 1. They may have other settings too."""
        return tuple(f"{self.gates}{scope}/" for scope in SCOPES)
