# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key with which a planner service says that it runs. Consul deletes it with the session of the service."""

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

    The key only shows that the service runs: a service that can't write it plans all the same.
    """

    def __init__(self, settings: Settings, name: str, log: Log) -> None:
        """Start the thread."""
        self._settings, self._name, self._log = settings, name, log
        self._closed = runtime.event()
        self._session = ""
        runtime.start_thread(self._keep)

    def close(self) -> None:
        """End the session, and with it the key."""
        self._closed.set()
        if self._session:
            with contextlib.suppress(UpgradeError):
                Store(self._settings).client.close_session(self._session)

    def _keep(self) -> None:
        store = Store(self._settings)
        key = store.keys.planner(self._name)
        while not self._closed.is_set():
            try:
                if not self._session or not store.client.renew_session(self._session):
                    self._session = store.client.open_session(f"convoy.upgrade planner {self._name}", _SESSION_SECONDS)
                if store.client.get(key) is None:
                    self._lock(store, key)
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
            self._closed.wait(_RENEW_EVERY)

    def _lock(self, store: Store, key: str) -> None:
        value = json.dumps({"by": current_user(), "since": int(runtime.now())}, sort_keys=True)
        store.client.write([lock(key, value, self._session)])
