# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse misspelled extra variables, which Ansible would ignore (``-e instruction_file=rules.yml``), and empty names (``-e host=$HOST``)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import did_you_mean, listing
from ...module_utils._common.sanitize import sanitize, truncated_repr
from ...module_utils._rules.instructions import KEYS
from .next_step import COMMAND, OF_NEW_JOB, UPGRADES

# Lists variables of the operator's own services that look like one of these.
OWN = "upgrade_own_variables"
# The variables of the playbooks that operators set.
VARIABLES = frozenset(
    (
        "allow_unknown",
        "args",
        "by",
        "everything",
        "expires",
        "follow",
        "force",
        "host",
        "instructions",
        "instructions_file",
        "job",
        "maintenance",
        "metrics_file",
        "once",
        "only",
        "page",
        "reason",
        "remove_legacy",
        "replace",
        "report_folder",
        "restart",
        "retry_failed",
        "role",
        "rollback_order",
        "run",
        "run_tasks",
        "sign_with",
        "stage",
        "strict",
        "upgrade_composition",
        "upgrade_consul",
        "upgrade_consul_ca_path",
        "upgrade_consul_client_cert",
        "upgrade_consul_client_key",
        "upgrade_consul_datacenter",
        "upgrade_consul_host",
        "upgrade_consul_kv_prefix",
        "upgrade_consul_pass_limit",
        "upgrade_consul_port",
        "upgrade_consul_scheme",
        "upgrade_consul_timeout",
        "upgrade_consul_token",
        "upgrade_consul_validate_certs",
        "upgrade_events",
        "upgrade_fact_subset",
        "upgrade_folder",
        "upgrade_gather_subset",
        "upgrade_goes_last",
        "upgrade_has_facts",
        "upgrade_instructions_file",
        "upgrade_limit",
        "upgrade_may_stop_timeout",
        "upgrade_nodes",
        "upgrade_notify",
        "upgrade_notify_file",
        "upgrade_notify_timeout",
        "upgrade_own_variables",
        "upgrade_planner_host",
        "upgrade_provider_versions",
        "upgrade_puppet_disabled",
        "upgrade_roles",
        "upgrade_roles_path",
        "upgrade_version_from",
        "upgrade_wait_timeout",
        "version",
        "wait",
        "wait_for_other",
    )
)
_PREFIX = "upgrade_"
# The options of this role all begin with its name. No variable of another role does.
_GATE_ROLE = "puppet_gate"
# What others call these.
_ALIASES = {"rules": "instructions", "rules_file": "instructions_file"}
# A name that is less similar is probably one of the operator's own variables.
_SIMILARITY = 0.85
# Variables that playbooks for the whole fleet would ignore -> the variable to set instead, empty for none.
_IGNORED = {"host": "upgrade_limit", "role": "upgrade_limit", "stage": ""}
# The same for convoy.upgrade.command.
_IGNORED_BY_COMMAND = {"host": "only", "role": "only", "upgrade_limit": "only", "version": ""}
# The same for commands on the fleet. A retry of one role must not retry all hosts.
_IGNORED_BY_RETRY = dict.fromkeys(("role", "upgrade_limit", "only", "stage"), "host")
_IGNORED_BY_ALL = {"host": "", "role": "", "upgrade_limit": "", "only": ""}
_IGNORED_BY_ENROLL = dict.fromkeys(("host", "role", "upgrade_limit", "only"), "upgrade_nodes")
_IGNORED_BY = {
    **dict.fromkeys(UPGRADES, _IGNORED),
    COMMAND: _IGNORED_BY_COMMAND,
    "retry": _IGNORED_BY_RETRY,
    "enroll": _IGNORED_BY_ENROLL,
    **dict.fromkeys(("pause", "resume", "abort", "global_disable"), _IGNORED_BY_ALL),
}
# What these do without the variable that names hosts, if that is not what others do.
_WOULD = {"retry": "retry all failed and lost hosts", "enroll": "enroll all hosts that --limit leaves"}
# What names hosts in the variables that playbooks have instead.
_NAMED_BY = {"host": "hosts", "upgrade_nodes": "hosts or groups of the inventory"}
# These act on all hosts at once, so the same command without the variable may be more than was meant. What stops some hosts only.
_ON_ALL = ("pause", "resume", "abort", "global_disable")
_STOPS_SOME = "To stop some hosts only, run ansible-playbook convoy.upgrade.hold with -e host=NAME or -e role=NAME"
# Variables that only these playbooks have -> the playbooks, and what others would do.
_ONLY_IN = {
    "job": (
        (COMMAND, "status", "report"),
        "would apply to whatever is under way. Nothing was done: look at it with ansible-playbook convoy.upgrade.status, then leave job out",
    ),
    "wait_for_other": (
        (COMMAND, "upgrade", "controlplane", "dataplane", "role"),
        "would not wait. Nothing was done: leave wait_for_other out",
    ),
}
# Variables of rollouts to a version that convoy.upgrade.command would ignore -> what it would do, and what to do instead.
_NOT_OF_JOBS = {
    "retry_failed": "would retry no host. Nothing was done: run ansible-playbook convoy.upgrade.retry, then the same command without it",
    "restart": "would begin no job again. Nothing was done: leave it out, which begins a new job",
}
# Short names are no hint that a similar one is a typo, but in the playbook that has them.
_SHORT = frozenset(("args", "job", "only", "run", "run_tasks"))
_SHORT_SIMILARITY = 0.74
# Variables that are true or false.
_BOOLEANS = (
    "allow_unknown",
    "everything",
    "follow",
    "force",
    "once",
    "remove_legacy",
    "restart",
    "retry_failed",
    "strict",
    "wait",
    "wait_for_other",
)
# Variables that name something. An empty one must not mean everything.
_NAMES = (
    "host",
    "role",
    "stage",
    "page",
    "maintenance",
    "only",
    "run",
    "job",
    "sign_with",
    "run_tasks",
    "upgrade_planner_host",
)


