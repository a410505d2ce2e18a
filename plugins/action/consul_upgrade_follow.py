# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a rollout to its end and show its changes, also if another run makes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import ABORTED
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS, FLEET_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import RolloutProgress
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import (
    ProgressUpdate,
    follow,
    read_progress,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.maintenance import (
    Maintenance,
    read_maintenance,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import FollowProgress, WaitForEnd
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_updates import ViewUpdates
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.wording import about_minutes, ending, with_time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage

_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    **FLEET_OPTIONS,
    "page": {"type": "path"},
    "maintenance": {"type": "path"},
}
# If nothing changes, the running count is shown this often (seconds).
_SHOW_EVERY = 30.0


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  of all actions
        """Follow the rollout, and return how it ended."""
        settings = read_settings(options.get, os.environ)
        places = read_maintenance(self._loader, options["maintenance"]) if options["maintenance"] is not None else []
        with contextlib.ExitStack() as stack:
            companions: list[LivePage | Maintenance] = []
            page = None
            if options["page"] is not None:
                page = stack.enter_context(LivePage(Store(settings), options["page"], dry=self._task.check_mode))
                companions.append(page)
                self._display.display(f"The page is {page.path}")
            for place in () if self._task.check_mode else places:
                maintenance = Maintenance(place, lambda: read_progress(settings, options["fleet"]))
                stack.callback(maintenance.close)
                companions.append(maintenance)
            found = self._follow(settings, options["fleet"], companions)
        self._warn_of(companions)
        if page is None:
            return _result(found)
        return {**_result(found), "page": page.path, "changed": page.has_changed}

    def _follow(
        self, settings: Settings, fleet: Mapping[str, str] | None, companions: Sequence[LivePage | Maintenance]
    ) -> RolloutProgress:
        # Read first: if ansible-playbook is killed, the daemon ends too, and then this process has another parent already.
        parent = os.getppid()
        has_view = False
        # Hosts that are upgraded after an abort must stay silenced, and the page must show how they end.
        until_hosts_finish = bool(companions)
        with contextlib.suppress(UpgradeError):
            # If the daemon ends before the rollout, the rollout is shown as lines.
            if is_started() and ask(FollowProgress(settings, fleet, until_hosts_finish=until_hosts_finish)):
                has_view = bool(companions)
                ended = ask(WaitForEnd()) if not companions else None
                if ended is not None:
                    return ended
        updates = ViewUpdates()
        last: RolloutProgress | None = None
        shown = runtime.monotonic()
        for found in follow(settings, fleet, until_hosts_finish=until_hosts_finish):
            if os.getppid() != parent:
                # ansible-playbook was killed.
                os._exit(1)
            for one in companions:
                one.update(found)
            self._warn_of(companions)
            if isinstance(found, ProgressUpdate):
                last = found.progress
            if has_view:
                continue
            if found is not None and self._say(updates.update(found).lines):
                shown = 0.0
            if last is not None and runtime.monotonic() - shown >= _SHOW_EVERY:
                self._say([updates.count + ("" if last.left is None else f"; {about_minutes(last.left)} left")])
                shown = runtime.monotonic()
        if last is None:
            raise AssertionError("follow() ends with an update")
        if has_view:
            with contextlib.suppress(UpgradeError):
                ask(WaitForEnd())
        else:
            self._say([ending(last)])
        return last

    def _warn_of(self, companions: Sequence[LivePage | Maintenance]) -> None:
        """Show each new warning once. Following goes on without what it is about."""
        warnings = {one.warning for one in companions} - {""}
        # Ansible keeps warnings of a task until its end, which may be days away.
        self._say([f"Warning: {warning}" for warning in sorted(warnings - self._warned)])
        self._warned = warnings

    _warned: AbstractSet[str] = frozenset()

    def _say(self, lines: Sequence[str]) -> bool:
        for line in lines:
            self._display.display(with_time(line))
        return bool(lines)


def _result(found: RolloutProgress) -> dict[str, Any]:
    ended = "nothing" if not found.state else "aborted" if found.state == ABORTED else "complete"
    return {"version": found.version, "ended": ended, "failed_hosts": sum(row.failed for row in found.bars)}
