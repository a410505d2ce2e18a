# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory plugin that reads the hosts of the fleet from Consul."""

from __future__ import annotations

DOCUMENTATION = r"""
name: consul_fleet
short_description: Read the hosts of a fleet from Consul
version_added: 0.1.0
author: The convoy.upgrade authors (@convoy-upgrade)
description:
  - The hosts are the nodes of Consul's catalog, and all hosts with a report or record in Consul. So a node must report under its name in the
    catalog.
  - The file name must be C(consul_fleet.yml) or end with C(.consul_fleet.yml). C(.yaml) works too.
  - Each host is in a group with the name of its role. Other groups are for its version (C(version_2_10)), state (C(state_upgraded)) and plane
    (C(plane_controlplane)). Characters that are not allowed in group names become C(_).
  - The role comes from O(roles), else from the metadata of the node (O(role_meta)), else from the host name (O(role_pattern)).
  - With O(upgrade_roles), the playbooks of this collection need no other inventory.
  - Each host has the variables C(convoy_role), C(convoy_group), C(convoy_plane), C(convoy_state), C(convoy_version), C(convoy_reason) (why it is in
    its state), C(convoy_gate) (V(open), V(closed) or V(unreadable)), C(convoy_gate_key) (the key that applies), C(convoy_hold) (who holds it and why),
    C(convoy_registered) (whether it is in the catalog), C(convoy_datacenter), C(convoy_meta) (the metadata of its node) and C(convoy_health)
    (V(passing) or V(critical), as Consul's agents see each other). Unknown values are null.
  - It takes three requests for any number of hosts. With a token, there is one more for each empty folder of keys, because Consul hides keys
    that the token may not read.
extends_documentation_fragment:
  - convoy.upgrade.consul
  - convoy.upgrade.consul.plugin
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description:
      - Marks the file as one for this plugin.
    type: str
    required: true
    choices: [convoy.upgrade.consul_fleet]
  roles:
    description:
      - Maps hosts to their roles. It overrides the roles in Consul. A host listed here is in the inventory even if Consul does not have it.
    type: dict
    default: {}
  role_meta:
    description:
      - Key in the metadata of a node that has its role. Empty for none.
    type: str
    default: role
  role_pattern:
    description:
      - Regular expression whose first group is the role. It is applied to the host name.
      - The default is the pattern in the ledger, else V(([a-z]+\)(\\d+\)(-.*\)?).
    type: str
  upgrade_roles:
    description:
      - Maps each role of the fleet to a dictionary with its C(plane) (V(controlplane) or V(dataplane)) and its C(services).
      - The plugin also sets it as the variable C(upgrade_roles), which the playbooks use. Without it, there are no groups for planes, and every
        role belongs to the fleet.
      - A node with any other role that never reported does not belong to the fleet. So a Consul server C(consul1) is no host of a role
        C(consul).
    type: dict
    default: {}
  unplaced:
    description:
      - What to do with nodes of the catalog that never reported and have no role, or none of O(upgrade_roles). Consul servers are such nodes.
      - V(ignore) leaves them out and lists them with C(-v). V(group) adds them only to the group C(unplaced). V(fail) refuses the inventory.
      - A host that reported is never left out. If it has no role, that is an error, except with V(group).
    type: str
    choices: [ignore, group, fail]
    default: ignore
  address:
    description:
      - Which address of the node becomes C(ansible_host).
      - V(lan) and V(wan) are the tagged addresses of the node. A node without them has only one address. With V(name), C(ansible_host) is not set,
        and Ansible connects to the host name.
    type: str
    choices: [lan, wan, name]
    default: lan
  version_prefix:
    description:
      - Prefix of groups for versions. Empty for no such groups.
    type: str
    default: version_
  state_prefix:
    description:
      - Prefix of groups for states. Empty for no such groups.
    type: str
    default: state_
  plane_prefix:
    description:
      - Prefix of groups for planes. Empty for no such groups.
    type: str
    default: plane_
notes:
  - If Ansible can't read an inventory, it continues without it. The playbooks then use all reported hosts as the fleet. To stop instead, set
    C(any_unparsed_is_failed = true) in C(ansible.cfg), section C([inventory]), or E(ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=true).
  - Connection options in the file are also set as variables (O(host) as C(upgrade_consul_host), and so on), so the playbooks use the same
    Consul. O(token) is not, because Ansible shows inventory variables. Give it to the playbooks with E(CONSUL_HTTP_TOKEN).
  - Variables set these options only with C(-e), and only if the file does not have the option.
  - Connection options that are text may be templates, so that O(token) can be in another file. If the YAML of the inventory file is invalid, Ansible
    itself shows lines of it.
  - Commands such as C(ansible-inventory) use a cache, and their states are as old as that. A playbook acts on what it reads, so it always reads
    Consul, and writes the cache. The cache is also written when the file changes what it requests from Consul. It does not contain the token.
  - Values from Consul are never evaluated as templates.
seealso:
  - module: convoy.upgrade.consul_upgrade_info
"""

