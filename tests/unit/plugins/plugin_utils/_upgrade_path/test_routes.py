# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The origins of hosts, and the checkpoints on their upgrade paths."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.allowed_versions import (
    VersionRules,
    parse_allowed_from,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import (
    Routes,
    declared_versions,
    routes_of,
    unknown_hosts,
)

CHECKPOINTS = ["2.4", "2.6", "2.8", "2.10"]


def role(
    checkpoints: list[str], *, provider: bool = False, version_rules: VersionRules | None = None, name: str = "db"
) -> dict[str, Any]:
    version_rules = version_rules or VersionRules("m")
    return {
        "paths": {name: {"checkpoints": checkpoints, "provider": provider}},
        "version_rules": {name: version_rules.plain()},
    }


def plan(providers: dict[str, Any] | None = None, **versions: str | None) -> dict[str, Any]:
    hosts = {
        host: {"role": host.rstrip("0123456789"), "version": version, "origin": None}
        for host, version in versions.items()
    }
    return {"hosts": hosts, "providers": providers or {}}


def run(found: dict[str, Any]) -> list[str]:
    return [*found["hosts"]]


def refused(found: dict[str, Any], composition: dict[str, Any], **options: Any) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        routes_of(found, run(found), composition, "2.10", **options)
    return caught.value


def test_each_path_begins_at_the_reported_version() -> None:
    found = plan(db1="2.2", db2="2.8", db3="2.2", db4="2.9~rc1", web1=None)
    composition = {"roles": {"db": role(CHECKPOINTS), "web": {"paths": {}, "version_rules": {}}}}
    version_rules = routes_of(found, run(found), composition, "2.10", {"db1": "2.8"})
    assert version_rules == Routes(
        origins={"db1": "2.2", "db2": "2.8", "db3": "2.2", "db4": "2.9~rc1", "web1": ""},
        checkpoints=version_rules.ahead,
        ahead={
            "db1": ["db@2.4", "db@2.6", "db@2.8", "db@2.10"],
            "db2": ["db@2.10"],
            "db3": ["db@2.4", "db@2.6", "db@2.8", "db@2.10"],
            "db4": ["db@2.10"],
        },
        providers={},
        left_out={},
        lines=(
            "db from 2.2 to 2.10 by db@2.4, db@2.6, db@2.8, db@2.10: db1, db3",
            "db from 2.8 to 2.10 by db@2.10: db2",
            "db from 2.9~rc1 to 2.10 by db@2.10: db4",
        ),
    )


def test_a_host_whose_version_can_not_be_compared_is_left_out_and_others_have_paths() -> None:
    found = plan(db1="v673", db2="2.8", db3="2.8")
    found["hosts"]["db3"] |= {"origin": "2.8", "begun": "v673"}
    version_rules = routes_of(found, run(found), {"roles": {"db": role(CHECKPOINTS)}}, "2.10")
    assert (version_rules.origins, version_rules.checkpoints) == ({"db2": "2.8"}, {"db2": ["db@2.10"]})
    assert [*version_rules.left_out] == ["db1", "db3"]
    assert version_rules.left_out["db1"].startswith("db: 'v673' and '2.4' can't be compared as versions: ")
    assert version_rules.lines == ("db from 2.8 to 2.10 by db@2.10: db2",)


def test_a_declared_version_counts_only_without_a_reported_or_stored_one() -> None:
    found = plan(db1=None, db2=None, db3="2.10", db4=None)
    # Of a host that failed midway, the origin is stored. The version that is declared now is meant for other hosts.
    found["hosts"]["db1"] |= {"origin": "2.2", "begun": "2.10"}
    found["hosts"]["db2"] |= {"origin": "2.2", "begun": "2.10"}
    composition = {"roles": {"db": role(CHECKPOINTS)}}
    version_rules = routes_of(found, run(found), composition, "2.10", {"db1": "2.8", "db2": "", "db4": " 2.8 "})
    assert version_rules.origins == {"db1": "2.2", "db2": "2.2", "db3": "2.10", "db4": "2.8"}
    assert version_rules.checkpoints["db1"] == ["db@2.4", "db@2.6", "db@2.8", "db@2.10"]
    assert version_rules.checkpoints["db3"] == []
    assert version_rules.lines[1] == "db from 2.10 to 2.10 by no checkpoint: db3"


