# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge: goes through every write of a run, and reports what no rule allowed.

A planner opens what the rules allow by what it has read. So each admission is judged by the keys as that planner read
them (the records of hosts), and as they are when it writes (all that goes through the ledger, which no one but
itself may have written meanwhile). A host that falls back after a planner has looked is no one's fault.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from .facts import (
    APPROVALS,
    CURRENT,
    GATES,
    HISTORY,
    HOLDS,
    LEDGER,
    MARKS,
    RECORDS,
    REPORTS,
    SLACK,
    Facts,
    data_of,
    holds_over,
    is_open,
    with_own_records,
)
from .findings import Findings
from .fleet import ALL, DATA, FLEET, NEW, OLD
from .journal import Reading, Write
from .replay import State, Step, state_at
from .rules import Rules
from .writers import mistakes

# A process finds out so soon that the start of a host, which it has written, was not admitted, also if the answer was lost and Consul is away (seconds).
_TAKEN_BACK = 15.0
# What each event makes of the state of a ledger: None for as it was.
_STATES: Mapping[str, tuple[tuple[str, ...], str | None]] = {
    "begin": (("", "running", "paused", "aborted", "complete"), "running"),
    # A pause for another reason replaces the one before.
    "pause": (("running", "complete", "paused"), "paused"),
    "resume": (("paused",), "running"),
    "abort": (("running", "paused"), "aborted"),
    "open": (("running", "complete"), "running"),
    "complete": (("running",), "complete"),
    # As complete, and the global gate opens.
    "converge": (("running", "complete"), "complete"),
}