EXAMPLES = r"""
# fleet.consul_fleet.yml: host names contain the role (compute7). Consul is at CONSUL_HTTP_ADDR.
# ansible-playbook convoy.upgrade.upgrade -i fleet.consul_fleet.yml -e version=2.10
plugin: convoy.upgrade.consul_fleet
upgrade_roles:
  controller: {plane: controlplane}
  compute: {plane: dataplane}
---
# The metadata of nodes has the role (node_meta in the configuration of their agents).
plugin: convoy.upgrade.consul_fleet
host: consul.example.com
scheme: https
port: 8501
ca_path: /etc/ssl/certs/consul.pem
token: "{{ lookup('ansible.builtin.file', '/etc/consul.d/fleet.token') }}"
role_meta: openstack_role
role_pattern: '^[^-]+-([a-z]+)'      # for nodes without metadata: cloud1-compute-7 is a compute
roles:
  gateway.example.com: network       # for this host only
upgrade_roles:
  controller: {plane: controlplane}
  network: {plane: controlplane}
  compute: {plane: dataplane}
unplaced: fail
---
# Read Consul at most every ten minutes, except in playbooks, and add groups from variables of the hosts.
plugin: convoy.upgrade.consul_fleet
address: wan
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/fleet
cache_timeout: 600
compose:
  ansible_user: "'root' if convoy_role == 'controller' else 'admin'"
groups:
  away: convoy_health != 'passing'
  to_do: convoy_state not in ['upgraded', 'held']
keyed_groups:
  - key: convoy_meta.rack | default('unknown')
    prefix: rack
strict: true
"""

