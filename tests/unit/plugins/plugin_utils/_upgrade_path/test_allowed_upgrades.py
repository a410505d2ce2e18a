# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a fleet that may not go to a version."""

from __future__ import annotations

from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._rules.allowed_versions import (
    VersionRules,
    parse_allowed_from,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.allowed_upgrades import (
    ForbiddenUpgrades,
    forbidden_upgrades,
)


def host(version: str | None, role: str = "web", begun: str | None = None, *, held: bool = False) -> dict[str, Any]:
    return {"role": role, "version": version, "begun": begun, "held": held, "holds_itself": False}


def progress(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"hosts": hosts}


FROM_24 = VersionRules("m", allowed_from=parse_allowed_from(">=2.4"), where={"allowed_from": "m:1"})
COMPOSITION = {"roles": {"web": {"version_rules": {"app": FROM_24.plain(), "lib": VersionRules("l").plain()}}}}


ODD = (
    "'v673' and '2.10' can't be compared as versions: 'v673' begins with 'v' and '2.10' begins with a number. List all versions in "
    "their order under 'versions' in the service's meta/upgrade.yml"
)


def test_a_host_whose_version_can_not_be_compared_does_not_block_others() -> None:
    found = forbidden_upgrades(
        progress(web1=host("v673"), web2=host("2.8", begun="v673"), web3=host("2.8")), COMPOSITION, "2.10"
    )
    assert (found.hosts, found.reasons, [*found.left_out]) == ((), (), ["web1", "web2"])
    # If all other hosts are upgraded or held, no host goes.
    done = {"web2": host("2.10"), "web3": host("2.8", held=True)}
    alone = forbidden_upgrades(progress(web1=host("v673"), **done), COMPOSITION, "2.10")
    assert (alone.hosts, alone.left_out) == (("web1",), {})
    assert [*alone.reasons] == [f"web1 (v673): app, lib of the role web: {ODD}."]


def test_a_host_that_reported_no_version_does_not_block_others() -> None:
    found = forbidden_upgrades(progress(web1=host("2.8;reboot"), web3=host("2.8")), COMPOSITION, "2.10")
    odd = "it reported the version '2.8;reboot', which is not safe in a command"
    assert (found.hosts, found.left_out) == ((), {"web1": f"app of the role web: {odd}"})
    # Its version is known if an operator declares it.
    declared = forbidden_upgrades(
        progress(web1=host("2.8;reboot"), web3=host("2.8")), COMPOSITION, "2.10", {"web1": "2.8"}
    )
    assert declared == ForbiddenUpgrades()


def test_a_host_that_holds_itself_is_checked_as_its_hold_may_end_by_itself() -> None:
    fleet = progress(web1={**host("2.2", held=True), "holds_itself": True}, web2=host("2.2", held=True))
    assert forbidden_upgrades(fleet, COMPOSITION, "2.10").hosts == ("web1",)


def test_all_forbidden_hosts_are_named_at_once_grouped_by_reason() -> None:
    fleet = progress(
        web1=host("2.2"), web2=host("2.8"), web3=host(None), web4=host("2.2"), web5=host("2.12"), web6=host("v673")
    )
    assert forbidden_upgrades(fleet, COMPOSITION, "2.10") == ForbiddenUpgrades(
        hosts=("web1", "web4", "web3", "web5"),
        left_out={"web6": f"app of the role web: {ODD}"},
        reasons=(
            "web1, web4 (2.2): app of the role web: it can't go from 2.2 to 2.10, as allowed_from (m:1) is >=2.4.",
            "web3 (never reported): app of the role web: its version is not known, and allowed_from (m:1) allows only some "
            "versions. Declare it in the host's variable upgrade_version_from.",
            "web5 (2.12): app of the role web: it can't go back from 2.12 to 2.10, as allow_downgrade: true is not set (m).",
            "web5 (2.12): lib of the role web: it can't go back from 2.12 to 2.10, as allow_downgrade: true is not set (l).",
        ),
    )


def test_held_upgraded_and_unmanaged_hosts_are_not_checked() -> None:
    fleet = progress(web1=host("2.2", held=True), web2=host("2.10"), puppet1=host("2.2", "puppet"))
    assert forbidden_upgrades(fleet, COMPOSITION, "2.10") == ForbiddenUpgrades()


def test_of_an_unfinished_upgrade_origin_and_target_are_checked() -> None:
    fleet = progress(web1=host("2.8", begun="2.10"), web2=host("2.8", begun="2.9"), web3=host("2.8"))
    assert [*forbidden_upgrades(fleet, COMPOSITION, "2.10").hosts] == []
    back = forbidden_upgrades(fleet, COMPOSITION, "2.8")
    assert [*back.hosts] == ["web1", "web2"]
    assert back.reasons[0].startswith("web1 (2.10): app of the role web: it can't go back from 2.10 to 2.8")


def test_a_declared_version_counts_for_hosts_that_never_reported() -> None:
    fleet = progress(web1=host(None), web2=host(None), web3=host("2.2"))
    declared = {"web1": "2.8", "web2": "2.2", "web3": "2.8"}
    assert [*forbidden_upgrades(fleet, COMPOSITION, "2.10", declared).hosts] == ["web2", "web3"]


def test_the_version_declared_when_a_host_began_counts_until_it_reports() -> None:
    midway = {**host(None, begun="2.10"), "origin": "2.2"}
    found = forbidden_upgrades(
        progress(web1=midway, web2=host(None)), COMPOSITION, "2.10", {"web1": "2.8", "web2": "2.8"}
    )
    assert [*found.hosts] == ["web1"]


def test_a_composition_of_an_older_release_forbids_nothing() -> None:
    assert [*forbidden_upgrades(progress(web1=host("2.2")), {"roles": {"web": {}}}, "2.10").hosts] == []


def test_a_message_names_at_most_twenty_hosts_and_the_details_all() -> None:
    fleet = progress(**{f"web{number}": host("2.2") for number in range(1, 31)})
    found = forbidden_upgrades(fleet, COMPOSITION, "2.10")
    assert len(found.hosts) == 30
    assert "web20 and 10 more (2.2): app of the role web" in found.reasons[0]


def test_the_origin_of_a_provider_is_its_own_version() -> None:
    paths = {"app": {"checkpoints": [], "provider": True}}
    composition = {"roles": {"web": {"version_rules": {"app": FROM_24.plain()}, "paths": paths}}}

    def reasons(goal: str, declared: dict[str, object] | None = None, **reported: str) -> list[str]:
        there = {"hosts": {"web1": host("2.2")}, "providers": {"app": reported} if reported else {}}
        found = forbidden_upgrades(there, composition, goal, providers=declared)
        assert [*found.hosts] == []
        return list(found.reasons)

    fix = " Allow it in its entry of upgrade_roles (allow_downgrade, allowed_from), or hold all hosts of web."
    assert reasons("2.10", version="2.8", target="") == []
    assert reasons("2.10", version="2.2", target="") == [
        "The provider app: it can't go from 2.2 to 2.10, as allowed_from (m:1) is >=2.4." + fix
    ]
    assert reasons("2.8", version="2.8", target="2.10") == [
        "The provider app: it can't go back from 2.10 to 2.8, as allow_downgrade: true is not set (m)." + fix
    ]
    (unknown,) = reasons("2.10")
    assert unknown.endswith("allows only some versions. Declare it in the variable upgrade_provider_versions.")
    assert reasons("2.10", {"app": "2.8"}) == []


def test_a_provider_whose_hosts_are_all_held_is_not_checked() -> None:
    paths = {"app": {"checkpoints": [], "provider": True}}
    role = {"version_rules": {"app": FROM_24.plain()}, "paths": paths}
    composition = {"roles": {"web": role, "api": role, "idle": role}}
    providers = {"app": {"version": "2.2", "target": ""}}

    def reasons(**hosts: dict[str, Any]) -> list[str]:
        return list(forbidden_upgrades({"hosts": hosts, "providers": providers}, composition, "2.10").reasons)

    assert reasons(web1=host("2.4", held=True), api1=host("2.4", "api", held=True)) == []
    (only,) = reasons(web1=host("2.4", held=True), api1=host("2.4", "api"))
    assert only.endswith("or hold all hosts of api.")
    (both,) = reasons(web1=host("2.4"), api1=host("2.4", "api"), web2=host("2.4", held=True))
    assert both.endswith("or hold all hosts of web, api.")


def test_pull_hosts_with_services_are_checked_once_they_have_reported() -> None:
    composition = {"roles": {}, "pull_roles": COMPOSITION["roles"]}
    found = forbidden_upgrades(progress(web1=host("2.2"), web2=host(None), web3=host("2.8")), composition, "2.10")
    assert found.hosts == ("web1",)
