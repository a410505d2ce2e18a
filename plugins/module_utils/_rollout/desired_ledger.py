# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a caller asks of a pass, and what the ledger should say then: the version, the rules, where the fleet comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_new_version, listing, plural
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, Snapshot, roles_of_hosts
from .._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._host_states.states import admitted_and_started
from .._planner.blockers import command_text
from .._planner.post_upgrade import post_upgrade_hosts
from .._planner.slots import refuse_uncapped
from .._planner.stage_progress import carried_over
from .._rule_checks.changes import named_in, refuse_left_out
from .._rules.instructions import ROLLBACK_ORDER, Instructions, parse
from .._rules.role_order import resolve
from .._rules.unknown_names import refuse_unknown
from .._state.keys import Keys
from .._state.store import current_user
from .rule_input import effective_rules


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What a caller asks of a pass.

    :param version: None to go on with the rollout of the ledger.
    :param rules: instructions in their stored form, and keys that are empty on purpose; None for those of the ledger.
    :param role_order: order added to the rules.
    :param fleet: host -> role; None where the caller knows none.
    :param limit: hosts, roles or groups that may be opened; None for all.
    :param since: set by a caller that goes on with what it began: such a pass never begins a rollout.
    :param epoch: the newest epoch that the caller has seen; an older one is refused.
    :param commit: the commit of that epoch; another one is refused too. Empty where the caller does not know it.
    :param restart: whether to begin a rollout again that was aborted.
    :param replace: version of the rollout under way whose place another one may take; None to replace none.
    :param takes_back: the rollout that the one which this begins takes back; where another one is on its way by now,
        nothing is begun.
    :param post_upgrade: roles that have tasks after the upgrade; None where the caller does not know.
    :param word: of whoever takes it back: ``by``, ``at`` (unix seconds), ``reason``, for the ledger and the history.
    """

    version: str | None = None
    rules: Mapping[str, Any] | None = None
    role_order: Mapping[str, Any] | None = None
    fleet: Mapping[str, str] | None = None
    role_pattern: str | None = None
    limit: Sequence[str] | None = None
    converge: bool = False
    since: int | None = None
    epoch: int = 0
    commit: str = ""
    restart: bool = False
    replace: str | None = None
    takes_back: Ledger | None = None
    word: Mapping[str, Any] = field(default_factory=dict)
    post_upgrade: Sequence[str] | None = None


def is_same_rollout(one: Ledger, other: Ledger | None) -> bool:
    """Return whether two ledgers are of the same rollout, however far each is."""
    return other is not None and (one.version, one.since) == (other.version, other.since)


@dataclass(frozen=True, slots=True)
class DesiredLedger:
    """What the ledger should say, and what follows from it.

    :param rules: those that the ledger should have, as parsed.
    :param members: host -> role, of the whole fleet.
    :param begins: whether that is another rollout than the one there is.
    :param replaces: the rollout under way that ends by this; None where none does, and in a rollback.
    :param warnings: sentences for the caller.
    """

    ledger: Ledger
    rules: Instructions
    members: Mapping[str, str]
    begins: bool
    replaces: Ledger | None = None
    warnings: tuple[str, ...] = ()


def desired_ledger(keys: Keys, request: PassRequest, snapshot: Snapshot, now: int, *, begun: bool) -> DesiredLedger:
    """Return what a request makes of the ledger that there is.

    :param now: unix seconds, when a rollout that begins begins.
    :param begun: whether the caller has begun its rollout already, in an earlier try.
    :raises UpgradeError: ``no_rollout``, ``foreign_version``, ``aborted``, ``rollout_under_way``, ``overtaken``, ``rules_left_out``,
        ``post_upgrade_pending``, ``no_cap``,
        ``unknown_names``, ``bad_instructions``, and what :func:`roles_of_hosts` raises.
    """
    warnings = []
    old = snapshot.ledger
    version = request.version or (old.version if old else None)
    if version is None:
        raise UpgradeError(
            "no_rollout", f"version is not given, and {keys.ledger} holds no rollout to go on with. Give version."
        )
    if request.version is None and snapshot.current_version != version:
        raise UpgradeError(
            "foreign_version",
            f"{keys.current_version} is {snapshot.current_version!r}, but the rollout in {keys.ledger} goes "
            f"to {version!r}: something else has set it. Give version to say which of the two you want.",
        )
    begins = _begins(request, snapshot, version, begun=begun)
    if begins:
        check_new_version(version, "version")
    replaces = _replaced(request, snapshot, version)
    if begins and not begun and not (request.takes_back or request.restart):
        _refuse_outstanding(request, snapshot, version)
    same = old if old is not None and old.version == version and not begins else None
    # The rules of the last rollout hold on, also for one that begins, until others are given.
    plain, rules = effective_rules(request.rules, old.instructions if old else {}, request.role_order)
    if request.rules is not None and same is not None and same.state in (RUNNING, PAUSED):
        refuse_left_out(same.instructions, named_in(request.rules) | set(plain), version, keys.ledger)
    # Of two planners that go on side by side, each with a pattern of its own, the ledger's must hold for both.
    pattern = (request.role_pattern if request.since is None else None) or (old.role_pattern if old else None)
    members = roles_of_hosts(request.fleet or {}, sorted({*snapshot.reports, *snapshot.records}), pattern)
    if not members:
        warnings.append(
            f"No host is known: none has reported under {keys.reports}, and fleet names none. Is kv_prefix right?"
        )
    if same is None or plain != same.instructions:
        order = resolve(rules, set(members.values()), members)
        # A rollback is under rules that were looked at when its rollout began; a host may have been removed since then.
        if request.takes_back is None or not _are_of(request.takes_back, plain):
            refuse_unknown(order.unknown, members, request.role_order)
        refuse_uncapped(rules, order, _former_default(snapshot))
    ledger = Ledger(
        epoch=old.epoch if old else 0,
        version=version,
        previous_version=same.previous_version if same else previous_of(snapshot, version),
        state=same.state if same else RUNNING,
        instructions=plain,
        role_pattern=pattern if pattern != DEFAULT_ROLE_PATTERN else None,
        members=dict(Counter(members.values())) if request.fleet else dict(old.members if old else {}),
        who=same.who if same else str(request.word.get("by") or current_user()),
        since=same.since if same else now,
        word=same.word if same else dict(request.word),
        rollback=same.rollback if same else request.takes_back is not None,
        stage=_stage(same, rules) if same else {},
        begun_index=same.begun_index if same else snapshot.index,
        admitted=same.admitted if same else admitted_and_started(snapshot, members),
        broken=same.broken if same else (),
        stopped=same.stopped if same else (),
        post_upgrade=_post_upgrade(request, same),
    )
    return DesiredLedger(ledger, rules, members, begins, replaces, tuple(warnings))


def _post_upgrade(request: PassRequest, same: Ledger | None) -> tuple[str, ...]:
    # Once a rollout is complete, hosts that join the fleet are not part of it.
    if same is not None and (request.post_upgrade is None or same.state == COMPLETE):
        return same.post_upgrade
    return tuple(sorted(request.post_upgrade or ()))


def _refuse_outstanding(request: PassRequest, snapshot: Snapshot, version: str) -> None:
    """Refuse to begin a rollout while the tasks after the last one are still to be run.

    :raises UpgradeError: ``post_upgrade_pending``.
    """
    old = snapshot.ledger
    if old is None or old.state != COMPLETE or old.version == version:
        return
    members = roles_of_hosts(request.fleet or {}, sorted({*snapshot.reports, *snapshot.records}), old.role_pattern)
    left = post_upgrade_hosts(snapshot, members)
    if left:
        raise UpgradeError(
            "post_upgrade_pending",
            f"The tasks after the upgrade to {old.version} are still to be run on {plural(len(left), 'host')} ({listing(left)}), so no "
            f"rollout to {version} begins. Next: ansible-playbook playbooks/post_upgrade.yml -e version={old.version}. Or begin "
            "without them, with -e restart=true.",
            hosts=list(left),
        )


def _begins(request: PassRequest, snapshot: Snapshot, version: str, *, begun: bool) -> bool:
    """Return whether a request begins a rollout, and refuse it where another one is in the way."""
    old = snapshot.ledger
    # A rollout that was aborted is over, and no one begins it again unawares, as by a command that runs every hour.
    over = (
        old is not None
        and old.state == ABORTED
        and old.version == snapshot.current_version == request.version
        and request.since is None
        and not begun
    )
    if old is not None and over and not (request.restart or request.takes_back):
        raise UpgradeError(
            "aborted",
            f"The rollout to {version} was aborted{command_text(old)}. Nothing is opened. Begin it again with restart: true "
            "(-e restart=true), or go back with rollback.yml.",
        )
    begins = snapshot.current_version != version or over
    if begins and (request.since is not None or begun):
        raise other_rollout(snapshot)
    if begins and request.takes_back is not None and not is_same_rollout(request.takes_back, old):
        raise other_rollout(snapshot)
    return begins


def _replaced(request: PassRequest, snapshot: Snapshot, version: str) -> Ledger | None:
    """Return the rollout under way that a request to another version ends, where it names that one.

    Something else than a planner may have set ``current_version`` to the version that is asked for: to go on from there ends the
    rollout of the ledger too.

    :raises UpgradeError: ``rollout_under_way``.
    """
    old = snapshot.ledger
    if old is None or old.state not in (RUNNING, PAUSED) or old.version == version or request.takes_back is not None:
        return None
    if request.replace == old.version:
        return old
    named = f"replace names {request.replace}, but the" if request.replace else "The"
    raise UpgradeError(
        "rollout_under_way",
        f"{named} rollout under way goes to {old.version}: it was begun by {old.who} and is {old.state}"
        f"{command_text(old) if old.state == PAUSED else ''}. So none to {version} begins, and nothing is changed. Finish it with upgrade.yml -e "
        f"version={old.version}, or end it by beginning this one in its place: give replace: {old.version} (-e replace={old.version}).",
        under_way=old.version,
        state=old.state,
    )


def _are_of(ledger: Ledger, plain: Mapping[str, Any]) -> bool:
    """Return whether rules are those of a rollout, whichever way round."""
    return {**plain, ROLLBACK_ORDER: ""} == {**ledger.instructions, ROLLBACK_ORDER: ""}


def _former_default(snapshot: Snapshot) -> str:
    """Return what to say to a fleet that never had a ledger: what used to move it may have had no cap by default."""
    if snapshot.ledger is not None or snapshot.current_version is None:
        return ""
    return (
        "The code that set current_version so far let every host go at once where it had no such rule: global: unlimited keeps "
        "that, and global: 1 is the careful beginning."
    )


def _stage(same: Ledger, rules: Instructions) -> Mapping[str, int]:
    """Return where a rollout is in its stages, under the rules that it goes on with."""
    before = parse(same.instructions).stages
    return same.stage if before == rules.stages else carried_over(before, rules.stages, same.stage)


def previous_of(snapshot: Snapshot, version: str) -> str | None:
    """Return where the fleet comes from: what it was to run and got to, or what all hosts do run.

    A rollout that was not completed is passed over for where that one came from, as it may have been aborted because its
    version is bad. One that took the fleet back goes where it was well.
    """
    old, passed_over = snapshot.ledger, {version}
    known = [snapshot.current_version]
    if old is not None and old.version == snapshot.current_version != version and _is_cut_short(old, snapshot):
        known = [old.version] if old.previous_version == version else [old.previous_version]
        passed_over |= {old.version} - set(known)
    elif old is not None:
        # Who begins an aborted rollout again comes from where that one came from.
        known += [old.version, old.previous_version]
    for one in known:
        if one is not None and one != version:
            return one
    running = {report.version for report in snapshot.reports.values()} - passed_over
    return running.pop() if len(running) == 1 else None


def _is_cut_short(ledger: Ledger, snapshot: Snapshot) -> bool:
    if ledger.state == COMPLETE or ledger.rollback:
        return False
    # Where the last hosts reported and no planner has looked since, it is complete but for being written down.
    return ledger.state == ABORTED or any(report.version != ledger.version for report in snapshot.reports.values())


def other_rollout(snapshot: Snapshot) -> UpgradeError:
    """Return the error for a caller whose rollout is not the one that is on its way."""
    who = f", begun by {snapshot.ledger.who}" if snapshot.ledger else ""
    return UpgradeError(
        "overtaken",
        f"Another rollout is on its way, to {snapshot.current_version!r}{who}. This call ends. Look at it with status.yml. To begin "
        f"yours in its place, run upgrade.yml again with -e replace={snapshot.current_version}.",
    )