import json
import os
from collections.abc import Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.inventory.group import to_safe_group_name
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import did_you_mean, listing
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import may_be_template
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states.state_names import STATES
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.inventory import (
    FleetSurvey,
    InventoryOptions,
    survey_fleet,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.inventory_roles import plane_order
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.planes import PLANES

UNPLACED = "unplaced"

# The options that are set as variables upgrade_consul_<option> for the playbooks. The token is not one of them.
_CONNECTION = (
    "host",
    "port",
    "scheme",
    "validate_certs",
    "ca_path",
    "client_cert",
    "client_key",
    "datacenter",
    "timeout",
    "pass_limit",
    "kv_prefix",
)


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """The inventory plugin."""

    NAME = "convoy.upgrade.consul_fleet"

    def verify_file(self, path: str) -> bool:
        """Return whether the name of a file marks it as one for this plugin."""
        name = Path(path).name
        fits = any(name == f"consul_fleet{end}" or name.endswith(f".consul_fleet{end}") for end in (".yml", ".yaml"))
        return fits and bool(super().verify_file(path))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Fill the inventory."""
        super().parse(inventory, loader, path, cache)
        self._refuse_odd_token(loader, path)
        config = self._read_config_data(path)
        try:
            self._refuse_unknown(config)
            upgrade_roles = _plain(self.get_option("upgrade_roles") or {})
            requested = self._requested(upgrade_roles)
            found = self._find(read_settings(self._connection, os.environ), requested, path, cache)
            for warning in found.warnings:
                self.display.warning(f"consul_fleet: {warning}")
            if found.left_out:
                self.display.v(
                    f"consul_fleet: left out, as they are not part of the fleet: {listing(found.left_out, 20)}"
                )
            self._add(_not_a_template(found.hosts), upgrade_roles)
            self._set_shared(config)
        except UpgradeError as error:
            # Without the cause, or ansible-core 2.19 and later show the message twice.
            raise AnsibleParserError(f"consul_fleet: {error.as_text()}") from None

    @staticmethod
    def _refuse_odd_token(loader: Any, path: str) -> None:
        # Ansible would show a value that it can't convert to text.
        config = loader.load_from_file(path, cache="none")
        if isinstance(config, Mapping) and isinstance(config.get("token"), (Mapping, list)):
            raise AnsibleParserError(
                "consul_fleet: token: it is no text but a list or a mapping, and not shown here. Put it in quotes."
            )

    def _refuse_unknown(self, config: Mapping[str, Any]) -> None:
        for name in config:
            if not self.has_option(name):
                raise UpgradeError(
                    "unknown_option",
                    f"{name}: there is no such option{did_you_mean(str(name), self.get_options()) or '.'}",
                )

    def _requested(self, upgrade_roles: Mapping[str, Any]) -> InventoryOptions:
        # Called to check the roles.
        plane_order(upgrade_roles)
        return InventoryOptions(
            roles=_plain(self.get_option("roles") or {}),
            role_meta=str(self.get_option("role_meta") or ""),
            role_pattern=str(self.get_option("role_pattern") or "") or None,
            planes={role: (what or {}).get("plane") for role, what in upgrade_roles.items()} or None,
            unplaced=str(self.get_option("unplaced")),
            address=str(self.get_option("address")),
        )

    def _find(self, settings: Settings, requested: InventoryOptions, path: str, cache: bool) -> FleetSurvey:
        """Return the hosts in Consul, or those in the cache."""
        if not self.get_option("cache"):
            return survey_fleet(Store(settings), requested)
        key = self.get_cache_key(path)
        asked = _plain({"url": settings.url, "datacenter": settings.datacenter, "kv_prefix": settings.kv_prefix})
        asked |= _plain(asdict(requested))
        # Of all commands, only ansible-playbook has this option. An upgrade with an old fleet would leave out new hosts and wait for forgotten ones.
        is_playbook = "start_at_task" in context.CLIARGS
        known = self._cache.get(key) if cache and not is_playbook else None
        if isinstance(known, Mapping) and known.get("asked") == asked:
            return FleetSurvey(**known["found"])
        found = survey_fleet(Store(settings), requested)
        self._cache[key] = {"asked": asked, "found": asdict(found)}
        return found

    def _connection(self, option: str) -> Any:
        """Return an option of the connection. Text may be a template, such as for a token in another file."""
        value = self.get_option(option)
        if not isinstance(value, str):
            return value
        try:
            return self.templar.template(value)
        except AnsibleError as error:
            # Without the cause, because Ansible would also show the lines around it, which may have the token.
            raise UpgradeError("bad_connection", f"{option}: its template can't be evaluated: {error}") from None

    def _set_shared(self, config: Mapping[str, Any]) -> None:
        """Set variables for the playbooks."""
        if self.get_option("upgrade_roles"):
            self.inventory.set_variable("all", "upgrade_roles", self.get_option("upgrade_roles"))
        for option in _CONNECTION:
            if config.get(option) is not None:
                self.inventory.set_variable("all", f"upgrade_consul_{option}", self._connection(option))

    def _add(self, hosts: Mapping[str, dict[str, Any]], upgrade_roles: Mapping[str, Any]) -> None:
        planes = self._plane_groups(upgrade_roles)
        groups = {host: self._groups_of(facts) for host, facts in hosts.items()}
        # Groups of roles, states and planes also exist without hosts, so that a play can use them.
        names = {self._prefixed("state", state) for state in STATES} | {*planes, *upgrade_roles}
        names = (names | {name for found in groups.values() for name in found}) - {""}
        _refuse_duplicates(names, hosts)
        for name in sorted(names):
            self.inventory.add_group(name)
        for plane, roles in planes.items():
            for role in roles:
                self.inventory.add_child(plane, role)
        strict = self.get_option("strict")
        for host, facts in hosts.items():
            for group in groups[host]:
                self.inventory.add_host(host, group=group)
            variables = {f"convoy_{name}": value for name, value in facts.items() if name != "address"}
            if facts["address"]:
                variables["ansible_host"] = facts["address"]
            for name, value in variables.items():
                self.inventory.set_variable(host, name, value)
            variables["inventory_hostname"] = host
            self._set_composite_vars(self.get_option("compose"), variables, host, strict)
            self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict)
            self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict)

    def _plane_groups(self, upgrade_roles: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return group of a plane -> the roles in it."""
        found: dict[str, list[str]] = {}
        if upgrade_roles and self.get_option("plane_prefix"):
            found = {self._prefixed("plane", plane): [] for plane in PLANES}
        for role, what in upgrade_roles.items():
            if _role_group(role) != role:
                raise UpgradeError(
                    "bad_upgrade_roles",
                    f"upgrade_roles.{role}: Ansible is set to call the group {_role_group(role)!r} (force_valid_group_names), "
                    "and the playbooks look for one that is called like the role. Set that to ignore, or rename the role.",
                )
            plane = self._prefixed("plane", (what or {}).get("plane"))
            if plane:
                found[plane].append(role)
        return found

    def _groups_of(self, facts: Mapping[str, Any]) -> list[str]:
        groups = [
            _role_group(facts["role"]) if facts["role"] else UNPLACED,
            self._prefixed("version", facts["version"]),
            self._prefixed("state", facts["state"]),
        ]
        return [group for group in groups if group]

    def _prefixed(self, kind: str, name: str | None) -> str:
        """Return the name of a group, empty for none."""
        prefix = self.get_option(f"{kind}_prefix")
        return str(to_safe_group_name(f"{prefix}{name}", force=True, silent=True)) if prefix and name else ""


def _refuse_duplicates(groups: Set[str], hosts: Mapping[str, Any]) -> None:
    duplicates = sorted(groups & hosts.keys())
    if duplicates:
        raise UpgradeError(
            "bad_name",
            f"{duplicates[0]!r} is the name of a host and of a group, and Ansible would give the variables of one to the other. "
            "Give the host or its role another name, or the groups another prefix.",
        )


def _role_group(role: str) -> str:
    # The playbooks find a role by the name of its group, so the name is changed only if Ansible would change it anyway.
    group: str = to_safe_group_name(role)
    if group in ("all", "ungrouped"):
        raise UpgradeError("bad_name", f"No role can be called {role!r}, because Ansible has a group of that name.")
    return group


def _not_a_template(found: Any) -> Any:
    """Return data in which texts that ansible-core 2.17 and 2.18 could evaluate as a template are marked as unsafe.

    Later releases evaluate no text of a plugin, and ansible-inventory would show the marks.
    """
    if isinstance(found, dict):
        return {_not_a_template(key): _not_a_template(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_not_a_template(value) for value in found]
    return wrap_var(found) if isinstance(found, str) and may_be_template(found) else found


def _plain(found: Any) -> Any:
    """Return data without the tags that Ansible adds to it."""
    return json.loads(json.dumps(found, default=str))
