# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same pieces by themselves: a stage, a role, what comes after, and the tags of the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from .site import Site, most_at_once, spans, wait_for

ROLES = {
    "controller": {"plane": "controlplane", "services": ["api"]},
    "web": {"plane": "dataplane", "services": ["app"]},
    "cache": {"plane": "dataplane", "services": ["store"]},
}
HOSTS = {"controller": ["controller1"], "web": ["web1", "web2"], "cache": ["cache1"]}


@pytest.fixture
def fleet(site: Site) -> Site:
    """Three roles, of which the web waits for the cache."""
    site.service("api", ["upgrade", "verify"])
    site.service("store", ["upgrade"])
    site.service("app", ["stop", "upgrade", "verify"], requires=["store"], after=["after"])
    site.inventory(ROLES, HOSTS)
    return site


@pytest.mark.thorough
def test_the_parts_are_run_by_themselves_in_the_order_that_the_rules_allow(fleet: Site) -> None:
    shown = fleet.play("dataplane", version="v1", code=2)
    assert "The data plane waits for hosts of the control plane that are not upgraded: controller1 (pending)" in shown
    assert fleet.consul.tree() == {}

    fleet.play("controlplane", version="v1")
    assert fleet.reported("v1") == {"controller1"}
    assert fleet.consul.get("config_state/enable_puppet/global") == b"False"

    shown = fleet.play("role", version="v1", role="web", code=2)
    assert "waits for role cache (1 host is not upgraded: cache1 pending), as role_order says" in shown
    assert not fleet.entries("web1", "web2")

    fleet.play("role", version="v1", role="cache")
    assert fleet.reported("v1") == {"controller1", "cache1"}

    fleet.play("post_upgrade", version="v1")
    assert not [one for one in fleet.entries() if one.task == "app/after"]

    fleet.play("dataplane", version="v1")
    assert fleet.reported("v1") == {"controller1", "cache1", "web1", "web2"}
    # The last part runs the post-upgrade tasks, and opens the gates.
    assert sorted(one.host for one in fleet.entries() if (one.what, one.task) == ("end", "app/after")) == [
        "web1",
        "web2",
    ]
    assert fleet.consul.get("config_state/enable_puppet/global") == b"True"


@pytest.mark.thorough
def test_a_limit_is_a_host_pattern(fleet: Site) -> None:
    fleet.play("upgrade", version="v1", upgrade_limit="controller:cache")
    assert fleet.reported("v1") == {"controller1", "cache1"}
    fleet.play("upgrade", version="v1", upgrade_limit="w*,!web1")
    assert fleet.reported("v1") == {"controller1", "cache1", "web2"}
    # A group of the inventory that is no role.
    hosts_file = yaml.safe_load((fleet.folder / "inventory.yml").read_text())
    hosts_file["all"]["children"]["eu"] = {"hosts": {"web1": None, "cache1": None}}
    (fleet.folder / "inventory.yml").write_text(yaml.safe_dump(hosts_file))
    fleet.play("upgrade", version="v1", upgrade_limit="web,&eu")
    assert fleet.reported("v1") == {"controller1", "cache1", "web1", "web2"}
    before = fleet.consul.tree()
    shown = fleet.play("upgrade", version="v1", upgrade_limit="web,!wbe2", code=2)
    assert (
        "[unknown_limit] upgrade_limit: 'wbe2' fits no host, role or group of this fleet; did you mean 'web2'?" in shown
    )
    assert "Nothing was done: correct upgrade_limit, and run the same command again." in shown
    assert shown.rstrip().endswith("playbooks/status.yml")
    shown = fleet.play("upgrade", version="v1", upgrade_limit="", code=2)
    assert "upgrade_limit: '' has an empty pattern. That usually means an unset variable." in shown
    assert fleet.consul.tree() == before