class Judge:
    """Judges the steps of a run.

    :param rules_of: returns what instructions mean, None for those that no one gave.
    :param clock_of: returns by how much a process's clock was ahead around a time, None where it was set just then.
    :param most_ahead: returns by how much it was ahead at most around a time.
    :param steady: whether no clock was set at all.
    :param hosts_of: process -> the hosts that it acts for; those that are missing may act for all.
    """

    def __init__(
        self,
        base: State,
        steps: Sequence[Step],
        rules_of: Callable[[Mapping[str, Any]], Rules | None],
        clock_of: Callable[[str, float], float | None],
        most_ahead: Callable[[str, float], float],
        *,
        steady: bool,
        hosts_of: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._hosts_of = hosts_of or {}
        self._base = base
        self._steps = steps
        self._rules_of = rules_of
        self._clock_of = clock_of
        self._most_ahead = most_ahead
        self._steady = steady
        # When each step was known to be done, in order, and the highest index of all until then.
        marks = sorted((one.write.answered_at if one.write else one.done_at, one.index) for one in steps)
        self._done_at = [at for at, _index in marks]
        self._done = [*accumulate((index for _at, index in marks), max)]
        self._own: dict[tuple[str, Reading], set[int]] = {}
        self._read: dict[Reading, dict[str, tuple[str, int]]] = {}
        # Whose keys were judged as a whole last.
        self._last_judged: State | None = None
        self.admissions = 0
        # How often a host reported another version without an admission for that: not all of them are honest.
        self.own_moves = 0
        # Admissions after which no report of another version has come, by host or by the gate of a role.
        self._admitted: set[str] = set()
        self._admitted_of_role: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    def judge(self, findings: Findings) -> None:
        """Go through all steps."""
        for step in self._steps:
            say = findings.at(step.index)
            for sentence in [*self._always(step), *self._of_write(step)]:
                say(sentence)
            self._count_moves(step)

    def _count_moves(self, step: Step) -> None:
        for key, (before, after) in step.changed().items():
            if step.is_restore or not key.startswith(REPORTS) or before is not None or after is None:
                continue
            host = key.rpartition("/")[2]
            if host in self._admitted:
                self._admitted.remove(host)
            elif self._admitted_of_role[FLEET[host]]:
                self._admitted_of_role[FLEET[host]] -= 1
            else:
                self.own_moves += 1

    def _always(self, step: Step) -> list[str]:
        """Return what is wrong with the keys of a moment, whichever process wrote them."""
        is_as_before = self._last_judged is step.before and not any(
            key.startswith((REPORTS, HISTORY, LEDGER)) or key.endswith(CURRENT) for key in step.changed()
        )
        self._last_judged = step.after
        if is_as_before:
            return []
        found = []
        versions = [key for key in step.after if key.endswith(CURRENT)]
        if versions != [CURRENT] or step.after[CURRENT].value not in (OLD, NEW):
            found.append(f"the current versions are {[(key, step.after[key].value) for key in versions]}")
        reports: dict[str, list[str]] = {}
        for key in step.after:
            if key.startswith(REPORTS):
                reports.setdefault(key.rpartition("/")[2], []).append(key)
        found += [f"{host} stands under {keys}" for host, keys in reports.items() if len(keys) > 1]
        found += [f"{host} stands under no version" for host in FLEET if host not in reports]
        ledger = data_of(step.after.get(LEDGER))
        epochs = {int(key[len(HISTORY) :]) for key in step.after if key.startswith(HISTORY)}
        if epochs != set(range(ledger.get("history_from", 1), ledger.get("epoch", 0) + 1)):
            found.append(f"the ledger is at epoch {ledger.get('epoch')}, and the history has {sorted(epochs)}")
        if ledger and ledger["version"] != step.after[CURRENT].value:
            found.append(f"the ledger goes to {ledger['version']}, and current_version is {step.after[CURRENT].value}")
        return found

    def _of_write(self, step: Step) -> list[str]:
        write = step.write
        if write is None or write.who == "harness":
            return []
        changed = step.changed()
        if LEDGER not in changed:
            return [*mistakes(step, write, self._hosts_of), *self._of_starts(step)]
        before, after = data_of(step.before.get(LEDGER)), data_of(step.after.get(LEDGER))
        new = [key for key, (_was, now) in changed.items() if key.startswith(HISTORY) and now is not None]
        if new != [f"{HISTORY}{after['epoch']}"] or new[0] in step.before:
            return [f"{write.who} wrote epoch {after['epoch']}, and of the history {new}"]
        event = data_of(step.after[new[0]])
        self.events[event["what"]] += 1
        found = [*mistakes(step, write, self._hosts_of), *self._order_of_writes(step, write)]
        if after["epoch"] != before.get("epoch", 0) + 1:
            found.append(f"epoch {after['epoch']} came after {before.get('epoch')}")
        rules = self._rules_of(after.get("instructions", {}))
        if rules is None:
            return [*found, f"no one gave the rules of epoch {after['epoch']}: {after['instructions']}"]
        state = with_own_records(step.before, self._keys_read(write)) if write.reading is not None else step.before
        facts = Facts({**state, LEDGER: step.after[LEDGER]}, rules, self._now(write), self._steady)
        found += _of_ledger(event, before, after, changed)
        found += _of_history(step, after.get("instructions", {}), changed)
        found += _of_gates(event, step, facts)
        found += self._of_marks(event, write, step, rules)
        if event["what"] == "open":
            self.admissions += len(event["hosts"]) + sum(one["hosts"] for one in event["roles"].values())
            self._admitted.update(event["hosts"])
            self._admitted_of_role.update({role: one["hosts"] for role, one in event["roles"].items()})
            found += _of_opening(event, before, step, facts)
            found += self._of_freshness(write)
        elif event["what"] == "begin" and after.get("rollback"):
            not_failed = [host for host in after.get("broken", ()) if facts.record(host).get("state") != "failed"]
            found += [f"the rollback does not wait for {not_failed}, which had not failed"] if not_failed else []
        elif event["what"] in ("complete", "converge"):
            found += [f"complete without {host}" for host in FLEET if not facts.is_done(host)]
        elif event["what"] in ("approve", "stage"):
            at = write.at if self._steady else None
            found += _of_stage(event, before, after, step, facts, self._latest(write, event), at)
        elif event["what"] == "retry":
            found += [
                f"{host} was retried, and has not failed"
                for host in event["hosts"]
                # Of these, the last ones are retried by name, as they keep a slot.
                if not (
                    facts.has_failed(host)
                    or _is_unadmitted(facts, host)
                    or _may_be_lost(facts, host)
                    or facts.has_failed_elsewhere(host)
                )
            ]
        return found

    def _of_starts(self, step: Step) -> list[str]:
        """Return hosts that started without being admitted at that moment, and did not take it back."""
        found = []
        current = step.before[CURRENT].value
        for key, (was, now) in step.changed().items():
            if not key.startswith(RECORDS) or now is None:
                continue
            host, before, after = key[len(RECORDS) :], data_of(was), data_of(now)
            if after["state"] != "started" or (before.get("state"), before.get("version")) == (
                "started",
                after["version"],
            ):
                continue
            why = [f"under {hold}" for hold in holds_over(host) if hold in step.before]
            if after["version"] != current:
                why.append(f"while {current} was wanted")
            if not is_open(step.before, host):
                why.append("behind a closed gate")
            is_allowed = self._is_taken_back(step, key) or self._takes_back(step, key)
            if why and not is_allowed and not self._goes_on(step, key, after["version"]):
                found.append(f"{host} started {after['version']} {' and '.join(why)}")
        return found

    def _is_taken_back(self, step: Step, key: str) -> bool:
        """Return whether the writer of a step soon put a key back to what it was before, and no other process wrote it in between."""
        later = next((one for one in self._steps if one.index > step.index and key in one.changed()), None)
        return later is not None and _puts_back(step, later, key)

    def _takes_back(self, step: Step, key: str) -> bool:
        """Return whether a step does that to the last start, as the host had started with another version before."""
        earlier = next((one for one in reversed(self._steps) if one.index < step.index and key in one.changed()), None)
        return earlier is not None and _puts_back(earlier, step, key)

    def _goes_on(self, step: Step, key: str, version: str) -> bool:
        """Return whether the writer was at work on the host before a restore, which took its start back: its report is true."""
        before: list[Step] = []
        is_restored = False
        for earlier in reversed(self._steps):
            if earlier.index >= step.index:
                continue
            is_restored = is_restored or earlier.is_restore
            if is_restored and earlier.write is not None and key in earlier.changed():
                before.append(earlier)
                break
        if not before or step.write is None or before[0].write is None:
            return False
        now = data_of(before[0].after.get(key))
        is_started = (now.get("state"), now.get("version")) == ("started", version)
        return is_started and before[0].write.who == step.write.who

    def _keys_read(self, write: Write) -> dict[str, tuple[str, int]]:
        """Return the keys as the writer had read them."""
        assert write.reading is not None
        if write.reading not in self._read:
            self._read[write.reading] = write.reading.entries()
        return self._read[write.reading]

    def _now(self, write: Write) -> float | None:
        """Return the time by the writer's clock when it read."""
        if write.reading is None:
            return None
        ahead = self._clock_of(write.who, write.reading.at)
        return None if ahead is None else write.reading.at + ahead

    def _latest(self, write: Write, event: Mapping[str, Any]) -> float:
        """Return the latest time that the writer's clock can have shown when it read: it may be set back before it writes."""
        time = float(event["at"])
        if write.reading is None:
            return time
        return max(time, write.reading.at + self._most_ahead(write.who, write.reading.at))

    def _order_of_writes(self, step: Step, write: Write) -> list[str]:
        """Return whether a process wrote the ledger over a version that it had not read."""
        if write.reading is None:
            return [f"{write.who} wrote the ledger without having read it"]
        own = self._own.setdefault((write.who, write.reading), {self._keys_read(write).get(LEDGER, ("", 0))[1]})
        entry = step.before.get(LEDGER)
        last = entry.index if entry is not None else 0
        own.add(step.index)
        return [] if last in own else [f"{write.who} wrote over the ledger of index {last}, and knew {sorted(own)}"]

    def _of_freshness(self, write: Write) -> list[str]:
        """Return whether a planner admitted hosts by keys that were out of date when it read them."""
        if write.reading is None:
            return []
        done = bisect_right(self._done_at, write.reading.at)
        read = self._keys_read(write)
        then = state_at(self._base, self._steps, self._done[done - 1] if done else 0)
        return [
            f"{write.who} opened by {key} of index {read[key][1]}, which was at {entry.index} when it asked"
            for key, entry in then.items()
            if key in read and read[key][1] < entry.index
        ]

    def _of_marks(self, event: Mapping[str, Any], write: Write, step: Step, rules: Rules) -> list[str]:
        """Return whether hosts were taken for well too early."""
        found = []
        for key, (before, after) in step.changed().items():
            if not key.startswith(MARKS) or after is None:
                continue
            if event["what"] != "health":
                found.append(f"{key} was written by an event {event['what']}")
            host, was, mark = key[len(MARKS) :], data_of(before), data_of(after)
            is_new = mark["upgraded"] and not (was.get("upgraded") and was["version"] == mark["version"])
            if not is_new or not rules.soak:
                continue
            soaked = {was["since"], was.get("since_behind")} if was.get("version") == mark["version"] else set()
            if mark["since"] not in soaked and not self._was_there(step, write, rules, host):
                # The first look at a host that reports begins its soak.
                found.append(f"{host} was taken for well since {mark['since']}, and its mark was {was}")
            latest = self._latest(write, event)
            if mark["since"] + rules.soak > latest + 1:
                found.append(f"{host} was taken for well at {latest:.0f}, and soaks since {mark['since']}")
            if self._steady and write.at - mark["since"] < rules.soak:
                found.append(f"{host} was taken for well {write.at - mark['since']:.1f} s after it was seen to be")
        return found

    def _was_there(self, step: Step, write: Write, rules: Rules, host: str) -> bool:
        """Return whether a host had reported before the rollout began, by what the writer had read."""
        if write.reading is None:
            return False
        return Facts(with_own_records(step.after, self._keys_read(write)), rules).was_there(host)


def _may_be_lost(facts: Facts, host: str) -> bool:
    """Return whether a host has begun, or may, and has not reported its end. How long ago it did depends on the writer's clock."""
    is_at_work = is_open(facts.state, host) or facts.record(host).get("state") == "started"
    return (
        facts.rules.deadline is not None and is_at_work and not (facts.has_reported(host) and not facts.has_left(host))
    )


def _is_unadmitted(facts: Facts, host: str) -> bool:
    """Return whether a host has started with a closed gate, and the ledger does not say that it was admitted."""
    if facts.record(host).get("state") != "started" or is_open(facts.state, host):
        return False
    report = next(
        (entry for key, entry in facts.state.items() if key.startswith(REPORTS) and key.endswith(f"/{host}")), None
    )
    return facts.ledger.get("admitted", {}).get(host) != (report.index if report is not None else 0)


def _puts_back(first: Step, second: Step, key: str) -> bool:
    """Return whether the second of two steps of one writer puts a key back to what it was before the first one, and soon."""
    if first.write is None or second.write is None or first.write.who != second.write.who:
        return False
    if second.write.at - first.write.answered_at >= _TAKEN_BACK:
        return False
    was, now = first.before.get(key), second.after.get(key)
    return (now and now.value) == (was and was.value)


def _of_ledger(
    event: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], changed: Mapping[str, Any]
) -> list[str]:
    """Return what of the ledger an event of its kind may not change."""
    what, found = event["what"], []
    if event["epoch"] != after["epoch"]:
        found.append(f"the event of epoch {after['epoch']} says {event['epoch']}")
    allowed, then = _STATES.get(what, ((), None))
    state = before.get("state", "")
    was_complete = before.get("command", {}).get("was") == "complete" if state == "paused" else state == "complete"
    if what == "pause" and was_complete != (after.get("command", {}).get("was") == "complete"):
        found.append(f"a pause of a rollout that was {state} says {after.get('command')}")
    if what == "resume" and was_complete:
        then = "complete"
    if then is None and state != after["state"]:
        found.append(f"an event {what} made a rollout that was {state} {after['state']}")
    elif then is not None and (state not in allowed or after["state"] != then):
        found.append(f"an event {what} in a rollout that was {state}, which was {after['state']} after it")
    if CURRENT in changed and what != "begin":
        was, now = changed[CURRENT]
        # Other rules may turn the order of services in a rollback, which the flags have.
        if what != "rules" or was is None or now is None or was.value != now.value:
            found.append(f"an event {what} changed current_version")
    if before.get("instructions") != after.get("instructions") and what not in ("begin", "rules"):
        found.append(f"an event {what} changed the rules")
    for prefix, events in ((HOLDS, ("hold", "unhold", "begin")), (APPROVALS, ("approve", "begin", "rules"))):
        found += [f"an event {what} changed {key}" for key in changed if key.startswith(prefix) and what not in events]
    if what == "rules":
        found += _of_other_rules(before, after, changed)
    return found


