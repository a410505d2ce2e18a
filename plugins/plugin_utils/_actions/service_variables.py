# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of services: for a pull host, as an inventory of its own; and in ``upgrade_roles``, where they are the same for all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleUndefinedVariable
from jinja2 import Environment, TemplateSyntaxError, nodes

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._common.sanitize import may_be_template

# Variables of the collection that the tasks of all services use.
_COMMON = ("upgrade_gather_subset", "upgrade_may_stop_timeout", "upgrade_provider_versions", "upgrade_version_from")
# Variables that only an upgrade has.
_OF_UPGRADE = frozenset(
    (
        "upgrade_version",
        "upgrade_version_before",
        "upgrade_providers",
        "upgrade_prepared",
        "upgrade_composed",
        "upgrade_tasks_folder",
        "upgrade_order_suffix",
        "upgrade_checkpoints",
    )
)
# The variable with the name of the host, by which an agent run knows that it has the variables of its host.
HOST = "upgrade_variables_of"
# Variables of Ansible about other hosts, which have no variable of an upgrade.
_LARGE = ("hostvars", "groups", "vars", "ansible_facts")
# Variables of Ansible that are none of the inventory's, and that the host has itself.
_OWN_OF_HOST = frozenset(
    ("inventory_hostname", "inventory_hostname_short", "omit", "environment", "role_name", "role_path")
)
# What means something else on the host, where the inventory and the files of the control node are not.
_ONLY_HERE = frozenset(
    (
        *_LARGE[:3],
        *("group_names", "inventory_dir", "inventory_file", "playbook_dir", "lookup", "query", "q"),
    )
)
# Options of the agent, which begin like the variables of a service named puppet.
_NOT = "puppet_gate_"


# Variables of Ansible that are other ones on each host, as are those that begin with "ansible_" and do not belong to the run.
_OF_EACH_HOST = frozenset(("inventory_hostname", "inventory_hostname_short", "group_names"))
_OF_RUN = frozenset(
    f"ansible_{name}"
    for name in (
        *(
            "version",
            "playbook_python",
            "config_file",
            "inventory_sources",
            "check_mode",
            "diff_mode",
            "forks",
            "limit",
        ),
        *("run_tags", "skip_tags", "verbosity"),
    )
)


class _Unsafe(str):
    """Text that is no template, although it looks like one."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes inventories."""


_Dumper.add_representer(_Unsafe, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text)))


def inventory_of(
    host: str, folder: Path, services: Mapping[str, str], task_vars: Mapping[str, Any], templar: Any
) -> str:
    """Return an inventory with one host and the variables of its services.

    Templates are resolved, except for those that use variables of an upgrade, such as ``upgrade_version``, and those with an undefined variable. A
    service's variables are those that begin with the name of its role or of its use, that its defaults have, or that it documents. What
    unresolved templates use is added.

    :param host: its name in Consul.
    :param folder: the composed services of a role.
    :param services: name of the use -> name of the Ansible role.
    :param task_vars: the variables of a host, as Ansible gives them to an action.
    :param templar: Ansible's templar, with the same variables.
    :raises UpgradeError: ``bad_variable``, for a template that can't be resolved on the host.
    """
    shorts = {role.rpartition(".")[2] for role in services.values()} | services.keys()
    prefixes = tuple(f"{name.replace('-', '_')}_" for name in shorts)
    documented = {one for name in services for one in _documented(folder / name)}
    left = [
        name
        for name in sorted(task_vars)
        if name in _COMMON or name in documented or (name.startswith(prefixes) and not name.startswith(_NOT))
    ]
    found: dict[str, Any] = {}
    while left:
        variable = left.pop()
        if variable in found:
            continue
        value, uses = _resolved(variable, task_vars, templar)
        found[_plain(variable, str)] = value
        left += [one for one in uses if one in task_vars and _is_of_inventory(one)]
    name = _plain(host, str)
    return yaml.dump(
        {"all": {"hosts": {name: {HOST: name, **dict(sorted(found.items()))}}}},
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
    )