def test_finished_checkpoints_stay_on_the_path_and_are_not_validated() -> None:
    both = {"paths": {}, "version_rules": {}, "task_groups": []}
    for name, is_provider in (("db", False), ("cloud", True)):
        one = role(["2.4", "2.6"], provider=is_provider, name=name)
        both["paths"] |= one["paths"]
        both["version_rules"] |= one["version_rules"]
        both["task_groups"] += [
            {"name": f"{step}/{name}@{checkpoint}", "step": step, "service": name, "checkpoint": checkpoint}
            for checkpoint in ("2.4", "2.6")
            for step in ("validate", "upgrade", "start")
        ]
        both["task_groups"].append({"name": f"upgrade/{name}", "step": "upgrade", "service": name, "checkpoint": ""})
    cloud = {"version": "2.2", "target": "2.6", "state": "upgrading", "done": ["upgrade/cloud@2.4", "start/cloud@2.4"]}
    found = plan({"cloud": cloud}, db1="2.2", db2="2.2", db3="2.4")
    # Task groups of providers in a host's record do not count, as the version of the provider may have changed.
    done = [*("upgrade/db@2.4", "start/db@2.4", "upgrade/db@2.6"), *("upgrade/cloud@2.6", "start/cloud@2.6")]
    found["hosts"]["db1"] |= {"origin": "2.2", "begun": "2.6", "done": done}
    # This host has not finished all task groups of the checkpoint.
    found["hosts"]["db2"] |= {"origin": "2.2", "begun": "2.6", "done": ["upgrade/db@2.4"]}
    version_rules = routes_of(found, run(found), {"roles": {"db": both}}, "2.6")
    way = ["db@2.4", "db@2.6", "cloud@2.4", "cloud@2.6"]
    assert version_rules.checkpoints == {"db1": way, "db2": way, "db3": ["db@2.6", "cloud@2.4", "cloud@2.6"]}
    assert version_rules.ahead == {
        "db1": ["db@2.6", "cloud@2.6"],
        "db2": ["db@2.4", "db@2.6", "cloud@2.6"],
        "db3": ["db@2.6", "cloud@2.6"],
    }
    # A checkpoint that has only checks is never finished.
    both["task_groups"] = [task_group for task_group in both["task_groups"] if task_group["step"] == "validate"]
    assert routes_of(found, run(found), {"roles": {"db": both}}, "2.6").ahead == version_rules.checkpoints


def test_after_an_unfinished_rollback_a_host_has_all_checkpoints_from_there_ahead() -> None:
    found = plan(db1="2.10", db2="2.10", db3="2.2", db4="2.10", web1="2.10")
    found["hosts"]["db1"] |= {"origin": "2.10", "begun": "2.6"}
    # The host also failed in the upgrade after that. Its reported version is outdated, and its origin is stored.
    found["hosts"]["db2"] |= {"origin": "2.6", "begun": "2.10"}
    found["hosts"]["db3"] |= {"origin": "2.2", "begun": "2.8"}
    found["hosts"]["db4"] |= {"origin": None, "begun": None}
    found["hosts"]["web1"] |= {"origin": "2.10", "begun": "2.6"}
    composition = {"roles": {"db": role(CHECKPOINTS), "web": {"paths": {}, "version_rules": {}}}}
    version_rules = routes_of(found, run(found), composition, "2.10")
    assert version_rules.origins == {"db1": "2.6", "db2": "2.6", "db3": "2.2", "db4": "2.10", "web1": "2.10"}
    assert version_rules.checkpoints == {
        "db1": ["db@2.8", "db@2.10"],
        "db2": ["db@2.8", "db@2.10"],
        "db3": ["db@2.4", "db@2.6", "db@2.8", "db@2.10"],
        "db4": [],
    }
    # On the way back again, no checkpoint is on the path.
    assert routes_of(found, run(found), composition, "2.6").checkpoints["db1"] == []


def test_after_an_unfinished_rollback_a_provider_has_all_checkpoints_from_there_ahead() -> None:
    composition = {"roles": {"db": role(CHECKPOINTS, provider=True, name="cloud")}}
    found = plan({"cloud": {"version": "2.10", "state": "failed", "target": "2.6", "error": "broken"}}, db1="2.10")
    version_rules = routes_of(found, run(found), composition, "2.10")
    assert (version_rules.providers, version_rules.checkpoints) == (
        {"cloud": "2.6"},
        {"db1": ["cloud@2.8", "cloud@2.10"]},
    )
    assert routes_of(found, run(found), composition, "2.6").providers == {"cloud": "2.10"}


def test_an_incomparable_target_of_an_unfinished_upgrade_is_reported() -> None:
    found = plan(db1="2.10")
    found["hosts"]["db1"] |= {"origin": None, "begun": "xenial"}
    error = refused(found, {"roles": {"db": role(CHECKPOINTS)}})
    assert (error.code, len(error.details["reasons"])) == ("incomparable_versions", 1)
    assert "xenial" in error.message


@pytest.mark.parametrize("declared", [None, {"db2": "2.4"}])
def test_an_unfinished_upgrade_to_what_is_no_version_hurts_that_host_alone(declared: dict[str, str] | None) -> None:
    found = plan(db1="2.2", db2="2.2")
    found["hosts"]["db2"] |= {"origin": None, "begun": "-1.0"}
    routes = routes_of(found, run(found), {"roles": {"db": role(CHECKPOINTS)}}, "2.10", declared)
    assert routes.origins == {"db1": "2.2"}
    assert routes.left_out == {"db2": "it reported the version '-1.0', which is not safe in a command"}


