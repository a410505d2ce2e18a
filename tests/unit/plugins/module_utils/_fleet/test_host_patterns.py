# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host patterns, as ``--limit`` has them."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.host_patterns import (
    excluded_by,
    pattern_without,
    select_hosts,
    select_roles,
    with_inventory_groups,
)
from hypothesis import given
from hypothesis import strategies as st

MEMBERS = {"db1": "db", "db2": "db", "web1": "web", "web2": "web", "web10": "web", "cache": "cache"}
GROUPS = {"db": "data", "cache": "data"}


def select(*patterns: str) -> list[str]:
    found = select_hosts(patterns, MEMBERS, GROUPS)
    return [host for host in MEMBERS if host in found]


@pytest.mark.parametrize(
    ("patterns", "hosts"),
    [
        (["web1"], ["web1"]),
        (["web"], ["web1", "web2", "web10"]),
        (["data"], ["db1", "db2", "cache"]),
        (["web1,db"], ["db1", "db2", "web1"]),
        (["web1:db2"], ["db2", "web1"]),
        (["web1", "db2"], ["db2", "web1"]),
        (["web*"], ["web1", "web2", "web10"]),
        (["web?"], ["web1", "web2"]),
        (["~.*1$"], ["db1", "web1"]),
        (["~web[12]$"], ["web1", "web2"]),
        (["web[0]"], ["web1"]),
        (["web[-1]"], ["web10"]),
        (["web[0:1]"], ["web1", "web2"]),
        (["web[1:]"], ["web2", "web10"]),
        (["!web"], ["db1", "db2", "cache"]),
        (["all:!web:!db1"], ["db2", "cache"]),
        (["data:&db"], ["db1", "db2"]),
        (["!db1", "data"], ["db2", "cache"]),
        (["*"], list(MEMBERS)),
        ([], []),
    ],
)
def test_patterns_mean_what_they_mean_to_ansible(patterns: list[str], hosts: list[str]) -> None:
    assert select(*patterns) == hosts


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["wbe1"],
            "limit: 'wbe1' fits no host, role or group of this fleet; did you mean 'web1'? Its roles are cache, ",
        ),
        (["web", "!wbe1"], "limit: 'wbe1' fits no host"),
        (["web:&sql"], "limit: 'sql' fits no host"),
        (["web[7]"], "limit: 'web[7]' fits no host"),
        (["w e b"], "limit: 'w e b' fits no host"),
        (["~web["], "limit: '~web[' is not a regular expression: unterminated character set"),
        (["!all"], "limit: '!all' leaves no host of this fleet."),
        (["web:&db"], "limit: 'web,&db' leaves no host of this fleet."),
        ([""], "limit: '' has an empty pattern. That usually means an unset variable."),
        ([",", " "], "limit: ',' has an empty pattern."),
        (["", "!web1"], "limit: '' has an empty pattern."),
        ([":!web1"], "limit: ':!web1' has an empty pattern."),
        (["web1,"], "limit: 'web1,' has an empty pattern."),
        (["!"], "limit: '' fits no host"),
    ],
)
def test_a_pattern_that_selects_no_host_is_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        select(*patterns)

    assert caught.value.code == "unknown_limit"
    assert caught.value.message.startswith(message)


def test_a_host_comes_before_a_role_with_its_name() -> None:
    assert select_hosts(["web"], {"web": "web", "web2": "web"}, {}) == {"web"}


def test_a_name_with_colons_is_no_list() -> None:
    assert select_hosts(["fe80::1"], {"fe80::1": "web", "fe80::2": "web"}, {}) == {"fe80::1"}


NAME = st.sampled_from(
    [
        *MEMBERS,
        "web",
        "db",
        "all",
        "web*",
        "*1",
        "web[0]",
        "web[0:1]",
        "web[1-]",
        "web[-2:]",
        "web[12]",
        "web[-9]",
        "~web1",
        "~.*2",
        "eu",
        "e*",
        "*b*",
        "~e|web2",
    ]
)
# A group of the inventory that is no role.
EU = ["web1", "db2"]
PATTERN = st.builds(str.__add__, st.sampled_from(["", "", "!", "&"]), NAME)