def refuse_templates_of_hosts(task_vars: Mapping[str, Any]) -> None:
    """Refuse templates in ``upgrade_roles`` that use variables of each host. They are resolved once, on the planner host.

    :param task_vars: the variables of the planner host, as Ansible gives them to an action.
    :raises UpgradeError: ``bad_upgrade_roles``.
    """
    for where, text in _texts(task_vars.get("upgrade_roles"), "upgrade_roles"):
        uses = _used_names(text, task_vars)
        found = [one for one in uses if one in _OF_EACH_HOST or (one.startswith("ansible_") and one not in _OF_RUN)]
        if found:
            host = task_vars.get("inventory_hostname")
            raise UpgradeError(
                "bad_upgrade_roles",
                f"{where}: its template uses {listing(sorted(found), 3)}, but upgrade_roles is resolved once, on {host}, so all hosts would get what "
                f"{host} has. Remove it here, and set it as a variable of the hosts in the inventory: each host resolves that for itself.",
            )


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield each text in a value after the path that leads to it."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, f"{where}.{key}")
    elif isinstance(value, str):
        yield where, value
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _texts(one, f"{where}[{number}]")


def _documented(service: Path) -> Iterable[str]:
    """Return the variables in a service's defaults, and the options of its argument specs."""
    defaults = _read(service / "defaults/main.yml")
    yield from defaults
    for spec in (_read(service / "meta/argument_specs.yml").get("argument_specs") or {}).values():
        yield from (spec or {}).get("options") or {}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_of_inventory(name: str) -> bool:
    ours = name in _OF_UPGRADE or name in _LARGE or name in _ONLY_HERE or name in _OWN_OF_HOST
    return not (ours or name.startswith("ansible_"))


def _resolved(name: str, task_vars: Mapping[str, Any], templar: Any) -> tuple[Any, frozenset[str]]:
    """Return the value of a variable with its templates resolved, or as it is if they need what only an upgrade has.

    :returns: the value, and the names that it needs on the host.
    :raises UpgradeError: ``bad_variable``.
    """
    value = task_vars[name]
    uses = _used_names(value, task_vars)
    # A template may have a default for what is undefined now.
    if _OF_UPGRADE & uses:
        if only_here := sorted(_ONLY_HERE & uses):
            raise UpgradeError(
                "bad_variable",
                f"{name}: its template uses {listing(sorted(_OF_UPGRADE & uses), 2)}, so the host itself resolves it in the upgrade, and there "
                f"{listing(only_here, 3)} would mean something else. Nothing was delivered. Keep what comes from {only_here[0]} in a variable of its "
                "own whose name begins with that of the service, and use both in the tasks.",
            )
        return _plain(value, str), uses
    try:
        return _plain(templar.template(value), _Unsafe), frozenset()
    except AnsibleUndefinedVariable:
        return _plain(value, str), uses


def _used_names(value: Any, task_vars: Mapping[str, Any]) -> frozenset[str]:
    """Return the variables that the templates in a value use, also through other variables."""
    found: set[str] = set()
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, str):
            new = _names_in(one) - found
            found |= new
            left += [task_vars[name] for name in new if name in task_vars and name not in _LARGE]
        elif isinstance(one, (list, tuple, set)):
            left += one
    return frozenset(found)


def _names_in(text: str) -> set[str]:
    if "{{" not in text and "{%" not in text:
        return set()
    try:
        return {one.name for one in Environment(autoescape=True).parse(text).find_all(nodes.Name)}
    except TemplateSyntaxError:
        # Ansible says more about it.
        return set()


def _plain(value: Any, text: type[str]) -> Any:
    """Return a value without Ansible's own types.

    :param text: the type for texts that look like templates.
    """
    if isinstance(value, Mapping):
        return {_plain(key, str): _plain(one, text) for key, one in value.items()}
    if isinstance(value, str):
        # Ansible's texts have types of their own, which this removes.
        plain = value.encode().decode()
        return text(plain) if may_be_template(plain) else plain
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    return [_plain(one, text) for one in value] if isinstance(value, Iterable) else str(value)
