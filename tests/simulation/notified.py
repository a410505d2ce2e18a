# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifiers in a simulated night, and the events that their hook has to have got at its end.

docs/watching.md promises: each event is sent once, also with several runs. If a process dies while it sends, an event may come twice. What was not
sent is sent by the next run, as far as it belongs to the current rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import is_job
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messages import StartNotifier
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.notifier import Notifier
from fire.actors import patience
from fire.facts import HISTORY, LEDGER, NOTIFIED, data_of
from fire.fleet import FLEET
from fire.replay import State

from .network import Network
from .world import Process, World

_BEGINNINGS = ("begin", "adopt")
# The budget that stops all hosts.
_OF_FLEET = "failure_rules.fleet"
# What is sent once for an entry of the history -> the entries that it may be of. A budget pauses and resumes a rollout too.
_SENT: Mapping[str, tuple[str, ...]] = {
    "begin": _BEGINNINGS,
    "stage": ("stage",),
    "pause": ("pause", "budget"),
    "resume": ("resume", "budget"),
    "approved": ("approve",),
    "end": ("complete", "converge", "abort"),
}
# Entry of the history -> what has to be sent. Not every stage and end is.
_DUE = {"begin": "begin", "adopt": "begin", "pause": "pause", "resume": "resume", "approve": "approved"}


@dataclass(frozen=True)
class _Call:
    """A call of the hook that has begun.

    :param restores: how often Consul was restored before what is sent: epochs are given again after that.
    :param at: when it began (seconds of the night).
    """

    restores: int
    epoch: int
    name: str
    process: Process
    pid: int
    at: float


class Hook:
    """Stands in the place of a hook, which would be another run of Ansible. It keeps the events that it gets.

    :param events: the events, in order.
    """

    def __init__(self, world: World, network: Network) -> None:
        self.file = "hook.yml"
        self.events: list[Mapping[str, Any]] = []
        self._world, self._network = world, network
        # The events that are sent once, each with the restores before it.
        self._sent: list[tuple[int, int, str]] = []
        self._calls: list[_Call] = []
        # Epochs that a notifier that began in the night did not have to send.
        self._skipped: set[int] = set()
        self._twice: list[str] = []
        # The keys before each restore.
        self._before: list[State] = []
        network.listeners.append(lambda step: self._before.append(step.before) if step.is_restore else None)

    def call(self, event: Mapping[str, Any]) -> None:
        """Take an event, which takes a moment."""
        process = self._world.current
        assert process is not None
        name, epoch = event["event"], event["epoch"]
        call = _Call(self._restores_of(epoch, name), epoch, name, process, process.pid, self._world.now)
        if call.name in _SENT:
            self._twice += self._repetitions(call)
        self._calls.append(call)
        self._world.wait(self._world.chance.uniform(0.01, 0.2))
        self.events.append(event)
        self._sent.append((call.restores, call.epoch, call.name))

    def _restores_of(self, epoch: int, name: str) -> int:
        """Return how many restores there were before what is sent: it may have been read before the last one."""
        is_there = _history(self._network.now).get(epoch, {}).get("what") in _SENT.get(name, ())
        return max(0, len(self._before) - (0 if is_there else 1))

    def _repetitions(self, call: _Call) -> Iterator[str]:
        """Yield what was sent before, if neither of the senders died or slept before that was noted."""
        for before in self._calls:
            if (before.restores, before.epoch, before.name) != (call.restores, call.epoch, call.name):
                continue
            is_noted = self.noted() >= call.epoch
            is_same = (before.process, before.pid) == (call.process, call.pid)
            # Its next call shows that it had noted this one.
            has_gone_on = self._last_of(before) is not before
            is_away = (before.process.pid != before.pid and not has_gone_on) or before.process.stopped_at >= before.at
            # It had asked whether it may send, and slept while the other one did.
            has_slept = call.process.stopped_at < before.at <= call.process.went_on_at == call.at
            if not has_slept and (is_noted or is_same or not is_away):
                yield f"{call.name} of epoch {call.epoch} was sent by {before.process.name}, and again by {call.process.name}"

    def _last_of(self, call: _Call) -> _Call:
        return [one for one in self._calls if (one.process, one.pid) == (call.process, call.pid)][-1]

    def noted(self) -> int:
        """Return the epoch up to which events are noted as sent."""
        return int(data_of(self._network.now.get(NOTIFIED)).get("epoch", 0))

    def has_begun(self, noted: int) -> None:
        """Note that a notifier began, and what it need not send: a rollout before the current one, and one that is over.

        :param noted: the epoch up to which events were noted as sent before it began.
        """
        history = _history(self._network.now)
        last = max((epoch for epoch, event in history.items() if event["what"] in _BEGINNINGS), default=0)
        is_over = data_of(self._network.now.get(LEDGER)).get("state") in ("complete", "aborted")
        if last > noted:
            self._skipped.update(epoch for epoch in history if noted < epoch and (is_over or epoch < last))

    @property
    def has_sent_the_end(self) -> bool:
        """Whether the end of the last rollout was sent. After a restore, one that has an epoch of before it may be taken for sent."""
        names = [event["event"] for event in self.events if event["event"] in ("begin", "end")]
        if names[-1:] == ["end"]:
            return True
        ends = [epoch for epoch, event in _history(self._network.now).items() if event["what"] in _SENT["end"]]
        return bool(self._before) and max(ends, default=0) <= max(_history(self._before[-1]), default=0)

    def problems(self) -> Iterator[str]:
        """Yield what was sent that was not so or twice, and what was not sent."""
        yield from self._twice
        histories = [_history(state) for state in (*self._before, self._network.now)]
        for restores, epoch, name in sorted(set(self._sent)):
            history = histories[restores]
            what = history.get(epoch, {}).get("what")
            # Entries of rollouts that are not kept are gone.
            if epoch >= min(history, default=0) and name in _SENT and what not in _SENT[name]:
                yield f"{name} of epoch {epoch} was sent, and the history has {what}"
        if self._before:
            # What happens between a restore and the next read of a notifier is taken for sent.
            return
        sent = {(epoch, name) for _restores, epoch, name in self._sent}
        exhausted: set[str] = set()
        for epoch, event in sorted(histories[-1].items()):
            name = _name_due(event)
            if event["what"] == "budget":
                keys = {*event.get("keys", ())}
                # One of several budgets has recovered, and the others were sent.
                if keys and keys <= exhausted and (_OF_FLEET in keys) == (_OF_FLEET in exhausted):
                    name = ""
                exhausted = keys
            elif event["what"] in _BEGINNINGS and not is_job(event.get("version", "")):
                exhausted = set()
            if name and epoch not in self._skipped and (epoch, name) not in sent:
                yield f"{name} of epoch {epoch} was not sent"


def _history(state: State) -> dict[int, Mapping[str, Any]]:
    """Return epoch -> entry of the history."""
    return {int(key[len(HISTORY) :]): data_of(entry) for key, entry in state.items() if key.startswith(HISTORY)}


def _name_due(event: Mapping[str, Any]) -> str:
    if event["what"] == "budget":
        return "pause" if event.get("keys") else "resume"
    return _DUE.get(event["what"], "")


def be_notifier(_shared: Any, settings: Any, hook: Any, world: World) -> None:
    """Tell a hook what happens, until killed."""
    while True:
        with patience():
            noted = hook.noted()
            Notifier(StartNotifier(settings, hook, FLEET, retry_failed=False))
            hook.has_begun(noted)
            world.wait(None)
