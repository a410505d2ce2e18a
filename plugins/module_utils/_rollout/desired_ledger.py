# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired ledger: what the ledger should say after a request, such as its version, rules and previous version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._codecs.values import before_job
from .._common.errors import UpgradeError
from .._common.names import check_new_version
from .._common.sanitize import sanitize, truncate_middle
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, Membership, Snapshot, find_members
from .._fleet.ledger import ABORTED, COMPLETE, PAUSED, RUNNING, Ledger
from .._host_states.admitted import still_admitted, without_unstarted
from .._host_states.state_names import UPGRADED
from .._host_states.states import read_states
from .._planner.slots import has_cap, refuse_uncapped
from .._planner.stage_progress import carried_over
from .._rule_checks.changes import refuse_left_out
from .._rule_checks.unknown_targets import refuse_unknown_holds
from .._rule_files.rule_input import effective_rules
from .._rules.instructions import ROLLBACK_ORDER, Instructions, parse
from .._rules.role_order import resolve
from .._rules.unknown_names import refuse_unknown
from .._state.keys import Keys
from .._state.store import current_user
from .conflicts import (
    begins_rollout,
    refuse_during_job,
    refuse_outstanding,
    refuse_unknown_job,
    refuse_unknown_targets,
    replaced_rollout,
)
from .pass_request import PassRequest


@dataclass(frozen=True, slots=True)
class DesiredLedger:
    """What the ledger should say after a request.

    :param rules: the parsed rules of that ledger.
    :param membership: the hosts of the whole fleet.
    :param begins: whether the request begins a rollout.
    :param replaces: the rollout under way that this one replaces; None for none, and in a rollback.
    :param warnings: sentences for the caller.
    """

    ledger: Ledger
    rules: Instructions
    membership: Membership
    begins: bool
    replaces: Ledger | None = None
    warnings: tuple[str, ...] = ()

    @property
    def members(self) -> Mapping[str, str]:
        """Host -> role, of the whole fleet."""
        return self.membership.members


def desired_ledger(
    keys: Keys,
    request: PassRequest,
    snapshot: Snapshot,
    now: int,
    *,
    begun: bool,
    before: Membership | None = None,
) -> DesiredLedger:
    """Return what the ledger should say after a request.

    :param now: unix seconds; the beginning of a rollout that begins.
    :param begun: whether an earlier try of this pass has begun the rollout already.
    :param before: the hosts in an earlier pass, which saves time.
    :raises UpgradeError: ``no_rollout``, ``foreign_version``, ``aborted``, ``rollout_under_way``, ``overtaken``, ``rules_left_out``,
        ``post_upgrade_pending``, ``job_under_way``, ``unknown_job``, ``unknown_limit``, ``no_cap``, ``unknown_names``,
        ``bad_instructions``, and what :func:`roles_of_hosts` raises.
    """
    warnings = []
    old = snapshot.ledger
    version = _target(keys, request, snapshot)
    refuse_during_job(snapshot)
    begins = begins_rollout(request, snapshot, version, begun=begun)
    same = old if old is not None and old.version == version and not begins else None
    if same is None and snapshot.is_job:
        refuse_unknown_job(request, keys)
    elif begins:
        check_new_version(version, "version")
    replaces = replaced_rollout(request, snapshot, version)
    if begins and not begun and not (request.rolls_back or request.restart):
        refuse_outstanding(request, snapshot, version)
    # A rollout without rules of its own begins with those of the last rollout.
    given = request.given_rules(same)
    plain, rules = effective_rules(given, _rules_in_force(old, same), request.role_order)
    if given is not None and same is not None and same.state in (RUNNING, PAUSED):
        refuse_left_out(same.instructions, given, version, keys.ledger, plain)
    # Two planners may continue a rollout with different patterns. Both use the ledger's.
    pattern = (request.role_pattern if request.since is None else None) or (old.role_pattern if old else None)
    membership = find_members(request.fleet, snapshot, pattern, before)
    members = membership.members
    if not members:
        warnings.append(
            f"No host is known: none has reported under {keys.reports}, and fleet is empty. Check kv_prefix."
        )
    _refuse_bad_rules(request, snapshot, members, plain, rules, same)
    gate = snapshot.gates.everywhere
    if begins and not keys.is_job and gate and gate.was_closed_by_hand(snapshot.current_version):
        warnings.append(
            f"{gate.key} was closed by hand, as by ansible-playbook convoy.upgrade.global_disable. That does not stop this rollout, which sets all gates again."
        )
    if begins and request.rolls_back is None and (warning := _back_by_upgrade(old, version)):
        warnings.append(warning)
    ledger = replace(
        _begun(request, snapshot, version, members, plain, now)
        if same is None
        else replace(_continued(request, snapshot, same, rules), instructions=plain),
        role_pattern=pattern if pattern != DEFAULT_ROLE_PATTERN else None,
        members=_member_counts(request, members, old),
    )
    return DesiredLedger(ledger, rules, membership, begins, replaces, tuple(warnings))


