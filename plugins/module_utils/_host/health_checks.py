# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of its health, to its own Consul agent.

A critical check of a node takes all of its services out of Consul's answers. So checks are never critical, and do not turn so by themselves,
unless the caller asks for that.
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
# Consul only lets checks be set from outside that expire, and takes those for critical. Ten years are never.
_NEVER = 10 * 365 * 24 * 3600

# Consul keeps 4 KiB; the end of an error is what explains it.
MOST_OUTPUT = 4000


@dataclass(frozen=True)
class Check:
    """A check of a node.

    :param status: passing, warning or critical; None to keep what it is; absent to take it away.
    :param output: what Consul shows beside it; None to keep it.
    :param ttl: seconds after which Consul takes it for critical unless it is renewed; None for never.
    """

    name: str
    status: str | None = None
    output: str | None = None
    ttl: int | None = DEFAULT_TTL

    @property
    def notes(self) -> str:
        """What is written to a check, as Consul itself does not tell the TTL of one."""
        return "convoy.upgrade: " + (f"renewed at least every {self.ttl} s" if self.ttl else "it does not expire")

    def harmless(self) -> Check:
        """Return the check as one that takes no service out of Consul's answers."""
        return replace(self, status=WARNING if self.status == CRITICAL else self.status, ttl=None)


def publish(
    store: Store, checks: Iterable[Check], *, critical: bool = False, dry: bool = False
) -> tuple[list[Check], list[Change]]:
    """Set or renew checks of the agent's node; return them as they are then, and what changed.

    Renewing one is no change, and neither is another output: both come with every run. One that is not there, and
    of which nothing is said, is left out of Consul. One request to read, and one for each check; one more for each
    that is new or gets another TTL.

    :param critical: whether checks may be critical, and turn so when they are not renewed. If not, a critical one is set to warning, also
        where it was critical before.
    :raises UpgradeError: ``bad_name``, ``bad_check``, or what :meth:`ConsulClient.read` raises.
    """
    wanted = list(checks)
    for check in wanted:
        check_name("check", check.name, "checks")
        if check.ttl is not None and check.ttl <= 0:
            raise UpgradeError("bad_check", f"checks: the ttl of {check.name} is {check.ttl}; give seconds above 0.")
    names = [check.name for check in wanted]
    if len(names) != len(set(names)):
        raise UpgradeError("bad_check", f"checks: {', '.join(names)} has a name twice.")
    present = store.client.checks()
    for check in wanted:
        _refuse_others(check, present.get(check.name), store.settings.url)
    result, changes = [], []
    for check in wanted:
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
            _tell(store, after, is_new=is_new)
    return result, changes


def _refuse_others(check: Check, before: Mapping[str, Any] | None, url: str) -> None:
    """Refuse to take over a check that is not one of a node, or that the agent runs by itself."""
    if before is None:
        return
    # Consul 1.8 and later tell the type; before, only what the agent runs has a definition.
    if before.get("ServiceID") or before.get("Type", "ttl") != "ttl":
        whose = f"of the service {before['ServiceID']}" if before.get("ServiceID") else f"of type {before['Type']}"
        raise UpgradeError(
            "bad_check",
            f"checks: the agent at {url} has a check {check.name} already, {whose}. It is left as it is; give "
            "another name.",
        )


def _after(check: Check, before: Mapping[str, Any] | None) -> Check:
    if before is not None:
        check = replace(
            check,
            status=before["Status"] if check.status is None else check.status,
            output=before["Output"] if check.output is None and check.status is None else check.output,
        )
    return replace(check, output=None if check.output is None else check.output[-MOST_OUTPUT:])


def _tell(store: Store, check: Check, *, is_new: bool) -> None:
    if is_new:
        # With its status, as it would be critical until the next request.
        facts = {"ID": check.name, "Name": check.name, "TTL": f"{check.ttl or _NEVER}s", "Status": check.status}
        store.client.put_to_agent("check/register", {**facts, "Notes": check.notes})
    said = {"Status": check.status, "Output": check.output or ""}
    store.client.put_to_agent(f"check/update/{check.name}", said)
