# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``--limit`` where a playbook needs hosts that it leaves out: Ansible would pass the play over and exit with 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing
from ...module_utils._common.sanitize import sanitize
from .extra_vars import as_option

# These run on the nodes that they are for, so a limit is the way to name some.
_OF_NODES = ("enroll.yml", "node.yml")
# By which variable a playbook is given hosts.
_BY_VARIABLE = {
    **dict.fromkeys(("upgrade.yml", "controlplane.yml", "dataplane.yml", "role.yml", "rollback.yml"), "upgrade_limit"),
    **dict.fromkeys(("hold.yml", "unhold.yml", "retry.yml", "forget.yml", "status.yml"), "host"),
}


def honours_limit(playbook: str) -> bool:
    """Return whether a playbook runs on the hosts that it is for."""
    return Path(playbook).name in _OF_NODES


def refuse_limit(playbook: str, limit: str, left_out: Sequence[str], named: Sequence[str]) -> None:
    """Refuse a limit that takes hosts out of a play that can't do without them.

    :param playbook: the file that the command names.
    :param left_out: hosts of the play that the limit leaves out.
    :param named: hosts of the inventory that it does not.
    :raises UpgradeError: ``limited``; its details have the ``variables`` to give instead.
    """
    if not left_out:
        return
    name = Path(playbook).name
    variable = _BY_VARIABLE.get(name)
    variables = {variable: ",".join(named)} if variable and named and (name != "status.yml" or len(named) == 1) else {}
    instead = f" and name hosts with {as_option(variables)}" if variables else ""
    raise UpgradeError(
        "limited",
        f"--limit {sanitize(limit)} leaves out {listing(list(left_out), 5)}, where {name} has to run, so Ansible would skip its tasks. "
        f"Nothing is done: leave --limit out{instead}.",
        left_out=list(left_out),
        variables=variables,
    )
