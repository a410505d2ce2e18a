# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes that a module makes on another machine, from where Consul can be reached.

A module prints nothing before it ends. So each call waits for a change with blocking queries, makes one pass and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._observe.summary import ALL, listed, more
from ...module_utils._rollout.handover import HandedOver
from .._observe.progress_lines import states_of_result
from .passes import OF_FIRST, Passes, PassFailed, PatientPasses, WaitedPass

# Options of the first call only. Then the ledger has the rules, and later calls must not undo an operator's commands.
_FIRST_ONLY = (
    "instructions",
    "instructions_file",
    "role_order",
    "roles_with_post_upgrade",
    "services",
    "restart",
    "replace",
    "rollback",
    "by",
    "job",
    "wait",
)
# What a result has only if all hosts are asked for.
_OF_HOSTS = ("hosts", "status", "waves", "wave_seconds")


class PassesByModule(Passes):
    """Makes passes by calls of the module.

    :param call: calls the module with options, and returns its result.
    :param with_diff: whether to keep all changes for diff mode.
    """

    def __init__(
        self,
        call: Callable[[dict[str, Any]], dict[str, Any]],
        options: Mapping[str, Any],
        say: Callable[[str], None],
        *,
        with_diff: bool = False,
    ) -> None:
        """Keep the arguments."""
        super().__init__()
        self._call = call
        self._with_diff = with_diff
        requested = options.get("hosts") or []
        self._requested = [requested] if isinstance(requested, str) else list(requested)
        # Lines on the hosts need all of them. The first call hands the rollout over, because something waits for it.
        self._options = {**options, "hosts": [ALL], "wait": True}
        self._patient = PatientPasses(say)
        self._first: Mapping[str, Any] = {}
        self._latest: Mapping[str, Any] = {}

    def first(self) -> WaitedPass:
        """Make the first pass."""
        made = self._make(self._options)
        found = self._latest
        self._first = {name: found[name] for name in OF_FIRST if name in found}
        self._options = {name: value for name, value in self._options.items() if name not in _FIRST_ONLY}
        self._options["version"] = found["version"]
        return made

    def next(self, seconds: float) -> WaitedPass | None:
        """Wait for a change, and make a pass."""
        known = {name: self._latest[name] for name in ("epoch", "commit", "began")}
        waits = {"since": self._latest["index"], "wait_timeout": max(1, int(seconds))}
        return self._make({**self._options, **known, **waits})

    def close(self) -> None:
        """Do nothing, because a call of a module leaves nothing open."""

    def _make(self, options: dict[str, Any]) -> WaitedPass:
        def attempt() -> dict[str, Any]:
            found = self._call(options)
            if found.get("failed"):
                if "since" in options:
                    # The change that it waited for has already happened.
                    options["wait_timeout"] = 1
                raise PassFailed(found)
            return found

        return self._seen(self._patient.make(attempt))

    def _seen(self, found: dict[str, Any]) -> WaitedPass:
        total, self._latest = self.total, found
        total.changed |= bool(found["changed"])
        total.admit(found["transitions"])
        if found["changed"] and self._with_diff:
            total.diffs.append(found["diff"])
        total.warnings |= dict.fromkeys(found.get("warnings") or ())
        return WaitedPass(
            done=found["done"],
            can_move=found["can_move"],
            blocker=found["blocker"],
            blockers=lambda: list(found["blockers"]),
            wake_at=found["wake_at"],
            states=states_of_result(found),
            result=lambda: self._as_asked({**found, **self._first}),
            handover=_handover(found["handover"]),
        )

    def _as_asked(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with the hosts that the task asks for."""
        if ALL in self._requested:
            return result
        hosts = {host: result["hosts"][host] for host in self._requested if host in result["hosts"]}
        left = result["post_upgrade"]
        return {
            **{name: value for name, value in result.items() if name not in _OF_HOSTS},
            "hosts": hosts,
            "post_upgrade": listed(left, self._requested),
            "more_post_upgrade": more(left, self._requested),
        }


def _handover(found: Mapping[str, Any]) -> HandedOver:
    return HandedOver(id=found["id"], planners=tuple(found["planners"]), warning=found["warning"])
