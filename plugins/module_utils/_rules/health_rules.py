# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``health`` of the instructions: when a host that reported counts as upgraded, and when a silent one as lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._common.strict_values import invalid_value, parse_duration, parse_mapping, parse_texts, refuse_unknown_keys

# A host reports nothing between its start and its end. By default a node asks up to 6 minutes after its admission, waits up to 10 minutes
# for package locks and 10 for Puppet's lock, and lets Puppet run for an hour. That leaves half an hour for packages and validations.
DEFAULT_DEADLINE = 2 * 3600
NEVER = "never"

_KEYS = ("soak", "progress_deadline", "consul_checks")


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What hosts have to fulfill in addition to their report that they are upgraded.

    :param soak: seconds for which a host that reported has to pass its checks before it counts as upgraded.
    :param progress_deadline: seconds after which an admitted host that reports nothing is lost; None for never.
    :param consul_checks: names or IDs of Consul checks that have to pass on each host.
    """

    soak: int = 0
    progress_deadline: int | None = DEFAULT_DEADLINE
    consul_checks: tuple[str, ...] = ()

    @property
    def asks_more(self) -> bool:
        """Whether the report of a host is not enough for it to count as upgraded."""
        return bool(self.soak or self.consul_checks)

    def plain(self) -> dict[str, Any]:
        """Return the rules as they are stored."""
        plain: dict[str, Any] = {}
        if self.soak:
            plain["soak"] = self.soak
        if self.progress_deadline != DEFAULT_DEADLINE:
            plain["progress_deadline"] = NEVER if self.progress_deadline is None else self.progress_deadline
        if self.consul_checks:
            plain["consul_checks"] = list(self.consul_checks)
        return plain


def parse_health_rules(value: object) -> HealthRules:
    """Return the parsed ``health`` of the instructions.

    :raises UpgradeError: ``bad_instructions``.
    """
    raw = parse_mapping(value, "health")
    refuse_unknown_keys(raw, _KEYS, "health.")
    deadline = raw.get("progress_deadline")
    seconds = DEFAULT_DEADLINE if deadline is None else _deadline(deadline)
    checks = raw.get("consul_checks")
    names = parse_texts(checks, "health.consul_checks") if checks not in (None, [], ()) else ()
    for name in names:
        # Names go into a filter expression of Consul, in which a text can't have a quote.
        if not name.isprintable() or '"' in name:
            raise invalid_value(
                "health.consul_checks", name, "can't be queried in Consul: it has a quote or a control character"
            )
    return HealthRules(
        parse_duration(raw["soak"], "health.soak") if raw.get("soak") is not None else 0,
        seconds,
        names,
    )


def _deadline(value: object) -> int | None:
    if value == NEVER:
        return None
    seconds = parse_duration(value, "health.progress_deadline")
    if seconds == 0:
        raise invalid_value(
            "health.progress_deadline", value, f"would make every host lost at once; write {NEVER} for no deadline"
        )
    return seconds
