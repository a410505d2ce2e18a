# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that ``--tags`` and ``--skip-tags`` select. Tags of a part that can't run alone are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import in_order, listing
from ...module_utils._fleet.checkpoints import checkpoint_name
from ...module_utils._host_states.state_names import HELD, UPGRADED
from .._compose.tag_selection import is_task_selected, skipping
from .._services.steps import DRAIN, POST, REPLACEMENT, STEPS, UNDRAIN, stops_to_repeat, tags_of
from .playbook_names import is_of_collection
from .scope import RunScope
from .task_options import TAG_OPTIONS

_UNSELECTED = "the tags select none of its tasks"
_COLLECTION = "convoy.upgrade."
_PULLED = "it upgrades itself, and tags select no part of that"


@dataclass(frozen=True, slots=True)
class _Selected:
    """A task group of a host, and how much of it the tags select.

    :param is_done: whether an earlier run finished it.
    :param is_left: whether it still has to run, or to run again.
    :param once: whether one host runs it for all.
    :param whole: whether the tags select all of its tasks.
    :param any: whether they select any of them.
    """

    name: str
    step: str
    service: str
    is_done: bool
    is_left: bool
    once: bool
    whole: bool
    any: bool


@dataclass(frozen=True, slots=True)
class OutsideTags:
    """The hosts that are not in a run because of its tags.

    :param reasons: host -> why it is not.
    :param validated: those of them that are validated nevertheless, as with ``--tags validate``.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    validated: tuple[str, ...] = ()

    def narrow(self, scope: RunScope) -> RunScope:
        """Return a run without these hosts."""
        narrowed = scope.without(self.reasons)
        kept = tuple(host for host in scope.validate if host in narrowed.validate or host in self.validated)
        if self.validated and not narrowed.pushed_hosts:
            # Nothing follows the validation, not even for hosts that are upgraded.
            narrowed = narrowed.without([host for hosts in narrowed.plays.values() for host in hosts])
        return replace(narrowed, validate=kept)

    def lines(self) -> list[str]:
        """Return a sentence for each reason."""
        return [
            f"Not in this run, because of its tags: {listing(hosts, 5)}; {why}."
            for why, hosts in _by_reason(self.reasons)
        ]


def hosts_outside_tags(
    plan: Mapping[str, Any],
    composition: Mapping[str, Any],
    scope: RunScope,
    checkpoints: Mapping[str, Collection[str]],
    only: Sequence[str],
    skip: Sequence[str],
) -> OutsideTags:
    """Return the hosts that are not in a run because of its tags.

    - hosts that the tags would run too early, such as those that ``--tags verify`` would verify before their upgrade
    - hosts of which ``--tags`` select no task that is left
    - hosts that upgrade themselves, if there are ``--tags``, as they can't run a part of an upgrade

    :param plan: a result of ``consul_upgrade_plan``, with the task groups that each host has finished.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param scope: the run for all tags.
    :param checkpoints: host -> the checkpoints that are left on its upgrade path.
    :param only: ``ansible_run_tags``.
    :param skip: ``ansible_skip_tags``.
    :raises UpgradeError: ``partial_tags`` if the tags would leave services of a host down, or the host drained, or would run all hosts too early;
        ``no_such_tag`` if they select nothing that is left.
    """
    selects_all = set(only) <= {"all"}
    if selects_all and not skip:
        return OutsideTags()
    pushed = scope.pushed_hosts
    partial: dict[str, str] = {}
    too_early: dict[str, str] = {}
    unselected: dict[str, str] = {}
    for host in dict.fromkeys((*pushed, *_unfinished(plan, scope))):
        view = plan["hosts"][host]
        role = composition["roles"].get(view["role"])
        if role is None:
            if not selects_all:
                unselected[host] = _PULLED
            continue
        groups = [*_selected(role["task_groups"], view.get("done", ()), checkpoints.get(host, ()), only, skip)]
        if not selects_all and _selects_nothing(groups):
            unselected[host] = _UNSELECTED
        elif host not in pushed:
            # It failed and is not retried, which ends the run in any case.
            continue
        elif selects_all:
            partial[host] = _reason_to_refuse_skipping(groups, is_drained=DRAIN in view.get("steps", ()))
        else:
            too_early[host] = _reason_to_wait(groups)
            partial[host] = "" if too_early[host] else _reason_to_refuse(groups)
    refused = {host: why for host, why in partial.items() if why}
    early = {host: why for host, why in too_early.items() if why}
    has_none_left = all(host in early or host in unselected for host in pushed)
    if not refused and has_none_left:
        refused = early
    options = (("--tags", set(only) - {"all"}), ("--skip-tags", set(skip)))
    given = " ".join(f"{name} {','.join(in_order(tags))}" for name, tags in options if tags)
    if refused:
        raise UpgradeError(
            "partial_tags",
            f"{given}: these tags select a part of the upgrade that can't run alone. {_sentences(refused)} Nothing was done: leave the tags out (they may "
            "come from ANSIBLE_RUN_TAGS, ANSIBLE_SKIP_TAGS or ansible.cfg too), or select "
            "prepare, then stop, upgrade and start together, then verify.",
            without=TAG_OPTIONS,
        )
    validated = tuple(
        host for host in scope.validate if host in unselected and _validates(plan, composition, host, only, skip)
    )
    if unselected and has_none_left and not validated:
        raise UpgradeError(
            "no_such_tag",
            f"{given}: these tags select no task that is left, so nothing would be done. {_sentences(unselected)}",
            without=TAG_OPTIONS,
        )
    return OutsideTags({**early, **unselected}, validated)


def refuse_tags_of_pull(only: Sequence[str], playbooks: Iterable[str], own: Collection[str]) -> None:
    """Refuse ``--tags`` if Ansible upgrades no host: the whole fleet would be upgraded, and not only what they select.

    Other tags than those of steps may be those of a playbook that imports an upgrade.

    :param only: ``ansible_run_tags``.
    :param playbooks: the playbooks of the command, as it names them.
    :param own: the tags of the task itself, which has those of an import.
    :raises UpgradeError: ``no_such_tag``.
    """
    tags = set(only) - {"all"}
    is_direct = all(one.startswith(_COLLECTION) or is_of_collection(one) for one in playbooks)
    of_steps = {tag for step in (*STEPS, POST) for tag in tags_of(step)} - set(own)
    if "all" in only or not tags or not (is_direct or tags & of_steps):
        return
    raise UpgradeError(
        "no_such_tag",
        f"--tags {','.join(in_order(tags))}: all hosts upgrade themselves, and tags select no part of that. Nothing was done: leave --tags out "
        "(they may come from ANSIBLE_RUN_TAGS or ansible.cfg too).",
        without=TAG_OPTIONS,
    )


def post_upgrade_outside_tags(
    composition: Mapping[str, Any],
    hosts: Iterable[str],
    fleet: Mapping[str, str],
    only: Sequence[str],
    skip: Sequence[str],
) -> OutsideTags:
    """Return the hosts of which ``--tags`` select no post-upgrade task.

    :param hosts: those that have such tasks.
    :param fleet: host -> role.
    :raises UpgradeError: ``partial_tags`` if the tags select a part of what one host runs for all.
    """
    if set(only) <= {"all"}:
        return OutsideTags()
    roles = {**composition["roles"], **composition.get("pull_roles", {})}
    selected, needed = set(), {fleet[host] for host in hosts}
    for name, data in roles.items():
        for one in data["task_groups"]:
            shared = [*tags_of(POST), one["service"]]
            if one["step"] != POST or not is_task_selected([*shared, *one["tags"]], only, skip):
                continue
            selected.add(name)
            is_part = one["once"] and not is_task_selected(shared, only, skip)
            # Hosts that upgrade themselves run their tasks whatever the tags are.
            if is_part and name in needed and name in composition["roles"]:
                raise UpgradeError(
                    "partial_tags",
                    f"--tags {','.join(in_order(set(only) - {'all'}))}: {_part_of_once(one['name'])}. No post-upgrade task was run: leave the tags out, "
                    f"or select {one['service']}.",
                    without=TAG_OPTIONS,
                )
    return OutsideTags({host: _UNSELECTED for host in hosts if fleet[host] not in selected})


def _unfinished(plan: Mapping[str, Any], scope: RunScope) -> list[str]:
    hosts = (host for found in scope.plays.values() for host in found)
    return [host for host in hosts if plan["hosts"][host]["state"] not in (UPGRADED, HELD)]


def _validates(
    plan: Mapping[str, Any], composition: Mapping[str, Any], host: str, only: Sequence[str], skip: Sequence[str]
) -> bool:
    """Return whether the tags select the validation of a host."""
    groups = composition["roles"][plan["hosts"][host]["role"]]["task_groups"]
    return any(is_task_selected([*tags_of(STEPS[0]), one["service"]], only, skip) for one in groups)


def _by_reason(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for host, why in reasons.items():
        found.setdefault(why, []).append(host)
    return [*found.items()]


def _sentences(reasons: Mapping[str, str]) -> str:
    return " ".join(f"{listing(in_order(hosts))}: {why}." for why, hosts in _by_reason(reasons))


def _selected(
    task_groups: Iterable[Mapping[str, Any]],
    done: Collection[str],
    checkpoints: Collection[str],
    only: Sequence[str],
    skip: Sequence[str],
) -> Iterator[_Selected]:
    groups: list[tuple[Mapping[str, Any], str]] = []
    for one in task_groups:
        checkpoint = checkpoint_name(one["service"], one["checkpoint"]) if one["checkpoint"] else ""
        if one["step"] not in (STEPS[0], POST) and (not checkpoint or checkpoint in checkpoints):
            groups.append((one, checkpoint or one["service"]))
    repeated = stops_to_repeat([(one["name"], one["step"], unit) for one, unit in groups if not one["once"]], done)
    for one, _unit in groups:
        shared = [*tags_of(one["step"]), one["service"]]
        is_chosen = is_task_selected(shared, only, skip)
        yield _Selected(
            one["name"],
            one["step"],
            one["service"],
            one["name"] in done,
            is_left=one["name"] not in done or one["name"] in repeated,
            once=one["once"],
            whole=is_chosen and not set(skipping(one["tags"], skip)) & set(one["tags"]),
            any=is_chosen or is_task_selected(one["tags"], only, skip),
        )


def _selects_nothing(groups: Sequence[_Selected]) -> bool:
    """Return whether ``--tags`` select no task of those that a host has left, while there are any."""
    left = [one for one in groups if one.is_left]
    return bool(left) and not any(one.any for one in left)


def _reason_to_wait(groups: Sequence[_Selected]) -> str:
    """Return which task group ``--tags`` would run before one that has to come first; empty for none."""
    left = [one for one in groups if one.is_left]
    for at, one in enumerate(left):
        later = next((other for other in left[at + 1 :] if other.any), None)
        if not one.whole and later:
            return f"a later run would run {one.name} after {later.name}"
    return ""


def _reason_to_refuse(groups: Sequence[_Selected]) -> str:
    """Return which task group ``--tags`` would leave to a later run while the host is drained or services may be down; empty for none."""
    down = [one for one in groups if one.step in REPLACEMENT]
    missing = next((one for one in down if one.is_left and not one.whole), None)
    if missing and any(one.is_done or one.any for one in down):
        return f"{missing.name} would be left to a later run, and services may be down until then"
    if missing and any(one.step == DRAIN and one.is_left and one.any for one in groups):
        return f"{missing.name} would be left to a later run, and the host would stay drained until then"
    part = next((one for one in groups if one.once and one.is_left and one.any and not one.whole), None)
    return _part_of_once(part.name) if part else ""


def _part_of_once(name: str) -> str:
    return f"{name} runs once for all hosts, and may count as done there with a part of its tasks"


def _reason_to_refuse_skipping(groups: Sequence[_Selected], *, is_drained: bool) -> str:
    """Return why ``--skip-tags`` is refused for a host; empty if it is not.

    What they leave out counts as done, also if a tag of the service leaves out one task of several.

    :param is_drained: whether an earlier run has drained some of its services.
    """
    drained = {one.service for one in groups if one.step == DRAIN and (is_drained or one.is_done or one.any)}
    missing = (one for one in groups if one.is_left and not one.whole)
    for one in missing:
        run = "without all its tasks" if one.any else "without being run"
        if one.step in REPLACEMENT:
            return f"{one.name} would count as done {run}"
        if one.step == UNDRAIN and one.service in drained:
            return f"{one.name} would count as done {run}, and the host would stay drained"
    return ""
