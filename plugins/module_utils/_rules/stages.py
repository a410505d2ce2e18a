# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stages`` of the instructions: parts of the fleet that are upgraded one after the other, a canary first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common.names import check_name
from .._common.strict_values import (
    invalid_value,
    parse_boolean,
    parse_duration,
    parse_mapping,
    parse_texts,
    refuse_unknown_keys,
)
from .caps import Cap, parse_cap

_KEYS = ("name", "hosts", "roles", "soak", "approve")
REST = "rest"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the fleet.

    :param hosts: how many hosts of each role, or their names; None for all remaining hosts.
    :param roles: only hosts of these roles or groups; empty for all roles.
    :param soak: seconds to wait after its last host was upgraded, before the next stage begins.
    :param approve: whether an operator has to approve before the next stage begins.
    """

    name: str
    hosts: Cap | tuple[str, ...] | None = None
    roles: tuple[str, ...] = ()
    soak: int = 0
    approve: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the stage as it is stored."""
        plain: dict[str, Any] = {"name": self.name}
        if isinstance(self.hosts, Cap):
            plain["hosts"] = self.hosts.plain()
        elif self.hosts is not None:
            plain["hosts"] = list(self.hosts)
        if self.roles:
            plain["roles"] = list(self.roles)
        if self.soak:
            plain["soak"] = self.soak
        if self.approve:
            plain["approve"] = True
        return plain


def parse_stages(value: object) -> tuple[Stage, ...]:
    """Return the parsed ``stages`` of the instructions, with a last stage for all remaining hosts.

    :raises UpgradeError: ``bad_instructions``.
    """
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise invalid_value("stages", value, "is not a list")
    stages = [_stage(one, at) for at, one in enumerate(value)]
    names = [stage.name for stage in stages]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid_value(f"stages[{at}].name", name, "is the name of an earlier stage too")
    for at, stage in enumerate(stages[:-1]):
        if stage.hosts is None and not stage.roles:
            raise invalid_value(
                f"stages[{at}]", stage.name, "takes all remaining hosts, so the stages after it have none"
            )
    if stages and (stages[-1].hosts is not None or stages[-1].roles):
        stages.append(Stage(REST if REST not in names else f"{REST} of the fleet"))
    elif stages:
        _refuse_waiting(stages[-1], value[-1], f"stages[{len(stages) - 1}]")
    return tuple(stages)


def _refuse_waiting(last: Stage, raw: Mapping[str, Any], key: str) -> None:
    if last.soak:
        raise invalid_value(
            f"{key}.soak",
            raw["soak"],
            f"has no effect: {last.name!r} is the last stage, and no host comes after it. Leave it out; health.soak says "
            "how long each host has to be healthy before it counts as upgraded",
        )
    if last.approve:
        raise invalid_value(
            f"{key}.approve",
            raw["approve"],
            f"has no effect: {last.name!r} is the last stage, and nothing is left to be approved after it. Leave it out",
        )


def _stage(value: object, at: int) -> Stage:
    key = f"stages[{at}]"
    raw = parse_mapping(value, key)
    refuse_unknown_keys(raw, _KEYS, f"{key}.")
    given = raw.get("name")
    name = check_name("stage", f"stage {at + 1}" if given in (None, "") else given, f"instructions: {key}.name")
    hosts = raw.get("hosts")
    which: Cap | tuple[str, ...] | None = None
    if isinstance(hosts, (list, tuple)):
        which = parse_texts(hosts, f"{key}.hosts")
    elif hosts is not None:
        which = parse_cap(hosts, f"{key}.hosts")
        if not which.amount:
            raise invalid_value(f"{key}.hosts", hosts, "is a stage without hosts; leave the stage out")
    return Stage(
        name,
        which,
        parse_texts(raw["roles"], f"{key}.roles") if raw.get("roles") is not None else (),
        parse_duration(raw["soak"], f"{key}.soak") if raw.get("soak") is not None else 0,
        parse_boolean(raw.get("approve", False), f"{key}.approve"),
    )
