# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The details of hosts on the live page, in a bounded number of parts, so that a change of one host rewrites only its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...module_utils._common.names import is_job, job_id
from ...module_utils._fleet.fleet import POST_OPEN, RETRIED, STARTED, HostRecord, Snapshot
from ...module_utils._host_states.state_names import BROKEN, FAILED, PENDING, UPGRADED, UPGRADING, state_text
from ...module_utils._planner import blocker_codes, explanations, stage_progress
from ...module_utils._planner.plan import HostView

# A part has at least so many hosts, and there are about so many parts at most. Each role has parts of its own.
_LEAST, _MOST_PARTS = 32, 100
# In a row of cells. A part has full rows.
ROW = 8
# The state of hosts that a job is not for.
LEFT_OUT = "left out"

# Why a host waits, without what changes with every other host. The overview has the whole reason. {rule} is the key in the rules, and
# {rollout} is "rollout" or "job".
_WAITS: Mapping[str, str] = {
    explanations.NO_VERSION: "there is no version to upgrade to",
    explanations.ADMISSIBLE: "can be admitted in the next pass",
    explanations.CAP: "waits for a slot: {rule}",
    explanations.CAP_ZERO: "waits for a slot, and its cap is 0 or missing: {rule}",
    explanations.OTHER_SERVICES: "does not have the tasks of its services, and has to be enrolled again",
    explanations.OTHER_ROLE: "has another role in its settings than in the fleet",
    explanations.SETS: "waits until the current set is done: {rule}",
    explanations.ORDER: "waits for a role that goes before it: {rule}",
    explanations.ROLE_BUDGET: "the failure budget of its role is exhausted: {rule}",
    stage_progress.STAGE: "waits for an earlier stage",
    stage_progress.SOAK: "waits for the soak of an earlier stage: {rule}",
    stage_progress.APPROVAL: "waits for an approval after an earlier stage",
    stage_progress.ROLLBACK: "was broken before this rollback, and is admitted after all other hosts",
    blocker_codes.PAUSE: "the {rollout} is paused",
    blocker_codes.ABORT: "the {rollout} was aborted",
    blocker_codes.EXPIRED: "the job has expired",
    blocker_codes.BUDGET: "the failure budget is exhausted: {rule}",
    blocker_codes.HOURS: "outside of the hours of upgrades: {rule}",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Some hosts of a role that are next to each other in natural order.

    :param name: name of its files without the extension.
    """

    name: str
    role: str
    hosts: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return its first and its last host."""
        return self.hosts[0] if len(self.hosts) == 1 else f"{self.hosts[0]} to {self.hosts[-1]}"


def parts_of(roles: Mapping[str, str]) -> list[Part]:
    """Return the parts of a fleet.

    :param roles: host -> role, in natural order.
    """
    size = max(_LEAST, -(-len(roles) // _MOST_PARTS))
    size = -(-size // ROW) * ROW
    by_role: dict[str, list[str]] = {}
    for host, role in roles.items():
        by_role.setdefault(role, []).append(host)
    chunks = [
        (role, tuple(hosts[at : at + size])) for role, hosts in by_role.items() for at in range(0, len(hosts), size)
    ]
    return [Part(str(number), role, hosts) for number, (role, hosts) in enumerate(chunks, 1)]


def events_by_host(
    events: Iterable[Mapping[str, Any]], roles: Mapping[str, str]
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return host -> the entries of the history that name it or its role, the oldest first.

    :param roles: host -> role.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    by_role: dict[str, list[str]] = {}
    for host, role in roles.items():
        by_role.setdefault(role, []).append(host)
    for event in events:
        hosts = event.get("hosts") or {}
        for host, reason in hosts.items():
            found.setdefault(host, []).append(_event(event, reason))
        for role, one in (event.get("roles") or {}).items():
            for host in by_role.get(role, ()):
                if host not in hosts:
                    found.setdefault(host, []).append(_event(event, str(one.get("reason") or "")))
    return found


def _event(event: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return what an entry says on one host, in the fields of the history."""
    return {
        "epoch": event["epoch"],
        "at": event["at"],
        "what": event["what"],
        "version": event["version"],
        "by": str(event.get("by") or event.get("who") or ""),
        "reason": reason,
    }


def shown_state(view: HostView, *, of_job: bool) -> str:
    """Return what people read for the state of a host."""
    return LEFT_OUT if view.outside else state_text(view.state, of_job=of_job)


def waiting_text(view: HostView, *, of_job: bool = False) -> str:
    """Return why a host waits, without what changes with every other host."""
    known = _WAITS.get(view.cause)
    if known is None:
        # A reason may have the braces of a rule, and already says if the host never reported.
        return view.reason
    text = known.format(rule=view.rule, rollout="job" if of_job else "rollout").removesuffix(": ")
    if view.state == UPGRADING:
        return f"has started, and its gate is closed: {text}"
    # Hosts report no version in a job.
    return text if view.version or of_job else f"never reported; {text}"


@dataclass(frozen=True, slots=True)
class HostDetails:
    """All that the page has on one host. Equal details have equal pages.

    :param events: what :func:`events_by_host` returns for it.
    :param target: that of the rollout: a version or a job; empty for none.
    :param output: the last output of the job there, see :class:`JobDetails`; None for none.
    :param is_under_way: whether the rollout is, so that hosts can be retried.
    """

    host: str
    view: HostView
    record: HostRecord | None
    hold: str
    stage: str
    events: tuple[Mapping[str, Any], ...]
    target: str = ""
    output: Mapping[str, Any] | None = None
    is_under_way: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as ``consul_upgrade_info`` returns a host."""
        return {
            "name": self.host,
            **asdict(self.view),
            "state_text": self.state_text,
            "jobs": [dict(self.output)] if self.output is not None else [],
            "stage_name": self.stage,
            "hold": self.hold,
            "record": self.record.plain() if self.record is not None else None,
            "events": [*self.events],
        }

    @property
    def of_job(self) -> bool:
        """Whether the rollout is a job."""
        return is_job(self.target)

    @property
    def state_text(self) -> str:
        """What people read for its state."""
        return shown_state(self.view, of_job=self.of_job)

    @property
    def position(self) -> str:
        """A sentence on the version that it runs, or whether it has run the job; empty if the state says all."""
        if not self.of_job:
            return f"Runs {self.view.version}." if self.view.version else "Never reported a version."
        job = f"the job {job_id(self.target)}"
        if self.view.outside:
            return f"T{job[1:]} is not for it, so it does nothing and takes no slot."
        if self.view.state == UPGRADED:
            return f"Has run {job}."
        return "" if self.view.state == UPGRADING or self.is_broken else f"Has not run {job}."

    @property
    def may_still_run(self) -> bool:
        """Whether it has started something and not reported its end."""
        return self.view.busy or (self.record is not None and self.record.state == STARTED)

    @property
    def next_playbook(self) -> str:
        """The playbook that answers it if it is broken: ``retry``, or ``status``, which says what to do first, or why a retry does not help."""
        is_final = self.record is not None and self.record.is_final(self.target)
        return "retry" if self.is_under_way and not (self.may_still_run or is_final) else "status"

    @property
    def own_record(self) -> HostRecord | None:
        """Its record of this rollout; None if it has none."""
        record = self.record
        return record if record is not None and record.readable and record.version == self.target else None

    @property
    def reports(self) -> Iterator[tuple[int, str, str]]:
        """Yield when it entered each state of its own record (unix seconds), what people read for the state, and by whom: ``it`` or ``an operator``."""
        record = self.own_record
        if record is None:
            return
        for state, at in record.times.items():
            if state == POST_OPEN or (state == FAILED and record.is_lost):
                continue
            by = "an operator" if state == RETRIED else "it"
            yield at, state_text(state, of_job=self.of_job), by

    @property
    def steps(self) -> Iterator[tuple[str, str, int, int | None]]:
        """Yield service, step, begin and end (unix seconds; None for the step that it is in)."""
        record = self.own_record
        if record is None:
            return
        # The last step has ended if the host has.
        ended = record.times.get(record.state) if record.state in (FAILED, UPGRADED) else None
        ends: list[int | None] = [*(one.at for one in record.trail[1:]), ended]
        for one, end in zip(record.trail, ends, strict=False):
            if one.service or one.step:
                yield one.service, one.step, one.at, end

    @property
    def is_broken(self) -> bool:
        """Whether it failed or is lost."""
        return self.view.state in BROKEN


def host_details(
    snapshot: Snapshot,
    views: Mapping[str, HostView],
    stages: Sequence[str],
    events: Mapping[str, Sequence[Mapping[str, Any]]],
    outputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, HostDetails]:
    """Return host -> its details. Takes time linear in hosts.

    :param views: host -> view.
    :param stages: names of the stages.
    :param events: what :func:`events_by_host` returns.
    :param outputs: host -> the last output of the job there; None in a rollout to a version.
    """
    target = snapshot.current_version or ""
    is_under_way = snapshot.ledger is not None and snapshot.ledger.is_under_way
    found = {}
    for host, view in views.items():
        hold = snapshot.hold_of(host, view.role)
        found[host] = HostDetails(
            host,
            replace(view, reason=waiting_text(view, of_job=snapshot.is_job))
            if view.state == PENDING or view.cause
            else view,
            snapshot.records.get(host),
            hold.text() if hold is not None else "",
            stages[view.stage] if view.stage < len(stages) else "",
            tuple(events.get(host, ())),
            target,
            (outputs or {}).get(host),
            is_under_way,
        )
    return found
