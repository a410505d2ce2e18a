# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking, and touching nothing: what `consul_upgrade_info` tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._model.errors import UpgradeError
from .._model.fleet import Snapshot, place
from .._model.instructions import Instructions, parse
from .._model.names import nearest
from .._model.planner import Plan, make_plan
from .._store.store import Store
from .notes import with_checks


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see.

    :param history: the newest first.
    :param story: of the host that was asked for: its record, and the entries of the history that touched it.
    """

    snapshot: Snapshot
    plan: Plan
    history: list[dict[str, Any]] = field(default_factory=list)
    story: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def look(
    store: Store,
    *,
    fleet: Mapping[str, str] | None = None,
    role_pattern: str | None = None,
    history: int = 0,
    name: str | None = None,
) -> View:
    """Return where the fleet stands, what the next pass would open, and what is in the history.

    :param fleet: host -> role.
    :param history: how many entries of the history to bring; 0 costs no request.
    :param name: a host whose whole story is wanted.
    :raises UpgradeError: ``unknown_host``, or what :meth:`Store.snapshot` raises.
    """
    snapshot = store.snapshot()
    ledger = snapshot.ledger
    pattern = role_pattern or (ledger.role_pattern if ledger else None)
    members = place(fleet or {}, sorted({*snapshot.reports, *snapshot.records}), pattern)
    rules, warnings = Instructions(), []
    if ledger is not None:
        try:
            rules = parse(ledger.instructions)
        except UpgradeError as error:
            warnings.append(
                f"The rules in {store.keys.ledger} can't be obeyed, so nothing will be opened: {error.message}"
            )
    plan = make_plan(with_checks(store, snapshot, rules), members, rules)
    warnings += [error.message for error in snapshot.gates.unreadable(snapshot.current_version)]
    if name is not None and name not in members:
        raise UpgradeError(
            "unknown_host",
            f"name: {name!r} has not reported, and the fleet that was given does not name it{nearest(name, members) or '.'}",
        )
    epochs = store.epochs() if history or name is not None else []
    events = store.events(epochs[:history])
    story = None
    if name is not None:
        record = snapshot.records.get(name)
        role = members[name]
        story = {
            "record": record.plain() if record else None,
            "events": [event for event in store.events(epochs) if _touches(event, name, role)],
        }
    return View(snapshot, plan, events, story, (*warnings, *plan.warnings, *plan.missing))


def _touches(event: Mapping[str, Any], host: str, role: str) -> bool:
    hosts, roles = event.get("hosts"), event.get("roles")
    if not isinstance(hosts, dict) and not isinstance(roles, dict):
        return True
    return (isinstance(hosts, dict) and host in hosts) or (isinstance(roles, dict) and role in roles)