def _of_history(step: Step, rules: Mapping[str, Any], changed: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with entries that were removed: the rollouts that the rules keep are whole."""
    gone = sorted(
        int(key[len(HISTORY) :]) for key, (_was, now) in changed.items() if key.startswith(HISTORY) and now is None
    )
    if not gone:
        return []
    kept = rules.get("history", {}).get("keep_rollouts", 50)
    left = (data_of(entry)["what"] for key, entry in step.after.items() if key.startswith(HISTORY))
    begun = sum(what in ("begin", "adopt") for what in left)
    return [f"the entries {gone} were removed, and {begun} of {kept} rollouts are left"] if begun < kept else []


def _of_other_rules(before: Mapping[str, Any], after: Mapping[str, Any], changed: Mapping[str, Any]) -> list[str]:
    """Return what of stages and approvals is kept though the stages are not what they were, and the other way round."""
    was, now = (one["instructions"].get("stages") for one in (before, after))
    found = []
    if was != now and after.get("stage", {}).get("number", 0):
        found.append(f"other stages were given, and the rollout is in {after['stage']}")
    forgotten = [key for key, (_before, left) in changed.items() if key.startswith(APPROVALS) and left is None]
    if forgotten and was == now:
        found.append(f"the stages are what they were, and {forgotten} are gone")
    return found


def _of_gates(event: Mapping[str, Any], step: Step, facts: Facts) -> list[str]:
    """Return gates that were opened without being in the event, and such as are in it and were not opened."""
    found = []
    opened = {
        key[len(GATES) :]
        for key, (_before, after) in step.changed().items()
        if key.startswith(GATES) and after is not None and after.value == "True"
    }
    recorded = {f"host/{host}" for host in event.get("hosts", {})} | {f"role/{role}" for role in event.get("roles", {})}
    if event["what"] == "open":
        found += [f"the event tells of {name}, and its gate was not opened" for name in sorted(recorded - opened)]
    elif event["what"] == "close":
        # A host that has begun or runs the version keeps a gate of its own when that of its role is closed.
        has_begun = [host for host in FLEET if facts.record(host) or facts.has_reported(host)]
        recorded = {f"host/{host}" for host in has_begun if is_open(step.before, host)} & recorded
    elif event["what"] == "converge":
        # No host is left to admit.
        return [f"the gate {name} was opened by the end of the rollout" for name in sorted(opened - {"global"})]
    else:
        recorded = set()
    found += [
        f"the gate {name} was opened, and the event {event['what']} has it not" for name in sorted(opened - recorded)
    ]
    by_role = {host for host in FLEET if f"role/{FLEET[host]}" in recorded}
    for host in FLEET:
        if is_open(step.after, host) and not is_open(step.before, host) and f"host/{host}" not in recorded | opened:
            found += [] if host in by_role else [f"{host} was opened by an event {event['what']} that does not name it"]
    return found


def _of_opening(event: Mapping[str, Any], before: Mapping[str, Any], step: Step, facts: Facts) -> list[str]:
    """Return which hosts were admitted against the rules."""
    rules = facts.rules
    opened = [host for host in FLEET if host in event["hosts"] or FLEET[host] in event["roles"]]
    new = [host for host in opened if not facts.is_done(host)]
    found = [f"{host} was opened under {key}" for host in opened for key in holds_over(host) if key in step.before]
    if before.get("state") in ("paused", "aborted"):
        found.append(f"{opened} were opened while the rollout was {before['state']}")
    if rules.frozen:
        found.append(f"{opened} were opened at an hour at which nothing may be")
    found += [f"{host} was opened, and has reported" for host in event["hosts"] if facts.is_done(host)]
    down = facts.down()
    fresh = set(new) - down
    for roles, cap in rules.caps.items():
        both = sorted((down | fresh) & set(facts.of(roles)))
        if len(both) > cap and fresh & set(both):
            found.append(
                f"{sorted(fresh & set(both))} were opened: {len(both)} of {roles} are down then, {cap} may be: {both}"
            )
    for roles, budget in rules.budgets.items():
        broken = [host for host in facts.of(roles) if facts.is_broken(host)]
        if len(broken) >= budget and fresh & set(facts.of(roles)):
            found.append(f"{sorted(fresh)} were opened while {broken} of {roles} had failed, and {budget} stop it")
    back = bool(before.get("rollback"))
    firsts, lasts = (DATA, ("controller",)) if back else (("controller",), DATA)
    left = [host for host in FLEET if not facts.is_done(host) and not facts.is_excused(host)]
    # Those that were broken before a rollback come after all others.
    # One that was admitted before and is down keeps its slot: its gate opens again when a hold that closed it ends.
    kept = down & set(before.get("admitted") or ())
    due = [host for host in new if not facts.is_excused(host) and host not in kept]
    for host in [one for one in due if FLEET[one] in lasts]:
        earlier = [one for one in left if FLEET[one] in firsts and facts.stage_of(one) <= facts.stage_of(host)]
        if earlier:
            found.append(f"{host} was opened before {earlier}")
    # The ledger has no number of a stage in a rollback.
    stage = min((facts.stage_of(host) for host in left), default=1) if back else facts.stage
    later = [host for host in sorted(fresh & set(due)) if facts.stage_of(host) > stage]
    if later:
        found.append(f"{later} were opened, and their stage had not come")
    return found


def _of_stage(
    event: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    step: Step,
    facts: Facts,
    latest: float,
    at: float | None,
) -> list[str]:
    """Return what is wrong with the end of a stage, or with its approval.

    :param latest: what :meth:`Judge._latest` returns.
    :param at: when it was written; None if clocks are wrong.
    """
    missing = [host for host in facts.of(ALL) if facts.stage_of(host) == 0 and not facts.is_done(host)]
    if event["what"] == "approve":
        return [f"approved before {missing}"] if missing else []
    was, now = before.get("stage", {}), after.get("stage", {})
    if at is not None and now.get("done_at") not in (None, was.get("done_at")) and at - now["done_at"] > SLACK:
        return [f"the stage was noted as done at {at:.1f}, and is so since {now['done_at']}"]
    if now.get("number", 0) <= was.get("number", 0) or not facts.rules.canary or after.get("rollback"):
        return []
    found = [f"the stage ended before {missing}"] if missing else []
    if f"{APPROVALS}canary" not in step.before:
        found.append("the stage ended without approval")
    done_at = was.get("done_at", 0)
    if done_at > latest:
        # By a clock that is behind, the stage soaks since another time.
        done_at = before.get("stage_behind", done_at)
    if "done_at" not in was or done_at + facts.rules.stage_soak > latest + 1:
        found.append(f"the stage ended at {latest:.0f}, and was {was}")
    elif at is not None and at - done_at < facts.rules.stage_soak:
        found.append(f"the stage ended {at - done_at:.1f} s after it was done")
    return found
