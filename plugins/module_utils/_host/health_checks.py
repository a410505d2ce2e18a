# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Health checks and the maintenance mode of a node, at its own Consul agent.

While a check of a node is critical, Consul does not return any service of that node. So checks are neither critical nor become
critical when they expire, unless the caller asks for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import check_name
from .._consul.operations import Change
from .._state.store import Store

DEFAULT_TTL = 3600
WARNING, CRITICAL, ABSENT = "warning", "critical", "absent"
# Only checks with a TTL can be updated over HTTP, and they become critical when it expires. Ten years stand for never.
_NEVER = 10 * 365 * 24 * 3600

# Consul keeps 4 KiB of output. Its end is kept, because that explains an error.
MOST_OUTPUT = 4000

# Consul's maintenance mode of a node is a critical check with this ID, and the reason as its notes. The agent convoy-node has both, too.
MAINTENANCE = "_node_maintenance"
REASON_BEGINS = "convoy.upgrade: "


@dataclass(frozen=True)
class HealthCheck:
    """A check of a node.

    :param status: passing, warning or critical; None to keep the current one; absent to delete the check.
    :param output: the text that Consul shows with it; None to keep the current one.
    :param ttl: seconds after which the check becomes critical unless it is renewed; None for never.
    """

    name: str
    status: str | None = None
    output: str | None = None
    ttl: int | None = DEFAULT_TTL

    @property
    def notes(self) -> str:
        """The check's notes, which have the TTL because Consul does not return it."""
        return "convoy.upgrade: " + (f"renewed at least every {self.ttl} s" if self.ttl else "it does not expire")

    def harmless(self) -> HealthCheck:
        """Return the check with a warning instead of critical, and without a TTL."""
        return replace(self, status=WARNING if self.status == CRITICAL else self.status, ttl=None)


def publish(
    store: Store, checks: Iterable[HealthCheck], *, critical: bool = False, dry: bool = False
) -> tuple[list[HealthCheck], list[Change]]:
    """Set or renew checks of the agent's node; return the checks after that, and the changes.

    To renew a check or to give it another output is no change, because every run does both. A check that does not exist is not
    created without a status. It takes one request to read, one for each check, and one more for each check that is new or gets
    another TTL.

    :param critical: whether checks may be critical, and become critical when they are not renewed. Otherwise critical becomes
        warning, also for the status that a check keeps.
    :param dry: check mode: only read.
    :raises UpgradeError: ``bad_name``, ``bad_check``, or what :meth:`ConsulClient.read` raises.
    """
    requested = list(checks)
    for check in requested:
        check_name("check", check.name, "checks")
        if check.ttl is not None and check.ttl <= 0:
            raise UpgradeError("bad_check", f"checks: the ttl of {check.name} is {check.ttl}; give seconds above 0.")
    names = [check.name for check in requested]
    if len(names) != len(set(names)):
        raise UpgradeError("bad_check", f"checks: each name may occur once, and these are given: {', '.join(names)}.")
    present = store.client.checks()
    for check in requested:
        _refuse_others(check, present.get(check.name), store.settings.url)
    result, changes = [], []
    for check in requested:
        before = present.get(check.name)
        after = _after(check, before)
        if not critical:
            after = after.harmless()
        result.append(after)
        if after.status == ABSENT:
            if before is not None:
                changes.append(Change(f"check {after.name}", f"{before['Status']} ({before['Notes']})", None))
                if not dry:
                    store.client.put_to_agent(f"check/deregister/{after.name}", {})
            continue
        if after.status is None:
            continue
        is_new = before is None or before["Notes"] != after.notes
        old = before["Status"] if before else None
        if is_new or old != after.status:
            was = None if before is None else f"{old} ({before['Notes']})"
            changes.append(Change(f"check {after.name}", was, f"{after.status} ({after.notes})"))
        if not dry:
            _send(store, after, is_new=is_new)
    return result, changes


def set_maintenance(store: Store, reason: str, *, dry: bool = False) -> list[Change]:
    """Begin the maintenance mode of the agent's node, or end it; return the changes.

    A maintenance that an operator began with another reason stays as it is. So does one that began here, whatever its reason:
    Consul changes a reason only by ending the maintenance, and the node's services would be returned meanwhile.

    :param reason: of the maintenance that begins; empty to end one that began here.
    :param dry: check mode: only read.
    :raises UpgradeError: what :meth:`ConsulClient.read` raises.
    """
    found = store.client.checks().get(MAINTENANCE)
    notes = None if found is None else str(found.get("Notes"))
    after = f"{REASON_BEGINS}{reason}" if reason else None
    is_ours = notes is not None and notes.startswith(REASON_BEGINS)
    if notes == after or (notes is not None and (after is not None or not is_ours)):
        return []
    if not dry:
        if after is None:
            store.client.put_to_agent("maintenance", {}, enable="false")
        else:
            store.client.put_to_agent("maintenance", {}, enable="true", reason=after)
    return [Change("maintenance", notes, after)]


def _refuse_others(check: HealthCheck, before: Mapping[str, Any] | None, url: str) -> None:
    """Raise an error for a check that belongs to a service, or that the agent runs itself."""
    if before is None:
        return
    # Consul 1.8 and later return the type.
    if before.get("ServiceID") or before.get("Type", "ttl") != "ttl":
        whose = f"of the service {before['ServiceID']}" if before.get("ServiceID") else f"of type {before['Type']}"
        raise UpgradeError(
            "bad_check",
            f"checks: the agent at {url} has a check {check.name} already, {whose}. It is not changed; give "
            "another name.",
        )


def _after(check: HealthCheck, before: Mapping[str, Any] | None) -> HealthCheck:
    if before is not None:
        check = replace(
            check,
            status=before["Status"] if check.status is None else check.status,
            output=before["Output"] if check.output is None and check.status is None else check.output,
        )
    return replace(check, output=None if check.output is None else check.output[-MOST_OUTPUT:])


def _send(store: Store, check: HealthCheck, *, is_new: bool) -> None:
    if is_new:
        # Without its status, it would be critical until the update below.
        facts = {"ID": check.name, "Name": check.name, "TTL": f"{check.ttl or _NEVER}s", "Status": check.status}
        store.client.put_to_agent("check/register", {**facts, "Notes": check.notes})
    update = {"Status": check.status, "Output": check.output or ""}
    store.client.put_to_agent(f"check/update/{check.name}", update)
