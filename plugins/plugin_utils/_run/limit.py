# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse hosts that leave a play with nothing to do, as Ansible would skip it and exit with 0."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import did_you_mean, listing
from ...module_utils._common.sanitize import as_option, sanitize
from .next_step import COMMAND, UPGRADES

# These playbooks run on the nodes themselves, so a limit selects nodes.
_ON_NODES = ("enroll.yml", "node.yml")
# Playbook -> the variable that selects hosts.
_HOST_VARIABLES = {
    **dict.fromkeys(UPGRADES, "upgrade_limit"),
    COMMAND: "only",
    **dict.fromkeys(("hold", "unhold", "retry", "forget", "status"), "host"),
}
# Those of them that refuse names outside the fleet.
_OF_FLEET = ("upgrade_limit", "only")
# They begin a pattern that leaves hosts out.
_SIGNS = ("!", "&")


def honours_limit(playbook: str) -> bool:
    """Return whether a playbook runs on the nodes themselves, so that ``--limit`` selects nodes."""
    return Path(playbook).name in _ON_NODES


def refuse_no_nodes(playbook: str, pattern: str, limit: str) -> None:
    """Raise an error for a playbook that runs on nodes, and has none.

    :param playbook: its file.
    :param pattern: the hosts that it asks for.
    :param limit: the limit, empty for none.
    :raises UpgradeError: ``no_hosts``. ``variables`` in its details has the variable to set instead.
    """
    asked = f"'{sanitize(pattern)}'" + (f" and --limit {sanitize(limit)}" if limit else "")
    raise UpgradeError(
        "no_hosts",
        f"No host of the inventory matches {asked}, so {Path(playbook).name} would do nothing. "
        "Name hosts or groups of the inventory, or give another inventory with -i.",
        variables={"upgrade_nodes": "NAME"},
    )


def refuse_planner_hosts(playbook: str, pattern: str, found: Sequence[str], known: Sequence[str]) -> None:
    """Raise an error unless a playbook runs on one host: on none it would do nothing and succeed.

    :param playbook: its file.
    :param pattern: the host that it asks for.
    :param found: the hosts of the inventory that match it.
    :param known: all hosts of the inventory.
    :raises UpgradeError: ``no_hosts``. ``variables`` in its details has the variable to set.
    """
    if len(found) == 1:
        return
    name = Path(playbook).name
    if found:
        why = f"'{sanitize(pattern)}' is {listing(list(found), 5)}, and {name} runs on one host."
    else:
        meant = did_you_mean(pattern, known) or "."
        why = f"No host of the inventory matches '{sanitize(pattern)}', so {name} would do nothing{meant}"
    raise UpgradeError(
        "no_hosts",
        f"{why} Nothing was done: name one host of the inventory with -e upgrade_planner_host=NAME, or leave it out for localhost.",
        variables={"upgrade_planner_host": "NAME"},
    )


def refuse_limit(
    playbook: str,
    name: str,
    limit: str,
    left_out: Sequence[str],
    named: Sequence[str],
    given: Mapping[str, Collection[str]],
    fleet: Collection[str] | None = None,
) -> None:
    """Raise an error if a limit leaves out hosts of a play.

    :param playbook: the file that the command names.
    :param name: the name of the collection's playbook that it is or imports, such as ``upgrade``.
    :param left_out: the hosts of the play that the limit leaves out.
    :param named: the hosts of the inventory that it keeps, without the planner host.
    :param given: its patterns, without the name of the planner host -> the hosts of the inventory that each fits.
    :param fleet: the hosts in roles of ``upgrade_roles``; None if they are not known here.
    :raises UpgradeError: ``limited``. ``variables`` in its details has the variables to set instead.
    """
    if not left_out:
        return
    variable = _HOST_VARIABLES.get(name)
    variables = {variable: ",".join(named)} if variable and named and (name != "status" or len(named) == 1) else {}
    outside: Sequence[str] = ()
    if variable == "upgrade_limit" and variables and not any(one.lstrip("!&").startswith("@") for one in given):
        # It takes the same patterns. A group of the inventory may have hosts outside the fleet, which can't be named.
        kept, outside = _patterns_of_fleet(given, fleet)
        variables = {variable: ",".join(kept) or "NAME"}
    elif variable in _OF_FLEET and variables and fleet is not None:
        outside = [host for host in named if host not in fleet]
        variables = {variable: ",".join(host for host in named if host in fleet) or "NAME"}
    instead = f" and name hosts with {as_option(variables)}" if variables else ""
    verb, them, they = ("is", "it", "it has") if len(outside) == 1 else ("are", "them", "they have")
    more = (
        f" {listing(list(outside), 5)} {verb} in no role of upgrade_roles, so {variable} refuses {them} unless {they} reported to Consul."
        if outside
        else ""
    )
    raise UpgradeError(
        "limited",
        f"--limit {sanitize(limit)} leaves out {listing(list(left_out), 5)}, where {Path(playbook).name} may have to run, so Ansible would skip its tasks. "
        f"Nothing was done: leave --limit out{instead}.{more}",
        left_out=list(left_out),
        variables=variables,
    )


def _patterns_of_fleet(
    given: Mapping[str, Collection[str]], fleet: Collection[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the patterns that fit a host of the fleet, and the hosts of the others. No pattern is left if the others left none or all hosts."""
    if fleet is None:
        return [*given], ()
    # Of a pattern that fits no host of the inventory, nothing is known.
    others = {one: hosts for one, hosts in given.items() if hosts and not any(host in fleet for host in hosts)}
    outside = [*dict.fromkeys(host for hosts in others.values() for host in hosts)]
    kept = [one for one in given if one not in others]
    selects = [one for one in given if one[:1] not in _SIGNS]
    if any(one.startswith("&") for one in others) or (selects and not any(one in kept for one in selects)):
        return (), outside
    return kept, outside
