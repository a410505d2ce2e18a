# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The turns of the hosts that were let through: where each is, in its record, from unit to unit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.operations import compare_and_put
from ...module_utils._fleet.fleet import FAILED, POST_DONE, POST_FAILED, POST_STARTED, STARTED, UPGRADED, HostRecord
from ...module_utils._host import once_for_all
from ...module_utils._host.host_report import HostReport, next_record, truncate_error, write_report
from ...module_utils._host.start import Start, start
from ...module_utils._state.record_codec import decode_record, encode_record
from ...module_utils._state.store import Store
from .connections import StorePool
from .providers import BEGUN, IN_PART, PASSED, Providers
from .resume_point import finished_groups
from .run import AFTER, PushRun, RunTaskGroup
from .session import RunSession

_LONG = 600


@dataclass(slots=True)
class HostRun:
    """One host's way through its units.

    :param done: the units that it has finished, on this run or an earlier one.
    :param current: the unit that it is at.
    :param counts: whether the current unit is done when the next one begins; not so where tags chose only some of it.
    :param passed: units that another host does for it, to be waited for.
    :param together: whether it takes each task together with the other hosts of its wave.
    :param left_out: units that the tags on the command line left out.
    """

    host: str
    record: HostRecord | None = None
    index: int = 0
    done: dict[str, None] = field(default_factory=dict)
    current: str | None = None
    step: str | None = None
    service: str | None = None
    counts: bool = True
    running_once: str | None = None
    passed: list[str] = field(default_factory=list)
    left_out: dict[str, None] = field(default_factory=dict)
    together: bool = False


