# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables that a pull host gets for its services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleUndefinedVariable
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.service_variables import (
    inventory_of,
    refuse_templates_of_hosts,
)

SERVICES = {"redis": "convoy.upgrade.redis", "shop-eu": "shop"}
VARIABLES = {
    "redis_password": "{{ vault_redis }}",
    "shop_ports": [80, {"tls": True}],
    "shop_eu_url": "http://{{ upgrade_version }}",
    "limit_of_shop": 1.5,
    "own": None,
    "puppet_gate_role": "cache",
    "other": "x",
    "upgrade_version_from": "1",
}


class Templar:
    """Resolves what an enrollment knows."""

    def template(self, value: Any) -> Any:
        if isinstance(value, str) and "upgrade_version" in value:
            raise AnsibleUndefinedVariable("upgrade_version is undefined")
        return "a{{b" if value == "{{ vault_redis }}" else value


def test_a_host_gets_the_variables_of_its_services_and_no_others(tmp_path: Path) -> None:
    for file, text in (
        ("defaults/main.yml", "limit_of_shop: 1\n"),
        ("meta/argument_specs.yml", "argument_specs: {main: {options: {own: {}}}}\n"),
    ):
        (tmp_path / "shop-eu" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop-eu" / file).write_text(text)
    text = inventory_of("cache1", tmp_path, SERVICES, VARIABLES, Templar())
    # What looks like a template and is none is marked, so that it is not resolved again.
    assert "redis_password: !unsafe 'a{{b'\n" in text
    assert yaml.safe_load(text.replace("!unsafe ", "")) == {
        "all": {
            "hosts": {
                "cache1": {
                    "upgrade_variables_of": "cache1",
                    "redis_password": "a{{b",
                    "shop_ports": [80, {"tls": True}],
                    "shop_eu_url": "http://{{ upgrade_version }}",
                    "limit_of_shop": 1.5,
                    "own": None,
                    "upgrade_version_from": "1",
                }
            }
        }
    }


def test_a_service_named_puppet_gets_no_options_of_the_agent(tmp_path: Path) -> None:
    variables = {"puppet_kind": "apply", "puppet_gate_role": "cache"}
    found = yaml.safe_load(inventory_of("cache1", tmp_path, {"puppet": "convoy.upgrade.puppet"}, variables, Templar()))
    assert found["all"]["hosts"]["cache1"] == {"upgrade_variables_of": "cache1", "puppet_kind": "apply"}


@pytest.mark.parametrize(
    "value",
    [
        "{{ upgrade_version | default('none') }}",
        {"of": ["{% if upgrade_version_before is defined %}old{% endif %}"]},
        "{{ own_url }}",
        ["{{ other | default(own_url) }}"],
    ],
)
def test_what_an_upgrade_may_change_is_not_resolved_before_it(value: Any, tmp_path: Path) -> None:
    class Eager:
        def template(self, value: Any) -> Any:
            raise AssertionError(f"{value} is resolved too early")

    variables = {
        "shop_url": value,
        "own_url": "http://{{ upgrade_version | default('any') }}",
        "other": "{{ shop_url }}",
    }
    text = inventory_of("cache1", tmp_path, {"shop": "shop"}, variables, Eager())
    assert yaml.safe_load(text)["all"]["hosts"]["cache1"]["shop_url"] == value


def test_a_template_that_is_wrong_is_left_to_ansible(tmp_path: Path) -> None:
    text = inventory_of("cache1", tmp_path, {"shop": "shop"}, {"shop_url": "{{ broken"}, Templar())
    assert yaml.safe_load(text.replace("!unsafe ", ""))["all"]["hosts"]["cache1"]["shop_url"] == "{{ broken"


def test_what_an_unresolved_template_uses_is_delivered_too(tmp_path: Path) -> None:
    class Resolving:
        def template(self, value: Any) -> Any:
            return value.replace("{{ region }}", "eu")

    variables = {
        "shop_url": "{{ base }}/{{ inventory_hostname }}/{{ upgrade_version }}",
        "base": "https://{{ mirror }}/{{ upgrade_version }}",
        "mirror": "{{ region }}.example.com",
        "region": "eu",
        "inventory_hostname": "cache1",
        "ansible_host": "192.0.2.7",
        "other": "x",
    }
    text = inventory_of("cache1", tmp_path, {"shop": "shop"}, variables, Resolving())
    assert yaml.safe_load(text)["all"]["hosts"]["cache1"] == {
        "upgrade_variables_of": "cache1",
        "shop_url": variables["shop_url"],
        "base": variables["base"],
        "mirror": "eu.example.com",
        "region": "eu",
    }


@pytest.mark.parametrize("name", ["inventory_dir", "hostvars", "groups", "lookup"])
def test_a_template_that_only_the_controller_can_resolve_is_refused(name: str, tmp_path: Path) -> None:
    variables = {"shop_file": f"{{{{ {name} }}}}/{{{{ upgrade_version }}}}", "groups": {}, "hostvars": {}}
    with pytest.raises(UpgradeError, match=f"shop_file: .* {name} would mean something else") as caught:
        inventory_of("cache1", tmp_path, {"shop": "shop"}, variables, Templar())
    assert caught.value.code == "bad_variable"


def refused(value: Any, **variables: Any) -> str:
    services = ["web", {"service": "shop", "vars": {"shop_name": value}}]
    given = {"inventory_hostname": "planner1", "upgrade_roles": {"web": {"services": services}}, **variables}
    try:
        refuse_templates_of_hosts(given)
    except UpgradeError as error:
        assert error.code == "bad_upgrade_roles"
        return error.message
    return ""


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("shop of {{ inventory_hostname }}", "inventory_hostname"),
        ("{{ hostvars[inventory_hostname].shop }}", "inventory_hostname"),
        ("{% if 'eu' in group_names %}eu{% endif %}", "group_names"),
        ("{{ ansible_host }}", "ansible_host"),
        ("{{ ansible_facts.fqdn ~ inventory_hostname_short }}", "ansible_facts, inventory_hostname_short"),
        ("{{ own_name }}", "inventory_hostname"),
    ],
)
def test_a_template_in_upgrade_roles_that_differs_between_hosts_is_refused(value: str, found: str) -> None:
    for given, where in ((value, "shop_name"), ({"of": [value]}, "shop_name.of[0]")):
        assert refused(given, own_name="shop of {{ inventory_hostname }}") == (
            f"upgrade_roles.web.services[1].vars.{where}: its template uses {found}, but upgrade_roles is resolved once, on planner1, so all hosts "
            "would get what planner1 has. Remove it here, and set it as a variable of the hosts in the inventory: each host resolves that for itself."
        )


@pytest.mark.parametrize(
    "value",
    ["inventory_hostname", "{{ region }}", "{{ inventory_dir }}/{{ ansible_version.full }}", "{{ broken", 5, None],
)
def test_a_template_in_upgrade_roles_that_is_the_same_on_all_hosts_is_kept(value: Any) -> None:
    assert refused(value, region="eu") == ""


def test_upgrade_roles_as_a_whole_may_be_a_template() -> None:
    assert refused("", upgrade_roles="{{ own_roles }}", own_roles={"web": {}}) == ""
    assert refused("", upgrade_roles="{{ own_roles }}", own_roles={"web": {"plane": "{{ ansible_host }}"}}).startswith(
        "upgrade_roles: its template uses ansible_host, "
    )
    refuse_templates_of_hosts({})