def _target(keys: Keys, request: PassRequest, snapshot: Snapshot) -> str:
    """Return the version or job that a request is for.

    :raises UpgradeError: ``no_rollout``, ``foreign_version``.
    """
    if request.version is not None:
        return request.version
    if snapshot.ledger is None:
        raise UpgradeError(
            "no_rollout",
            f"version is not given, and {keys.ledger} has no rollout to continue. Give version (-e version=X).",
        )
    version = snapshot.ledger.version
    if snapshot.current_version is None:
        raise UpgradeError(
            "foreign_version",
            f"{keys.current_version} has no value, or this token may not read it, but the rollout in {keys.ledger} goes to {version!r}. Check the "
            "policy of the token, or give version (-e version=X) to set it again.",
        )
    if snapshot.current_version != version:
        raise UpgradeError(
            "foreign_version",
            f"{keys.current_version} is {snapshot.current_version!r}, but the rollout in {keys.ledger} goes "
            f"to {version!r}: something other than a planner has set it. Give version (-e version=X) to choose one of the two.",
        )
    return version


def _back_by_upgrade(old: Ledger | None, version: str) -> str:
    """Return the warning for an upgrade to the version before the last rollout; empty for others."""
    if old is None or old.is_job or old.rollback or version == old.version or version != old.previous_version:
        return ""
    return (
        f"version: {version} is the version before the rollout to {old.version}. This run goes back to it in the order, the stages and the approvals of an "
        "upgrade. ansible-playbook convoy.upgrade.rollback goes back in the reverse order, without approvals."
    )


def _refuse_bad_rules(
    request: PassRequest,
    snapshot: Snapshot,
    members: Mapping[str, str],
    plain: Mapping[str, Any],
    rules: Instructions,
    same: Ledger | None,
) -> None:
    """Refuse names that do not fit the fleet, and rules without a cap, if the rollout begins, or its rules or roles have changed.

    A rollback that begins under the rules of the rollout before is not refused, except for rules without any cap. Warnings name holds for unknown
    hosts and roles.

    :raises UpgradeError: ``unknown_limit``, ``unknown_names``, ``no_cap``.
    """
    if same is None:
        if request.job is not None:
            refuse_unknown_targets(request.job, members)
        # A host that was removed must not keep the others from going back.
        if request.rolls_back is None:
            refuse_unknown_holds(snapshot, members, rules.optional_names)
    elif plain == same.instructions and not _have_moved(request, members, same):
        return
    order = resolve(rules, set(members.values()), members)
    # A rollback has the rules of the rollout before, which were checked when that began. They may name hosts that were removed since. A role that has
    # joined since may have no cap: then none of its hosts is admitted, and all others go back.
    if request.rolls_back is not None and _are_of(request.rolls_back, plain) and has_cap(rules):
        return
    refuse_unknown(order.unknown, members, request.role_order)
    refuse_uncapped(rules, order, _former_default(snapshot))


