# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys in Consul: layout version 1."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
# The scopes of gates and holds.
SCOPES = ("global", "role", "host")


@dataclass(frozen=True, slots=True)
class Keys:
    """The key layout under a prefix, which is empty or ends with a slash.

    A job has keys of its own for its target, its gates and the records of hosts. With ``is_job``, these take the place of those of
    versions, so that the same code works on both.

    :param is_job: whether these are the keys of the job.
    """

    prefix: str = ""
    is_job: bool = False

    @property
    def current_version(self) -> str:
        """The version that the fleet should run, or the job (``job/<id>``)."""
        return self.current_job if self.is_job else f"{self.prefix}current_version"

    @property
    def current_job(self) -> str:
        """The job that the fleet should run."""
        return f"{self.upgrade}current_job"

    @property
    def jobs(self) -> str:
        """The folder of the jobs."""
        return f"{self.upgrade}jobs/"

    def job(self, job: str) -> str:
        """One job, by its ID: its command, arguments, hosts, expiry and signature."""
        return f"{self.jobs}{job}"

    @property
    def job_gates(self) -> str:
        """The folder of the gates of the job, which have nothing to do with Puppet."""
        return f"{self.upgrade}job_gates/"

    @property
    def job_records(self) -> str:
        """The folder of what hosts report on the job."""
        return f"{self.upgrade}job_records/"

    @property
    def job_marks(self) -> str:
        """The folder of the health marks of the job. Those of the rollout to a version stay as they are."""
        return f"{self.upgrade}job_health/"

    @property
    def job_outputs(self) -> str:
        """The folder of the outputs of the last jobs of hosts."""
        return f"{self.upgrade}job_output/"

    def job_output(self, host: str) -> str:
        """The outputs of the last jobs of one host."""
        return f"{self.job_outputs}{host}"

    @property
    def reports(self) -> str:
        """The folder of the versions that hosts report."""
        return f"{self.prefix}running/versions/"

    def report(self, version: str, host: str) -> str:
        """A host's report that it runs a version; the value is a unix time."""
        return f"{self.reports}{version}/{host}"

    @property
    def gates(self) -> str:
        """The folder of the gates."""
        return self.job_gates if self.is_job else f"{self.prefix}config_state/enable_puppet/"

    def gate(self, scope: str, name: str | None = None) -> str:
        """One gate: ``global``, or that of a role or a host."""
        return f"{self.gates}{scope}" if name is None else f"{self.gates}{scope}/{name}"

    @property
    def upgrade(self) -> str:
        """The folder of all other keys of rollouts."""
        return f"{self.prefix}upgrade/"

    @property
    def ledger(self) -> str:
        """The ledger, with which each write of a planner begins."""
        return f"{self.upgrade}ledger"

    @property
    def records(self) -> str:
        """The folder of the host records."""
        return self.job_records if self.is_job else f"{self.upgrade}hosts/"

    def record(self, host: str) -> str:
        """The record of one host."""
        return f"{self.records}{host}"

    @property
    def wakes(self) -> str:
        """The folder of the keys that wake the agents of hosts."""
        return f"{self.upgrade}wake/"

    def wake(self, host: str) -> str:
        """The key that the agent of one host waits on. Only the write counts."""
        return f"{self.wakes}{host}"

    @property
    def holds(self) -> str:
        """The folder of the holds."""
        return f"{self.upgrade}hold/"

    def hold(self, scope: str, name: str | None = None) -> str:
        """One hold: ``global``, or that of a role or a host."""
        return f"{self.holds}{scope}" if name is None else f"{self.holds}{scope}/{name}"

    @property
    def marks(self) -> str:
        """The folder of the health marks, which planners write."""
        return self.job_marks if self.is_job else f"{self.upgrade}health/"

    def mark(self, host: str) -> str:
        """The health mark of one host."""
        return f"{self.marks}{host}"

    @property
    def approvals(self) -> str:
        """The folder of the approvals."""
        return f"{self.upgrade}approval/"

    def approval(self, stage: str) -> str:
        """The approval to go on after a stage."""
        return f"{self.approvals}{stage}"

    @property
    def leases(self) -> str:
        """The folder of the leases of hosts."""
        return f"{self.upgrade}drivers/"

    def lease(self, host: str) -> str:
        """The lease of one host; locked by the run's session, and deleted when that ends."""
        return f"{self.leases}{host}"

    @property
    def onces(self) -> str:
        """The folder of task groups that run once for all hosts."""
        return f"{self.upgrade}once/"

    def once(self, version: str, task_group: str) -> str:
        """The state of one task group that runs once for all hosts that upgrade to a version."""
        return f"{self.onces}{version}/{task_group}"

    @property
    def providers(self) -> str:
        """The folder of the providers."""
        return f"{self.upgrade}providers/"

    def provider(self, name: str) -> str:
        """One provider: its version, and its progress to another."""
        return f"{self.providers}{name}"

    def sources(self, version: str) -> str:
        """The folder of the package sources that come with a version, which operators write."""
        return f"{self.upgrade}sources/{version}/"

    @property
    def history(self) -> str:
        """The folder of the history."""
        return f"{self.upgrade}history/"

    def event(self, epoch: int) -> str:
        """The entry of the history for one epoch: what the write changed, and why."""
        return f"{self.history}{epoch}"

    @property
    def notified(self) -> str:
        """How far notifications were sent to the hook; locked by the run that sends them."""
        return f"{self.upgrade}notified"

    @property
    def handover(self) -> str:
        """Which rollout planner services carry to its end."""
        return f"{self.upgrade}handover"

    @property
    def planners(self) -> str:
        """The folder of the planner services that run."""
        return f"{self.upgrade}planners/"

    def planner(self, name: str) -> str:
        """One planner service that runs; locked by its session, and deleted when that ends."""
        return f"{self.planners}{name}"

    @property
    def schema(self) -> str:
        """The version of this layout."""
        return f"{self.upgrade}schema"

    @property
    def migration(self) -> str:
        """The progress of a migration of the layout; locked by the run that migrates, and kept as long as legacy keys are."""
        return f"{self.upgrade}migration"