@pytest.mark.thorough
def test_a_canary_goes_through_both_planes_and_a_rollback_in_the_opposite_order(site: Site) -> None:
    allow = "allow_downgrade: true\n"
    site.service("api", ["upgrade"], meta=allow)
    site.service("app", ["upgrade"], meta=allow)
    roles = {name: ROLES[name] for name in ("controller", "web")}
    site.inventory(roles, {"controller": ["controller1", "controller2"], "web": ["web1", "web2"]})
    canary = {"name": "canary", "hosts": 1, "approve": True}
    rules = {"rolling_rules": {"global": 1}, "stages": [canary]}
    shown = site.play("upgrade", version="v1", instructions=rules, upgrade_wait_timeout=1, code=2)
    assert site.reported("v1") == {"controller1", "web1"}
    assert "/approve.yml" in shown.rpartition("Next: ")[2].partition("Then: ")[0]
    site.play("approve", stage="canary")
    site.play("upgrade", version="v1")
    order = [one.host for one in sorted(site.entries(), key=lambda one: one.at) if one.what == "begin"]
    assert order == ["controller1", "web1", "controller2", "web2"]

    # By parts: each goes as far as it does not wait for the other.
    rules["stages"] = [canary | {"approve": False}]
    site.play("controlplane", version="v2", instructions=rules)
    assert site.reported("v2") == {"controller1"}
    site.play("dataplane", version="v2", instructions=rules)
    assert site.reported("v2") == {"controller1", "web1"}
    site.play("upgrade", version="v2", instructions=rules)
    assert site.reported("v2") == {"controller1", "controller2", "web1", "web2"}

    shown = site.play("rollback", reason="logins fail")
    assert "Order of the rollback: reversed; controller after web" in shown
    order = [one.host for one in sorted(site.entries(), key=lambda one: one.at) if one.what == "begin"]
    assert order[8:] == ["web2", "controller2", "web1", "controller1"]


def test_a_rollback_whose_run_is_refused_does_not_begin(site: Site) -> None:
    allow = "allow_downgrade: true\n"
    site.service("api", ["stop", "upgrade"], meta=allow)
    site.service("app", ["stop", "upgrade"], meta=allow)
    roles = {name: ROLES[name] for name in ("controller", "web")}
    site.inventory(roles, {"controller": ["controller1"], "web": ["web1"]})
    rules = {"rolling_rules": {"global": 1}}
    for version in ("v1", "v2"):
        site.play("upgrade", version=version, instructions=rules)
    before = site.consul.tree()
    shown = site.play("rollback", upgrade_limit="controller1", code=2)
    assert "[limit_waits] upgrade_limit: controller1 can't be upgraded before hosts that the limit leaves out" in shown
    shown = site.play("rollback", upgrade_limit="web1", rollback_order="forward", code=2)
    assert "[limit_waits] upgrade_limit: web1 can't be upgraded before hosts that the limit leaves out" in shown
    assert "[partial_tags] --tags upgrade" in site.play("rollback", "--tags", "upgrade", code=2)
    assert "[unknown_limit] upgrade_limit: 'web9'" in site.play("rollback", upgrade_limit="web9", code=2)
    assert site.consul.tree() == before


@pytest.mark.thorough
def test_rules_that_change_after_a_rollback_has_begun_stay(site: Site) -> None:
    site.service("app", ["validate", "upgrade"], meta="allow_downgrade: true\n")
    site.inventory({"web": ROLES["web"]}, {"web": ["web1", "web2"]})
    (site.folder / "group_vars").mkdir()
    (site.folder / "group_vars" / "all.yml").write_text("instructions: {rolling_rules: {global: 2}}")
    for version in ("v1", "v2"):
        site.play("upgrade", version=version, instructions={"rolling_rules": {"global": 2}})
    other = site.folder / "other_rules.yml"
    change = {"instructions": {"rolling_rules": {"global": 1}}, "instructions_file": "", "limit": []}
    task = {"name": "Change the rules", "convoy.upgrade.consul_upgrade_plan": change}
    other.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))

    def ledger() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(site.consul.get("upgrade/ledger") or b"{}")
        return found

    site.sleep(8)
    rollback = site.start("rollback", reason="logins fail")
    wait_for(lambda: ledger().get("rollback"), "the rollback has begun")
    site.play(other)
    site.sleep(1)
    ended = site.end(rollback)
    assert ended.code == 0, ended.stdout
    assert ledger()["instructions"]["rolling_rules"] == {"global": 1}
    at_work = spans([one for one in site.entries() if one.task == "app/upgrade" and one.version == "v2>v1"])
    assert most_at_once(at_work, ["web1", "web2"]) == 1


