# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds and approvals for unknown hosts, roles and stages cause warnings; others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import HostRecord, Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import (
    FIRST_ROLLOUT,
    MIGRATION,
    PAUSED,
    Hold,
    Holds,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.unknown_targets import (
    other_roles,
    refuse_unknown_holds,
    unknown_targets,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.stages import Stage

MEMBERS = {"compute1": "compute", "web1": "web"}
PLANES = (Stage("canary"), Stage("rest"))


def held(*names: str) -> Holds:
    hosts = {name[5:]: Hold(name) for name in names if name.startswith("host/")}
    roles = {name[5:]: Hold(name) for name in names if name.startswith("role/")}
    return Holds(Hold("global") if "global" in names else None, roles, hosts)


def test_known_names_are_no_warning() -> None:
    snapshot = Snapshot(holds=held("global", "role/web", "host/compute1"), approvals={"canary": Approval("ann", 0, "")})
    assert unknown_targets(snapshot, MEMBERS, PLANES) == ()


def test_a_hold_of_a_role_that_a_host_had_before_holds_it_and_is_no_warning() -> None:
    records = {
        "compute1": HostRecord("2", "upgraded", role="compute", former_role="spare"),
        "gone": HostRecord("2", "upgraded", role="web", former_role="wbe"),
    }
    snapshot = Snapshot(holds=held("role/spare"), records=records)
    assert unknown_targets(snapshot, MEMBERS, PLANES) == ()
    refuse_unknown_holds(snapshot, MEMBERS, ())
    # It holds no host of this fleet.
    with pytest.raises(UpgradeError):
        refuse_unknown_holds(replace(snapshot, holds=held("role/wbe")), MEMBERS, ())


def test_unknown_names_are_warnings_with_suggestions() -> None:
    approvals = {"canry": Approval("ann", 0, ""), "x": Approval("ann", 0, "")}
    snapshot = Snapshot(holds=held("role/wbe", "host/compute", "host/gone9", "role/web"), approvals=approvals)
    assert unknown_targets(snapshot, MEMBERS, PLANES) == (
        "role/wbe is a hold for an unknown role; did you mean 'web'?",
        "host/compute is a hold for an unknown host; did you mean 'compute1'?",
        "host/gone9 is a hold for an unknown host.",
        "The approval of stage canry is for an unknown stage; did you mean 'canary'?",
        "The approval of stage x is for an unknown stage.",
    )


def test_a_host_that_reads_the_gate_of_another_role_is_a_warning() -> None:
    records = {
        "compute1": HostRecord("2", "started", role="compte"),
        "web1": HostRecord("2", "started", role="web"),
        "web2": HostRecord("2", "upgraded"),
        "web3": HostRecord("", "failed", role="wbe", readable=False),
        "gone": HostRecord("2", "started", role="wbe"),
    }
    members = {**MEMBERS, "web2": "web", "web3": "web"}
    assert other_roles(Snapshot(records=records), members) == (
        "compute1 has the role compte in its settings, and compute here, so it is not admitted. Correct one of them, then enroll it again: "
        "ansible-playbook convoy.upgrade.enroll --limit compute1.",
    )


def test_rules_without_stages_have_been_changed_since_an_approval() -> None:
    assert unknown_targets(Snapshot(approvals={"canary": Approval("ann", 0, "")}), MEMBERS, ()) == ()


def test_of_many_unknown_hosts_some_are_named_and_they_hide_no_role() -> None:
    hosts = [f"host/gone{at}" for at in range(300)]
    found = unknown_targets(Snapshot(holds=held("role/wbe", *hosts)), MEMBERS, ())
    assert (len(found), found[0], found[1], found[-1]) == (
        7,
        "role/wbe is a hold for an unknown role; did you mean 'web'?",
        "host/gone0 is a hold for an unknown host.",
        "The same warning applies to 295 more.",
    )


# A pause of python-jiocloud whose hosts have other names now


def lost(holds: Holds, members: Mapping[str, str], **of: Any) -> str:
    with pytest.raises(UpgradeError) as caught:
        refuse_unknown_holds(Snapshot(holds=holds, **of), members, ("cp",))
    assert caught.value.code == "unknown_names"
    return caught.value.message


def made(scope: str, name: str, by: str) -> Holds:
    hold = Hold(f"upgrade/hold/{scope}/{name}", "maintenance", by)
    return Holds(roles={name: hold}) if scope == "role" else Holds(hosts={name: hold})


@pytest.mark.parametrize("by", [MIGRATION, FIRST_ROLLOUT, PAUSED])
def test_a_pause_of_a_role_that_has_another_name_now_is_not_lost(by: str) -> None:
    holds = made("role", "cp", by)
    members = {"cp1": "compute", "cp2.example.com": "compute", "web1": "web"}
    text = lost(holds, members)
    assert text.startswith(
        "upgrade/hold/role/cp is made of a pause that closed cp1, cp2.example.com by name. Here they have the role compute"
    )
    assert (
        "convoy.upgrade.hold -e role=compute -e \"reason='...'\"" in text and "convoy.upgrade.unhold -e role=cp" in text
    )
    # One that has reported and is not in the inventory has the role by its name, and is held. The others are not.
    assert "closed cp1 by name. Here it has the role compute" in lost(holds, {"cp1": "compute", "cp9": "cp"})
    # A host's own hold ends by itself.
    assert "closed cp1 by name" in lost(replace(holds, own={"cp1": Hold("record")}), {"cp1": "compute"})
    covered = replace(holds, roles={**holds.roles, "compute": Hold("upgrade/hold/role/compute")})
    refuse_unknown_holds(Snapshot(holds=covered), members, ())
    records = {"cp1": HostRecord("2", "upgraded", role="compute", former_role="cp")}
    refuse_unknown_holds(Snapshot(holds=holds, records=records), {"cp1": "compute"}, ())
    # An operator has ended the hold of its former role for it.
    records = {"cp1": HostRecord("2", "upgraded", role="compute", former_role="")}
    refuse_unknown_holds(Snapshot(holds=holds, records=records), {"cp1": "compute"}, ())
    refuse_unknown_holds(Snapshot(holds=holds), {"web1": "web"}, ())
    meant = {"cp": replace(holds.roles["cp"], allow_unknown=True)}
    refuse_unknown_holds(Snapshot(holds=Holds(roles=meant)), members, ())


@pytest.mark.parametrize(("held_as", "member"), [("cp1", "cp1.example.com"), ("cp1.example.com", "cp1")])
def test_a_pause_of_a_host_that_has_a_longer_or_shorter_name_now_is_not_lost(held_as: str, member: str) -> None:
    holds = made("host", held_as, MIGRATION)
    # Under its former name it has reported.
    for members in ({member: "compute"}, {member: "compute", held_as: "cp"}):
        text = lost(holds, members)
        assert f"closed {member} by name. Here it has another name" in text
        assert f"convoy.upgrade.hold -e host={member} " in text
        assert f"convoy.upgrade.unhold -e host={held_as}" in text
    refuse_unknown_holds(Snapshot(holds=holds), {"cp12.example.com": "compute", "cp": "compute"}, ())