@given(st.lists(PATTERN, min_size=1, max_size=4), st.sampled_from([",", ":"]))
def test_ansible_selects_the_same_hosts(patterns: list[str], separator: str) -> None:
    inventory = InventoryManager(DataLoader(), sources=None)
    for host, role in MEMBERS.items():
        inventory.add_group(role if role != host else "caches")
        inventory.add_host(host, role if role != host else "caches")
    inventory.add_group("eu")
    for host in EU:
        inventory.add_host(host, "eu")
    inventory.reconcile_inventory()
    text = separator.join(patterns)
    try:
        theirs = {host.name for host in inventory.get_hosts(text)}
    except AnsibleError:
        theirs = set()
    try:
        named = with_inventory_groups([text], inventory.get_groups_dict(), MEMBERS)
        ours = select_hosts(named, MEMBERS, {})
    except UpgradeError:
        # Ansible only warns of what fits nothing.
        assert len(theirs) < len(MEMBERS)
        return
    assert ours == theirs


def test_groups_of_the_inventory_are_known_by_their_hosts() -> None:
    groups = {"eu": ["web1", "fe80::1", "gone"], "web": ["web1"], "us": ["gone"], "all": ["web1"]}
    members = {**MEMBERS, "fe80::1": "web"}

    def named(*patterns: str) -> list[str]:
        return with_inventory_groups(patterns, groups, members)

    assert named("web,&eu") == [r"web,&~(eu$|web1$|fe80[:][:]1$)"]
    assert select_hosts(named("web,&eu"), members, {}) == {"web1", "fe80::1"}
    assert select_hosts(named("web:!eu"), members, {}) == {"web2", "web10"}
    # A group of the rules with the same name counts too.
    assert select_hosts(named("!eu"), members, {"db": "eu"}) == {
        "web2",
        "web10",
        *(h for h, r in MEMBERS.items() if r not in ("web", "db")),
    }
    assert select_hosts(named("~(?i)EU|db"), members, {}) == {
        "web1",
        "fe80::1",
        *(h for h, r in MEMBERS.items() if r == "db"),
    }
    assert named("web1", "web", "all", "fe80::1", "x") == ["web1", "web", "all", "fe80::1", "x"]
    with pytest.raises(UpgradeError, match="limit: 'us' fits no host, role or group of this fleet"):
        select_hosts(named("web,us"), members, {})


@pytest.mark.parametrize(
    ("patterns", "roles"),
    [
        (["web"], {"web"}),
        (["data"], {"db", "cache"}),
        (["w*"], {"web"}),
        (["~web|db"], {"web", "db"}),
        (["all"], {"web", "db"}),
        (["!db"], {"web"}),
        # Hosts that are all of their role are no role.
        (["web1,web2,web10"], set()),
        (["web[0:9]"], set()),
        (["db1:db2"], set()),
        # A host hides the role of the same name.
        (["cache"], set()),
        (["web:!web1"], set()),
        (["web:&web1"], set()),
        (["all:&data"], {"db"}),
    ],
)
def test_a_role_is_selected_by_its_name_alone(patterns: list[str], roles: set[str]) -> None:
    assert select_roles(patterns, MEMBERS, GROUPS) - {"cache"} == roles - {"cache"}


def test_the_pattern_of_a_host_excludes_no_other_one_and_is_read_back_for_a_sentence() -> None:
    members = {"web1": "web", "web10": "web", "fe80:1": "web", "web1.a": "web", "web1-a": "web"}
    for host in members:
        assert select_hosts([pattern_without(host)], members, {}) == members.keys() - {host}
        assert excluded_by(pattern_without(host)) == host
    assert excluded_by("!web*") == "web*"
