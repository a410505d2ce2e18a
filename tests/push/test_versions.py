# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services say from which version their hosts may go to which, and whether any may go back: nothing else is done to them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from .site import Site

WEB = ["web1", "web2", "web3"]
ROLES = {"web": {"plane": "dataplane", "services": ["app"]}, "db": {"plane": "dataplane", "services": ["store"]}}
HOSTS = {"web": WEB, "db": ["db1"]}


def runs(site: Site, versions: Mapping[str, str]) -> None:
    """Let hosts have reported versions, as they do themselves."""
    for host, version in versions.items():
        site.consul.put(f"running/versions/{version}/{host}", "1700000000")


def say(site: Site, service: str, meta: str) -> None:
    """Let a service say something else of itself."""
    (site.folder / "roles" / service / "meta/upgrade.yml").write_text(f"---\n{meta}\n")


def refused(site: Site, playbook: str, *arguments: str, **given: object) -> str:
    """Run a playbook that has to be refused before anything is touched; return what it says, without line breaks."""
    before, done = site.consul.tree(), site.entries()
    shown = " ".join(site.play(playbook, *arguments, code=2, **given).split())
    assert "Nothing was touched: " in shown
    assert site.consul.tree() == before
    assert site.entries() == done
    return shown


@pytest.fixture
def fleet(site: Site) -> Site:
    site.service("app", ["stop", "upgrade"])
    site.service("store", ["upgrade"])
    site.inventory(ROLES, HOSTS)
    return site


@pytest.mark.thorough
def test_all_hosts_that_may_not_go_are_reported_at_once_and_nothing_is_touched(fleet: Site) -> None:
    say(fleet, "app", "allowed_from: {'2.10': '>=2.8, <2.10', '<2.10': '>=2.2'}")
    runs(fleet, {"web1": "2.2", "web2": "2.8", "db1": "2.9"})
    meta = fleet.folder / "roles/app/meta/upgrade.yml"
    message = (
        "2 of 4 hosts may not go to 2.10. web1 (2.2): app of the role web: it can't go from 2.2 to 2.10, as allowed_from "
        f"({meta}:2) is >=2.8, <2.10 to 2.10. web3 (never reported): app of the role web: its version is not known, and "
        f"allowed_from ({meta}:2) allows only some versions. Declare it in the host's variable upgrade_version_from. Go to another "
        "version first"
    )
    # Who is left out of this run is asked too, as the fleet goes there as a whole.
    for playbook, more in (("upgrade", {}), ("role", {"role": "db"}), ("upgrade", {"upgrade_limit": ["db1"]})):
        assert message in refused(fleet, playbook, version="2.10", **more)
    assert message in refused(fleet, "upgrade", "--check", version="2.10")
    fleet.inventory(ROLES, HOSTS, web3={"upgrade_version_from": "2.8"})
    # A host of the other role is at a version after that.
    assert "db1 (2.9): store of the role db: it can't go back from 2.9 to 2.8" in refused(
        fleet, "upgrade", version="2.8"
    )
    fleet.play("upgrade", version="2.9")
    fleet.play("upgrade", version="2.10")
    assert fleet.reported("2.10") == {*WEB, "db1"}
    assert {one.version for one in fleet.entries("web1")} == {"2.2>2.9", "2.9>2.10"}
    assert {one.version for one in fleet.entries("web3")} == {"2.8>2.9", "2.9>2.10"}


@pytest.mark.thorough
def test_a_host_whose_version_can_not_be_compared_is_left_out_and_the_run_ends_as_failed(fleet: Site) -> None:
    runs(fleet, {"web1": "v673", "web2": "2.8", "web3": "2.8", "db1": "2.8"})
    shown = " ".join(fleet.play("upgrade", version="2.10", code=2).split())
    assert fleet.reported("2.10") == {"web2", "web3", "db1"}
    assert fleet.entries("web1") == []
    assert fleet.consul.get("config_state/enable_puppet/host/web1") != b"True"
    why = "web1 is left out: app of the role web: 'v673' and '2.10' can't be compared as versions: "
    assert shown.index(why) < shown.index("1 could not go to 2.10. web1 is left out: ")
    # It is the only one that is left now.
    assert "1 of 4 hosts may not go to 2.10. web1 (v673)" in refused(fleet, "upgrade", version="2.10")


