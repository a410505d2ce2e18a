# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host in its state, and what follows from the facts that the state was read from."""

from __future__ import annotations

from dataclasses import dataclass

from .._fleet.fleet import FAILED as RECORDED_FAILED
from .._fleet.fleet import POST_FAILED, POST_STARTED, STARTED, HostRecord
from .._fleet.fleet import UPGRADED as RECORDED_UPGRADED
from .._fleet.gates import GateAnswer
from .._fleet.health_marks import HealthMark
from .._fleet.holds import Hold
from .state_names import BROKEN, HELD, LOST, PENDING, TAKES_A_SLOT, UPGRADED, UPGRADING


@dataclass(frozen=True, slots=True)
class HostState:
    """A host, its state, and the facts that the state was read from.

    :param version: the version that it reported last; None if it never reported.
    :param trouble: why it is lost, or why it is not upgraded though it reported; empty for other states.
    :param wake_at: when its state may change if nothing is written (unix seconds).
    :param mark: the health mark to store; None for none.
    :param in_rollback: whether the rollout is a rollback.
    :param was_broken: whether it had failed or was lost when that rollback began.
    :param current: the version that the rollout goes to.
    :param was_admitted: whether planners had admitted it before its gate was removed, and it has not reported since.
    :param is_busy: whether it has started other work than the rollout's and not ended it. ``record`` is that of this work then.
    :param is_down: whether it is down, or may be, though it waits or is upgraded: it failed in an upgrade to another version, or is in its
        post-upgrade tasks, or failed or stopped in them, and was not retried. During a job, whether this was so of an upgrade, in any state.
    :param is_in_post_upgrade: whether a run works on its post-upgrade tasks, or may at any time, because planners have admitted it to them. A lease
        alone does not show that: a run has it while the host waits.
    :param lost_after: why it counts as lost in its post-upgrade tasks, although it is upgraded; empty if it does not.
    :param is_target: whether the rollout is for it. A host that a job is not for counts as upgraded.
    """

    host: str
    role: str
    state: str
    version: str | None
    gate: GateAnswer
    hold: Hold | None
    record: HostRecord | None
    trouble: str = ""
    wake_at: float | None = None
    mark: HealthMark | None = None
    in_rollback: bool = False
    was_broken: bool = False
    current: str | None = None
    was_admitted: bool = False
    is_busy: bool = False
    is_target: bool = True
    is_down: bool = False
    is_in_post_upgrade: bool = False
    lost_after: str = ""

    @property
    def has_started(self) -> bool:
        """Whether it reported that it began an upgrade, to any version, and not that it ended."""
        return self.record is not None and self.record.state == STARTED

    @property
    def begun(self) -> str | None:
        """The version that it began to upgrade to and does not run: it is midway, or it failed, retried or not."""
        record = self.record
        if record is None or not record.readable or record.state == RECORDED_UPGRADED:
            return None
        # A hold of its own, or a retry, gives a host that has begun nothing a record too.
        return record.version if record.has_reported or record.not_ended else None

    @property
    def is_soaking(self) -> bool:
        """Whether it reported the version, and its health is still to be seen."""
        return self.state == UPGRADING and bool(self.trouble)

    @property
    def has_failed_after(self) -> bool:
        """Whether it is upgraded, and its post-upgrade tasks failed."""
        return self.state == UPGRADED and self._is_of_failed_tasks and self.is_down

    @property
    def down_because(self) -> str:
        """What became of its upgrade, such as ``failed in the upgrade to 2.0``. Only of a host that is down because of that."""
        record = self.record
        version = record.version if record is not None else "another version"
        if record is None or not record.readable or record.post not in (POST_STARTED, POST_FAILED):
            return f"failed in the upgrade to {version}"
        what = "stopped" if record.post == POST_STARTED else "lost" if record.is_lost else "failed"
        return f"{what} in the post-upgrade tasks of {version}"

    @property
    def _is_of_failed_tasks(self) -> bool:
        return self.record is not None and self.record.readable and self.record.post == POST_FAILED

    @property
    def can_finish(self) -> bool:
        """Whether it is upgrading and can be expected to finish. A host that is held before it started can not."""
        if self.state != UPGRADING or self.is_unadmitted:
            return False
        return self.has_started or self.is_soaking or self.hold is None

    @property
    def needs_its_gate(self) -> bool:
        """Whether it was admitted and is upgrading, but its gate is closed, as when a new rollout began after its start.

        It may have been silent for so long that it is lost, as it waits for its gate. In a rollback, such a host has no slot, and waits to be
        retried. A start in its record is not enough, because a host may write anything there.
        """
        is_midway = self.state == UPGRADING or (self.state == LOST and self.has_started and self.takes_a_slot)
        if not is_midway or self.is_soaking or self.gate.is_open:
            return False
        return self.hold is None and self.was_admitted and not self.is_busy

    @property
    def is_unadmitted(self) -> bool:
        """Whether it reported a start behind a closed gate, and no planner has admitted it."""
        begun = self.state in (UPGRADING, LOST) and self.has_started and not (self.is_soaking or self.is_busy)
        return begun and not self.gate.is_open and not self.was_admitted

    @property
    def tries_again(self) -> bool:
        """Whether it is upgrading again after a failure in this rollout, and was neither upgraded nor put back by an operator since.

        An agent tries again by itself. As long as nothing shows that it will succeed this time, the failure counts: also while it has reported
        the version, and its checks and its soak have not passed.
        """
        record = self.record
        if self.state != UPGRADING or record is None or record.version != self.current:
            return False
        if record.state == RECORDED_UPGRADED:
            has_been_well = self.mark is not None and self.mark.upgraded
            return RECORDED_FAILED in record.times and not has_been_well
        # Both times are by the host's clock.
        return record.state == STARTED and record.times.get(RECORDED_FAILED, 0) > record.times.get(RECORDED_UPGRADED, 0)

    @property
    def takes_a_slot(self) -> bool:
        """Whether it is down, or may be, and so leaves fewer slots for others."""
        return self.is_down or (self.state in TAKES_A_SLOT and not (self.is_excused and self.state in BROKEN))

    @property
    def is_excused(self) -> bool:
        """Whether others do not wait for it, because it was broken before the rollback that is under way.

        That includes a host that was midway then and has failed or gone silent since.
        """
        return self.was_broken or (self.in_rollback and self._has_broken_elsewhere)

    @property
    def _has_broken_elsewhere(self) -> bool:
        record = self.record
        if record is None or not record.readable or record.version == self.current:
            return False
        if self.state == LOST:
            return record.state == STARTED
        return record.state == RECORDED_FAILED and self.state in (PENDING, HELD)

    @property
    def blocks_others(self) -> bool:
        """Whether roles that wait for its role have to wait for it."""
        return self.state != UPGRADED and not self.is_excused
