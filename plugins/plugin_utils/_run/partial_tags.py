# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that ``--tags`` and ``--skip-tags`` select. Tags that would leave hosts between two versions are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import in_order, listing
from ...module_utils._fleet.checkpoints import checkpoint_name
from .._compose.tag_selection import is_selected
from .._services.steps import POST, REPLACEMENT, STEPS, tags_of
from .task_options import TAG_OPTIONS

# What --skip-tags leaves out counts as done, so it must not be one of these.
_NEEDED = ("upgrade", "start")


@dataclass(frozen=True, slots=True)
class _Selected:
    """A task group of a host, and how much of it the tags select.

    :param is_done: whether an earlier run finished it.
    :param whole: whether the tags select all of its tasks.
    :param any: whether they select any of them.
    """

    name: str
    step: str
    is_done: bool
    whole: bool
    any: bool


def hosts_outside_tags(
    plan: Mapping[str, Any],
    composition: Mapping[str, Any],
    hosts: Iterable[str],
    checkpoints: Mapping[str, Collection[str]],
    only: Sequence[str],
    skip: Sequence[str],
) -> dict[str, str]:
    """Return the hosts that these tags would run too early, such as those that ``--tags verify`` would verify before their upgrade.

    :param plan: a result of ``consul_upgrade_plan``, with the task groups that each host has finished.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param hosts: the hosts that Ansible upgrades in this run.
    :param checkpoints: host -> the checkpoints that are left on its upgrade path.
    :param only: ``ansible_run_tags``.
    :param skip: ``ansible_skip_tags``.
    :returns: host -> why a later run has to come first.
    :raises UpgradeError: ``partial_tags`` if the tags would leave services of a host down, or select no host.
    """
    selects_all = set(only) <= {"all"}
    if selects_all and not skip:
        return {}
    partial: dict[str, str] = {}
    too_early: dict[str, str] = {}
    hosts = [*hosts]
    for host in hosts:
        view = plan["hosts"][host]
        found = composition["roles"][view["role"]]["task_groups"]
        groups = [*_selected(found, view.get("done", ()), checkpoints.get(host, ()), only, skip)]
        if selects_all:
            partial[host] = _reason_to_refuse_skipping(groups)
        else:
            too_early[host] = _reason_to_wait(groups)
            partial[host] = "" if too_early[host] else _reason_to_refuse(groups)
    refused = {host: why for host, why in partial.items() if why}
    early = {host: why for host, why in too_early.items() if why}
    if not refused and len(early) == len(hosts):
        refused = early
    if refused:
        options = (("--tags", set(only) - {"all"}), ("--skip-tags", set(skip)))
        given = " ".join(f"{name} {','.join(in_order(tags))}" for name, tags in options if tags)
        reasons: dict[str, list[str]] = {}
        for host, why in refused.items():
            reasons.setdefault(why, []).append(host)
        told = " ".join(f"{listing(in_order(found))}: {why}." for why, found in reasons.items())
        raise UpgradeError(
            "partial_tags",
            f"{given}: these tags would leave hosts between two versions. {told} Nothing was done: leave the tags out, or select prepare, "
            "then stop, upgrade and start together, then verify.",
            without=TAG_OPTIONS,
        )
    return early


def early_lines(early: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason for which hosts are not in a run.

    :param early: a result of :func:`hosts_outside_tags`.
    """
    found: dict[str, list[str]] = {}
    for host, why in early.items():
        found.setdefault(why, []).append(host)
    return [f"Not in this run, because of its tags: {listing(hosts, 5)}; {why}." for why, hosts in found.items()]


def _selected(
    task_groups: Iterable[Mapping[str, Any]],
    done: Collection[str],
    checkpoints: Collection[str],
    only: Sequence[str],
    skip: Sequence[str],
) -> Iterator[_Selected]:
    for one in task_groups:
        checkpoint = checkpoint_name(one["service"], one["checkpoint"]) if one["checkpoint"] else ""
        if one["step"] in (STEPS[0], POST) or (checkpoint and checkpoint not in checkpoints):
            continue
        shared = [*tags_of(one["step"]), one["service"]]
        is_chosen = is_selected(shared, only, skip)
        yield _Selected(
            one["name"],
            one["step"],
            one["name"] in done,
            whole=is_chosen and not set(skip) & set(one["tags"]),
            any=is_chosen or is_selected(one["tags"], only, skip),
        )


def _reason_to_wait(groups: Sequence[_Selected]) -> str:
    """Return which task group ``--tags`` would run before one that has to come first; empty for none."""
    left = [one for one in groups if not one.is_done]
    for at, one in enumerate(left):
        later = next((other for other in left[at + 1 :] if other.any), None)
        if not one.whole and later:
            return f"a later run would run {one.name} after {later.name}"
    return ""


def _reason_to_refuse(groups: Sequence[_Selected]) -> str:
    """Return which task group ``--tags`` would leave to a later run while services may be down; empty for none."""
    down = [one for one in groups if one.step in REPLACEMENT]
    missing = next((one for one in down if not (one.is_done or one.whole)), None)
    if missing and any(one.is_done or one.any for one in down):
        return f"{missing.name} would be left to a later run, and services may be down until then"
    return ""


def _reason_to_refuse_skipping(groups: Sequence[_Selected]) -> str:
    """Return why ``--skip-tags`` is refused for a host; empty if it is not."""
    missing = next((one for one in groups if one.step in _NEEDED and not (one.is_done or one.any)), None)
    return f"{missing.name} would count as done without being run" if missing else ""
