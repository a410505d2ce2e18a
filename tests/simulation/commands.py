# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of operators in a simulated night: what they return is compared with the keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from fire.facts import APPROVALS, HISTORY, HOLDS, LEDGER, WAKES, Facts, data_of, is_open, with_own_records
from fire.fleet import FLEET, NEW, OLD
from fire.replay import State, Step
from fire.rules import Rules
from greenlet import getcurrent

from .network import Network
from .stand_ins import BEGIN

# After these errors, no one knows whether the command has changed anything.
_UNKNOWN = ("unreachable", "consul_error")
# Those of several writes, some of which may be done when it gives up.
_IN_PIECES = ("abort", "retry")
# Those that make a pass too, and the events of their own.
_WITH_PASS: Mapping[str, tuple[str, ...]] = {"change": ("rules",), "begin": ("begin",), "rollback": ("begin",)}
_RulesOf = Callable[[Mapping[str, Any]], Rules | None]


class CommandJudge:
    """Gives the commands of one process, and says what they return that is not so.

    A command that succeeds has its effect right after its last write. One that wrote nothing succeeds only if there was a moment
    during it that had the effect. A command that fails has written nothing, unless its error says that no one knows.

    :param who: the process.
    """

    def __init__(self, network: Network, who: str, rules_of: _RulesOf, say: Callable[[str], None]) -> None:
        self._network, self._who, self._rules_of, self._say = network, who, rules_of, say
        self.given = 0

    def give(self, name: str, act: Callable[[], Any], about: Mapping[str, Any]) -> Any:
        """Give a command, and return its result.

        :param name: the command.
        :param about: its targets or rules.
        """
        network = self._network
        at, first, before = BEGIN + network.world.now, len(network.steps), network.now
        self.given += 1
        try:
            result = act()
        except UpgradeError as error:
            steps = network.steps[first:]
            is_known = error.code not in _UNKNOWN and not (error.code == "busy" and name in _IN_PIECES)
            # A restore takes back what was written, and the command says so.
            if is_known and not any(step.is_restore for step in steps):
                for step in self._own(name, steps, at):
                    self._say(f"{self._who}: {name} failed with {error.code}, and changed {', '.join(step.changed())}")
            raise
        steps = network.steps[first:]
        own = self._own(name, steps, at)
        moments = [own[-1].after] if own else [before, *(step.after for step in steps)]
        missing = [self._missing(name, about, self._as_read(state) if name == "abort" else state) for state in moments]
        if all(missing):
            self._say(f"{self._who}: {name} succeeded, and {missing[-1]}")
        if name == "retry":
            self._of_retry(result.hosts, own)
        return result

    def _own(self, name: str, steps: Sequence[Step], at: float) -> list[Step]:
        """Return the steps of a command: those that its process has sent since it was given, and that change more than what wakes agents."""
        found = []
        for step in steps:
            if step.write is None or step.write.who != self._who or step.write.at < at:
                continue
            events = [what for what, _hosts in _events(step)]
            if all(key.startswith(WAKES) for key in step.changed()):
                continue
            if name not in _WITH_PASS or set(events) & set(_WITH_PASS[name]):
                found.append(step)
        return found

    def _as_read(self, state: State) -> State:
        """Return keys with the records of hosts as the command has read them last: it can't know what hosts report meanwhile."""
        lines = [line for line in self._network.lines.values() if line.name == self._who]
        readings = [line.readings[getcurrent()] for line in lines if getcurrent() in line.readings]
        return with_own_records(state, readings[0].entries()) if readings else state

    def _missing(self, name: str, about: Mapping[str, Any], state: State) -> str:
        """Return which effect of a command the keys do not have, empty for none."""
        ledger = data_of(state.get(LEDGER))
        now = f"the rollout to {ledger.get('version')} is {ledger.get('state')}"
        if name == "pause":
            return "" if ledger.get("state") == "paused" else now
        if name == "resume":
            return "" if ledger.get("state") in ("running", "complete") else now
        if name == "begin":
            is_begun = ledger.get("version") == NEW and ledger["state"] in ("running", "paused", "complete")
            return "" if is_begun else now
        if name == "rollback":
            return "" if ledger.get("rollback") and ledger["version"] == OLD else now
        if name == "abort":
            left = _not_closed(state) if ledger.get("state") == "aborted" else []
            return f"{', '.join(left)} may still begin" if left else "" if ledger.get("state") == "aborted" else now
        if name == "approve":
            return "" if f"{APPROVALS}canary" in state else "there is no approval"
        if name == "change":
            is_changed = self._rules_of(ledger.get("instructions", {})) == about["rules"]
            return "" if is_changed else f"the rules are {ledger.get('instructions')}"
        if name in ("hold", "unhold"):
            wrong = [key for key in keys_of_holds(about) if (key in state) != (name == "hold")]
            return f"{', '.join(wrong)} {'is missing' if name == 'hold' else 'is there'}" if wrong else ""
        assert name == "retry", name
        return ""

    def _of_retry(self, hosts: Collection[str], own: Sequence[Step]) -> None:
        """Say which hosts a retry names and has not reset, and the other way round."""
        reset: set[str] = set()
        for step in own:
            facts = Facts(step.after, Rules({}, {}))
            for what, of in _events(step):
                if what != "retry":
                    continue
                reset.update(of)
                for host in of:
                    if is_open(step.after, host) or facts.has_failed(host) or facts.tries_again(host):
                        self._say(f"{self._who}: retry reset {host}, which is {facts.record(host)}")
        if reset != set(hosts):
            self._say(f"{self._who}: retry says that it reset {sorted(hosts)}, and has reset {sorted(reset)}")


def keys_of_holds(about: Mapping[str, Any]) -> list[str]:
    """Return the keys of the holds on some targets."""
    whom = about["whom"]
    found = [f"{HOLDS}global"] if whom.everything else []
    return [*found, *(f"{HOLDS}role/{role}" for role in whom.roles), *(f"{HOLDS}host/{host}" for host in whom.hosts)]


def _events(step: Step) -> list[tuple[str, Collection[str]]]:
    """Return the events that a step wrote into the history, with the hosts that they name."""
    found = [data_of(after) for key, (_was, after) in step.changed().items() if key.startswith(HISTORY) and after]
    return [(event["what"], event.get("hosts", ())) for event in found]


def _not_closed(state: State) -> list[str]:
    """Return the hosts that have not begun, and may at any time."""
    facts = Facts(state, Rules({}, {}))
    return [
        host
        for host in FLEET
        if is_open(state, host)
        and facts.record(host).get("state") not in ("started", "failed")
        and not facts.is_recorded_as(host, "upgraded")
        and not facts.has_reported(host)
    ]
