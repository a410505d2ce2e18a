# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a push run, start it, wait for it and stop it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import listing
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HELD, RELEASED
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import UPGRADED
from ansible_collections.convoy.upgrade.plugins.module_utils._module import ACTION_CONNECTION_OPTIONS
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.summary import ALL
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.explanations import LIMIT
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import ControllerAction
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.other_action import ActionFailed, run_action
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.address import is_started
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.client import ask
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.continuation import (
    Continuation,
    note_continuation,
    noted_continuation,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import FollowProgress
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.wording import with_time
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import (
    GetRun,
    GetValidation,
    KeepRun,
    Settle,
    Settlement,
    StartPush,
    StopPush,
    Validation,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import (
    POST_UPGRADE,
    PreparedRun,
    services_of,
    with_post_upgrade,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import POST_UPGRADE_PHASE, UPGRADE, PushRun
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.partial_tags import post_upgrade_outside_tags
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import (
    CONTROL,
    DATA,
    FIRST,
    roles_with_post_upgrade,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.handover_notes import HandoverNotes

_STATES = ("validated", "started", "settled", "finished", "stopped")
_OPTIONS: dict[str, dict[str, Any]] = {
    **ACTION_CONNECTION_OPTIONS,
    "state": {"type": "str", "choices": list(_STATES), "required": True},
    "upgrade_roles": {"type": "dict", "default": {}},
    "play": {"type": "str", "choices": [FIRST, CONTROL, DATA, POST_UPGRADE]},
    "wait_timeout": {"type": "float", "default": 14400.0},
}

# How long one message to the daemon waits for a change (seconds).
_LONGEST_WAIT = 10
# While a planner service may still answer, and nothing else can change, the run looks this often (seconds).
_TO_ANSWER = 0.5


class ActionModule(ControllerAction):
    """The action behind the module of the same name."""

    OPTIONS = _OPTIONS

    def act(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Do what the option ``state`` asks for."""
        self._vars = task_vars
        act: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "validated": self._validate,
            "started": self._start,
            "settled": self._settle,
            "finished": self._finish,
            "stopped": self._stop,
        }
        try:
            return act[options["state"]](options)
        except ActionFailed as failed:
            return failed.result

    def _validate(self, options: dict[str, Any]) -> dict[str, Any]:
        run = ask(GetRun())
        hosts = run.scope.validate
        reported = ask(GetValidation())
        # Ansible drops an unreachable host from the play, so it has reported nothing.
        silent = Validation("it can't be reached (see above).")
        errors = {host: error for host in hosts if (error := reported.get(host, silent).error)}
        if errors:
            why = [
                error.strip() if error.startswith(f"{host}:") else f"{host}: {error.strip()}"
                for host, error in errors.items()
            ]
            raise UpgradeError(
                "not_upgradable",
                f"Nothing was touched: {len(errors)} of {len(hosts)} hosts can't be upgraded. {' | '.join(why)} Fix that, hold these "
                "hosts, or leave them out with upgrade_limit; then run the same command again.",
                hosts=errors,
            )
        last = [host for host in hosts if reported[host].goes_last]
        run.pending.refuse_in_earlier_stage(last)
        for line in run.pending.lines(last):
            self._display.display(line)
        disabled = {host: reported[host].puppet_disabled for host in hosts}
        held = {host: why.strip() for host, why in disabled.items() if why and why.strip()}
        released = [host for host in run.scope.held if disabled.get(host) == ""]
        return {"held": held, "changed": self._write_holds(options, run.version, held, released)}

    def _write_holds(
        self, options: dict[str, Any], version: str, held: Mapping[str, str], released: Sequence[str]
    ) -> bool:
        """Hold hosts whose Puppet is disabled, and end the holds of those where it is enabled again; return whether anything changes.

        :param held: host -> the reason that was given to ``puppet agent --disable``.
        :param released: the hosts whose holds end.
        """
        reports = [HostReport(host, version, HELD, reason=why) for host, why in held.items()]
        reports += [HostReport(host, version, RELEASED) for host in released]
        dry = self._task.check_mode
        changes = 0
        if reports:
            store = Store(read_settings(options.get, os.environ))
            changes = sum(len(write_report(store, report, dry=dry)[1]) for report in reports)
        for host, why in held.items():
            self._display.display(f"{host} {'would be' if dry else 'is'} held, as its Puppet is disabled: {why}")
        return changes > 0

    def _start(self, options: dict[str, Any]) -> dict[str, Any]:
        """Admit hosts from now on. In check mode no host is admitted."""
        if self._task.check_mode:
            return self._result(ask(GetRun()))
        last = {host for host, validation in ask(GetValidation()).items() if validation.goes_last}
        run = ask(GetRun())
        run = replace(run, scope=run.scope.with_last(last, run.fleet))
        ask(KeepRun(run))
        plays = tuple(run.scope.plays[play] for play in (FIRST, CONTROL, DATA))
        hosts = tuple(host for play in plays for host in play)
        self._push(options, UPGRADE, hosts, plays, frozenset(last))
        return self._result(run)

    def _finish(self, options: dict[str, Any]) -> dict[str, Any]:
        """Start the post-upgrade tasks, once every host is upgraded. In check mode nothing follows."""
        run = ask(GetRun())
        if self._task.check_mode:
            return self._result(run)
        ask(StopPush())
        connection = {name: options[name] for name in ACTION_CONNECTION_OPTIONS if options[name] not in (None, "")}
        # A pass that admits no host. With since it begins no rollout, and uses the rules in the ledger instead of a file on this machine.
        given = {"version": run.version, "limit": [], "since": 0, "hosts": [ALL]}
        fleet = {"upgrade_roles": options["upgrade_roles"], "role_order": run.as_result()["role_order"]}
        plan = run_action(self, "consul_upgrade_plan", {**connection, **given, **fleet}, self._vars)
        run = with_post_upgrade(run, plan)
        only, skip = (self._vars.get(name) or () for name in ("ansible_run_tags", "ansible_skip_tags"))
        outside = post_upgrade_outside_tags(run.composition, run.post_upgrade, run.members, only, skip)
        if outside.reasons:
            left = {host: version for host, version in run.post_upgrade.items() if host not in outside.reasons}
            # Gates open only after all post-upgrade tasks.
            run = replace(run, post_upgrade=left, complete=False)
            for line in outside.lines():
                self._display.display(line)
        if run.outside_limit:
            self._display.display(
                f"upgrade_limit leaves out {listing(run.outside_limit, 5)}. The gates open when the post-upgrade tasks are done there too."
            )
        ask(KeepRun(run))
        if run.post_upgrade:
            self._push(options, POST_UPGRADE_PHASE, run.hosts_of(POST_UPGRADE))
        if run.is_whole and not plan["complete"]:
            # Such as a host that has joined, or one whose health checks fail since its play has ended.
            return {**self._result(run), **_incomplete(plan).as_result()}
        return self._result(run)

    def _push(
        self,
        options: dict[str, Any],
        phase: str,
        hosts: tuple[str, ...],
        plays: tuple[tuple[str, ...], ...] = (),
        last: frozenset[str] = frozenset(),
    ) -> None:
        run = ask(GetRun())
        push = PushRun(
            settings=read_settings(options.get, os.environ),
            version=run.version,
            phase=phase,
            fleet=run.members,
            task_groups=run.task_groups,
            hosts=hosts,
            plays=plays,
            last=last,
            checkpoints=run.routes.checkpoints,
            origins=run.routes.origins,
            providers=run.routes.providers,
            retry_failed=run.retry_failed,
            wait_timeout=options["wait_timeout"],
            forks=self.forks,
            command=run.job.command if run.job is not None else "",
            pull_roles=roles_with_post_upgrade(run.composition) - run.task_groups.keys()
            if run.job is None
            else frozenset(),
            services=services_of(run.composition) if run.job is None else {},
            limit=run.handed_over,
            excluded=run.excluded,
        )
        ask(StartPush(push))
        ask(FollowProgress(push.settings, push.fleet, push.version))

    def _settle(self, options: dict[str, Any]) -> dict[str, Any]:
        hosts = ask(GetRun()).hosts_of(_needed(options, "play"))
        deadline = runtime.monotonic() + options["wait_timeout"]
        warnings: dict[str, None] = {}

        def say(line: str) -> None:
            self._display.display(with_time(line, runtime.now()))

        def warn(warning: str) -> None:
            if warning:
                say(f"Warning: {warning}")
                warnings[warning] = None

        # What was said in an earlier play is not said again.
        notes = HandoverNotes(say, warn, noted_continuation())
        result: dict[str, Any] = {"done": True, "partial": {}, "blockers": []}
        # What an operator has to end, although all hosts are upgraded.
        waited_for: tuple[str, ...] = ()
        while hosts:
            left = deadline - runtime.monotonic()
            settlement = ask(Settle(hosts, max(0.1, min(_LONGEST_WAIT, left))))
            if settlement.done:
                _each(say, settlement.lines)
                break
            warn(settlement.warning)
            notes.note("rollout", settlement.handover, settlement.planners)
            _each(say, settlement.lines)
            if not settlement.unfinished and settlement.reasons != waited_for:
                waited_for = settlement.reasons
                say(
                    f"All hosts of this play are upgraded, and this run goes on once that ends: {' | '.join(waited_for)}"
                )
            to_answer = notes.seconds_to_answer()
            if left <= 0 or (not settlement.can_move and to_answer <= 0):
                result = _unsettled(settlement)
                break
            if not settlement.can_move:
                runtime.sleep(min(_TO_ANSWER, to_answer, left))
        return {**result, **({"warnings": [*warnings]} if warnings else {})}

    def _result(self, run: PreparedRun) -> dict[str, Any]:
        return run.as_result(str(self._vars.get("inventory_hostname")))

    def _stop(self, _options: dict[str, Any]) -> dict[str, Any]:
        note_continuation(Continuation.NONE)
        if is_started():
            ask(StopPush())
        return {}


def _each(say: Callable[[str], None], lines: Sequence[str]) -> None:
    for line in lines:
        say(line)


def _unsettled(settlement: Settlement) -> dict[str, Any]:
    blockers = list(settlement.reasons)
    result = {
        "done": False,
        "partial": {host: list(steps) for host, steps in settlement.partial.items()},
        "blockers": blockers,
    }
    if settlement.only_tags_wait:
        return result
    why = "The wait timeout has passed" if settlement.can_move else "No host can continue without an operator"
    message = f"{why}. {settlement.count}. " + " | ".join(blockers)
    error = UpgradeError("timeout" if settlement.can_move else "stuck", message, blockers=blockers)
    return {**result, **error.as_result()}


def _incomplete(plan: Mapping[str, Any]) -> UpgradeError:
    """Return the error for a rollout that is not complete after a run for all hosts.

    :param plan: a result of ``consul_upgrade_plan``.
    """
    hosts: Mapping[str, Mapping[str, Any]] = plan["hosts"]
    reasons: dict[str, list[str]] = {}
    for host, view in hosts.items():
        if view["state"] != UPGRADED:
            # The plan has a limit that admits no host.
            reason = "it was not in this run" if view["cause"] == LIMIT else view["reason"]
            reasons.setdefault(f"{view['state']}: {reason}", []).append(host)
    blocker = plan.get("blocker")
    blockers = [
        *([blocker["reason"]] if blocker else []),
        *(f"{listing(found, 5)} ({reason})" for reason, found in reasons.items()),
    ]
    why = " | ".join(blockers) or "ansible-playbook convoy.upgrade.status shows its warnings"
    return UpgradeError("stuck", f"This run has ended, and the rollout is not complete: {why}", blockers=blockers)


def _needed(options: dict[str, Any], name: str) -> Any:
    value = options[name]
    if not value:
        raise UpgradeError("missing_option", f"state: {options['state']} requires the option {name}.")
    return value