class HostRuns:
    """All turns of one run."""

    def __init__(self, run: PushRun, pool: StorePool, session: RunSession) -> None:
        """No one goes yet."""
        self._run = run
        self._pool = pool
        self._session = session
        self._providers = Providers(run, pool, session)
        self._turns: dict[str, HostRun] = {}
        self._lock = threading.Lock()

    def of(self, host: str) -> HostRun:
        """Return a host's turn.

        :raises UpgradeError: ``not_let_through``.
        """
        turn = self._turns.get(host)
        if turn is None:
            raise UpgradeError("not_let_through", f"{host} was not let through by this run, so nothing is done on it.")
        self._session.check(host)
        return turn

    def taken(self) -> list[str]:
        """Return the hosts whose turn is not over."""
        return list(self._turns)

    def begin(self, host: str, *, together: bool = False) -> HostRun:
        """Begin a host's turn, or take it up where an earlier run left it.

        An upgrade starts only while the admission of its host holds; tasks after the upgrade have no gate.

        :raises UpgradeError: ``not_admitted``.
        """
        turn = HostRun(host, together=together)

        def read(store: Store) -> None:
            entry = store.client.get(store.keys.record(host))
            turn.record = decode_record(entry.key, entry.value) if entry is not None else None
            turn.index = entry.modify_index if entry is not None else 0
            turn.done = finished_groups(self._run, host, turn.record)

        def started(before: HostRecord | None) -> HostRecord:
            turn.done = finished_groups(self._run, host, before)
            if before is not None and (before.state, before.version) == (STARTED, self._run.version):
                return before
            return self._started(turn, before)

        def start_it(store: Store) -> None:
            found = start(store, Start(host, self._run.fleet[host], self._run.version), started)
            turn.record, turn.index = found.record, found.index

        self._pool.with_retries(read if self._run.phase == AFTER else start_it)
        with self._lock:
            self._turns[host] = turn
        return turn

    def step(self, host: str, unit: str, *, chosen: bool, whole: bool, skipped: bool) -> tuple[bool, str]:
        """Begin a unit on a host; return whether its tasks are to be run there, and why not.

        :param chosen: whether the tags on the command line choose any of its tasks.
        :param whole: whether they choose all of them.
        :param skipped: whether what they do not choose was left out on purpose (``--skip-tags``).
        :raises UpgradeError: ``once_failed`` where a unit that was left to another host failed there.
        """
        turn = self.of(host)
        self._close_current(turn)
        self._wait_for_passed(turn)
        what = self._unit(host, unit)
        if what is None and self._run.leaves_out(host, unit):
            return False, "it is not on the host's way"
        if what is None:
            raise UpgradeError(
                "unknown_unit", f"{unit} is no unit of {host} in this composition. Compose again, by the same command."
            )
        if unit in turn.done:
            return False, "it was finished on an earlier run"
        if not chosen:
            turn.left_out[unit] = None
            if skipped:
                turn.done[unit] = None
            return False, "the tags that were given leave it out"
        turn.current, turn.step, turn.service = unit, what.step, what.service
        turn.counts = whole or skipped
        if what.once and not self._take_once(turn, unit):
            turn.current = None
            turn.passed.append(unit)
            return False, "another host does it for all"
        if what.provider and (why := self._leave_to_others(turn, what)):
            return False, why
        self._write(turn)
        return True, ""

    def finish(self, host: str, unit: str) -> None:
        """Say that a host is through a unit for which others wait, or which must not be run again."""
        turn = self.of(host)
        self._close_current(turn)
        what = self._unit(host, unit)
        if what is not None and what.provider:
            self._providers.finish(host, what, turn.done)
        elif what is not None and what.point:
            self._write(turn)
        if turn.running_once == unit:
            self._pool.with_retries(
                lambda store: once_for_all.end_once(store, self._session.name, self._run.version, unit, host)
            )
            turn.running_once = None

    def end(self, host: str) -> str:
        """End a host's turn; return ``upgraded``, or ``partial`` where tags left some of it for later."""
        turn = self.of(host)
        self._close_current(turn)
        self._wait_for_passed(turn)
        self._providers.leave(host, turn.done)
        missing = [one.name for one in self._run.units_of(host) if one.name not in turn.done]
        turn.current = turn.step = turn.service = None
        if missing:
            self._write(turn)
            self._release(host)
            return "partial"
        if self._run.phase == AFTER:
            self._change(
                turn, lambda before: replace(before, post=POST_DONE, done=(), service=None, step=None, error=None)
            )
        else:
            word = HostReport(host, self._run.version, UPGRADED)
            self._pool.with_retries(lambda store: write_report(store, word))
        self._release(host)
        return "upgraded"

    def fail(self, host: str, error: str) -> None:
        """Record that a host's turn failed, with the step at which it did.

        :raises UpgradeError: whatever of it can't be recorded; all the rest is, and the host is let go of.
        """
        turn = self._turns.get(host)
        if turn is None:
            return
        with contextlib.ExitStack() as last_first:
            last_first.callback(self._release, host)
            last_first.callback(self._write_failed, turn, error)
            last_first.callback(self._providers.fail, host, error)
            last_first.callback(self._fail_once, turn, error)

    def _fail_once(self, turn: HostRun, error: str) -> None:
        unit, turn.running_once = turn.running_once, None
        if unit is not None:
            session, version = self._session.name, self._run.version
            self._pool.with_retries(
                lambda store: once_for_all.end_once(store, session, version, unit, turn.host, truncate_error(error))
            )

    def _write_failed(self, turn: HostRun, error: str) -> None:
        if self._run.phase == AFTER:
            self._change(turn, lambda before: replace(before, post=POST_FAILED, error=truncate_error(error)))
        else:
            word = HostReport(turn.host, self._run.version, FAILED, turn.service, turn.step, error)
            self._pool.with_retries(lambda store: write_report(store, word))

    def _release(self, host: str) -> None:
        with self._lock:
            self._turns.pop(host, None)
        self._session.release(host)

    def _close_current(self, turn: HostRun) -> None:
        if turn.current is not None and turn.counts:
            turn.done[turn.current] = None
        elif turn.current is not None:
            turn.left_out[turn.current] = None
        turn.current = None

    def _unit(self, host: str, name: str) -> RunTaskGroup | None:
        return next((one for one in self._run.units_of(host) if one.name == name), None)

    def _leave_to_others(self, turn: HostRun, unit: RunTaskGroup) -> str:
        """Begin a provider's unit; return why its tasks are not to be run on this host, empty where they are."""
        taken = self._providers.begin(turn.host, unit, together=turn.together)
        if taken == BEGUN:
            return ""
        turn.current = None
        if taken == PASSED:
            turn.passed.append(unit.name)
            return "another host does it for the provider"
        if taken == IN_PART:
            turn.left_out[unit.name] = None
            return "the tags that were given choose only some of it, and another host did that"
        turn.done[unit.name] = None
        return "the provider has it behind it"

    def _take_once(self, turn: HostRun, unit: str) -> bool:
        version = self._run.version

        def take(store: Store) -> bool:
            found = once_for_all.read_state(store, version, unit)
            if found is not None and (
                found.state == once_for_all.DONE or (found.state == once_for_all.RUNNING and found.host != turn.host)
            ):
                return False
            if (
                found is not None
                and found.state == once_for_all.FAILED
                and not self._run.retry_failed
                and found.host != turn.host
            ):
                return False
            return once_for_all.begin_once(
                store, self._session.name, version, unit, turn.host, found.index if found else 0
            )

        if not self._pool.with_retries(take):
            return False
        turn.running_once = unit
        return True

    def _wait_for_passed(self, turn: HostRun) -> None:
        """Wait until what other hosts do for this one is done."""
        while turn.passed:
            unit = turn.passed[0]
            what = self._unit(turn.host, unit)
            if what is not None and what.provider:
                is_done = self._providers.check(turn.host, what)
                (turn.done if is_done else turn.left_out)[turn.passed.pop(0)] = None
                continue
            found = self._settled(turn, unit)
            if found is None:
                raise UpgradeError(
                    "once_gone",
                    f"{unit} was being done for all hosts by a run that is gone, so it is not known to be done. Run the same "
                    "command again: a host of this run does it then.",
                )
            if found.state == once_for_all.FAILED:
                raise UpgradeError(
                    "once_failed",
                    f"{unit}, which {found.host} does for all hosts, failed there: {found.error or 'without a word'} Fix "
                    "that, and run the same command with -e retry_failed=true.",
                )
            turn.passed.pop(0)
            turn.done[unit] = None

    def _settled(self, turn: HostRun, unit: str) -> once_for_all.RunOnceState | None:
        version = self._run.version
        index = 0
        while True:
            found = self._pool.with_retries(lambda store: once_for_all.read_state(store, version, unit))
            if found is None or found.state != once_for_all.RUNNING:
                return found
            other = self._turns.get(found.host)
            if turn.together and other is not None and other.together:
                # They take each task together, so it would have been done before this host came here.
                return replace(found, state=once_for_all.FAILED, error="it did not end; its own record says why.")
            since = max(index, found.index)

            def wait(store: Store, since: int = since) -> int:
                return store.wait_for_change(since, _LONG, [store.keys.once(version, unit)])

            index = self._pool.with_retries(wait)

    def _write(self, turn: HostRun) -> None:
        """Write where a host is: one request, as what the record holds is known from the last write."""

        def after(before: HostRecord | None) -> HostRecord:
            if self._run.phase != AFTER:
                return self._started(turn, before)
            base = before or HostRecord(self._run.version, UPGRADED, reported=self._run.version)
            done = tuple(turn.done)
            return replace(base, post=POST_STARTED, service=turn.service, step=turn.step, done=done, error=None)

        self._put(turn, after)

    def _started(self, turn: HostRun, before: HostRecord | None) -> HostRecord:
        """Return a host's record where it is at work now."""
        word = HostReport(turn.host, self._run.version, STARTED, turn.service, turn.step)
        found = next_record(before, word, int(time.time()))
        return replace(found, done=tuple(turn.done), origin=self._run.origins.get(turn.host) or found.origin)

    def _change(self, turn: HostRun, change: Callable[[HostRecord], HostRecord]) -> None:
        self._put(
            turn, lambda before: change(before or HostRecord(self._run.version, UPGRADED, reported=self._run.version))
        )

    def _put(self, turn: HostRun, change: Callable[[HostRecord | None], HostRecord]) -> None:
        fresh = True

        def put(store: Store) -> None:
            nonlocal fresh
            key = store.keys.record(turn.host)
            if not fresh:
                # Somebody else wrote it, or an answer was lost.
                entry = store.client.get(key)
                turn.record = decode_record(key, entry.value) if entry is not None else None
                turn.index = entry.modify_index if entry is not None else 0
            fresh = False
            record = change(turn.record)
            if record == turn.record and turn.index:
                return
            written = store.client.write([compare_and_put(key, encode_record(record), turn.index)])
            turn.record, turn.index = record, int(written[0]["ModifyIndex"])

        self._pool.with_retries(put)