def refuse_unknown_variables(playbook: str, given: Mapping[str, Any]) -> None:
    """Raise an error for extra variables that a playbook would ignore, although they look like variables of a playbook.

    :param playbook: the playbook's name, such as ``upgrade``.
    :param given: the extra variables as Ansible reads them.
    :raises UpgradeError: ``unknown_variable``. ``renamed`` in its details has the names to use instead, and ``next`` the playbook
        whose command follows, empty for the same one.
    """
    marked = own_variables(given)
    for name in given:
        if name in marked:
            continue
        if name in _IGNORED_BY.get(playbook, {}) and name != playbook:
            raise _ignored(playbook, name, given)
        playbooks, consequence = _ONLY_IN.get(name, ((playbook,), ""))
        if playbook == COMMAND and name in _NOT_OF_JOBS:
            playbooks, consequence = (), _NOT_OF_JOBS[name]
        if playbook not in playbooks:
            raise UpgradeError(
                "unknown_variable",
                f"-e {name}: {playbook}.yml has no such variable, and {consequence}.",
                name=name,
                renamed={name: ""},
            )
        if name in KEYS and name not in VARIABLES and playbook in (*UPGRADES, COMMAND):
            raise _part_of_rules(name)
        if "gate_" in name:
            _refuse_unknown_option(name)
        meant = "" if name in VARIABLES else _nearest(name, VARIABLES - _SHORT)
        if playbook == COMMAND and name not in VARIABLES and not meant:
            meant = next(
                iter(difflib.get_close_matches(name.lower(), sorted(_SHORT), n=1, cutoff=_SHORT_SIMILARITY)), ""
            )
        if meant:
            raise UpgradeError(
                "unknown_variable",
                f"-e {sanitize(name)}: there is no such variable, and Ansible would ignore it; did you mean '{meant}'? Nothing was done. "
                f"If it is a variable of your own, mark it with -e {OWN}={sanitize(name)}.",
                name=name,
                renamed={name: meant},
            )


def _part_of_rules(name: str) -> UpgradeError:
    """Return the error for a key of the rules that is given as a variable, so that its rule would not apply."""
    return UpgradeError(
        "unknown_variable",
        f"-e {name}: no playbook reads this variable. It is a key of the rules: put it beside the other rules, in the variable instructions or the file "
        f"of instructions_file. Nothing was done. If it is a variable of your own, mark it with -e {OWN}={name}.",
        name=name,
        renamed={name: ""},
    )


def _refuse_unknown_option(name: str) -> None:
    """Raise an error for a misspelled option of the role of nodes, which Ansible would ignore."""
    folder = Path(__file__).parents[3] / "roles" / _GATE_ROLE
    specs, fixed = (
        yaml.safe_load((folder / file).read_text(encoding="utf-8"))
        for file in ("meta/argument_specs.yml", "vars/main.yml")
    )
    options = {one for entry in specs["argument_specs"].values() for one in entry["options"]}
    meant = next(iter(difflib.get_close_matches(name, sorted(options), n=1, cutoff=_SIMILARITY)), "")
    if name in options or name in fixed or not (meant or name.startswith(_GATE_ROLE)):
        return
    raise UpgradeError(
        "unknown_variable",
        f"-e {sanitize(name)}: there is no such variable, and Ansible would ignore it{did_you_mean(name, [meant] if meant else options) or '.'} "
        f"ansible-doc -t role convoy.upgrade.{_GATE_ROLE} shows all. Nothing was done. If it is a variable of your own, mark it with "
        f"-e {OWN}={sanitize(name)}.",
        name=name,
        renamed={name: meant},
    )


