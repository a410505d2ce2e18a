# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where everything stands in Consul: layout version 1."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
# What a gate is of.
SCOPES = ("global", "role", "host")


@dataclass(frozen=True, slots=True)
class Keys:
    """The key layout under a prefix, which is empty or ends with a slash."""

    prefix: str = ""

    @property
    def current_version(self) -> str:
        """The version that the fleet should run."""
        return f"{self.prefix}current_version"

    @property
    def reports(self) -> str:
        """The folder of what the hosts say they run."""
        return f"{self.prefix}running/versions/"

    def report(self, version: str, host: str) -> str:
        """A host's word that it runs a version; the value is a unix time."""
        return f"{self.reports}{version}/{host}"

    @property
    def gates(self) -> str:
        """The folder of the gates."""
        return f"{self.prefix}config_state/enable_puppet/"

    def gate(self, scope: str, name: str | None = None) -> str:
        """One gate: ``global``, or that of a role or a host."""
        return f"{self.gates}{scope}" if name is None else f"{self.gates}{scope}/{name}"

    @property
    def upgrade(self) -> str:
        """The folder of all that belongs to rollouts."""
        return f"{self.prefix}upgrade/"

    @property
    def ledger(self) -> str:
        """The value that every planner compares and sets."""
        return f"{self.upgrade}ledger"

    @property
    def records(self) -> str:
        """The folder of the hosts' own accounts."""
        return f"{self.upgrade}hosts/"

    def record(self, host: str) -> str:
        """One host's own account."""
        return f"{self.records}{host}"

    @property
    def holds(self) -> str:
        """The folder of the holds."""
        return f"{self.upgrade}hold/"

    def hold(self, scope: str, name: str | None = None) -> str:
        """One hold: ``global``, or that of a role or a host."""
        return f"{self.holds}{scope}" if name is None else f"{self.holds}{scope}/{name}"

    @property
    def marks(self) -> str:
        """The folder of what planners have seen of the hosts' health."""
        return f"{self.upgrade}health/"

    def mark(self, host: str) -> str:
        """What planners have seen of one host's health."""
        return f"{self.marks}{host}"

    @property
    def approvals(self) -> str:
        """The folder of who approved that a rollout goes on."""
        return f"{self.upgrade}approval/"

    def approval(self, stage: str) -> str:
        """Who approved that the rollout goes on after a stage."""
        return f"{self.approvals}{stage}"

    @property
    def drivers(self) -> str:
        """The folder of who is driving which host, as long as they are."""
        return f"{self.upgrade}drivers/"

    def driver(self, host: str) -> str:
        """Who is driving a host; locked by that run's session, and gone with it."""
        return f"{self.drivers}{host}"

    @property
    def onces(self) -> str:
        """The folder of what one host does for all."""
        return f"{self.upgrade}once/"

    def once(self, version: str, unit: str) -> str:
        """What one host does for all on the way to a version."""
        return f"{self.onces}{version}/{unit}"

    @property
    def providers(self) -> str:
        """The folder of what is no host, and has a version all the same."""
        return f"{self.upgrade}providers/"

    def provider(self, name: str) -> str:
        """One provider's version, and where it is on the way to another."""
        return f"{self.providers}{name}"

    @property
    def history(self) -> str:
        """The folder of what applied plans changed."""
        return f"{self.upgrade}history/"

    def event(self, epoch: int) -> str:
        """What the planner write with this epoch changed, and why."""
        return f"{self.history}{epoch}"

    @property
    def notified(self) -> str:
        """What was told of the rollout by a hook; locked by the run that tells it."""
        return f"{self.upgrade}notified"

    @property
    def schema(self) -> str:
        """The version of this layout."""
        return f"{self.upgrade}schema"

    @property
    def migration(self) -> str:
        """Where a migration of the layout is; locked by whoever is at it, and there as long as old keys are kept."""
        return f"{self.upgrade}migration"
