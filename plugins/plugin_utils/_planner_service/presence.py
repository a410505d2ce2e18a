# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key with which a planner service says that it runs and what it does. Consul deletes it with the session of the service."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._consul.operations import lock
from ...module_utils._consul.settings import Settings
from ...module_utils._host.leases import LeaseHolder, end_dead_holder
from ...module_utils._state.store import Store
from .log import WARNING, Log

# Consul's minimum is 10. A session that is not renewed ends after one to two times that.
_SESSION_SECONDS = 15
_RENEW_EVERY = 5.0


class Presence:
    """A session, renewed by a thread, that has locked the key of this service.

    The key only shows what the service does: a service that can't write it plans all the same.
    """

    def __init__(self, settings: Settings, name: str, log: Log) -> None:
        """Start the thread."""
        self._settings, self._name, self._log = settings, name, log
        self._changed = runtime.condition()
        self._is_closed = False
        self._session = ""
        self._since = int(runtime.now())
        self._handover = self._refusal = ""
        runtime.start_thread(self._keep)

    def answer(self, handover: str, refusal: str = "") -> None:
        """Say that the service carries a rollout that was handed over, or refuses it.

        :param handover: the ID of the handover; empty if there is none.
        :param refusal: why it refuses it; empty if it carries it.
        """
        with self._changed:
            if (self._handover, self._refusal) != (handover, refusal):
                self._handover, self._refusal = handover, refusal
                self._changed.notify_all()

    def close(self) -> None:
        """End the session, and with it the key."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._session:
            with contextlib.suppress(UpgradeError):
                Store(self._settings).client.close_session(self._session)

    def _keep(self) -> None:
        store = Store(self._settings)
        key = store.keys.planner(self._name)
        written = ""
        while not self._is_closed:
            with self._changed:
                answer = self._handover, self._refusal
            try:
                if not self._session or not store.client.renew_session(self._session):
                    self._session = store.client.open_session(f"convoy.upgrade planner {self._name}", _SESSION_SECONDS)
                value = self._value(*answer)
                if value != written or store.client.get(key) is None:
                    self._write(store, key, value)
                    written = value
                self._log.say_once("presence", "", "")
            except Conflict:
                self._log.say_once(
                    "presence",
                    "same_name",
                    f"Another planner service named {self._name} runs, or ran until some seconds ago. Both work, but {key} shows one: set "
                    "another name in the settings.",
                )
            except Unreachable:
                # The planner says so.
                pass
            except UpgradeError as error:
                self._log.say_once("presence", error.code, f"{key} can't be written: {error.message}", WARNING)
            with self._changed:
                if not self._is_closed and (self._handover, self._refusal) == answer:
                    self._changed.wait(_RENEW_EVERY)

    def _write(self, store: Store, key: str, value: str) -> None:
        """Lock the key.

        :raises Conflict: if another service has locked it.
        """
        operation = lock(key, value, self._session)
        try:
            store.client.write([operation])
        except Conflict:
            # This service was killed, and has been started again.
            if not end_dead_holder(store, store.client.get(key)):
                raise
            store.client.write([operation])

    def _value(self, handover: str, refusal: str) -> str:
        holder = {**asdict(LeaseHolder.of_this_process(self._session)), "since": self._since}
        return json.dumps({**holder, "handover": handover, "refusal": refusal}, sort_keys=True)