def _begun(
    request: PassRequest,
    snapshot: Snapshot,
    version: str,
    members: Mapping[str, str],
    plain: Mapping[str, Any],
    now: int,
) -> Ledger:
    """Return the ledger of a rollout that begins.

    :param plain: its rules.
    """
    begun = Ledger(
        epoch=snapshot.ledger.epoch if snapshot.ledger else 0,
        version=version,
        instructions=plain,
        who=_who(request),
        since=now,
        command=dict(request.command),
        rollback=request.rolls_back is not None,
        begun_index=_begun_index(snapshot, version),
        all_soak=_all_soak(snapshot, version),
    )
    if request.job is not None:
        # No host has been admitted to it. One that works on an earlier job is busy.
        job = request.job
        return replace(
            begun, targets=job.targets(), expires=job.expires, by_ansible=job.by_ansible, before=_before(snapshot)
        )
    return replace(
        begun,
        previous_version=previous_of(snapshot, version, is_rollback=begun.rollback),
        admitted=still_admitted(snapshot, members, begun.room_for_names * 3 // 4),
        post_upgrade=tuple(sorted(request.post_upgrade or ())),
        services=dict(request.services or {}),
    )


def _continued(request: PassRequest, snapshot: Snapshot, same: Ledger, rules: Instructions) -> Ledger:
    """Return the ledger of a rollout that continues under these rules."""
    continued = replace(same, admitted=without_unstarted(snapshot, same.admitted), stage=_stage(same, rules))
    if request.services is not None and not same.is_job:
        continued = replace(continued, services=dict(request.services))
    # A complete rollout keeps its roles: hosts that join the fleet later are not part of it.
    if request.post_upgrade is not None and same.state != COMPLETE and not same.is_job:
        continued = replace(continued, post_upgrade=tuple(sorted(request.post_upgrade)))
    return continued


def _have_moved(request: PassRequest, members: Mapping[str, str], same: Ledger) -> bool:
    """Return whether hosts seem to have another role than before: one of the ledger has none left, and the fleet has not become smaller by these.

    With another inventory, the names in the rules may not fit any more, and neither caps nor order would hold.
    """
    roles = set(members.values())
    gone = sum(count for role, count in same.members.items() if role not in roles)
    return bool(request.fleet) and gone > 0 and len(members) > sum(same.members.values()) - gone


def _begun_index(snapshot: Snapshot, version: str) -> int | None:
    """Return Consul's index at the beginning of a rollout, from which on reports have to soak.

    One to the same version that begins again, as after an abort, has that of the first beginning: the soaks of its hosts are not over.
    """
    old = snapshot.ledger
    goes_on = old is not None and not (old.is_job or old.was_complete) and old.version == version
    return old.begun_index if goes_on and old is not None else snapshot.index


def _all_soak(snapshot: Snapshot, version: str) -> bool:
    """Return whether hosts soak that reported the version before the rollout begins.

    Another rollout was cut short, and an earlier one to this version may have been too. It is known only of the version before that one that the
    fleet ran it.
    """
    old = snapshot.ledger
    if old is None or old.is_job or old.was_complete or version == old.previous_version:
        return False
    return old.all_soak if old.version == version else True


def _who(request: PassRequest) -> str:
    by = request.job.by if request.job is not None else request.command.get("by") or request.by
    return truncate_middle(sanitize(str(by))) if by else current_user()


def _rules_in_force(old: Ledger | None, same: Ledger | None) -> Mapping[str, Any]:
    """Return the rules that a request without rules has: those of the last rollout to a version, or of the job that it continues."""
    if old is None:
        return {}
    if not old.is_job or same is not None:
        return old.instructions
    found = old.before.get("instructions", {})
    return found if isinstance(found, Mapping) else {}


def _before(snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the last rollout to a version as a job that begins keeps it; empty if there was none."""
    old = snapshot.ledger
    if old is None:
        return {}
    if not old.is_job:
        # Hosts that have started are busy. Those that have not can't start any more.
        old = replace(old, admitted={host: at for host, at in old.admitted.items() if host in snapshot.busy})
    return before_job(old)


def _member_counts(request: PassRequest, members: Mapping[str, str], old: Ledger | None) -> Mapping[str, int]:
    """Return role -> number of hosts. A caller without a fleet does not know them all."""
    if request.fleet and not (request.keeps_members and old is not None and old.members):
        return dict(Counter(members.values()))
    return dict(old.members if old is not None else {})


def _are_of(ledger: Ledger, plain: Mapping[str, Any]) -> bool:
    """Return whether rules are those of a rollout, apart from the order in a rollback."""
    return {**plain, ROLLBACK_ORDER: ""} == {**ledger.instructions, ROLLBACK_ORDER: ""}


def _former_default(snapshot: Snapshot) -> str:
    """Return a sentence on caps for a fleet that has never had a ledger; empty for other fleets."""
    if snapshot.ledger is not None or snapshot.current_version is None:
        return ""
    return "The code that set current_version before had no cap by default. Keep that with global: unlimited, or begin with global: 1."


def _stage(same: Ledger, rules: Instructions) -> Mapping[str, int]:
    """Return the value of ``stage`` for a rollout that continues under these rules."""
    before = parse(same.instructions).stages
    return same.stage if before == rules.stages else carried_over(before, rules.stages, same.stage)


def previous_of(snapshot: Snapshot, version: str, *, is_rollback: bool = False) -> str | None:
    """Return the version before a rollout: that of the last complete rollout, or the one that all hosts run; None if unknown.

    The version of an incomplete rollout may be bad, so its own previous version is returned instead. The target of a rollback counts
    as good even if the rollback is not complete.

    :param is_rollback: whether it is a rollback. For one, it is the version that it goes back from, which may be bad.
    """
    old, passed_over = snapshot.ledger, {version}
    known = [snapshot.current_version]
    if old is not None and old.version == snapshot.current_version != version and _is_cut_short(old, snapshot):
        known = [old.version] if is_rollback and old.previous_version == version else [old.previous_version]
        passed_over |= {old.version} - set(known)
    elif old is not None and old.rollback and not is_rollback:
        known.append(old.version)
        passed_over |= {old.previous_version or version}
    elif old is not None:
        # A rollout that begins again after an abort has the previous version of the aborted one.
        known += [old.version, old.previous_version]
    for one in known:
        if one is not None and one != version:
            return one
    running = {report.version for report in snapshot.reports.values()} - passed_over
    return running.pop() if len(running) == 1 else None


def _is_cut_short(ledger: Ledger, snapshot: Snapshot) -> bool:
    if ledger.rollback or (ledger.was_complete and ledger.state != ABORTED):
        return False
    if ledger.state != RUNNING:
        return True
    # All hosts may have reported since the last pass. Then the rollout is complete, though no planner has written that.
    health = parse(ledger.instructions).health
    states = read_states(snapshot, dict.fromkeys((*snapshot.reports, *snapshot.records), ""), health)
    return any(one.state != UPGRADED for one in states.values())