@pytest.mark.thorough
def test_a_role_goes_back_before_the_role_that_it_requires(site: Site) -> None:
    allow = "allow_downgrade: true\n"
    site.service("store", ["upgrade"], meta=allow)
    site.service("library", ["upgrade"], meta=allow)
    site.service("app", ["upgrade"], meta=f"requires: [store, library]\n{allow}")
    site.inventory(
        {"web": {"services": ["app", "library"]}, "cache": {"services": ["store"]}},
        {"web": ["web1"], "cache": ["cache1"]},
    )
    rules = {"rolling_rules": {"global": 2}}
    for version in ("v1", "v2"):
        site.play("upgrade", version=version, instructions=rules)
    assert "  a rollback replaces app, then library" in site.play("compose")
    assert "  upgrade  app (1 task), library (1 task)" in site.play("rollback", "--check", reason="logins fail")
    shown = site.play("rollback", reason="logins fail")
    assert "Order of the rollback: reversed; cache after web" in shown
    # In its own order, a rollback keeps that of services too.
    site.play("upgrade", version="v3", instructions=rules)
    site.play("rollback", rollback_order="forward", reason="logins fail")
    begun = [one for one in sorted(site.entries(), key=lambda one: one.at) if one.what == "begin"]
    order = [one.host for one in begun if one.task != "library/upgrade"]
    assert order == [*("cache1", "web1") * 2, "web1", "cache1", *("cache1", "web1") * 2]
    up = ["library/upgrade", "app/upgrade"]
    assert [one.task for one in begun if one.host == "web1"] == [*up, *up, *up[::-1], *up, *up]


@pytest.mark.thorough
def test_services_of_a_wave_go_back_in_the_reversed_order(site: Site) -> None:
    site.service("store", ["stop", "upgrade"], meta="allow_downgrade: true\n")
    site.service("app", ["stop", "upgrade"], meta="requires: [store]\nallow_downgrade: true\n")
    site.inventory({"api": {"plane": "controlplane", "services": ["store", "app"]}}, {"api": ["api1"]})
    rules = {"rolling_rules": {"global": 1}}
    site.play("upgrade", version="v1", instructions=rules)
    site.play("upgrade", version="v2", instructions=rules)
    # It ends between the two, and goes on in the same order.
    broken = site.fail("api1", "store/upgrade")
    site.play("rollback", reason="logins fail", code=2)
    broken.unlink()
    site.play("upgrade", version="v1", retry_failed=True)
    begun = [one.task for one in site.entries("api1") if one.what == "begin"][8:]
    assert begun == ["app/stop", "app/upgrade", "store/stop", "store/upgrade", "store/stop", "store/upgrade"]


@pytest.mark.thorough
def test_tags_choose_steps_and_what_is_left_is_done_later(fleet: Site) -> None:
    shown = fleet.play("upgrade", "--tags", "step7", version="v1", code=2)
    assert "--tags step7: these tags select no task of any service, so nothing would be done." in shown
    assert fleet.consul.tree() == {}

    fleet.play("controlplane", version="v1")
    fleet.play("role", version="v1", role="cache")
    before = fleet.consul.tree()
    shown = fleet.play("role", "--tags", "step2", version="v1", role="web", code=2)
    assert "web1, web2: upgrade/app would be left to a later run, and services may be down until then." in shown
    assert fleet.consul.tree() == before
    fleet.play("role", "--tags", "stop,upgrade", version="v1", role="web")
    assert fleet.done("web1") == ["app/stop", "app/upgrade"]
    assert fleet.record("web1")["state"] == "started"
    assert not fleet.reported("v1") & {"web1", "web2"}
    # What was done stays done, and the rest makes it complete.
    fleet.play("upgrade", version="v1")
    assert fleet.done("web1") == ["app/stop", "app/upgrade", "app/verify", "app/after"]
    assert fleet.reported("v1") >= {"web1", "web2"}


