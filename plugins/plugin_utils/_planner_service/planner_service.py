# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner service: it carries each rollout that was handed over to its end, beside any number of others that do the same.

The ledger makes any number of planners safe, so nothing has to be elected for safety. To save work, one of them acts: the planner that wrote
the newest epoch makes a pass at once when something changes. The others wait until the ledger was quiet for a second. So if the one that acts
is killed, suspended or cut off, another one takes over after that second, however long Consul keeps the session of a dead process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils._cache.cached_store import FleetCache
from ...module_utils._codecs.handover import decode_handover, id_of
from ...module_utils._codecs.values import decode_ledger, decode_version
from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import rollout_text
from ...module_utils._consul.client import KVEntry
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._consul.operations import compare, remove
from ...module_utils._consul.watch import BlockingQueries, Watch
from ...module_utils._fleet.ledger import COMPLETE, PAUSED, RUNNING, Handover, Ledger
from ...module_utils._passes.planner_pass import PassRequest, PassResult
from ...module_utils._passes.repeated_passes import RepeatedPasses
from ...module_utils._planner.plan import rollout_blockers
from ...module_utils._rollout.handover import command_again
from ...module_utils._state.layout import refuse_newer_among
from ...module_utils._state.ledger_writer import HandoverChanged
from ...module_utils._state.store import Store
from .._observe.progress_lines import PassProgress, running_count, states_of_pass
from .log import WARNING, Log
from .presence import Presence
from .settings import ServiceSettings
from .systemd import Systemd

# A planner that does not act waits until the ledger was not written for this long, and a random share of the next number more (seconds).
_QUIET, _SPREAD = 1.0, 0.3
# While another planner writes all the time, this one makes a pass this often all the same, so that it knows the fleet (seconds).
_MOST_QUIET = 10.0
# A new handover is found at the latest after this time (seconds).
_HANDOVER_SECONDS = 1.0
# If Consul can't be reached, the next try comes after this pause (seconds). It never gets longer: the planner that acts may be killed as soon as
# Consul is back.
_PAUSE = 0.5
# The longest pause before another try if a pass was refused. Not every refusal ends with a write to a key that is watched: a migration ends, or a
# token gets its rights back. As above, the planner that acts may be killed soon after that (seconds).
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class _HandedOver:
    """A rollout that was handed over, as it is in Consul.

    :param index: the ModifyIndex of its handover.
    :param is_after: whether the upgrade is complete, and only post-upgrade tasks may be left.
    """

    ledger: Ledger
    handover: Handover
    index: int
    is_after: bool


@dataclass(slots=True)
class _PlannerWork:
    """A rollout that is carried.

    :param index: the ModifyIndex of its handover.
    :param is_after: as in :class:`_HandedOver`.
    :param own: the commit of the last ledger that this planner wrote; empty if another one has written since.
    :param warnings: those of the last pass.
    """

    handover: Handover
    index: int
    is_after: bool
    passes: RepeatedPasses
    progress: PassProgress
    own: str = ""
    warnings: Sequence[str] = ()


