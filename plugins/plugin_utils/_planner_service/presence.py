# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key with which a planner service says that it runs and what it does. Consul deletes it with the session of the service."""

from __future__ import annotations

import contextlib
import json

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.errors import Conflict, Unreachable
from ...module_utils._consul.operations import lock
from ...module_utils._consul.settings import Settings
from ...module_utils._state.store import Store, current_user
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
                value = self._value()
            try:
                if not self._session or not store.client.renew_session(self._session):
                    self._session = store.client.open_session(f"convoy.upgrade planner {self._name}", _SESSION_SECONDS)
                if value != written or store.client.get(key) is None:
                    store.client.write([lock(key, value, self._session)])
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
                if not self._is_closed and self._value() == value:
                    self._changed.wait(_RENEW_EVERY)

    def _value(self) -> str:
        data = {"by": current_user(), "since": self._since, "handover": self._handover, "refusal": self._refusal}
        return json.dumps(data, sort_keys=True)