def test_all_hosts_of_unknown_version_are_named_if_a_path_needs_it() -> None:
    found = plan(db1=None, db2="2.2", db3=None, web1=None, lib1=None)
    asking = VersionRules("m", allowed_from=parse_allowed_from("*"), where={"allowed_from": "m:1"})
    composition = {
        "roles": {
            "db": role(CHECKPOINTS),
            "web": {"paths": {}, "version_rules": {}},
            "lib": {"version_rules": {"lib": asking.plain()}},
        }
    }
    error = refused(found, composition)
    assert (error.code, error.details) == ("unknown_version", {"hosts": ["db1", "db3"]})
    assert error.message == (
        "Nothing was touched: 2 hosts never reported a version, but the upgrade path of db depends on it: db1, db3. "
        "Declare which one each runs in its variable upgrade_version_from, or for all of them with -e upgrade_version_from=X. "
        "For a new host without data, declare 2.10. Or hold these hosts, or leave them out with upgrade_limit."
    )
    assert unknown_hosts(found, composition) == ["db1", "db3", "lib1"]


def test_all_incomparable_versions_are_reported_once() -> None:
    found = plan(db1="v673", db2="v673", db3="jessie")
    error = refused(found, {"roles": {"db": role(CHECKPOINTS)}})
    assert error.code == "incomparable_versions"
    assert [reason.partition(" can't")[0] for reason in error.details["reasons"]] == [
        "db: 'v673' and '2.4'", "db: 'jessie' and '2.4'",
    ]  # fmt: skip


def test_the_path_of_a_provider_begins_at_its_own_version() -> None:
    composition = {"roles": {"db": role(CHECKPOINTS, provider=True, name="cloud")}}
    known = {"cloud": {"version": "2.6", "state": "upgraded", "target": ""}}
    found = plan(known, db1="2.2", db2=None)
    version_rules = routes_of(found, run(found), composition, "2.10", providers={"cloud": "2.2"})
    assert version_rules.providers == {"cloud": "2.6"}
    assert version_rules.checkpoints == {host: ["cloud@2.8", "cloud@2.10"] for host in ("db1", "db2")}
    assert version_rules.lines == ("provider cloud from 2.6 to 2.10 by cloud@2.8, cloud@2.10",)
    assert unknown_hosts(found, composition) == []
    declared = routes_of(plan(db1="2.2"), run(plan(db1="2.2")), composition, "2.10", providers={"cloud": "2.8"})
    assert declared.checkpoints == {"db1": ["cloud@2.10"]}


def test_a_provider_of_unknown_version_is_refused_if_it_has_a_path() -> None:
    found = plan(db1="2.2")
    error = refused(found, {"roles": {"db": role(CHECKPOINTS, provider=True, name="cloud")}})
    assert (error.code, error.details) == ("unknown_version", {"providers": ["cloud"]})
    assert error.message.endswith("""such as -e '{"upgrade_provider_versions": {"cloud": "2.4"}}'.""")
    without = routes_of(found, run(found), {"roles": {"db": role([], provider=True, name="cloud")}}, "2.10")
    assert (without.providers, without.checkpoints) == ({"cloud": ""}, {"db1": []})
    broken = plan({"cloud": {"version": "", "state": "failed", "target": "", "error": "k can't be read"}}, db1="2.2")
    error = refused(broken, {"roles": {"db": role(CHECKPOINTS, provider=True, name="cloud")}})
    assert (error.code, error.message) == (
        "unreadable_provider", "Nothing was touched: the provider cloud: k can't be read",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            2.1,
            "upgrade_version_from of db1: 2.1 is not text but a number or the like, and YAML may have changed it (2.10 is",
        ),
        ("2/1", "upgrade_version_from of db1: the version '2/1' has a '/'"),
        ("true", "upgrade_version_from of db1: the version can't be 'true'"),
    ],
)
def test_bad_declared_versions_are_refused(value: object, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        declared_versions({"db1": value})
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("reported", ["2.2; reboot", "$(reboot)", "2.2 '", "-rf"])
def test_reported_shell_syntax_does_not_reach_the_variables_of_tasks(reported: str) -> None:
    found = plan(db1="2.2", db2=reported)
    composition = {"roles": {"db": role(CHECKPOINTS)}}
    assert unknown_hosts(found, composition) == ["db2"]
    # It hurts that host, and no other.
    routes = routes_of(found, run(found), composition, "2.10")
    assert (routes.origins, list(routes.left_out)) == ({"db1": "2.2"}, ["db2"])
    assert routes.left_out["db2"] == f"it reported the version {reported!r}, which is not safe in a command"
    assert refused(plan(db2=reported), composition).code == "incomparable_versions"
    assert routes_of(found, run(found), composition, "2.10", {"db2": "2.4"}).origins == {"db1": "2.2", "db2": "2.4"}
    with pytest.raises(UpgradeError, match=r"version: the version .* is not safe in a command"):
        routes_of(plan(db1="2.2"), ["db1"], composition, reported)
