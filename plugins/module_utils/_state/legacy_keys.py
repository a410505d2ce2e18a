# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where JioCloud's own code kept its keys, as far as that is not where they are now: layout version 0."""

from __future__ import annotations

from dataclasses import dataclass

from .keys import SCOPES

_GATE = "enable_puppet"


@dataclass(frozen=True, slots=True)
class LegacyKeys:
    """The key layout 0 under a prefix, which is empty or ends with a slash.

    Its gates stand at either of two places: where those of layout 1 do, or at ``config_state/<scope>/<name>/enable_puppet``.
    The latter are what this class calls gates. Other settings of hosts and roles may stand beside them.
    """

    prefix: str = ""

    @property
    def reports(self) -> str:
        """The folder of what the hosts say they run."""
        return f"{self.prefix}running_version/"

    def report(self, version: str, host: str) -> str:
        """A host's word that it runs a version; the value is a unix time."""
        return f"{self.reports}{version}/{host}"

    def report_of(self, key: str) -> tuple[str, str] | None:
        """Return the version and the host of a report; None for a key that is none."""
        version, _slash, host = key.removeprefix(self.reports).partition("/")
        if not key.startswith(self.reports) or not version or not host or "/" in host:
            return None
        return version, host

    @property
    def gates(self) -> str:
        """The folder that the gates are in, along with those of layout 1."""
        return f"{self.prefix}config_state/"

    def gate(self, scope: str, name: str | None = None) -> str:
        """One gate: ``global``, or that of a role or a host."""
        return f"{self.gates}{scope}/{_GATE}" if name is None else f"{self.gates}{scope}/{name}/{_GATE}"

    def gate_of(self, key: str) -> tuple[str, str | None] | None:
        """Return the scope and the name of a gate, which for ``global`` is None; None for a key that is no gate."""
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
        """The folders that have gates and none of layout 1, for each scope one; they may have other settings too."""
        return tuple(f"{self.gates}{scope}/" for scope in SCOPES)