@pytest.mark.thorough
def test_hosts_without_a_selected_task_are_not_begun(site: Site) -> None:
    site.service("app", ["validate", "prepare", "upgrade"], after=["after"])
    site.service("store", ["validate", "upgrade"])
    roles = {name: ROLES[name] for name in ("web", "cache")}
    site.inventory(
        {**roles, "compute": {"plane": "dataplane"}}, {"web": ["web1"], "cache": ["cache1"], "compute": ["compute1"]}
    )
    shown = site.play("upgrade", "--tags", "validate", version="v1")
    assert (site.done("web1"), site.done("cache1")) == (["app/validate"], ["store/validate"])
    assert site.consul.tree() == {}
    assert (
        "Not in this run, because of its tags: compute1; it upgrades itself, and tags select no part of that." in shown
    )
    site.fail("cache1", "store/validate")
    assert "[not_upgradable]" in site.play("upgrade", "--tags", "validate", version="v1", code=2)
    assert "[no_such_tag]" in site.play("upgrade", "--tags", "post_upgrade", version="v1", code=2)
    assert site.consul.tree() == {}

    shown = site.play("upgrade", "--tags", "app", version="v1")
    assert site.done("web1")[2:] == ["app/validate", "app/prepare", "app/upgrade"]
    assert site.reported("v1") == {"web1"}
    assert "Not in this run, because of its tags: cache1; the tags select none of its tasks." in shown
    assert site.record("cache1") == {}
    assert not [key for key in site.consul.tree() if key.endswith(("/cache1", "/compute1"))]


@pytest.mark.thorough
def test_a_step_that_is_skipped_by_name_is_not_waited_for(site: Site) -> None:
    site.service("app", ["drain", "stop", "upgrade,slow", "verify", "undrain"], after=["after"])
    site.inventory({"web": ROLES["web"]}, {"web": ["web1"]})
    # The last one is a tag of the service's own.
    for tags in ("stop", "undrain", "slow"):
        assert "[partial_tags]" in site.play("upgrade", "--skip-tags", tags, version="v1", code=2)
    assert site.consul.tree() == {}
    site.play("upgrade", "--skip-tags", "verify", version="v1")
    # It is undrained nevertheless.
    assert site.done("web1") == ["app/drain", "app/stop", "app/upgrade", "app/undrain", "app/after"]
    assert site.reported("v1") == {"web1"}


@pytest.mark.thorough
def test_an_unknown_role_is_refused(fleet: Site) -> None:
    shown = fleet.play("role", version="v1", role="webb", code=2)
    assert "no host has the role 'webb'; did you mean 'web'?" in shown


@pytest.mark.thorough
def test_pull_hosts_are_admitted_beside_push_hosts(site: Site) -> None:
    site.service("app", ["upgrade"])
    roles = {"web": {"plane": "dataplane", "services": ["app"]}, "compute": {"plane": "dataplane"}}
    site.inventory(roles, {"web": ["web1"], "compute": ["compute1", "compute2"]})
    process = site.start(
        "upgrade", version="v1", instructions={"rolling_rules": {"global": "unlimited", "roles": {"compute": 1}}}
    )
    for host in ("compute1", "compute2"):
        wait_for(
            lambda host=host: site.consul.get(f"config_state/enable_puppet/host/{host}") == b"True", f"{host} may go"
        )
        site.consul.put(f"running/versions/v1/{host}", "1")
    ended = site.end(process)
    assert ended.code == 0, ended.stdout
    assert site.reported("v1") == {"web1", "compute1", "compute2"}