def _ignored(playbook: str, name: str, given: Mapping[str, Any]) -> UpgradeError:
    """Return the error for a variable that would not select hosts, although it looks so."""
    instead = _IGNORED_BY[playbook][name]
    text = f"-e {name}: {playbook}.yml has no such variable, and would"
    if instead in given:
        return UpgradeError(
            "unknown_variable", f"{text} ignore it. Nothing was done: leave {name} out.", name=name, renamed={name: ""}
        )
    what = _NAMED_BY.get(instead, "hosts, roles or groups")
    do = f"name {what} with -e {instead}=NAME" if instead else f"leave {name} out"
    more = f" {_STOPS_SOME}." if playbook in _ON_ALL and playbook != "resume" else ""
    # If a role or a pattern is no group of the inventory, Ansible enrolls no host, and succeeds.
    is_named_again = instead == "upgrade_nodes" and name != "host"
    return UpgradeError(
        "unknown_variable",
        f"{text} {_WOULD.get(playbook, 'apply to all of its hosts')}. Nothing was done: {do}.{more}",
        name=name,
        variables={instead: "NAME"} if is_named_again else {},
        renamed={name: "" if is_named_again else instead},
        # The status has the names, and what is under way.
        next="status" if playbook in ("retry", *_ON_ALL) else "",
    )


def refuse_empty_names(given: Mapping[str, Any]) -> None:
    """Raise an error for a name that is given and empty, usually an unset variable of the shell.

    :param given: the extra variables as Ansible reads them.
    :raises UpgradeError: ``empty_variable``. ``variables`` in its details has the name with a value to replace.
    """
    for name in _NAMES:
        if name in given and not str(given[name] or "").replace(",", " ").strip():
            raise UpgradeError(
                "empty_variable",
                f"{name} is empty, which usually means an unset variable. Nothing was done: give a name, or leave {name} out.",
                variables={name: "NAME"},
            )


def refuse_bad_booleans(given: Mapping[str, Any]) -> None:
    """Raise an error for a boolean variable with another value: Ansible would take ``-e wait=flase`` for false.

    :param given: the extra variables as Ansible reads them.
    :raises UpgradeError: ``bad_options``. Its details have the name with the value that is meant, or to leave out.
    """
    marked = own_variables(given)
    for name in _BOOLEANS:
        value = given.get(name, True)
        if name in marked or (isinstance(value, str) and "{{" in value):
            continue
        try:
            boolean(value)
        except TypeError:
            meant = difflib.get_close_matches(value.lower() if isinstance(value, str) else "", ("true", "false"), n=1)
            raise UpgradeError(
                "bad_options",
                f"{name}: {truncated_repr(value)} is neither true nor false. Nothing was done: give one of the two.",
                variables={name: meant[0]} if meant else {},
                renamed={} if meant else {name: ""},
            ) from None


def refuse_bad_job(playbook: str, given: Mapping[str, Any]) -> None:
    """Raise an error for arguments that are no mapping, and for variables that can't be given together.

    Those of a new job can't beside the ID of one to continue, nor can a run both wait for another one and not wait.

    :param playbook: the playbook's name, such as ``command``.
    :param given: the extra variables as Ansible reads them.
    :raises UpgradeError: ``bad_options``. Its details have the variable to correct or to leave out.
    """
    waits = boolean(given.get("wait_for_other", False), strict=False)
    for name, value in (("once", True), ("wait", False)):
        if waits and name in given and boolean(given[name], strict=False) is value:
            raise UpgradeError(
                "bad_options",
                f"wait_for_other can't be given with {name}={str(value).lower()}, which does not wait. Nothing was done: leave one of them out.",
                renamed={name: ""},
            )
    if playbook != COMMAND:
        return
    ignored = [name for name in OF_NEW_JOB if name in given] if "job" in given else []
    if ignored:
        raise UpgradeError(
            "bad_options",
            f"{listing(ignored, 10)} can't be given with job: a job that is continued keeps what it began with. Nothing was done: leave "
            f"{'it' if len(ignored) == 1 else 'them'} out, or leave job out to begin another job.",
            renamed=dict.fromkeys(ignored, ""),
        )
    args = given.get("args", {})
    if not isinstance(args, Mapping) and not (isinstance(args, str) and "{{" in args):
        raise UpgradeError(
            "bad_options",
            f"args: {truncated_repr(args)} is no mapping of names to values. Nothing was done: give one, as the next command shows.",
            variables={"args": {"NAME": "VALUE"}},
        )


def is_single_pass(given: Mapping[str, Any]) -> bool:
    """Return whether a run makes one pass and does not wait, by its extra variables; a template counts as not given."""
    return boolean(given.get("once", False), strict=False) or not boolean(given.get("wait", True), strict=False)


def own_variables(given: Mapping[str, Any]) -> set[str]:
    """Return the variables that the operator has marked as their own."""
    own = given.get(OWN, ())
    return {name.strip() for name in own.split(",")} if isinstance(own, str) else {str(name) for name in own or ()}


def _nearest(name: str, known: Iterable[str]) -> str:
    plain = name.lower().replace("-", "_")
    for meant in (plain, plain.removesuffix("s"), _ALIASES.get(plain, "")):
        if meant in known:
            return meant
    if _PREFIX + plain in known:
        return _PREFIX + plain
    if plain.removeprefix(_PREFIX) in known:
        return plain.removeprefix(_PREFIX)
    # Of a short name, two swapped letters are a large part.
    swapped = next((one for one in sorted(known) if sorted(one) == sorted(plain)), "")
    found = difflib.get_close_matches(plain, sorted(known), n=1, cutoff=_SIMILARITY)
    return swapped or (found[0] if found else "")
