# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifiers in a simulated night, and the events that their hook has to have got at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messages import StartNotifier
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.notifier import Notifier
from fire.actors import patience
from fire.facts import HISTORY, data_of
from fire.fleet import FLEET
from fire.replay import State

from .world import World

# What is sent -> the events of the history that it may be of. A budget pauses and resumes a rollout too.
_SENT = {"begin": ("begin",), "pause": ("pause", "budget"), "resume": ("resume", "budget")}


class Hook:
    """Stands in the place of a hook, which would be another run of Ansible. It keeps the events that it gets.

    :param events: the events, in order.
    """

    def __init__(self, world: World) -> None:
        self.file = "hook.yml"
        self.events: list[Mapping[str, Any]] = []
        self._world = world

    def call(self, event: Mapping[str, Any]) -> None:
        """Take an event, which takes a moment."""
        self._world.wait(self._world.chance.uniform(0.01, 0.2))
        self.events.append(event)

    @property
    def has_sent_the_end(self) -> bool:
        """Whether the end of the last rollout was sent."""
        names = [event["event"] for event in self.events if event["event"] in ("begin", "end")]
        return names[-1:] == ["end"]

    def problems(self, state: State, *, every: bool) -> Iterator[str]:
        """Yield what was sent that was not so, and what was not sent.

        :param state: the keys at the end of the night.
        :param every: whether some notifier was at work all the time.
        """
        history = {int(key[len(HISTORY) :]): data_of(entry) for key, entry in state.items() if key.startswith(HISTORY)}
        sent = {(event["epoch"], event["event"]) for event in self.events}
        for epoch, name in sorted(sent):
            # Entries of rollouts that are not kept are gone.
            if (
                epoch >= min(history, default=0)
                and name in _SENT
                and history.get(epoch, {}).get("what") not in _SENT[name]
            ):
                yield f"{name} of epoch {epoch} was sent, and the history has {history.get(epoch, {}).get('what')}"
        for epoch, event in sorted(history.items()):
            if every and event["what"] in _SENT and (epoch, event["what"]) not in sent:
                yield f"{event['what']} of epoch {epoch} was not sent"


def be_notifier(_shared: Any, settings: Any, hook: Any, world: World) -> None:
    """Tell a hook what happens, until killed."""
    while True:
        with patience():
            Notifier(StartNotifier(settings, hook, FLEET, retry_failed=False))
            world.wait(None)