@pytest.mark.thorough
def test_another_planner_host_than_localhost_upgrades_the_whole_fleet(site: Site) -> None:
    site.service("api", ["validate", "upgrade"])
    site.service("app", ["validate", "upgrade"], after=["after"])
    roles = {
        "controller": {"plane": "controlplane", "services": ["api"]},
        "web": {"plane": "dataplane", "services": ["app"]},
    }
    site.inventory(roles, {"controller": ["controller1"], "web": ["web1"], "operators": ["deploy1"]})
    rules = {"rolling_rules": {"global": 1}}
    shown = site.play("upgrade", version="v1", instructions=rules, upgrade_planner_host="deploy1")
    assert "2 of 2 hosts upgraded" in shown
    assert site.done("controller1") == ["api/validate", "api/upgrade"]
    assert site.done("web1") == ["app/validate", "app/upgrade", "app/after"]
    assert site.consul.get("config_state/enable_puppet/global") == b"True"


@pytest.mark.thorough
def test_a_planner_host_that_only_the_inventory_names_is_refused(site: Site) -> None:
    site.service("app", ["upgrade"])
    site.inventory({"web": {"services": ["app"]}}, {"web": ["web1"]})
    hosts_file = yaml.safe_load((site.folder / "inventory.yml").read_text())
    hosts_file["all"]["vars"]["upgrade_planner_host"] = "web1"
    (site.folder / "inventory.yml").write_text(yaml.safe_dump(hosts_file))
    shown = site.play("status", code=2)
    assert "name one host with -e upgrade_planner_host=web1" in " ".join(shown.split())


