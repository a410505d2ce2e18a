# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources that an operator has put into Consul for a version."""

from __future__ import annotations

from .._common.errors import UpgradeError
from .._common.names import check_version
from .._state.store import Store


def read_sources(store: Store, version: str) -> dict[str, str]:
    """Return name -> content of the package sources of a version: one request.

    :raises UpgradeError: ``bad_name``, ``no_sources``, ``bad_sources``, and what :meth:`ConsulClient.read` raises.
    """
    check_version(version, "version")
    folder = store.keys.sources(version)
    found = {}
    # Some tools keep a key for the folder itself.
    for entry in store.client.read([folder]):
        if entry.key == folder:
            continue
        try:
            found[entry.key[len(folder) :]] = entry.value.decode("utf-8")
        except UnicodeDecodeError:
            raise UpgradeError("bad_sources", f"{entry.key} is not UTF-8 text. Correct or remove it.") from None
    if not found:
        raise UpgradeError(
            "no_sources",
            f"Consul has no package sources of {version} in {folder}, or the token may not read them. Put them there: consul kv put "
            f"{folder}fleet.list @fleet.list. For a token, repeat the task with consul_upgrade_acl.",
            key=folder,
        )
    return found
