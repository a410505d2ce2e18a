# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version rules of a service, from its file and from the roles that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.allowed_versions import (
    VersionRules,
    version_rules_from,
)
from written_services import META, TASKS, Roles


@pytest.fixture
def roles(tmp_path: Path) -> Roles:
    return Roles(tmp_path)


def composed(roles: Roles, meta: str, **entry: Any) -> VersionRules:
    """Return the version rules of a service with this file, in a role."""
    roles.add("web", {TASKS: "- command: x\n  tags: start\n", **({META: meta} if meta else {})})
    plain = roles.compose({"x": [{"service": "web", **entry}]}).plain()
    return version_rules_from(plain["roles"]["x"]["version_rules"]["web"])


def test_a_service_without_version_rules_may_be_upgraded_and_not_rolled_back(roles: Roles) -> None:
    found = composed(roles, "")
    assert found == VersionRules()
    assert found.at("allow_downgrade") == f"{roles.folder}/web/meta/upgrade.yml"


def test_what_a_service_says_is_in_the_composition_with_file_and_line(roles: Roles) -> None:
    found = composed(roles, "---\nversions: [a, b, c]\n\nallowed_from: {c: [a, b]}\nallow_downgrade: true\n")
    assert (found.versions, found.allow_downgrade) == (("a", "b", "c"), True)
    assert [str(entry) for entry in found.allowed_from or ()] == ["a or b to c"]
    file = f"{roles.folder}/web/meta/upgrade.yml"
    assert found.where == {"versions": f"{file}:2", "allowed_from": f"{file}:4", "allow_downgrade": f"{file}:5"}


def test_what_a_role_says_of_it_wins_key_by_key(roles: Roles) -> None:
    found = composed(roles, "allowed_from: '>=2.4'\nallow_downgrade: true\n", allow_downgrade=False)
    assert (found.allow_downgrade, [str(one) for one in found.allowed_from or ()]) == (False, [">=2.4"])
    assert found.at("allow_downgrade") == "upgrade_roles.x.services[0].allow_downgrade"
    assert found.at("allowed_from") == f"{roles.folder}/web/meta/upgrade.yml:1"


def test_two_uses_of_a_service_may_have_upgrade_rules_of_their_own(roles: Roles) -> None:
    roles.simple("web", "start")
    services = ["web", {"service": "web", "name": "shop", "allow_downgrade": True}]
    plain = roles.compose({"x": services}).plain()["roles"]["x"]["version_rules"]
    assert {name: one["allow_downgrade"] for name, one in plain.items()} == {"web": False, "shop": True}


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("\nversions: a\n", ":2: versions: 'a' is not a list of versions, from the oldest to the newest."),
        ("versions: []\n", ":1: versions: [] is not a list of versions"),
        ("versions: [2.9, 2.10]\n", ":1: versions: 2.9 is not text but a number or the like, and YAML may have changed it (2.10 is read as 2.1). Put it "),
        ("versions: [a, b, a]\n", ":1: versions: 'a' is listed twice. Remove one of them."),
        ("versions: [a/b]\n", ":1: versions: the version 'a/b' has a '/'"),
        ("allowed_from: 2.10\n", ":1: allowed_from: 2.1 is not text but a number or the like, and YAML may have changed it"),
        ("allowed_from: {2.10: '*'}\n", ":1: allowed_from: 2.1 is not text but a number or the like, and YAML may have changed it"),
        ("allowed_from: '=>2.4'\n", ":1: allowed_from: '=>2.4' is not a range of versions. Give a version, bounds such as"),
        ("allowed_from: []\n", ":1: allowed_from: [] allows no upgrade. Name the versions to upgrade from, or remove the key."),
        ("allowed_from: {}\n", ":1: allowed_from: {} allows no upgrade."),
        ("allowed_from: {'2.10': []}\n", ":1: allowed_from: {'2.10': []} allows no upgrade."),
        ("allowed_from: ['2.4', 'v673']\n", ":1: allowed_from: '2.4' and 'v673' can't be compared as versions: '2.4' begins"),
        ("allowed_from: xenial\n", ""),
        ("versions: [a, b]\nallowed_from: '>=c'\n", ":2: allowed_from: c is not in the list of R/web/meta/upgrade.yml:1. Add it "),
        ("allow_downgrade: 'yes'\n", ":1: allow_downgrade: 'yes' is neither true nor false."),
        ("allow_downgrad: true\n", ":1: unknown key 'allow_downgrad'; did you mean 'allow_downgrade'?"),
    ],
)  # fmt: skip
def test_what_is_refused(roles: Roles, meta: str, message: str) -> None:
    if not message:
        assert composed(roles, meta).allowed_from
        return
    with pytest.raises(UpgradeError) as caught:
        composed(roles, meta)
    assert caught.value.code == "bad_service"
    assert caught.value.message.replace(str(roles.folder), "R").startswith("R/web/meta/upgrade.yml" + message)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"allow_downgrade": "no"}, "upgrade_roles.x.services[0].allow_downgrade: allow_downgrade: 'no' is neither true nor"),
        ({"versions": ["2.2", "2.3"]}, "R/web/meta/upgrade.yml:1: allowed_from: 2.4 is not in the list of upgrade_roles.x.services"),
    ],
)  # fmt: skip
def test_what_is_refused_of_a_role(roles: Roles, entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        composed(roles, "allowed_from: '>=2.4'\n", **entry)
    assert caught.value.message.replace(str(roles.folder), "R").startswith(message)