class PlannerService:
    """Waits for a rollout that was handed over, and makes its passes.

    :param systemd: is told that the planner works, from the thread that works.
    :param presence: is told which handover the planner carries or refuses.
    """

    def __init__(self, settings: ServiceSettings, log: Log, systemd: Systemd, presence: Presence) -> None:
        """Keep the arguments."""
        self._settings, self._log, self._systemd, self._presence = settings, log, systemd, presence
        consul = settings.consul
        self._store = Store(consul)
        self._cache = FleetCache(consul)
        queries = BlockingQueries(consul)
        keys = self._store.keys
        self._ledger = Watch(consul, (keys.ledger,), queries)
        self._handover = Watch(consul, (keys.handover,), queries)
        self._either = Watch(consul, (keys.ledger, keys.handover, keys.schema, keys.current_version), queries)
        self._work: _PlannerWork | None = None
        # The ledger of the last pass, of any rollout. If Consul has an older one, it was restored from a snapshot.
        self._newest: Ledger | None = None
        # Handovers that are refused, and could not be ended -> the reason.
        self._refused: dict[str, str] = {}
        # The handover that was read last; empty for none.
        self._handover_id = ""
        # Whether its rollout is complete. A run that waits for an answer may find only that one: a job can take less time than the answer.
        self._is_carried = False
        self._pause = _PAUSE

    def run(self) -> None:
        """Work until the process ends."""
        while True:
            self._work_once()

    def _work_once(self) -> None:
        """Carry the rollout until its handover changes, or wait for a change if none was handed over."""
        self._systemd.alive()
        mark, mark_of_handover = self._either.mark(), self._handover.mark()
        try:
            self._read_and_carry(mark, mark_of_handover)
        except Unreachable as error:
            self._log.state("unreachable", f"Admits no host: {error.message}", WARNING)
            self._sleep(_PAUSE)
        except UpgradeError as error:
            self._log.state(error.code, f"Admits no host: {error.message}", WARNING)
            self._presence.answer(self._handover_id, error.message)
            if error.code == "went_back" and self._work is not None:
                self._end_handover(self._work, error.message)
            elif error.code == "overtaken":
                self._drop_work()
            self._rest_after_refusal(error.code, mark)
        else:
            self._pause = _PAUSE

    def _end_handover(self, work: _PlannerWork, why: str) -> None:
        """End a handover after a restore of Consul, for all planner services: only an operator can compare the hosts.

        The handover may be that of the snapshot, so it is no sign that an operator has done so.
        """
        self._drop_work()
        key = self._store.keys.handover
        try:
            self._store.client.write([compare(key, work.index), remove(key)])
        except Conflict:
            # If another service has ended it, an operator may hand the rollout over again at any moment. What is there otherwise is read,
            # refused and ended in the same way.
            with contextlib.suppress(UpgradeError):
                if self._store.client.get(key) is None:
                    self._newest = None
            return
        except Unreachable:
            # As above.
            return
        except UpgradeError as error:
            self._refused[work.handover.id] = why
            self._log.say_once("handover", error.code, f"{key} can't be deleted: {error.message}", WARNING)
        self._newest = None

    def _rest_after_refusal(self, code: str, mark: int) -> None:
        """Wait until a key has changed that may end the refusal. The more refusals follow each other, the longer it waits for that.

        :param code: that of the refusal.
        :param mark: the position of the watch before the keys were read.
        """
        self._sleep(_PAUSE)
        until = runtime.monotonic() + self._pause - _PAUSE
        while (left := until - runtime.monotonic()) > 0 and not self._either.wait(mark, min(left, self._systemd.every)):
            self._systemd.alive()
        if code == "not_complete" and self._work is not None:
            # Hosts have to be upgraded. Each of these passes reads the whole fleet.
            until = runtime.monotonic() + _MOST_QUIET
            while (left := until - runtime.monotonic()) > 0 and not self._work.passes.wait(
                min(left, self._systemd.every)
            ):
                self._systemd.alive()
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _read_and_carry(self, mark: int, mark_of_handover: int) -> None:
        """Carry the rollout, or wait for a change if none was handed over."""
        found = self._read()
        if isinstance(found, str):
            self._log.state("standing_by", f"Stands by: {found}")
            refusal = f"It stands by: {found}" if self._handover_id and not self._is_carried else ""
            self._presence.answer(self._handover_id, refusal)
            self._drop_work()
            self._wait(self._either, mark)
            return
        work, of = self._work, (found.handover, found.index, found.is_after)
        if work is None or (work.handover, work.index, work.is_after) != of:
            self._drop_work()
            passes = RepeatedPasses(self._settings.consul, self._cache, handover=found.index)
            self._work = work = _PlannerWork(*of, passes, PassProgress())
        self._carry(work, found.ledger, mark_of_handover)

    def _read(self) -> _HandedOver | str:
        """Return the rollout that was handed over, or why none is carried: one request, and one for each key that is missing.

        :raises UpgradeError: ``unreadable_ledger``, ``unreadable_version``, ``newer_schema``, ``denied``, and what :meth:`ConsulClient.read` raises.
        """
        keys = self._store.keys
        entries = self._store.client.read((keys.ledger, keys.handover, keys.schema, keys.current_version))
        found = {entry.key: entry for entry in entries}
        self._handover_id = id_of(found[keys.handover].value) if keys.handover in found else ""
        self._is_carried = False
        refuse_newer_among(keys, entries)
        for key in (keys.ledger, keys.handover, keys.current_version):
            if key not in found:
                # That read leaves out what the token may not read; this one is refused then.
                self._store.client.get(key)
        ledger = decode_ledger(keys.ledger, found[keys.ledger].value) if keys.ledger in found else None
        # Without a ledger, a restore may be under way key by key.
        if ledger is not None and self._is_restored(ledger) and not _is_of(found.get(keys.handover), ledger):
            # Each later handover comes from an operator who can compare the hosts.
            self._newest = None
        if ledger is None:
            return "no rollout has begun."
        what = rollout_text(ledger.version)
        entry = found.get(keys.handover)
        is_after = _is_done(ledger) and bool(ledger.post_upgrade)
        has_tasks = is_after and _is_of(entry, ledger)
        if ledger.state not in (RUNNING, PAUSED) and not has_tasks:
            is_own = ledger.state == COMPLETE and _is_of(entry, ledger)
            # A run waits for an answer only if hosts are left. If it could admit none, the ledger is complete since before the handover.
            self._is_carried = is_own and entry is not None and entry.modify_index < found[keys.ledger].modify_index
            if is_own and not self._is_carried:
                return f"{what} was complete before it was handed over. To admit hosts that came later, run {command_again(ledger)}."
            return f"{what} is {ledger.state}."
        if ledger.by_ansible:
            return f"Ansible runs the tasks of {what}, so the run with these tasks admits its hosts."
        again = f"run {command_again(ledger)} -e wait=false"
        how = f"To hand it over, {again}."
        if keys.handover not in found:
            return f"{what} was not handed over. {how}"
        try:
            handover = decode_handover(found[keys.handover].value)
        except ValueError as error:
            problem = f"{keys.handover} can't be read, or a newer release wrote it: {error}."
            return f"{problem} Update this service, or hand the rollout over again. {how}"
        if not handover.is_of(ledger):
            return f"{what} was not handed over, only one before it. {how}"
        if handover.limit is not None:
            # Without the limit, services would admit other hosts too.
            again += f", with the limit of the handover ({handover.limit_text()})"
        if handover.id in self._refused:
            return f"{self._refused[handover.id]} To hand it over, {again}."
        entry = found.get(keys.current_version)
        current = decode_version(entry.key, entry.value) if entry is not None else None
        if not ledger.is_job and current != ledger.version:
            # Otherwise each pass would be refused.
            return (
                f"{keys.current_version} is {current!r}, but {keys.ledger} has {what}: something other than a planner has set it. "
                f"To go on with that rollout, {again}."
            )
        return _HandedOver(ledger, handover, found[keys.handover].modify_index, is_after)

    def _carry(self, work: _PlannerWork, ledger: Ledger, mark: int) -> None:
        """Make passes until the rollout is over or its handover changes.

        :param mark: the position of the handover's watch before it was read.
        :raises UpgradeError: what :meth:`RepeatedPasses.next` raises.
        """
        what = f"{'the post-upgrade tasks of ' if work.is_after else ''}{rollout_text(ledger.version)}"
        carries = f"Carries {what}, which {work.handover.by} handed over."
        if self._pause == _PAUSE:
            # Otherwise the pass before was refused, and the log keeps saying so until a pass succeeds.
            self._log.state("carrying", carries, version=ledger.version)
        while True:
            if not work.own:
                self._wait_until_quiet()
            try:
                made = self._make_pass(work, ledger)
            except HandoverChanged:
                # The new one is read, which may admit fewer hosts, or be of another rollout.
                return
            self._log.say_once("state", "carrying", carries, version=ledger.version)
            self._presence.answer(work.handover.id)
            self._pause = _PAUSE
            if self._is_over(work, made):
                self._drop_work()
                return
            # A new handover ends the wait, but the watch of passes may see it earlier than its own watch does.
            while not self._handover.wait(mark, 0) and not work.passes.wait(
                min(self._systemd.every, _HANDOVER_SECONDS)
            ):
                self._systemd.alive()
            if self._handover.wait(mark, 0):
                return

    def _make_pass(self, work: _PlannerWork, ledger: Ledger) -> PassResult:
        self._systemd.alive()
        passes = work.passes
        if work.is_after:
            latest = passes.latest.ledger if passes.latest is not None else None
            try:
                made = passes.post_upgrade(self._request(work, ledger), (latest or ledger).post_upgrade)
            except UpgradeError as error:
                if error.code != "not_complete":
                    raise
                # An ordinary pass would reopen a complete rollout, with its stages and the end that operators were told of.
                later = f"Hosts that came later are admitted by a run without -e wait=false: {command_again(ledger)}."
                raise UpgradeError(error.code, f"{error.message} {later}") from None
            self._newest = made.ledger or self._newest
            if made.plan.complete:
                # Opens the gates. Hosts that came later are admitted by a run.
                made = passes.first(replace(self._request(work, ledger), limit=[]))
        else:
            made = passes.first(self._request(work, ledger)) if passes.latest is None else passes.next()
        self._newest = made.ledger or self._newest
        commit = made.ledger.commit if made.ledger is not None else ""
        work.own = commit if made.changes or work.own == commit else ""
        self._say(work, made)
        return made

    def _request(self, work: _PlannerWork, ledger: Ledger) -> PassRequest:
        limit, known = work.handover.limit, self._known(ledger)
        return PassRequest(
            version=ledger.version,
            fleet=self._settings.fleet or None,
            limit=None if limit is None else list(limit),
            converge=True,
            # With an index, it never begins a rollout.
            since=1,
            epoch=known.epoch,
            commit=known.commit,
            began=ledger.since,
            # The inventory may have got hosts since the settings of this service were written.
            keeps_members=True,
        )

    def _is_over(self, work: _PlannerWork, made: PassResult) -> bool:
        """Return whether nothing is left to do in the work, as far as its passes show. The ledger is read again then."""
        if not work.is_after:
            return made.plan.complete
        ledger = made.ledger
        # An operator may have aborted it, or a run may admit hosts that joined after its end.
        return ledger is None or not _is_done(ledger) or not ledger.post_upgrade

    def _is_restored(self, ledger: Ledger) -> bool:
        """Return whether a ledger is not the newest one that this planner knows of, nor a later one."""
        newest = self._newest
        return newest is not None and (
            ledger.epoch < newest.epoch or (ledger.epoch == newest.epoch and ledger.commit != newest.commit)
        )

    def _known(self, ledger: Ledger) -> Ledger:
        """Return the newest ledger that this planner knows of and can compare with the history."""
        newest = self._newest
        # The history no longer has it if two rollouts have begun since, which operators did.
        return ledger if newest is None or newest.epoch < ledger.history_from else newest

    def _say(self, work: _PlannerWork, made: PassResult) -> None:
        for one in made.admissions:
            to = " to its post-upgrade tasks" if work.is_after else ""
            self._log.say("admitted", f"{one.host} admitted{to}: {one.reason}", host=one.host, role=one.role)
        states = states_of_pass(made)
        of = "Post-upgrade tasks: " if work.is_after else ""
        for line in work.progress.lines(states)[:-1]:
            self._log.say("progress", f"{of}{line}")
        for warning in made.warnings:
            if warning not in work.warnings:
                self._log.say("warning", warning, WARNING)
        work.warnings = made.warnings
        count = of + running_count(states).removeprefix("-- ")
        blocker: dict[str, Any] = rollout_blockers(made.plan)["blocker"]
        why = f" No further host is admitted: {blocker['reason']}." if blocker else ""
        self._log.say_once("blocker", "blocker", why.strip(), code=str(blocker.get("code", "")))
        if made.plan.complete:
            kind = "job" if made.snapshot.is_job else "rollout"
            what = f"The {kind} is complete" if not work.is_after else "All hosts have finished"
            self._log.say("complete", f"{what}. {count}", version=str(made.plan.version))
        self._systemd.status(f"{'Acts' if work.own else 'Another planner acts'}. {count}.{why}")

    def _wait_until_quiet(self) -> None:
        """Wait until no other planner works."""
        quiet = _QUIET + runtime.uniform(0.0, _SPREAD)
        until = runtime.monotonic() + _MOST_QUIET
        while runtime.monotonic() < until:
            mark = self._ledger.mark()
            if not self._ledger.wait(mark, quiet):
                return
            self._systemd.alive()

    def _wait(self, watch: Watch, mark: int) -> None:
        while not watch.wait(mark, self._systemd.every):
            self._systemd.alive()

    def _sleep(self, seconds: float) -> None:
        until = runtime.monotonic() + seconds
        while (left := until - runtime.monotonic()) > 0:
            self._systemd.alive()
            runtime.sleep(min(left, self._systemd.every))

    def _drop_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.passes.close()


def _is_done(ledger: Ledger) -> bool:
    """Return whether a rollout is complete, perhaps paused after that."""
    return ledger.was_complete and ledger.state in (COMPLETE, PAUSED)


def _is_of(handover: KVEntry | None, ledger: Ledger) -> bool:
    """Return whether a handover can be read, and is that of the rollout of a ledger."""
    try:
        return handover is not None and decode_handover(handover.value).is_of(ledger)
    except ValueError:
        return False