@pytest.mark.thorough
def test_no_host_waits_for_a_held_host(fleet: Site) -> None:
    say(fleet, "app", "allowed_from: '>=2.8'")
    runs(fleet, {"web1": "2.2", "web2": "2.8", "web3": "2.8", "db1": "2.8"})
    assert "web1 (2.2): app of the role web" in refused(fleet, "upgrade", version="2.10")
    fleet.play("hold", host="web1", reason="too old")
    fleet.play("upgrade", version="2.10", code=2)
    assert fleet.reported("2.10") == {"web2", "web3", "db1"}
    fleet.play("unhold", host="web1")
    # It is the only one that is left, and may go no more than before.
    assert "1 of 4 hosts may not go to 2.10. web1 (2.2)" in refused(fleet, "upgrade", version="2.10")


@pytest.mark.thorough
def test_nothing_goes_back_to_an_older_version_unless_its_services_can(fleet: Site) -> None:
    say(fleet, "store", "allow_downgrade: true")
    fleet.play("upgrade", version="2.9")
    fleet.play("upgrade", version="2.10")
    meta = fleet.folder / "roles/app/meta/upgrade.yml"
    why = (
        "3 of 4 hosts may not go to 2.9. web1, web2, web3 (2.10): app of the role web: it can't go back from 2.10 to 2.9, as "
        f"allow_downgrade: true is not set ({meta})."
    )
    assert why in refused(fleet, "upgrade", version="2.9")
    # The rollback is refused before the rollout is turned round, and as well where it is only looked at.
    assert why in refused(fleet, "rollback", reason="logins fail")
    assert why in refused(fleet, "rollback", "--check", reason="logins fail")
    say(fleet, "app", "allow_downgrade: true")
    fleet.play("rollback", reason="logins fail")
    assert fleet.reported("2.9") == {*WEB, "db1"}
    assert fleet.consul.get("current_version") == b"2.9"
    assert [one.version for one in fleet.entries("web1") if one.task == "app/upgrade" and one.what == "end"] == [
        "none>2.9",
        "2.9>2.10",
        "2.10>2.9",
    ]


@pytest.mark.thorough
def test_a_host_that_failed_midway_goes_back_only_if_its_services_can(fleet: Site) -> None:
    say(fleet, "store", "allow_downgrade: true")
    fleet.play("upgrade", version="v1")
    broken = fleet.fail("web1", "app/upgrade")
    fleet.play(
        "upgrade", version="v2", instructions={"rolling_rules": {"global": "unlimited", "roles": {"web": 1}}}, code=2
    )
    assert fleet.record("web1")["state"] == "failed"
    shown = refused(fleet, "rollback", reason="it is slow")
    assert "1 of 4 hosts may not go to v1. web1 (v2): app of the role web: it can't go back from v2 to v1" in shown
    # The operator's rules take precedence.
    roles = {**ROLES, "web": {"plane": "dataplane", "services": [{"service": "app", "allow_downgrade": True}]}}
    fleet.inventory(roles, HOSTS)
    broken.unlink()
    fleet.play("rollback", reason="it is slow")
    assert fleet.reported("v1") == {*WEB, "db1"}
    assert fleet.record("web1")["state"] == "upgraded"


@pytest.mark.thorough
def test_versions_without_an_order_are_refused_by_name_unless_there_is_a_list(fleet: Site) -> None:
    runs(fleet, {**dict.fromkeys(WEB, "xenial"), "db1": "v673"})
    shown = refused(fleet, "upgrade", version="bionic")
    assert (
        "web1, web2, web3 (xenial): app of the role web: 'xenial' and 'bionic' can't be compared as versions" in shown
    )
    assert "db1 (v673): store of the role db: 'v673' and 'bionic' can't be compared as versions" in shown
    listed = {"versions": ["v673", "xenial", "bionic"]}
    roles = {role: {**what, "services": [{"service": what["services"][0], **listed}]} for role, what in ROLES.items()}
    fleet.inventory(roles, HOSTS)
    fleet.play("upgrade", version="bionic")
    assert fleet.reported("bionic") == {*WEB, "db1"}
    assert "it can't go back from bionic to xenial" in refused(fleet, "upgrade", version="xenial")
    assert (
        "'bionic' and 'focal' can't be compared, as 'focal' is not in the list of upgrade_roles.web.services[0].versions"
        in (refused(fleet, "upgrade", version="focal"))
    )