@pytest.mark.thorough
def test_a_host_between_two_steps_keeps_its_slot_and_the_next_command_goes_on_with_it(site: Site) -> None:
    site.service("app", ["prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify", "undrain"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": ["web1", "web2"]})
    rules = {"rolling_rules": {"global": 1}}
    shown = site.play("upgrade", "--tags", "prepare", version="v1", instructions=rules)
    assert site.done("web1") == ["app/prepare"]
    assert not site.done("web2")
    # So it is not lost, however long that is.
    assert site.record("web1")["next_step"] == "may_stop"
    assert "Between two steps, and still in their slots: web1." in shown
    assert "Next: ansible-playbook" in shown and shown.rstrip().endswith(
        "--tags may_stop,drain,stop,upgrade,start,verify,undrain"
    )
    shown = site.play("upgrade", "-t", "stop,upgrade,start", version="v1", instructions=rules)
    assert (
        "An earlier run began the upgrade of web1 and did not finish it; this one continues after prepare/app." in shown
    )
    assert "Not in this run, because of its tags: web2; a later run would run prepare/app after may_stop/app." in shown
    assert shown.rstrip().endswith("--tags verify,undrain")
    assert site.record("web1")["next_step"] == "verify"
    shown = site.play("status", host="web1")
    assert "no Ansible run works on it now: run ansible-playbook convoy.upgrade.upgrade -e version=v1." in shown
    site.play("upgrade", "--tags", "verify", version="v1", instructions=rules)
    assert site.done("web1") == [
        f"app/{step}" for step in ("prepare", "may_stop", "drain", "stop", "upgrade", "start", "verify", "undrain")
    ]
    assert site.reported("v1") == {"web1"}
    shown = site.play("upgrade", "--tags", "verify", version="v1", instructions=rules, code=2)
    assert "[partial_tags]" in shown
    assert "--tags" not in shown[shown.index("Next: ") :]
    site.play("upgrade", version="v1", instructions=rules)
    assert site.reported("v1") == {"web1", "web2"}


@pytest.mark.thorough
def test_a_limit_without_the_hosts_that_go_first_begins_nothing(fleet: Site) -> None:
    fleet.play("controlplane", version="v1")
    before = fleet.consul.tree()
    shown = fleet.play("upgrade", version="v1", upgrade_limit="web", code=2)
    assert "web1, web2 can't be upgraded before hosts that the limit leaves out: cache1 (pending)." in shown
    assert "Next: " in shown
    assert fleet.consul.tree() == before
    shown = fleet.play("upgrade", version="v1", upgrade_limit="cache")
    assert "upgrade_limit" not in shown[shown.index("Next: ") :]


@pytest.mark.thorough
def test_a_service_is_stopped_once_it_may_be(site: Site) -> None:
    site.service("app", ["may_stop", "stop", "upgrade"])
    site.service("store", ["prepare", "stop", "upgrade", "start"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app", "store"]}}, {"web": ["web1"]})
    refusing = site.fail("web1", "app/may_stop")
    shown = site.play("upgrade", version="v1", upgrade_may_stop_timeout=3, code=2)
    assert "web1: app could not be stopped within 3 s, and was not: " in shown
    assert shown[shown.index("Next: ") :].rstrip().endswith("-e retry_failed=true")
    assert site.done("web1") == ["store/prepare"]
    process = site.start("upgrade", version="v1", retry_failed=True)
    wait_for(lambda: len([one for one in site.entries("web1") if one.task == "app/may_stop"]) > 4, "it is tried again")
    refusing.unlink()
    ended = site.end(process)
    assert ended.code == 0, ended.stdout
    # Each service is stopped just before it is upgraded.
    assert site.done("web1") == [
        # Nothing was stopped yet, so it is prepared again.
        "store/prepare", "store/prepare", "app/may_stop", "app/stop", "app/upgrade", "store/stop", "store/upgrade", "store/start",
    ]  # fmt: skip


@pytest.mark.thorough
def test_a_check_that_hangs_does_not_hang_the_run(site: Site) -> None:
    site.service("app", ["may_stop", "upgrade"])
    site.inventory({"web": ROLES["web"]}, {"web": ["web1"]})
    site.sleep(500, "web1")
    shown = site.play("upgrade", version="v1", upgrade_may_stop_timeout=2, code=2)
    assert "web1: app could not be stopped within 2 s, and was not: " in shown
    assert not site.done("web1")


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["controlplane", "dataplane"])
def test_a_primary_goes_after_the_other_hosts_of_its_role(site: Site, plane: str) -> None:
    site.service("app", ["upgrade"])
    hosts = ["db1", "db2", "db3"]
    site.inventory({"db": {"plane": plane, "services": ["app"]}}, {"db": hosts}, db1={"upgrade_goes_last": True})
    cause = site.fail("db3", "app/upgrade")
    rules = {"rolling_rules": {"global": 2}}
    shown = site.play("upgrade", version="v1", instructions=rules, code=2)
    assert "db1 is not admitted (pending): it goes after the other hosts of its role: db3 (failed)" in shown
    assert not site.entries("db1")
    cause.unlink()
    for version in ("v1", "v2"):
        site.play("upgrade", version=version, instructions=rules, retry_failed=True)
        assert [(one.host, one.what) for one in site.entries()][-2:] == [("db1", "begin"), ("db1", "end")]


@pytest.mark.thorough
@pytest.mark.parametrize("plane", ["controlplane", "dataplane"])
def test_a_primary_is_no_canary_before_its_replicas(site: Site, plane: str) -> None:
    site.service("app", ["upgrade"])
    roles = {"db": {"plane": plane, "services": ["app"]}, "web": ROLES["web"]}
    site.inventory(roles, {"db": ["db1", "db2", "db3"], "web": ["web1", "web2"]}, db1={"upgrade_goes_last": True})
    canary = {"name": "canary", "hosts": 1}
    rules = {"rolling_rules": {"global": 2}, "stages": [canary]}
    for more in (["--check"], []):
        shown = site.play("upgrade", *more, version="v1", instructions=rules, code=2)
        assert (
            "[bad_instructions] instructions: stages[0].hosts: db1 would go in stage 'canary', before db2, db3 of a later stage."
            in shown
        )
        assert (
            "Nothing was touched: name the hosts of this stage in the rules, hosts: [web1, db2]; then run the same command again."
            in shown
        )
    assert (site.entries(), site.consul.tree()) == ([], {})
    rules["stages"] = [{**canary, "hosts": ["web1", "db2"]}]
    site.play("upgrade", version="v1", instructions=rules)
    begun = [one.host for one in site.entries() if one.what == "begin"]
    assert ({*begun[:2]}, begun.index("db1") > begun.index("db3")) == ({"web1", "db2"}, True), begun
    # An operator may want it all the same.
    shown = site.play("upgrade", version="v2", instructions={**rules, "stages": [canary]}, upgrade_limit="db1")
    assert "upgrade_limit leaves out db2, db3, which should go before db1 (upgrade_goes_last)" in shown
    assert site.reported("v2") == {"db1"}


@pytest.mark.thorough
def test_a_host_that_is_only_prepared_is_validated_before_and_still_goes_last(site: Site) -> None:
    site.service("app", ["validate", "prepare", "stop", "upgrade", "start"])
    site.inventory({"db": {"services": ["app"]}}, {"db": ["db1", "db2"]}, db1={"upgrade_goes_last": True})
    rules = {"rolling_rules": {"global": 2}}
    refused = site.fail("db1", "app/validate")
    shown = site.play("upgrade", "--tags", "prepare", version="v1", instructions=rules, code=2)
    assert "[not_upgradable]" in shown
    assert site.consul.tree() == {}
    refused.unlink()
    for tags in ("prepare", "stop,upgrade,start"):
        before = len(site.entries())
        site.play("upgrade", "--tags", tags, version="v1", instructions=rules)
        found = spans([one for one in site.entries()[before:] if one.task != "app/validate"])
        assert found["db2"][1] < found["db1"][0], found
    assert site.reported("v1") == {"db1", "db2"}
    assert site.done("db1") == [
        f"app/{step}" for step in ("validate", "prepare", "validate", "stop", "upgrade", "start")
    ]


@pytest.mark.thorough
def test_a_waiting_host_gives_its_fork_to_one_that_can_be_admitted(site: Site) -> None:
    site.service("app", ["upgrade"])
    roles = {"cache": {"plane": "dataplane", "services": ["app"]}, "web": {"plane": "dataplane", "services": ["app"]}}
    site.inventory(roles, {"cache": [f"cache{n}" for n in range(1, 6)], "web": ["web1", "web2"]})
    site.sleep(6, "cache1")
    process = site.start(
        "upgrade", version="v1", forks=3, instructions={"rolling_rules": {"global": "unlimited", "roles": {"cache": 1}}}
    )
    ended = site.end(process)
    assert ended.code == 0, ended.stdout
    ended_at = {one.host: one.at for one in site.entries() if one.what == "end"}
    assert max(ended_at["web1"], ended_at["web2"]) < ended_at["cache1"]
    assert site.reported("v1") == {*ended_at} and len(ended_at) == 7


def test_forks_below_the_cap_are_reported_before_the_first_task_of_a_host(site: Site) -> None:
    site.service("app", ["upgrade"])
    site.inventory({"web": {"plane": "dataplane", "services": ["app"]}}, {"web": ["web1", "web2", "web3"]})
    ended = site.end(site.start("upgrade", version="v1", forks=2, instructions={"rolling_rules": {"global": 3}}))
    assert ended.code == 0, ended.stdout
    line = (
        "The rules allow 3 hosts at the same time, but Ansible has 2 forks (-f) and upgrades no more hosts than that. "
        "To use all slots: -f 3."
    )
    before, _line, after = ended.stdout.partition(line)
    assert "[web" not in before and "[web" in after
