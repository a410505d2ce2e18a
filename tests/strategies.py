# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets and rules for hypothesis: any mixture of reports, records, gates and holds that Consul may hold."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, STARTED, UPGRADED, HostRecord
from fleets import NEW, OLD, Fleet, fleet
from hypothesis import strategies as st

# In this order a role may only wait for those before it, so that no cycle comes up. No fleet has a gateway.
ROLES = ("controller", "network", "gateway", "ceph_mon", "ceph_osd", "compute")
ABSENT = "gateway"
GROUP = "ceph"

_UNREADABLE = HostRecord("", FAILED, error="the record can't be read", readable=False)
_RECORDS = (
    HostRecord(NEW, STARTED),
    HostRecord(OLD, STARTED),
    HostRecord("1.5", STARTED),
    HostRecord(NEW, UPGRADED),
    HostRecord(NEW, FAILED),
    HostRecord(OLD, FAILED),
    _UNREADABLE,
)
_GATES = ("True", "False", "true", NEW, OLD, "", "Flase", None)

CAPS = st.one_of(st.integers(0, 4), st.integers(0, 4).map(str), st.integers(0, 100).map(lambda percent: f"{percent}%"))
CAPS_ABOVE_0 = st.one_of(st.integers(1, 4), st.integers(1, 100).map(lambda percent: f"{percent}%"))


@st.composite
def calm_fleets(draw: st.DrawFn) -> Fleet:
    """Return a fleet in which nothing failed and nothing is held: hosts that wait, are on their way or are done."""
    found = fleet(**{role: draw(st.integers(0, 5)) for role in ROLES if role != ABSENT})
    for host in found.members:
        where = draw(st.sampled_from(("waits", "waits", "waits", "silent", "other", "open", "started", "done")))
        if where == "silent":
            found.silent(host)
        elif where == "other":
            found.running("3.0", host)
        elif where == "open":
            found.opened(host)
        elif where == "started":
            found.started(host, version=draw(st.sampled_from((OLD, NEW)))).admitted(host)
        elif where == "done":
            found.upgraded(host)
    return found


@st.composite
def any_fleets(draw: st.DrawFn) -> Fleet:
    """Return a fleet in any condition: failures, holds, gates of all kinds and values that no one can read."""
    found = draw(calm_fleets())
    hosts = sorted(found.members)
    if hosts:
        found.records.update(draw(st.dictionaries(st.sampled_from(hosts), st.sampled_from(_RECORDS), max_size=6)))
    places = [f"role/{role}" for role in ROLES] + [f"host/{host}" for host in hosts]
    for name, value in draw(st.dictionaries(st.sampled_from(places), st.sampled_from(_GATES), max_size=5)).items():
        found.gated(value, name)
    found.held(*draw(st.lists(st.sampled_from(places), max_size=3)))
    if draw(st.integers(0, 9)) == 0:
        del found.gates["global"]
    return found


@st.composite
def rules(draw: st.DrawFn, caps: st.SearchStrategy[int | str] = CAPS) -> dict[str, Any]:
    """Return rules without a cycle, in the form in which an operator writes them."""
    found: dict[str, Any] = {}
    grouped = draw(st.booleans())
    names = [*ROLES, GROUP] if grouped else [*ROLES]
    rolling: dict[str, Any] = {}
    if draw(st.booleans()):
        rolling["global"] = draw(caps)
    if draw(st.booleans()):
        rolling["roles"] = draw(st.dictionaries(st.sampled_from(names), caps, max_size=4))
    if draw(st.booleans()):
        rolling["fleet"] = draw(caps)
    if draw(st.integers(0, 3)) == 0:
        rolling["complete_sets"] = True
    if rolling:
        found["rolling_rules"] = rolling
    if grouped:
        found["group_mappings"] = {GROUP: draw(st.sampled_from(("ceph_", ["ceph_mon", "ceph_osd$"])))}
    first_at = {role: at for at, role in enumerate(ROLES)} | {GROUP: ROLES.index("ceph_mon")}
    last_at = first_at | {GROUP: ROLES.index("ceph_osd")}
    some_names = st.sets(st.sampled_from(names), min_size=1, max_size=3)
    order = {
        name: sorted(first for first in firsts if last_at[first] < first_at[name])
        for name, firsts in draw(st.dictionaries(st.sampled_from(names), some_names)).items()
    }
    if any(order.values()):
        found[draw(st.sampled_from(("role_order", "role_dependencies")))] = {
            name: firsts for name, firsts in order.items() if firsts
        }
    return found
